# What can be done here. `just` alone lists it.

set shell := ["bash", "-euo", "pipefail", "-c"]

_list:
    @just --list --unsorted

# Watch a lease expire on a real API server
quickstart *args:
    cargo run --example quickstart -- {{ args }}

# All that must hold before a change goes in
ci:
    bash .ci/run

# Format the code
fmt:
    cargo fmt --all

# Look for what clippy minds
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Run the tests, or those whose names contain a text
test *args:
    cargo test --workspace {{ args }}

# Build the documentation, without warnings
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace

# Check licences, sources, duplicates and advisories of all dependencies
deny:
    cargo deny check

# Generate the custom resource definitions from the code
crds:
    cargo run --quiet -- crd leases > crds/leases.lessor.dev.yaml
    cargo run --quiet -- crd lessors > crds/lessors.lessor.dev.yaml

# Write the files that follow from others: the chart's definitions and table of values, the plain YAML
generate: crds
    LESSOR_GENERATE=1 cargo test --test chart generated

# Measure the lessor beside etcd's
bench-lessor:
    bash benches/lessor.sh

# What can be done here. `just` alone lists it.

set shell := ["bash", "-euo", "pipefail", "-c"]

_list:
    @just --list --unsorted

# Watch a lease expire on a real API server
quickstart *args:
    cargo run --example quickstart -- {{ args }}

# Draw the quickstart's output anew: docs/pictures/quickstart.svg
pictures:
    output=$(cargo run --quiet --example quickstart) && scripts/draw-quickstart <<<"$output" > docs/pictures/quickstart.svg

# All that must hold before a change goes in
ci:
    bash .ci/run

# Format the code
fmt:
    cargo fmt --all

# Look for what clippy minds
lint:
    cargo clippy --workspace --all-targets --all-features -- -D warnings

# Run the tests, or those whose names contain a text
test *args:
    cargo test --workspace {{ args }}

# Judge all clients on a real server with faults, or those of the adapters that are named: clients/conformance
conformance *args: _conformance
    target/debug/lessor-conformance {{ args }}

# Break a client in one place after another, and see that the conformance suite finds it
conformance-mutants only="": _conformance
    MUTATION_ONLY={{ only }} cargo test --package lessor-conformance --test mutants -- --ignored --nocapture

# Let workers in three languages contend for one mutex while everything breaks; --minutes 1 --workers 6 for less
conformance-mutex *args: _conformance
    target/debug/conformance-mutex {{ args }}

# Measure 1,000 keep-alives in one process of each client; --leases 100 --seconds 20 for less
conformance-cost *args:
    cargo build --quiet --release --bins --package lessor --package kubectl-lease --package lessor-conformance
    target/release/conformance-cost {{ args }}

_conformance:
    cargo build --quiet --bins --package lessor --package kubectl-lease --package lessor-conformance

# Run the clients in other languages against a real server; needs curl, jq, Python and Go
clients:
    cargo test --test kubectl_lease -- --test-threads 1 --include-ignored languages python

# Check and test the Python client, without a cluster
python-client *args:
    scripts/check-python-client {{ args }}

# Check the Go client: format, vet, staticcheck, tests with the race detector, generated code
go-client:
    scripts/check-go-client

# Run the Go client's tests on a real server
go-client-cluster:
    cargo test --test kubectl_lease -- --ignored the_go_client

# Generate the Go client's clientset, listers, informers and apply configurations from its types
go-generate:
    scripts/generate-go-client

# Record a session of kubectl lease anew: docs/recording.txt
recording:
    cargo test --test kubectl_lease -- --ignored the_recording_is_made

# Build the image as the Dockerfile says, without a container engine, and look into it; needs root on Debian
image *platforms:
    bash tests/image.sh {{ platforms }}

# Let a collector get traces, which needs a build with the feature otel
traces:
    cargo test --features otel --test traces

# Build the documentation, without warnings
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace --all-features

# Check licences, sources, duplicates and advisories of all dependencies
deny:
    cargo deny --workspace check

# Generate the custom resource definitions from the code
crds:
    cargo run --quiet -- crd leases > crds/leases.lessor.dev.yaml
    cargo run --quiet -- crd lessors > crds/lessors.lessor.dev.yaml

# Write the files that follow from others: the chart's definitions and table of values, the plain YAML
generate: crds
    LESSOR_GENERATE=1 cargo test --test chart generated

# Measure the lessor beside etcd's
bench-lessor:
    bash crates/lease-engine/benches/run.sh

# Measure what the operator costs where most of 100,000 objects aren't attached
bench-attachments *args:
    cargo bench --bench attachments -- {{ args }}

# Measure what leases cost by their number: requests, lateness, memory, start and takeover
bench-cluster *args:
    cargo bench --bench cluster -- {{ args }}

# Measure the same of the program that the image has, linked with musl; needs clang and musl-dev
bench-cluster-image *args:
    #!/usr/bin/env bash
    set -euo pipefail
    arch=$(uname -m)
    target=$arch-unknown-linux-musl
    rustup target add "$target"
    export TARGET_CC=clang "CARGO_TARGET_${arch^^}_UNKNOWN_LINUX_MUSL_LINKER=rust-lld"
    TARGET_CFLAGS="-isystem /usr/include/$arch-linux-musl" \
        cargo build --release --locked --package lessor --bin lessor --target "$target"
    LESSOR_PROGRAM=$PWD/target/$target/release/lessor cargo bench --bench cluster -- {{ args }}

# Measure what one replica makes of 100,000 leases, beside kube's own reflector; --sizes 0,10000 for less
bench-memory *args:
    cargo bench --bench memory -- {{ args }}

# Measure leases that follow heartbeats beside as many that are renewed by hand; --leases 1000 --seconds 30 for less
bench-follow *args:
    cargo bench --bench follow -- {{ args }}

# Let three whole operators live in simulated worlds: SEEDS is a count, or a range like 1000..2000
simulate seeds="200":
    SEEDS={{ seeds }} cargo test --test simulation no_promise -- --nocapture

# The same in worlds that were never drawn before; what fails prints how to repeat it
simulate-fresh count="200":
    first=$(($(date +%s) * 1000)); echo "worlds $first to $((first + {{ count }} - 1))"; \
    SEEDS=$first..$((first + {{ count }})) cargo test --test simulation no_promise -- --nocapture

# Explore ten million states of the model, with two faults in each run
model states="2700000" faults="2":
    MODEL_STATES={{ states }} MODEL_FAULTS={{ faults }} cargo test -p lessor-model no_run -- --nocapture

# Break the code in one place after another, and see which test finds it; a part of a name tries only those
mutants name="":
    bash tests/mutants/run.sh {{ quote(name) }}

# Make sure that each of these changes still fits the code, without a build
mutants-check:
    bash tests/mutants/run.sh --check

# Three replicas on a real API server, leases that come and go, and something that breaks every few seconds
soak minutes="10":
    SOAK_MINUTES={{ minutes }} cargo test --test replicas -- --ignored soak

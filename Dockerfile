# The image of the operator: one static binary and nothing else.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag REGISTRY/lessor:0.1.0 --push .
#
# With traces (OTLP): --build-arg FEATURES=otel. `just image` builds and checks it.

# The compiler runs on the machine that builds, whatever it builds for: emulated, it would take an hour.
FROM --platform=$BUILDPLATFORM rust:1.95.0-slim-bookworm AS build
# For ring's C and assembly: one compiler for all platforms. musl itself, and a linker, come with Rust.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends clang musl-dev \
    && rm -rf /var/lib/apt/lists/*
# The image's own toolchain, whatever components rust-toolchain.toml wants for development.
ENV RUSTUP_TOOLCHAIN=1.95.0 \
    TARGET_CC=clang \
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
WORKDIR /source
COPY . .
ARG TARGETARCH
ARG FEATURES=""
# The caches of cargo and of the compiler outlive this build, so that dependencies are compiled once. Our own code is
# compiled each time: cargo compares times, and a copied file may be older than the cached build of another version of it.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,sharing=locked \
    case "$TARGETARCH" in \
        amd64) target=x86_64-unknown-linux-musl ;; \
        arm64) target=aarch64-unknown-linux-musl ;; \
        *) echo "there is no image for the platform $TARGETARCH" >&2; exit 1 ;; \
    esac \
    && rustup target add "$target" \
    && find src crates -name '*.rs' -exec touch {} + \
    && export TARGET_CFLAGS="-isystem /usr/include/$(uname -m)-linux-musl" \
    && cargo build --release --locked --package lessor --bin lessor --features "$FEATURES" --target "$target" \
    && install -D "target/$target/release/lessor" /image/usr/bin/lessor

FROM scratch
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="lessor" \
      org.opencontainers.image.description="etcd's leases for Kubernetes: things that vanish when their holder stops renewing" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/ /
# An unprivileged user. A number, so that the kubelet can check that it isn't root.
USER 65532:65532
ENTRYPOINT ["/usr/bin/lessor"]
CMD ["run"]

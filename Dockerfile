# The image of the operator: one static binary and nothing else.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag REGISTRY/lessor:0.1.0 --push .

# Alpine's compiler links statically against musl by default; each platform builds natively.
FROM rust:1.95.0-alpine AS build
RUN apk add --no-cache musl-dev
WORKDIR /source
# The image's own toolchain, whatever components rust-toolchain.toml wants for development.
ENV RUSTUP_TOOLCHAIN=1.95.0
COPY . .
# The caches of cargo and of the compiler outlive this build, so that only what has changed is compiled anew.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,sharing=locked \
    cargo build --release --locked --package lessor --bin lessor \
    && install -D target/release/lessor /image/usr/bin/lessor

FROM scratch
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="lessor" \
      org.opencontainers.image.description="etcd's leases for Kubernetes: things that vanish when their holder stops renewing" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/ /
# Nobody in particular. A number, so that Kubernetes can see that it isn't root.
USER 65532:65532
ENTRYPOINT ["/usr/bin/lessor"]
CMD ["run"]

#!/usr/bin/env bash
# Builds the image as the Dockerfile says, for each platform, and checks what is in it. Needs root on Debian, and no
# container engine: `just image`, or `just image amd64`.
#
# Where the base image can't be pulled, the script prints that, and builds a Debian with this machine's Rust under the name of
# the base image. The Dockerfile and the image are the same either way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
platforms=("${@:-amd64}")
(($#)) || platforms=(amd64 arm64)
work="${LESSOR_IMAGE_DIR:-$(mktemp -d)}"
[[ -n "${LESSOR_IMAGE_DIR:-}" ]] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
limit=$((20 * 1000 * 1000))

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
b() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

say "tools"
missing=()
for tool in buildah debootstrap file; do
  command -v "$tool" || missing+=("$tool")
done
if ((${#missing[@]})); then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

base=$(sed -n 's/^FROM .* \([^ ]*\) AS build$/\1/p' Dockerfile)
say "base image $base"
stand_in() {
  say "STAND-IN: $base can't be pulled; a Debian with this machine's Rust takes its name here"
  local suite=${base##*-} root="$work/base" toolchain
  toolchain=$(rustc --print sysroot)
  [[ -d "$root/usr/local/cargo" ]] || {
    debootstrap --variant=minbase --include=gcc,libc6-dev,ca-certificates "$suite" "$root"
    mkdir -p "$root/usr/local/rustup/toolchains" "$root/usr/local/cargo/bin"
    # Under the name by which rustup knows this version.
    local here host
    host=$(rustc --version --verbose | sed -n 's/^host: //p')
    here="$root/usr/local/rustup/toolchains/$(rustc --version | cut -d' ' -f2)-$host"
    mkdir "$here"
    tar -C "$toolchain" --exclude=share --dereference -cf - . | tar -C "$here" -xf -
    for tool in rustup cargo rustc rustdoc; do
      cp -L "$(command -v rustup)" "$root/usr/local/cargo/bin/$tool"
    done
    # How this machine reaches its package registries.
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    cp -RL /etc/apt/sources.list* "$root/etc/apt/" 2>/dev/null || true
  }
  local container
  container=$(b from scratch)
  b add "$container" "$root" / > "$work/base.log"
  b config --env RUSTUP_HOME=/usr/local/rustup --env CARGO_HOME=/usr/local/cargo \
    --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  b commit --rm "$container" "localhost/$base" > "$work/base.log"
}
if b inspect --type image "localhost/$base" > "$work/base.log" 2>&1; then
  echo "already here"
elif timeout 60 buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs pull "$base" \
  > "$work/pull.log" 2>&1; then
  echo "pulled"
else
  stand_in
fi

for platform in "${platforms[@]}"; do
  say "build for linux/$platform"
  image="localhost/lessor-check:$platform"
  # Debian's buildah takes the platform that it builds for, unless told, for the one that it builds on.
  b build --isolation chroot --pull-never --build-arg "BUILDPLATFORM=linux/$(dpkg --print-architecture)" \
    --platform "linux/$platform" --tag "$image" .

  say "what is in it"
  container=$(b from --pull-never --platform "linux/$platform" "$image")
  root=$(b mount "$container")
  files=$(cd "$root" && find . -type f -o -type l | sort)
  [[ "$files" == "./usr/bin/lessor" ]] || fail "more than the binary is in the image: $files"
  echo "nothing but /usr/bin/lessor: no shell, no library"
  binary="$root/usr/bin/lessor"
  kind=$(file --brief "$binary")
  echo "$kind"
  [[ "$kind" == *static* ]] || fail "the binary isn't static"
  case "$platform" in
    amd64) [[ "$kind" == *x86-64* ]] || fail "the binary is for another machine" ;;
    arm64) [[ "$kind" == *aarch64* ]] || fail "the binary is for another machine" ;;
  esac
  size=$(du --summarize --bytes "$root" | cut -f1)
  printf 'size: %s bytes\n' "$size"
  ((size < limit)) || fail "the image has $size bytes, more than $limit"

  of() { b inspect --type image --format "$1" "$image"; }
  [[ $(of '{{.OCIv1.Architecture}}') == "$platform" ]] || fail "the image is labelled for another platform"
  [[ $(of '{{.OCIv1.Config.User}}') == 65532:65532 ]] || fail "the user isn't a number"
  [[ $(of '{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}') == '[/usr/bin/lessor] [run]' ]] || fail "it runs something else"
  for label in title description version licenses; do
    value=$(of "{{index .OCIv1.Config.Labels \"org.opencontainers.image.$label\"}}")
    [[ -n "$value" ]] || fail "there is no label $label"
    printf '%s: %s\n' "$label" "$value"
  done

  say "it runs as an unprivileged user, with no other file"
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
  if [[ "$platform" == "$(dpkg --print-architecture)" ]]; then
    said=$(chroot --userspec=65532:65532 "$root" /usr/bin/lessor version)
  elif command -v "qemu-aarch64-static" > /dev/null; then
    said=$(qemu-aarch64-static "$binary" version)
  else
    said=""
    echo "NOT RUN: there is no machine for linux/$platform here, nor qemu-user-static"
  fi
  [[ -z "$said" || "$said" == "lessor $version" ]] || fail "unexpected version: $said"
  echo "$said"
  b umount "$container" > /dev/null
  b rm "$container" > /dev/null
done

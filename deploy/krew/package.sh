#!/usr/bin/env bash
# Packs kubectl-lease for krew: an archive for each platform, and the manifest that lists them.
#
#   package.sh VERSION HOMEPAGE DOWNLOADS BINARIES OUT
#
# BINARIES is a directory with files called kubectl-lease-OS-ARCH, like kubectl-lease-linux-amd64; DOWNLOADS is the address
# under which the archives will be found. OUT gets the archives and lease.yaml.
set -euo pipefail
[[ $# == 5 ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
version=$1 homepage=$2 downloads=${3%/} binaries=$4 out=$5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out"
manifest=$out/lease.yaml
sed -e '/^#/d' -e "s|@VERSION@|$version|; s|@HOMEPAGE@|$homepage|" "$here/lease.yaml.in" > "$manifest"

found=0
for binary in "$binaries"/kubectl-lease-*-*; do
  [[ -f $binary ]] || continue
  platform=${binary##*/kubectl-lease-}
  os=${platform%%-*} arch=${platform#*-}
  archive=kubectl-lease_${version}_${os}_${arch}.tar.gz
  work=$(mktemp -d)
  install -m 755 "$binary" "$work/kubectl-lease"
  cp "$here/../../LICENSE" "$work/"
  # The same bytes from the same files, on any machine and at any time.
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work" -c kubectl-lease LICENSE | gzip -n > "$out/$archive"
  rm -r "$work"
  cat >> "$manifest" <<YAML
    - selector:
        matchLabels:
          os: $os
          arch: $arch
      uri: $downloads/$archive
      sha256: $(sha256sum "$out/$archive" | cut -d' ' -f1)
      bin: kubectl-lease
YAML
  found=$((found + 1))
done
((found > 0)) || { echo "no kubectl-lease-OS-ARCH in $binaries" >&2; exit 1; }
echo "$found archives and lease.yaml in $out" >&2

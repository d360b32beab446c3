#!/bin/sh
# Measures the engine beside etcd's lessor, and prints one table. Needs Go for etcd's; the first run fetches its module.
# `benches/run.sh queues` compares structures that can hold deadlines,
# `benches/run.sh criterion` measures each operation of the engine by itself.
set -eu
cd "$(dirname "$0")/.."
case "${1:-}" in
    '') exec cargo bench --bench vs_etcd ;;
    queues) exec cargo bench --features bench --bench queues ;;
    criterion) exec cargo bench --bench engine ;;
    *) echo "usage: benches/run.sh [queues|criterion]" >&2; exit 2 ;;
esac

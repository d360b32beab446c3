#!/bin/sh
# Measures our lessor beside etcd's, and prints one table. Needs Go for etcd's side; the first run fetches its module.
# `benches/run.sh queues` compares the structures that deadlines can be kept in instead, `benches/run.sh criterion` runs ours alone.
set -eu
cd "$(dirname "$0")/.."
case "${1:-}" in
    '') exec cargo bench --bench vs_etcd ;;
    queues) exec cargo bench --features bench --bench queues ;;
    criterion) exec cargo bench --features queue --bench engine ;;
    *) echo "usage: benches/run.sh [queues|criterion]" >&2; exit 2 ;;
esac

#!/bin/sh
# Measures our lessor beside etcd's, and prints one table. Needs Go for etcd's side; the first run fetches its module.
# `benches/lessor.sh queues` compares the structures that deadlines can be kept in instead, `benches/lessor.sh criterion` runs ours alone.
set -eu
cd "$(dirname "$0")/.."
case "${1:-}" in
    '') exec cargo bench --bench lessor_vs_etcd ;;
    queues) exec cargo bench --bench lessor_queues ;;
    criterion) exec cargo bench --bench lessor ;;
    *) echo "usage: benches/lessor.sh [queues|criterion]" >&2; exit 2 ;;
esac

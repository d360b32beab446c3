#!/usr/bin/env bash
# Plays the session that docs/recording.txt shows, on whatever cluster kubectl reaches: `just recording`.
set -euo pipefail
play() {
  printf '$ %s\n' "$1"
  bash -c "$1" 2>&1
  echo
}
play 'kubectl create configmap endpoints --from-literal=motd=welcome --from-literal=web-1=10.0.0.17:8080'
play 'kubectl lease grant web-1 --ttl 6s --holder web-1 --attach configmap/endpoints:web-1'
play 'kubectl lease list'
play 'kubectl lease tree web-1'
play 'timeout --signal=INT --preserve-status 5 kubectl lease keep-alive web-1'
play 'sleep 7; kubectl get configmap endpoints -o jsonpath={.data}; echo'
play 'kubectl lease run backup --ttl 15s -- sh -c '\''echo "backing up, with fencing token $LEASE_FENCING_TOKEN"; sleep 6'\'

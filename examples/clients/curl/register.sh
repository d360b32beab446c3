#!/usr/bin/env bash
# A service that registers itself under a lease, with nothing but bash, curl and jq.
#
#   ./register.sh web-1 10.0.0.17:8080
#
# In a pod it needs no settings. Elsewhere: APISERVER, CACERT (a file), TOKEN and NAMESPACE. The exit code is 4 if
# the lease is lost.
set -euo pipefail
name=${1:?a name, like web-1} address=${2:?an address, like 10.0.0.17:8080} ttl=${TTL:-15} map=endpoints
account=/var/run/secrets/kubernetes.io/serviceaccount
server=${APISERVER:-https://kubernetes.default.svc} ca=${CACERT:-$account/ca.crt}
namespace=${NAMESPACE:-$(<$account/namespace)} token=${TOKEN:-$(<$account/token)}
leases=$server/apis/lessor.dev/v1alpha1/namespaces/$namespace/leases
maps=$server/api/v1/namespaces/$namespace/configmaps

# call METHOD URL [BODY [TYPE]] prints the answer, and fails unless the server has done it.
call() {
  curl --silent --show-error --fail-with-body --max-time "${patience:-5}" --cacert "$ca" --request "$1" "$2" \
    --header @<(printf 'Authorization: Bearer %s' "$token") --header "Content-Type: ${4:-application/json}" \
    ${3:+--data "$3"}
}
merge=application/merge-patch+json
# Milliseconds of a clock that is never set and that counts the machine's sleep.
now() { awk '{printf "%d", $1 * 1000}' /proc/uptime; }
# Waits, and can be interrupted by a signal.
pause() { sleep "$1" & wait $! || true; }
say() { echo "$name: $*" >&2; }

# The lease. Time counts from before the request is sent.
sent=$(now)
lease=$(call POST "$leases" "$(jq -n --arg name "$name" --argjson ttl "$ttl" '{
  apiVersion: "lessor.dev/v1alpha1", kind: "Lease", metadata: {name: $name}, spec: {ttlSeconds: $ttl, holder: $name}
}')")
uid=$(jq -r .metadata.uid <<<"$lease")
stop() {
  patience=5
  # Only this lease, and none that was made under its name since.
  call DELETE "$leases/$name" "{\"preconditions\": {\"uid\": \"$uid\"}}" >/dev/null && say "revoked"
  exit 0
}
trap stop TERM INT
until granted=$(call GET "$leases/$name" | jq -e .status.grantedTTLSeconds); do pause 0.2; done
deadline=$((sent + granted * 1000))
say "granted for $granted s"

# The key and its attachment in one write; the first service makes the ConfigMap.
entry=$(jq -n --arg map "$map" --arg name "$name" --arg address "$address" \
  '{metadata: {name: $map, annotations: {("key.lessor.dev/" + $name): $name}}, data: {($name): $address}}')
call PATCH "$maps/$map" "$entry" $merge >/dev/null 2>&1 || call POST "$maps" "$entry" >/dev/null 2>&1 ||
  call PATCH "$maps/$map" "$entry" $merge >/dev/null
say "registered"

# A third of the TTL is counted from the grant or the last renewal, however long it took to get here.
next=$((sent + granted * 1000 / 3))
while true; do
  pause "$(awk -v ms=$((next - $(now))) 'BEGIN {print (ms > 0 ? ms / 1000 : 0)}')"
  sent=$(now)
  # No try lasts longer than the lease can be relied on: a tenth of the TTL less, so that whatever it stands for can be
  # stopped in time.
  left=$((deadline - granted * 100 - sent))
  patience=$(awk -v left=$left 'BEGIN {print (left > 2000 ? 2 : left < 10 ? 0.01 : left / 1000)}')
  # A new time for each try, and the uid: a request that is late renews no other lease.
  renewal="{\"metadata\": {\"uid\": \"$uid\"}, \"spec\": {\"renewTime\": \"$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ)\"}}"
  if answer=$(call PATCH "$leases/$name" "$renewal" $merge 2>/dev/null); then
    # What is granted counts, not what was asked for.
    granted=$(jq .status.grantedTTLSeconds <<<"$answer")
    deadline=$((sent + granted * 1000)) next=$((sent + granted * 1000 / 3))
    say "renewed"
    continue
  fi
  read -r code message < <(jq -r '"\(.code // 0) \(.message // "no answer")"' <<<"${answer:-"{}"}" 2>/dev/null ||
    echo "0 $answer")
  if [[ $code == 404 || $code == 422 ]]; then # gone; or "lease has ended: grant a new one"
    say "lost: $message"
    exit 4
  elif (($(now) >= deadline - granted * 100)); then
    say "lost: not renewed in time"
    exit 4
  fi
  say "can't renew, tries again: $message"
  next=$(($(now) + 200))
done

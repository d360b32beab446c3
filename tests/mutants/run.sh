#!/usr/bin/env bash
# Breaks the code in one place after another, in a copy, and prints which test finds it. Fails if something goes unnoticed.
#
#     tests/mutants/run.sh [PART OF A NAME]
#
# SEEDS says in how many simulated worlds each is tried (default 100).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

only=${1:-}
seeds=${SEEDS:-100}
export CARGO_TARGET_DIR=${MUTANTS_TARGET_DIR:-$PWD/target/mutants}
copy=$CARGO_TARGET_DIR/copy
log=$CARGO_TARGET_DIR/log
unnoticed=0

rm -rf -- "$copy"
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"

# Which of the tests fail; nothing if none does. The cheap ones first.
finds() {
  local status=0
  (cd "$copy" && cargo test --offline --lib) >"$log" 2>&1 || status=$?
  if ((status == 0)); then
    (cd "$copy" && SEEDS=$seeds cargo test --offline --test simulation) >"$log" 2>&1 || status=$?
  fi
  ((status == 0)) && return
  if grep -q '^error.*could not compile' "$log"; then
    echo 'DOES NOT COMPILE'
  else
    grep -o '^test .* FAILED$' "$log" | sed 's/^test //; s/ \.\.\. FAILED$//; s/ - should panic$//' | head -n 3 | paste -sd ' '
    grep -m 1 -o '^P[1-8] ([^)]*)' "$log" || true
  fi
}

mutant() {
  local name=$1 file=$2 old=$3 new=$4 text found
  [[ $name == *"$only"* ]] || return 0
  text=$(<"$copy/$file")
  if [[ $text != *"$old"* || ${text#*"$old"} == *"$old"* ]]; then
    printf 'STALE      %s: %s does not contain it once\n' "$name" "$file"
    unnoticed=$((unnoticed + 1))
    return 0
  fi
  printf '%s\n' "${text/"$old"/"$new"}" >"$copy/$file"
  found=$(finds | paste -sd ' ')
  printf '%s\n' "$text" >"$copy/$file"
  case $found in
    '') printf 'UNNOTICED  %s\n' "$name"; unnoticed=$((unnoticed + 1)) ;;
    *COMPILE*) printf 'BROKEN     %s: it does not compile\n' "$name"; unnoticed=$((unnoticed + 1)) ;;
    *) printf 'found      %s: by %s\n' "$name" "$found" ;;
  esac
}

source tests/mutants/list.sh
((unnoticed == 0))

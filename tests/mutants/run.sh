#!/usr/bin/env bash
# Breaks the code in one place after another, in a copy, and prints which test finds it. Fails if no test finds one.
#
#     tests/mutants/run.sh [PART OF A NAME]
#     tests/mutants/run.sh --check
#
# All changes are built into one copy, each behind a switch, so that there is one build and not one for each. SEEDS says in
# how many simulated worlds, MODEL_STATES of how many states of the model each is looked for (default 100 and 300000).
# --check builds nothing: it only makes sure that each change can still be made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

only=${1:-}
target=${MUTANTS_TARGET_DIR:-$PWD/target/mutants}
copy=$target/copy
log=$target/log
export CARGO_TARGET_DIR=$target SEEDS=${SEEDS:-100} MODEL_STATES=${MODEL_STATES:-300000}

[[ $only != --check ]] || copy=$(mktemp -d)
rm -rf -- "$copy"
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --preserve=timestamps -t "$copy"

# --- Build ---

stale=0
number=0
mutant() {
  local name=$1 file=$3 old=$4 new=$5 text
  number=$((number + 1))
  if [[ ! -f $copy/$file ]]; then
    printf 'STALE      %s: there is no %s\n' "$name" "$file"
    stale=$((stale + 1))
    return 0
  fi
  text=$(<"$copy/$file")
  if [[ $text != *"$old"* || ${text#*"$old"} == *"$old"* ]]; then
    printf 'STALE      %s: %s contains this %s, not once:\n%s\n' "$name" "$file" \
      "$([[ $text == *"$old"* ]] && echo 'several times' || echo nowhere)" "$old"
    stale=$((stale + 1))
    return 0
  fi
  new=${new//@/std::env::var(\"MUTANT\").is_ok_and(|mutant| mutant == \"$number\")}
  printf '%s\n' "${text/"$old"/"$new"}" >"$copy/$file"
}
source tests/mutants/list.sh
if [[ $only == --check ]]; then
  rm -rf -- "$copy"
fi
if ((stale > 0)); then
  printf '%s of %s changes in tests/mutants/list.sh no longer fit the code: adapt them\n' "$stale" "$number"
  exit 1
fi
printf '%s changes are in one copy\n' "$number"
[[ $only != --check ]] || exit 0

# --- Run ---

# The arguments that name the tests of each finder.
declare -A tests=([core]='-p lessor-core --lib' [engine]='-p lease-engine --all-features --lib' [writer]='-p writer-lease --all-features --lib'
  [operator]='-p lessor --lib' [command]='-p lessor --bin lessor' [model]='-p lessor-model --test promises' [simulation]='-p lessor --test simulation')
declare -A binary=()

# Builds a finder, and makes sure that it finds nothing where nothing is changed.
build() {
  # Unquoted: several arguments.
  binary[$1]=$(cd "$copy" && cargo test ${tests[$1]} --no-run --message-format json |
    sed -n '/"test":true},"features"/s/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
  printf 'built: %s\n' "$1"
  MUTANT='' finds "$1"
  [[ -z $found ]] || { printf 'the tests fail as they are: %s\n' "$found"; exit 1; }
}

# Sets `found` to the tests of a finder that fail; to nothing if none does.
finds() {
  local status=0
  [[ -n ${binary[$1]:-} ]] || build "$1"
  found=''
  case $1 in
    model) (cd "$copy/tests/model" && timeout 600 "${binary[model]}" no_run --nocapture) >"$log" 2>&1 || status=$? ;;
    simulation) (cd "$copy" && timeout 900 "${binary[simulation]}" no_promise --nocapture) >"$log" 2>&1 || status=$? ;;
    *) (cd "$copy" && timeout 600 "${binary[$1]}" "${2:-}") >"$log" 2>&1 || status=$? ;;
  esac
  ((status != 0)) || return 0
  found=$(case $1 in
    model) printf 'the model, %s' "$(grep -m 1 -o '^P[1-8][^:]*' "$log" || echo "exit code $status")" ;;
    simulation) printf 'the simulation, %s' "$(grep -m 1 -oE '^ *"?(P[1-8]|lease|a lease|late)[^:{,"]*' "$log" | sed 's/^ *"\?//' || echo "exit code $status")" ;;
    *) sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | head -n 2 | paste -sd ' ' ;;
  esac)
}

unnoticed=0
number=0
mutant() {
  local name=$1 first=$2 finder found=''
  number=$((number + 1))
  [[ $name == *"$only"* ]] || return 0
  for finder in "$first" core engine writer operator model simulation; do
    # Unquoted: the finder, and what it is told.
    MUTANT=$number finds $finder
    [[ -z $found ]] || break
  done
  if [[ -n $found ]]; then
    printf 'found      %s: by %s\n' "$name" "$found"
  else
    printf 'UNNOTICED  %s\n' "$name"
    unnoticed=$((unnoticed + 1))
  fi
}
source tests/mutants/list.sh
((unnoticed == 0))

#!/usr/bin/env bash
# Runs the suites that go over every kind of memory in a guest machine that has them all, and fails if one did not run.
#
#   scripts/guest-suite.sh [ARGUMENT]...    arguments go to the suites, such as a part of a test's name
#
# They are the same programs that `cargo test` runs here on the kinds that this machine has.
set -euo pipefail
cd "$(dirname "$0")/.."

report=$(mktemp)
trap 'rm -f "$report"' EXIT

fail() {
  echo "guest-suite: $*" >&2
  exit 1
}

# Builds the test program of this package and name, and prints its path, which Cargo says in JSON, one message a line.
built() {
  cargo test --locked --package "$1" --test "$2" --no-run --message-format=json-render-diagnostics |
    sed -n "s/.*\"name\":\"$2\".*\"executable\":\"\([^\"]*\)\".*/\1/p"
}

run_in_guest() {
  local suite
  suite=$(built "$1" "$2")
  [[ -x $suite ]] || fail "cargo built no $2"
  shift 2
  # Pages of 2 MiB for the kind memfd-hugetlb; the other kinds need no setting.
  scripts/run-in-guest.sh -r -t 600 -k hugepages=32 -e KVSHARE_ALL_KINDS=1 "$suite" "$@" | tee "$report"
  grep -q "^test result: ok\. $least" "$report" || fail "$suite ran no test"
}

# Whoever names a test may name one of a single suite.
least='[1-9]'
(($# == 0)) || least='[0-9]'

run_in_guest kvshare conformance "$@"
run_in_guest kvshare-tests every_memory_gives_the_same_text "$@"
run_in_guest kvshare-tests every_memory_is_told_apart "$@"

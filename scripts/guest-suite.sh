#!/usr/bin/env bash
# Runs the conformance suite on every kind of memory, in a guest machine that has them all, and fails if it did not run.
#
#   scripts/guest-suite.sh [ARGUMENT]...    arguments go to the suite, such as a part of a test's name
#
# It is the same program that `cargo test` runs here on the kinds that this machine has.
set -euo pipefail
cd "$(dirname "$0")/.."

report=$(mktemp)
trap 'rm -f "$report"' EXIT

# Cargo says which file it made as JSON, one message a line.
suite=$(
  cargo test --locked --package kvshare --test conformance --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"name":"conformance".*"executable":"\([^"]*\)".*/\1/p'
)
if [[ ! -x $suite ]]; then
  echo "guest-suite: cargo built no suite" >&2
  exit 1
fi

# Pages of 2 MiB for the kind memfd-hugetlb; the other kinds need no setting.
scripts/run-in-guest.sh -r -t 600 -k hugepages=32 -e KVSHARE_ALL_KINDS=1 "$suite" "$@" | tee "$report"
if ! grep -q '^test result: ok' "$report"; then
  echo "guest-suite: the suite did not run" >&2
  exit 1
fi

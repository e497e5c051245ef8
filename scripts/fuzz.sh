#!/usr/bin/env bash
# Fuzzes whatever comes from outside: scripts/fuzz.sh [SECONDS] [TARGET...], by default 30 seconds for each target.
#
# It needs Rust's nightly compiler and cargo-fuzz (cargo install cargo-fuzz). Inputs that reach new code are kept in
# fuzz/corpus, which git ignores; it begins with the small ones in fuzz/seeds. An input that fails is left in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-30}
shift $(($# > 0 ? 1 : 0))
targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(cargo +nightly fuzz list)
fi

cargo +nightly fuzz build
for target in "${targets[@]}"; do
  mkdir -p "fuzz/corpus/$target"
  # The first folder gets what is found, the second is only read.
  folders=("fuzz/corpus/$target")
  [[ -d fuzz/seeds/$target ]] && folders+=("fuzz/seeds/$target")
  printf '%s: ' "$target"
  log=$(mktemp)
  if ! cargo +nightly fuzz run "$target" "${folders[@]}" -- \
    -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 >"$log" 2>&1; then
    tail -60 "$log"
    echo "fuzzing $target failed; its input lies in fuzz/artifacts/$target" >&2
    exit 1
  fi
  sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tr '\n' ' '
  grep -o 'cov: [0-9]*' "$log" | tail -1 | sed 's/cov: \(.*\)/runs, \1 edges covered/'
  rm -f "$log"
done

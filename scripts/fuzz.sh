#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds every libFuzzer target with ASan and UBSan and runs them for SECONDS together (default 300),
# shared alike. New inputs are kept in the cache, so that later runs start where earlier ones stopped; a crash leaves its
# input there. The CPU time that this took, less on a busy machine, is added to fuzz/hours.tsv in the cache, which
# fuzz_report.sh sums up.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

total=${1:-300}
shopt -s nullglob
targets=()
for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" .cpp)"); done
((${#targets[@]} > 0)) || die "there is no tests/fuzz/*_fuzz.cpp"
scripts/build.sh fuzz "${targets[@]}"

seconds=$((total / ${#targets[@]}))
((seconds > 0)) || seconds=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
fuzz_one() {
  local target=$1 corpus log cpu TIMEFORMAT='%U %S'
  corpus=$(cache_dir)/fuzz/$target
  mkdir -p "$corpus"
  log=build-fuzz/$target.log
  if ! cpu=$({ time "build-fuzz/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$corpus-crash-" "$corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1; } 2>&1); then
    tail -n 40 "$log" >&2
    say "$target: FAILED, see $log"
    return 1
  fi
  local inputs seconds_used
  seconds_used=$(awk '{ printf "%.0f", $1 + $2 }' <<<"$cpu")
  inputs=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1/p' "$log")
  printf '%s\t%s\t%s\n' "$target" "$seconds_used" "$inputs" >>"$(cache_dir)/fuzz/hours.tsv"
  say "  $target: $inputs inputs in $seconds_used s of CPU time, no finding"
}

# As many side by side as there are cores.
say "${#targets[@]} fuzzers, $seconds s each, $total s in all"
failed=0 running=0
for target in "${targets[@]}"; do
  if ((running >= $(nproc))); then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz_one "$target" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n || failed=1
  running=$((running - 1))
done
exit "$failed"

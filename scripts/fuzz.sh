#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds every libFuzzer target with ASan and UBSan and runs each one for SECONDS (default 60).
# New inputs are kept in the cache, so that later runs start where earlier ones stopped; a crash leaves its input there.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

seconds=${1:-60}
shopt -s nullglob
targets=()
for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" .cpp)"); done
((${#targets[@]} > 0)) || die "there is no tests/fuzz/*_fuzz.cpp"
scripts/build.sh fuzz "${targets[@]}"

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
fuzz_one() {
  local target=$1 corpus log
  corpus=$(cache_dir)/fuzz/$target
  mkdir -p "$corpus"
  log=build-fuzz/$target.log
  if ! "build-fuzz/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$corpus-crash-" "$corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    say "$target: FAILED, see $log"
    return 1
  fi
  say "  $target: $(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1 inputs, no finding/p' "$log")"
}

# As many side by side as there are cores.
say "${#targets[@]} fuzzers, $seconds s each"
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

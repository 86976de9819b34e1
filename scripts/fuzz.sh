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
for target in "${targets[@]}"; do
  corpus=$(cache_dir)/fuzz/$target
  mkdir -p "$corpus"
  seeds=(tests/fuzz/corpus/"${target%_fuzz}")
  log=build-fuzz/$target.log
  : >"$log"
  run_step "$log" "$target for $seconds s" "build-fuzz/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$corpus-crash-" "$corpus" "${seeds[@]}"
  say "  $(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1 inputs, no finding/p' "$log")"
done

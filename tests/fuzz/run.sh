#!/usr/bin/env bash
# Builds every libFuzzer target with ASan and UBSan and runs each for a while.
#   tests/fuzz/run.sh [seconds per target, 60 unless told] [target…]
# Stops with an error at the first crash, leak, timeout or memory blow-up; the input is kept in build-fuzz/fuzz/<target>/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:-60}
shift || true
if (($#)); then
  targets=("$@")
else
  mapfile -t targets < <(find "$root/tests/fuzz" -name '*_fuzz.cpp' -printf '%f\n' | sed 's/\.cpp$//' | sort)
fi

cd "$root"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target "${targets[@]}"

for target in "${targets[@]}"; do
  work=$root/build-fuzz/fuzz/$target
  mkdir -p "$work/corpus"
  seeds=$root/tests/fuzz/corpus/$target
  echo "== $target, $seconds s"
  # New inputs go to the first folder; the seeds stay as they are.
  "$root/build-fuzz/$target" "$work/corpus" $([[ -d $seeds ]] && echo "$seeds") \
    -dict="$root/tests/fuzz/json.dict" -artifact_prefix="$work/" -max_total_time="$seconds" -max_len=4096 \
    -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0
done
echo "all clean: ${targets[*]}"

#!/usr/bin/env bash
# stressed.sh [CTEST ARGUMENTS…]: all tests RUNS times (3) beside LOAD (8) loops that want a core each, one line per run and the
# names of what fell. A test that needs a fast machine falls here.
set -uo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$REPO_ROOT" || exit
runs=${RUNS:-3} load=${LOAD:-8} build=${BUILD:-build} status=0

for ((i = 0; i < load; ++i)); do
  # Ends with this script, however that ends.
  (while kill -0 $$ 2>/dev/null; do for ((n = 0; n < 1000000; ++n)); do :; done; done) &
done
# shellcheck disable=SC2046 # a list
trap 'kill $(jobs -p) 2>/dev/null' EXIT

for ((run = 1; run <= runs; ++run)); do
  log=$build/stressed-$run.log begun=$SECONDS
  ctest --test-dir "$build" -j "${TEST_JOBS:-1}" --output-on-failure --no-tests=error -LE soak "$@" >"$log" 2>&1 || status=1
  echo "run $run of $runs beside $load loops: $(grep -E '^[0-9]+% tests passed' "$log" || echo "no result, see $log"), $((SECONDS - begun)) s, load $(cut -d' ' -f1 /proc/loadavg)"
  sed -n '/The following tests FAILED:/,/^Errors/{/^\t/p}' "$log"
done
exit "$status"

#!/usr/bin/env bash
# sanitize.sh: ASan and UBSan over the unit and HTTP suites, TSan over engine and server, one line per run.
# The last result is in the closing lines that it prints.
set -uo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$REPO_ROOT"
jobs=${TEST_JOBS:-$(nproc)}
status=0

# run PRESET TITLE TARGETS… -- CTEST ARGUMENTS…
run() {
  local preset=$1 title=$2 log=build-$1/sanitize.log begun=$SECONDS targets=()
  shift 2
  while [[ $1 != -- ]]; do targets+=("$1"); shift; done
  shift
  mkdir -p "build-$preset"
  if ! scripts/build.sh "$preset" "${targets[@]}" >"$log" 2>&1; then
    tail -20 "$log"
    echo "$title: does not build ($log)"
    status=1
    return
  fi
  local built=$((SECONDS - begun))
  ctest --test-dir "build-$preset" -j "$jobs" --output-on-failure --no-tests=error -LE soak "$@" >>"$log" 2>&1 || status=1
  local summary
  summary=$(grep -E '^[0-9]+% tests passed' "$log" | tail -1)
  echo "$title: ${summary:-no tests ran}; built in $built s, tested in $((SECONDS - begun - built)) s"
  sed -n '/The following tests FAILED:/,/^Errors/p' "$log"
  grep -hE '^(SUMMARY: |WARNING: ThreadSanitizer|.*runtime error:)' "$log" | sort | uniq -c | sort -rn | head -20
}

unit=(bam_base_tests bam_kernels_tests bam_models_tests bam_engine_tests bam_server_tests bam_app_tests)
run asan 'ASan + UBSan, unit and HTTP suites' bam "${unit[@]}" -- -L 'core|http' -LE 'soak|repo'
run tsan 'TSan, engine and server suites' bam_engine_tests bam_server_tests -- -L 'engine|server'
exit $status

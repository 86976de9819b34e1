#!/usr/bin/env bash
# sanitize.sh: ASan and UBSan over the unit, HTTP and attack suites, TSan over engine and server, one line per run.
# docs/sanitizers.md has the last result.
set -uo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$REPO_ROOT" || exit
# Reports go to files: a test may expect the death of a process, or never ask how a worker of its server ended.
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export ASAN_OPTIONS="log_path=$reports/asan ${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1 ${UBSAN_OPTIONS:-}" # beside ASan its reports go to stderr, whatever it is told
export TSAN_OPTIONS="suppressions=$REPO_ROOT/scripts/tsan.supp print_suppressions=0 log_path=$reports/tsan ${TSAN_OPTIONS:-}"
jobs=${TEST_JOBS:-$(nproc)}
status=0

# run PRESET TITLE TARGETS… -- CTEST ARGUMENTS…
run() {
  local preset=$1 title=$2 log begun=$SECONDS targets=()
  log=build-$preset/sanitize-${title//[^A-Za-z]/_}.log
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
  grep -hE 'runtime error:' "$log" | sort | uniq -c | sort -rn | head -20
  if compgen -G "$reports/*" >/dev/null; then
    status=1
    cat "$reports"/* >"${log%.log}-reports.log"
    rm -f "$reports"/*
    grep -hE '^(SUMMARY: |.*runtime error:)' "${log%.log}-reports.log" | sort | uniq -c | sort -rn | head -20
    echo "    whole reports: ${log%.log}-reports.log"
  fi
}

unit=(bam_base_tests bam_kernels_tests bam_models_tests bam_transport_tests bam_engine_tests bam_server_tests bam_app_tests)
# Half of the suites can be left to another day: WHAT=asan or WHAT=tsan.
what=${WHAT:-asan tsan}
if [[ $what == *asan* ]]; then
  run asan 'ASan + UBSan, unit suites' "${unit[@]}" -- -L core -LE repo
  run asan 'ASan + UBSan, HTTP and attack suites' bam -- -L 'http|attack' -LE cuda
fi
if [[ $what == *tsan* ]]; then
  run tsan 'TSan, engine and server suites' bam_engine_tests bam_server_tests -- -L 'engine|server'
  # Everything that many threads do at a time, in a real process.
  run tsan 'TSan, a server under load' bam -- -R '^(http\.test_(load|slow_readers|clients_leave|limits|long_replies|batch|resume)|attack\.test_(abuse|batches|framing|lifecycle|tenants))$'
fi
exit $status

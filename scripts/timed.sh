#!/usr/bin/env bash
# timed.sh TEXT COMMAND…: says what runs, runs it with its own input and output, says how long it took.
set -uo pipefail
text=$1
shift
printf '==> %s\n' "$text" >&2
start=$SECONDS status=0
"$@" || status=$?
if ((status == 0)); then
  printf '==> %s: done in %d s\n' "$text" "$((SECONDS - start))" >&2
else
  printf '==> %s: FAILED with status %d after %d s\n' "$text" "$status" "$((SECONDS - start))" >&2
fi
exit "$status"

# Helpers shared by the scripts of this folder. Sourced, never run.
# shellcheck shell=bash

say() { local name=${0##*/}; printf '%s: %s\n' "${name%.sh}" "$*" >&2; }
die() { say "error: $*"; exit 1; }

# The last step that a ninja log shows ("[12/80]"), or nothing.
ninja_progress() { grep -aoE '^\[[0-9]+/[0-9]+\]' "$1" 2>/dev/null | tail -n 1; }

# heartbeat LOG: a sign of life every 20 s until it is terminated.
heartbeat() {
  local start=$SECONDS nap
  # By jobs, not by $nap: the signal may come between the start of a nap and its assignment.
  trap 'kill $(jobs -p) 2>/dev/null; exit 0' TERM
  while true; do
    sleep 20 &
    nap=$!
    wait "$nap"
    say "  … $((SECONDS - start)) s $(ninja_progress "$1")"
  done
}

# run_step LOG TEXT COMMAND…: runs COMMAND with its output appended to LOG; one line at the start, one every 20 s,
# one at the end with the time. On failure: the end of the log, its path, and status 1.
run_step() {
  local log=$1 text=$2 start=$SECONDS status=0 beat
  shift 2
  say "$text …"
  printf '\n### %s\n' "$text" >>"$log"
  heartbeat "$log" &
  beat=$!
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  kill "$beat" 2>/dev/null || true
  wait "$beat" 2>/dev/null || true
  if ((status != 0)); then
    say "FAILED after $((SECONDS - start)) s: $text (status $status). The end of the log:"
    tail -n 20 "$log" | sed 's/^/    /' >&2
    say "whole log: $log"
    return 1
  fi
  say "  done in $((SECONDS - start)) s"
}

# version_ge A B: true when version A is B or newer. Debian suffixes ("+ds-2") may be present.
version_ge() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Parallel compile jobs: the cores, but no more than one per 1.5 GiB of free memory.
compile_jobs() {
  local cores fit
  cores=$(nproc)
  fit=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo 2>/dev/null)
  if [[ -z $fit ]] || ((fit > cores)); then fit=$cores; fi
  printf '%s\n' "${BAM_JOBS:-$((fit > 0 ? fit : 1))}"
}

# The folder for things that are built once per machine. Falls back to the checkout when there is no usable home.
cache_dir() {
  local dir=${BAM_CACHE_DIR:-}
  if [[ -z $dir ]]; then
    if [[ -n ${XDG_CACHE_HOME:-} ]]; then dir=$XDG_CACHE_HOME/bam
    elif [[ -n ${HOME:-} ]]; then dir=$HOME/.cache/bam
    else dir=$REPO_ROOT/.cache/bam; fi
    if ! mkdir -p "$dir" 2>/dev/null || [[ ! -w $dir ]]; then dir=$REPO_ROOT/.cache/bam; fi
  fi
  printf '%s\n' "$dir"
}

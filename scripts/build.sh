#!/usr/bin/env bash
# build.sh PRESET [TARGET…]: configures the preset of CMakePresets.json when that is due, then builds.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

preset=${1:?usage: build.sh PRESET [TARGET…]}
shift
if [[ $preset == release ]]; then dir=build; else dir=build-$preset; fi
if [[ $preset == tsan ]]; then export BAM_DROGON_SANITIZE=thread; fi

# Objects are the same in every checkout, so a second clone takes them from the compiler cache.
export CCACHE_BASEDIR=$REPO_ROOT CCACHE_NOHASHDIR=1

# Ninja itself re-runs CMake when a CMake file changes; what it cannot see is that Drogon moved or was replaced, or that a
# library of `setup.sh --cluster` has come.
drogon_dir=$(sed -n 's/^Drogon_DIR:PATH=//p' "$dir/CMakeCache.txt" 2>/dev/null || true)
prefix=$(scripts/setup.sh --print-prefix 2>/dev/null || true)
if [[ ! -f $dir/build.ninja || ! -d $drogon_dir || (-n $prefix && $drogon_dir != "$prefix"/*) ]] ||
  { [[ -f /usr/include/gloo/config.h ]] && grep -q '^BAM_GLOO:FILEPATH=BAM_GLOO-NOTFOUND' "$dir/CMakeCache.txt"; }; then
  rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
  mkdir -p "$dir"
  run_step "$dir/configure.log" "configuring $dir" cmake --preset "$preset"
fi
exec cmake --build "$dir" -j "$(compile_jobs)" ${1:+--target "$@"}

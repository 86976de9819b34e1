#!/usr/bin/env bash
# tidy.sh [PATH…]: clang-tidy over the sources of build/compile_commands.json (all of ours, or those below PATH…).
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

[[ -f build/compile_commands.json ]] || die "build/compile_commands.json is missing: run make build"
if (($# == 0)); then set -- base kernels models engine server app; fi
mapfile -t sources < <(find "$@" -name '*.cpp' | sort)
((${#sources[@]} > 0)) || die "no .cpp below: $*"
say "${#sources[@]} files on $(compile_jobs) cores"
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(compile_jobs)" clang-tidy -p build --quiet

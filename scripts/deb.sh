#!/usr/bin/env bash
# deb.sh: the Debian package of build/bam, as build/bam-server_VERSION_ARCH.deb; its path goes to stdout.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT/build"

[[ -x bam ]] || die "build/bam is not built: make build"
rm -f bam-server_*.deb
run_step "$PWD/package.log" "packing" cpack -G DEB
ls "$PWD"/bam-server_*.deb

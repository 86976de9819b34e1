#!/usr/bin/env bash
# deb.sh: the Debian package of build/bam, as build/bam-server_VERSION_ARCH.deb, and one for the transports where `make cluster` built them;
# the paths go to stdout, the program's last.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT/build"

[[ -x bam ]] || die "build/bam is not built: make build"
parts=server
if [[ -f libbam_gloo.so || -f libbam_mpi.so ]]; then parts+=';cluster'; fi
rm -f bam-server*.deb
run_step "$PWD/package.log" "packing" cpack -G DEB -D "CPACK_COMPONENTS_ALL=$parts"
find "$PWD" -maxdepth 1 -name 'bam-server-*.deb'
ls "$PWD"/bam-server_*.deb

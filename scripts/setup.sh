#!/usr/bin/env bash
# Installs everything that bam needs on a Debian machine. Idempotent, non-interactive, silent when nothing is to do.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
# shellcheck source=packages.sh
. "$REPO_ROOT/scripts/packages.sh"
# shellcheck source=drogon.sh
. "$REPO_ROOT/scripts/drogon.sh"
# shellcheck source=nvdisasm.sh
. "$REPO_ROOT/scripts/nvdisasm.sh"

usage() {
  cat <<'TXT'
Usage: scripts/setup.sh [GROUP]… | --print-prefix | --list

Installs Debian packages (as root or through sudo) and, where the machine has none, builds Drogon with our
changes once into a cache that later checkouts reuse. With no GROUP: what building and serving need.

  --cluster       also Gloo, Open MPI and hiredis, for one server on several machines
  --tests         also what `make test` needs; where there is an nvcc, nvdisasm from PyPI
  --bench         also what `make bench` needs
  --fuzz          also clang with its sanitizers and libFuzzer
  --lint          also clang-format, clang-tidy, shellcheck
  --browser       also chromium, for the tests of the built-in page
  --docker        also buildah and podman, for `make docker-test`
  --all           all groups
  --print-prefix  print the prefix of the Drogon in use (for CMAKE_PREFIX_PATH) and exit; status 1 if there is none
  --list          print the packages of the chosen groups and exit

Environment: BAM_CACHE_DIR (default ${XDG_CACHE_HOME:-~/.cache}/bam), BAM_JOBS (parallel compile jobs),
BAM_DROGON_GIT (another URL of Drogon's repository), CMAKE_PREFIX_PATH / Drogon_ROOT (where a Drogon of your own is).
TXT
}

packages=("${PACKAGES_BUILD[@]}")
list=0
tests=0
for arg in "$@"; do
  case $arg in
    --cluster) packages+=("${PACKAGES_CLUSTER[@]}") ;;
    --tests)
      packages+=("${PACKAGES_TESTS[@]}")
      tests=1
      ;;
    --bench) packages+=("${PACKAGES_BENCH[@]}") ;;
    --fuzz) packages+=("${PACKAGES_FUZZ[@]}") ;;
    --lint) packages+=("${PACKAGES_LINT[@]}") ;;
    --browser) packages+=("${PACKAGES_BROWSER[@]}") ;;
    --docker) packages+=("${PACKAGES_DOCKER[@]}") ;;
    --all)
      tests=1
      packages+=("${PACKAGES_TESTS[@]}" "${PACKAGES_BENCH[@]}" "${PACKAGES_FUZZ[@]}" "${PACKAGES_LINT[@]}"
                 "${PACKAGES_BROWSER[@]}" "${PACKAGES_DOCKER[@]}")
      ;;
    --print-prefix) find_drogon; exit $? ;;
    --list) list=1 ;;
    -h | --help) usage; exit 0 ;;
    *) say "unknown option '$arg' (see --help)"; exit 2 ;;
  esac
done
if ((list)); then printf '%s\n' "${packages[@]}" | sort -u; exit 0; fi

mkdir -p "$(cache_dir)/log"
log=$(cache_dir)/log/setup-$(date +%Y%m%d-%H%M%S)-$$.log
install_packages "$log" "${packages[@]}" || exit 1
ensure_drogon "$log" || die "no usable Drogon; the log is $log"
if ((tests)); then ensure_nvdisasm "$log"; fi
if [[ -e $log ]]; then say "ready after $SECONDS s (Drogon: $(find_drogon))"; fi

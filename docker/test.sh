#!/usr/bin/env bash
# Builds the images for real without a Docker daemon, runs the server from them, and checks all deployment files.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for part in scripts/common scripts/packages scripts/drogon docker/containers; do
  # shellcheck disable=SC1090
  . "$REPO_ROOT/$part.sh"
done
cd "$REPO_ROOT"

usage() {
  cat <<'TXT'
Usage: docker/test.sh [STEP]…

Steps, in this order; with none named: all but cuda, which copies a whole toolkit.
  lint       Dockerfiles, compose file, manifests, unit file and dashboard, against schemas where PyPI has them
  image      build docker/Dockerfile.cpu, print its size, run the server from it: read-only, not root, drain
  dashboard  a real Prometheus scrapes the server under load: every panel and alert evaluates, every panel has data; the
             autoscaler's metrics reach the adapter's queries
  gateway    two replicas behind the gateway's own configuration: affinity, and a rolling restart without a lost request
  systemd    the unit under a real systemd in a container: hardening, keys, state, drain, restarts
  cuda       build docker/Dockerfile.cuda against this machine's CUDA toolkit (left out where there is none)

Needs root (or sudo) and Debian's archive. Images and layers are kept in ~/.cache/bam/docker: a first run makes the base image,
builds Drogon and compiles everything, later ones compile what has changed.

BAM_DOCKER_FRESH=1          begin with nothing and leave nothing: a new base image, no layer, no compiled file of earlier runs
BAM_CUDA_ARCHITECTURES=…    of the cuda step, as CMake writes them (default: 80-real; empty: all that the image is made for)
TXT
}

all=(lint image dashboard gateway systemd cuda)
steps=()
for arg in "$@"; do
  case $arg in
    -h | --help) usage; exit 0 ;;
    *) if [[ " ${all[*]} " == *" $arg "* ]]; then steps+=("$arg"); else say "there is no step '$arg' (see --help)"; exit 2; fi ;;
  esac
done
((${#steps[@]} > 0)) || steps=(lint image dashboard gateway systemd)
wants() { [[ " ${steps[*]} " == *" $1 "* ]]; }

if ((EUID != 0)); then
  say "building images needs root: asking sudo"
  exec sudo env BAM_CACHE_DIR="$(cache_dir)" BAM_DOCKER_FRESH="${BAM_DOCKER_FRESH:-}" \
    BAM_CUDA_ARCHITECTURES="${BAM_CUDA_ARCHITECTURES-80-real}" "${BASH_SOURCE[0]}" "${steps[@]}"
fi

cache=$(cache_dir)/docker
storage=()
mkdir -p "$cache/log"
log=$cache/log/test-$(date +%Y%m%d-%H%M%S)-$$.log
lock=$cache/lock
python=/usr/bin/python3
image=localhost/bam:test
tools=localhost/bam-test-tools:test
systemd=localhost/bam-test-systemd:test
BAM_CUDA_ARCHITECTURES=${BAM_CUDA_ARCHITECTURES-80-real}
step='set-up' start=$SECONDS fresh=''

# Everything that a run could find of an earlier one lies below BAM_CACHE_DIR, but for the cache mounts of RUN: these follow TMPDIR.
start_with_nothing() {
  local folder
  folder=$(mktemp -d "$(cache_dir)/fresh.XXXXXX")
  export BAM_CACHE_DIR=$folder TMPDIR=$folder/tmp
  cache=$folder/docker
  mkdir -p "$cache" "$TMPDIR"
  init_storage "$cache"
  fresh=$folder
}

leave_nothing() {
  local run=${storage[-1]}
  podman "${storage[@]}" rm --all --force >/dev/null 2>&1 || true
  buildah "${storage[@]}" rm --all >/dev/null 2>&1 || true
  findmnt -rno TARGET | { grep -F -e "$fresh/" -e "$run/" || true; } | sort -r | xargs -r -d '\n' umount
  rm -rf --one-file-system "$fresh" "$run"
}

finish() {
  local status=$?
  [[ -z $fresh ]] || leave_nothing
  ((status == 0)) || say "error: $step failed after $((SECONDS - start)) s"
}

# The tag that a Dockerfile's `ARG NAME=` gives.
pinned() { sed -nE "s/^ARG $2=(.*)/\1/p" "$1" | head -n 1; }

ensure_base() {
  local tag
  tag=$(pinned docker/Dockerfile.cpu DEBIAN)
  base=docker.io/library/debian:$tag
  have_image "$base" || run_step "$log" "making $base with debootstrap" make_base "${tag%%-*}" "$base"
}

ensure_image() {
  ensure_base
  run_step "$log" "building docker/Dockerfile.cpu" build_image docker/Dockerfile.cpu "$image"
  export BAM_IMAGE=$image
}

ensure_tools() {
  ensure_base
  run_step "$log" "building tests/deploy/Dockerfile.tools (Prometheus and HAProxy of Debian)" \
    build_image tests/deploy/Dockerfile.tools "$tools" --build-arg "BASE=$base"
  export BAM_TOOLS_IMAGE=$tools
}

bytes_of() { podman "${storage[@]}" image inspect --format '{{.Size}}' "$1"; }

print_size() {
  local whole below
  whole=$(bytes_of "$1") below=$(bytes_of "$base")
  say "$1: $((whole / 1000000)) MB, of which $(((whole - below) / 1000000)) MB on top of the base image"
}

step_lint() {
  run_tests tests/repo/check_deploy.py
  run_tests tests/deploy/test_schemas.py
}

step_image() {
  ensure_image
  print_size "$image"
  run_tests tests/deploy/test_image.py
}

step_dashboard() {
  ensure_image
  ensure_tools
  run_tests tests/deploy/test_dashboard.py
  run_tests tests/deploy/test_autoscaling.py
}

step_gateway() {
  ensure_image
  ensure_tools
  run_tests tests/deploy/test_gateway.py
}

step_systemd() {
  ensure_image
  run_step "$log" "building tests/deploy/Dockerfile.systemd" \
    build_image tests/deploy/Dockerfile.systemd "$systemd" --build-arg "BASE=$image"
  BAM_SYSTEMD_IMAGE=$systemd run_tests tests/deploy/test_unit.py
}

# NVIDIA's image cannot be fetched here; what the Dockerfile copies out of it is a toolkit like the machine's own.
step_cuda() {
  local toolkit=/usr/local/cuda nvidia
  if [[ ! -x $toolkit/bin/nvcc ]]; then say "cuda: left out, there is no toolkit in $toolkit"; return 0; fi
  ensure_base
  nvidia=docker.io/nvidia/cuda:$(pinned docker/Dockerfile.cuda CUDA)
  have_image "$nvidia" || run_step "$log" "making a stand-in for $nvidia" make_toolkit_image "$toolkit" "$nvidia"
  run_step "$log" "building docker/Dockerfile.cuda for ${BAM_CUDA_ARCHITECTURES:-all architectures}" \
    build_image docker/Dockerfile.cuda localhost/bam:cuda --build-arg "CUDA_ARCHITECTURES=$BAM_CUDA_ARCHITECTURES"
  print_size localhost/bam:cuda
  BAM_IMAGE=localhost/bam:cuda run_tests tests/deploy/test_cuda_image.py
}

run_tests() {
  say "$1 …"
  "$python" "$@"
}

say "log: $log"
trap finish EXIT
install_packages "$log" "${PACKAGES_DOCKER[@]}"
# A second run would take layers and addresses from the first.
exec 8>"$lock"
flock -n 8 || { say "another docker test is running: waiting for it …"; flock 8; }
if [[ -n ${BAM_DOCKER_FRESH:-} ]]; then start_with_nothing; else init_storage "$cache"; fi
tidy_storage
# No `||` after a step: that would switch off `set -e` inside of it. What fails ends the script, and `finish` says where.
for step in "${all[@]}"; do
  wants "$step" || continue
  start=$SECONDS
  say "== $step"
  "step_$step" 8>&-
  say "== $step: passed in $((SECONDS - start)) s"
done
say "all passed in $SECONDS s"

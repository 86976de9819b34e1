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

Steps, in this order; with none named: all but cuda, which copies a whole toolkit and compiles for every architecture.
  lint       Dockerfiles, compose file, manifests, unit file and dashboard, against schemas where PyPI has them
  image      build docker/Dockerfile.cpu, print its size, run the server from it: read-only, not root, drain
  dashboard  a real Prometheus scrapes the server under load: every panel and alert evaluates, every panel has data
  gateway    two replicas behind the gateway's own configuration: affinity, and a rolling restart without a lost request
  cuda       build docker/Dockerfile.cuda against this machine's CUDA toolkit (left out where there is none)

Needs root (or sudo) and Debian's archive. Images and layers are kept in ~/.cache/bam/docker; the first run takes about
fifteen minutes on two cores, later ones a few. BAM_DOCKER_FRESH=1 builds Drogon inside the image as well, even where this
machine has one in its cache.
TXT
}

all=(lint image dashboard gateway cuda)
steps=()
for arg in "$@"; do
  case $arg in
    -h | --help) usage; exit 0 ;;
    *) if [[ " ${all[*]} " == *" $arg "* ]]; then steps+=("$arg"); else say "there is no step '$arg' (see --help)"; exit 2; fi ;;
  esac
done
((${#steps[@]} > 0)) || steps=(lint image dashboard gateway)
wants() { [[ " ${steps[*]} " == *" $1 "* ]]; }

if ((EUID != 0)); then
  say "building images needs root: asking sudo"
  exec sudo env BAM_CACHE_DIR="$(cache_dir)" BAM_DOCKER_FRESH="${BAM_DOCKER_FRESH:-}" "${BASH_SOURCE[0]}" "${steps[@]}"
fi

cache=$(cache_dir)/docker
storage=()
mkdir -p "$cache/log"
log=$cache/log/test-$(date +%Y%m%d-%H%M%S)-$$.log
python=/usr/bin/python3
image=localhost/bam:test
tools=localhost/bam-test-tools:test

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
}

step_gateway() {
  ensure_image
  ensure_tools
  run_tests tests/deploy/test_gateway.py
}

# NVIDIA's image cannot be fetched here; what the Dockerfile copies out of it is a toolkit like the machine's own.
step_cuda() {
  local toolkit=/usr/local/cuda nvidia
  if [[ ! -x $toolkit/bin/nvcc ]]; then say "cuda: left out, there is no toolkit in $toolkit"; return 0; fi
  if [[ ! -f kernels/cuda/CMakeLists.txt ]]; then say "cuda: left out, there is no kernels/cuda"; return 0; fi
  ensure_base
  nvidia=docker.io/nvidia/cuda:$(pinned docker/Dockerfile.cuda CUDA)
  have_image "$nvidia" || run_step "$log" "making a stand-in for $nvidia" make_toolkit_image "$toolkit" "$nvidia"
  run_step "$log" "building docker/Dockerfile.cuda" build_image docker/Dockerfile.cuda localhost/bam:cuda
  print_size localhost/bam:cuda
  BAM_IMAGE=localhost/bam:cuda run_tests tests/deploy/test_cuda_image.py
}

make_toolkit_image() {
  local folder=$cache/toolkit
  rm -rf "$folder"
  mkdir -p "$folder/usr/local"
  cp -aL --reflink=auto "$1" "$folder/usr/local/cuda-13.0" && commit_folder "$folder" "$2"
  rm -rf "$folder"
}

run_tests() {
  say "$1 …"
  "$python" "$@"
}

say "log: $log"
install_packages "$log" "${PACKAGES_DOCKER[@]}"
init_storage "$cache"
# A second run would take the layers from under the first.
exec 8>"$cache/lock"
flock -n 8 || { say "another docker test is running: waiting for it …"; flock 8; }
for step in "${all[@]}"; do
  wants "$step" || continue
  start=$SECONDS
  say "== $step"
  "step_$step" 8>&- || die "$step failed after $((SECONDS - start)) s"
  say "== $step: passed in $((SECONDS - start)) s"
done
say "all passed in $SECONDS s"

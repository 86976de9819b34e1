#!/usr/bin/env bash
# cuda12.sh [FOLDER]: puts the compiler of a CUDA 12 together without installing it, in FOLDER or among what setup.sh fetches: the
# programs of Debian's newest nvidia-cuda-toolkit (non-free, experimental) and the headers of the same version from PyPI. Prints
# the path of its nvcc. There is nothing to link with; CUDACXX=$(scripts/cuda12.sh) scripts/cuda_report.sh 80 compiles every kernel.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"

root=${1:-$(cache_dir)/cuda12}
if [[ ! -x $root/bin/nvcc ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # shellcheck disable=SC2016  # apt's own variable
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/$' | head -n 1) || true
  [[ -n $mirror ]] || die "apt knows no mirror of Debian"
  curl -sfL "${mirror}dists/experimental/non-free/binary-amd64/Packages.xz" | xz -dc >"$work/packages"
  for package in nvidia-cuda-toolkit libnvvm4; do
    path=$(awk -v name="$package" '/^Package: / { is = $2 == name } is && /^Filename: / { print $2; exit }' "$work/packages")
    [[ -n $path ]] || die "$mirror has no $package"
    curl -sfL -o "$work/$package.deb" "$mirror$path"
    dpkg-deb -x "$work/$package.deb" "$work/root"
  done
  tools=$work/root/usr/lib/nvidia-cuda-toolkit
  mkdir -p "$work/cuda/bin" "$work/cuda/nvvm/bin" "$work/cuda/include"
  cp "$tools/bin/nvcc" "$work/root/usr/bin/"{cudafe++,ptxas,fatbinary,nvlink,bin2c,nvdisasm} "$work/cuda/bin/"
  cp "$tools/bin/cicc" "$work/cuda/nvvm/bin/"
  cp -r "$tools/libdevice" "$work/cuda/nvvm/"
  version=$("$work/cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  python3 -m pip download -q --no-deps --only-binary :all: -d "$work/wheels" \
    "nvidia-cuda-nvcc-cu12==$version.*" "nvidia-cuda-runtime-cu12==$version.*" "nvidia-cuda-cccl-cu12==$version.*" >&2
  for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/headers"; done
  for headers in "$work"/headers/nvidia/*/include; do cp -r "$headers/." "$work/cuda/include/"; done
  cat >"$work/cuda/bin/nvcc.profile" <<'PROFILE'
TOP                = $(_HERE_)/..
CICC_PATH          = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH              += $(CICC_PATH):$(_HERE_):
INCLUDES          += "-I$(TOP)/include" $(_SPACE_)
PROFILE
  rm -rf "$root"
  mkdir -p "$(dirname "$root")"
  mv "$work/cuda" "$root"
fi
printf '%s\n' "$root/bin/nvcc"

#!/usr/bin/env bash
# cuda_report.sh [--ptx DIR] [ARCH…]: compiles the kernels for each architecture (default 80 89 90 100) and prints what ptxas says
# about every kernel (registers, shared memory, stack and spills) and how many issue slots the loops around tensor cores have.
# With --ptx it takes DIR/sm_ARCH/*.ptx; of an architecture that is not there only sources with a budget are compiled. Status 1 if a kernel spills or exceeds kernels/cuda/budget.tsv; 77 without the compiler, or if all but
# the slots was checked because there is no nvdisasm (`setup.sh --tests` fetches one).
# cuda_report.sh --log FILE: registers and spills from the output of a build with -DCMAKE_CUDA_FLAGS=-Xptxas=-v.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
# shellcheck source=nvdisasm.sh
. "$REPO_ROOT/scripts/nvdisasm.sh"
cd "$REPO_ROOT"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Names as tables show them; a name ends at a tab or at the end of its line.
short_names() {
  c++filt | sed -E 's/(^|\t)void /\1/; s/bam::cuda::|\(anonymous namespace\):://g; s/\([A-Za-z_:]+\)([0-9])/\1/g; s/\([^\t]*$//'
}

# ptxas -v -> one tab-separated line per kernel: architecture, registers, static shared, stack, spill stores, spill loads, name
table_rows() {
  awk '
    /Compiling entry function/ {
      name = $0; sub(/^[^\x27]*\x27/, "", name); sub(/\x27 for \x27.*$/, "", name)
      arch = $0; sub(/^.*\x27 for \x27/, "", arch); sub(/\x27.*$/, "", arch)
    }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
      registers = shared = 0
      if (match($0, /Used [0-9]+ registers/)) { split(substr($0, RSTART), word, " "); registers = word[2] }
      if (match($0, /[0-9]+ bytes smem/)) { split(substr($0, RSTART), word, " "); shared = word[1] }
      printf "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", arch, registers, shared, stack, stores, loads, name
    }' | short_names
}

# compile ARCH SOURCE -> $work/kernel.cubin, $work/log
compile() {
  if [[ -d ${ptx:+$ptx/sm_$1} ]]; then
    "$ptxas" -arch="sm_$1" -v -o "$work/kernel.cubin" "$ptx/sm_$1/$(basename "$2" .cu).ptx" 2>"$work/log"
  else
    "$nvcc" -std=c++20 -O3 -fmad=false -I. -arch="sm_$1" -cubin -Xptxas -v -o "$work/kernel.cubin" "$2" 2>"$work/log"
  fi
}

: >"$work/rows"
: >"$work/slots"
counted=1
if [[ ${1:-} == --log ]]; then
  [[ -r ${2:-} ]] || die "usage: cuda_report.sh --log FILE"
  table_rows <"$2" >"$work/rows"
  counted=0
else
  ptx=
  if [[ ${1:-} == --ptx ]]; then
    ptx=${2:?usage: cuda_report.sh --ptx DIR [ARCH…]}
    shift 2
  fi
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  ptxas=$(dirname "$nvcc")/ptxas
  if [[ ! -x $nvcc || ! -x $ptxas ]]; then
    say "no nvcc: put it on PATH or set CUDACXX"
    exit 77
  fi
  [[ $# -gt 0 ]] || set -- 80 89 90 100
  if NVDISASM=$(find_nvdisasm); then export NVDISASM; else counted=0; fi
  for arch in "$@"; do
    for source in kernels/cuda/*.cu; do
      if [[ -n $ptx && ! -d $ptx/sm_$arch ]] && ! grep -q "^sm_$arch"$'\t'"$(basename "$source" .cu)_kernel<" kernels/cuda/budget.tsv; then
        continue
      fi
      compile "$arch" "$source" || { cat "$work/log" >&2; die "$source does not compile for sm_$arch"; }
      table_rows <"$work/log" >>"$work/rows"
      if ((counted)); then
        status=0
        scripts/cuda_slots.py "$work/kernel.cubin" >"$work/loops" || status=$?
        [[ $status == 0 ]] || die "cuda_slots.py failed"
        short_names <"$work/loops" | sed "s/^/sm_$arch\t/" >>"$work/slots"
      fi
    done
  done
fi
[[ -s $work/rows ]] || die "no kernel was reported"

sort -t $'\t' -V -k1,1 -k7,7 "$work/rows" | awk -F '\t' '
  $1 != arch { arch = $1; printf "\n%s\n%9s %7s %6s %6s %6s  %s\n", arch, "registers", "shared", "stack", "stores", "loads", "kernel" }
  { printf "%9d %7d %6d %6d %6d  %s\n", $2, $3, $4, $5, $6, $7 }'
if awk -F '\t' '$4 + $5 + $6 > 0 { print $1, $7; bad = 1 } END { exit !bad }' "$work/rows" >"$work/bad"; then
  say "kernels that spill:"
  cat "$work/bad" >&2
  exit 1
fi
say "$(wc -l <"$work/rows") kernels, none spills"
[[ ${1:-} == --log ]] && exit 0
scripts/cuda_budget.py kernels/cuda/budget.tsv "$work/rows" "$work/slots"
if ((!counted)); then
  say "SKIPPED: the issue slots of $* were NOT counted, there is no nvdisasm; scripts/setup.sh --tests fetches it from PyPI"
  exit 77
fi

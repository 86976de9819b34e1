#!/usr/bin/env bash
# cuda_report.sh [ARCH…]: compiles the kernels for each architecture (default 80) and prints what ptxas says about every
# kernel: registers, shared memory, stack and spills. Status 1 if one spills.
# cuda_report.sh --log FILE: the same from the output of a build with -DCMAKE_CUDA_FLAGS=-Xptxas=-v, all architectures.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ptxas -v -> one tab-separated line per kernel: architecture, registers, static shared, stack, spill stores, spill loads, name
table_rows() {
  c++filt | awk '
    /Compiling entry function/ {
      name = $0; sub(/^[^\x27]*\x27/, "", name); sub(/\x27 for \x27.*$/, "", name)
      arch = $0; sub(/^.*\x27 for \x27/, "", arch); sub(/\x27.*$/, "", arch)
    }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
      registers = shared = 0
      if (match($0, /Used [0-9]+ registers/)) { split(substr($0, RSTART), word, " "); registers = word[2] }
      if (match($0, /[0-9]+ bytes smem/)) { split(substr($0, RSTART), word, " "); shared = word[1] }
      sub(/^void /, "", name); gsub(/bam::cuda::|\(anonymous namespace\)::/, "", name)
      gsub(/\([A-Za-z_:]+\)/, "", name)  # casts of enumerators in template arguments
      sub(/\(.*$/, "", name)
      printf "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", arch, registers, shared, stack, stores, loads, name
    }'
}

if [[ ${1:-} == --log ]]; then
  [[ -r ${2:-} ]] || die "usage: cuda_report.sh --log FILE"
  table_rows <"$2" >"$work/rows"
else
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  [[ -x $nvcc ]] || die "no nvcc: put it on PATH or set CUDACXX"
  : >"$work/rows"
  for arch in "${@:-80}"; do
    for source in kernels/cuda/*.cu; do
      if ! "$nvcc" -std=c++20 -O3 -fmad=false -I. -arch="sm_$arch" -cubin -Xptxas -v -o "$work/kernel.cubin" "$source" 2>"$work/log"; then
        cat "$work/log" >&2
        die "$source does not compile for sm_$arch"
      fi
      table_rows <"$work/log" >>"$work/rows"
    done
  done
fi
[[ -s $work/rows ]] || die "no kernel was reported"

sort -t $'\t' -V -k1,1 -k7,7 "$work/rows" | awk -F '\t' '
  $1 != arch { arch = $1; printf "\n%s\n%9s %7s %6s %6s %6s  %s\n", arch, "registers", "shared", "stack", "stores", "loads", "kernel" }
  { printf "%9d %7d %6d %6d %6d  %s\n", $2, $3, $4, $5, $6, $7 }'
if awk -F '\t' '$5 + $6 > 0 { print $1, $7; bad = 1 } END { exit !bad }' "$work/rows" >"$work/bad"; then
  say "kernels that spill:"
  cat "$work/bad" >&2
  exit 1
fi
say "$(wc -l <"$work/rows") kernels, none spills"

#!/usr/bin/env bash
# cuda_report.sh [ARCH…]: compiles the kernels for each architecture (default 80) and prints what ptxas says about every
# kernel: registers, shared memory, stack and spills. Status 1 if an attention kernel spills.
set -euo pipefail

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=common.sh
. "$REPO_ROOT/scripts/common.sh"
cd "$REPO_ROOT"

nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $nvcc ]] || die "no nvcc: put it on PATH or set CUDACXX"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ptxas -v -> one tab-separated line per kernel: file, registers, static shared, stack, spill stores, spill loads, name
table_rows() {
  c++filt | awk -v file="$1" '
    /Compiling entry function/ { name = $0; sub(/^[^\x27]*\x27/, "", name); sub(/\x27 for \x27.*$/, "", name) }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
      registers = shared = 0
      if (match($0, /Used [0-9]+ registers/)) { split(substr($0, RSTART), word, " "); registers = word[2] }
      if (match($0, /[0-9]+ bytes smem/)) { split(substr($0, RSTART), word, " "); shared = word[1] }
      sub(/^void /, "", name); gsub(/bam::cuda::|\(anonymous namespace\)::/, "", name); sub(/\(.*$/, "", name)
      printf "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", file, registers, shared, stack, stores, loads, name
    }'
}

status=0
for arch in "${@:-80}"; do
  : >"$work/rows"
  for source in kernels/cuda/*.cu; do
    if ! "$nvcc" -std=c++20 -O3 -fmad=false -I. -arch="sm_$arch" -cubin -Xptxas -v -o "$work/kernel.cubin" "$source" 2>"$work/log"; then
      cat "$work/log" >&2
      die "$source does not compile for sm_$arch"
    fi
    table_rows "$(basename "$source")" <"$work/log" >>"$work/rows"
  done
  printf '\nsm_%s\n%-20s %9s %7s %6s %6s %6s  %s\n' "$arch" file registers shared stack stores loads kernel
  sort -t $'\t' -k1,1 -k7,7 "$work/rows" |
    awk -F '\t' '{ printf "%-20s %9d %7d %6d %6d %6d  %s\n", $1, $2, $3, $4, $5, $6, $7 }'
  if awk -F '\t' '$1 ~ /attention|certify/ && $5 + $6 > 0 { print $7; bad = 1 } END { exit !bad }' "$work/rows" >"$work/bad"; then
    say "attention kernels that spill on sm_$arch:"
    cat "$work/bad" >&2
    status=1
  fi
done
exit $status

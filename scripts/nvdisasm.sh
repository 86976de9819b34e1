# The disassembler that counts issue slots (scripts/cuda_slots.py). Sourced by setup.sh and cuda_report.sh.
# shellcheck shell=bash

nvdisasm_cache() { printf '%s/nvdisasm\n' "$(cache_dir)"; }

# The path of an nvdisasm: NVDISASM, PATH, beside nvcc, or what ensure_nvdisasm fetched.
find_nvdisasm() {
  local candidate nvcc
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  for candidate in "${NVDISASM:-}" "$(command -v nvdisasm)" "$(dirname "$nvcc")/nvdisasm" "$(nvdisasm_cache)"/nvidia/*/bin/nvdisasm; do
    if [[ -n $candidate && -x $candidate ]]; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

fetch_nvdisasm() {
  local folder=$1 pip=(python3 -m pip) binary=()
  mkdir -p "$folder"
  "${pip[@]}" --version || { python3 -m venv "$folder/venv" && pip=("$folder/venv/bin/pip"); } || return 1
  "${pip[@]}" download --retries 1 --timeout 20 --no-deps --only-binary :all: -d "$folder" nvidia-cuda-nvdisasm || return 1
  python3 -m zipfile -e "$folder"/nvidia_cuda_nvdisasm-*.whl "$folder" || return 1
  binary=("$folder"/nvidia/*/bin/nvdisasm)
  chmod +x "${binary[0]}" && "${binary[0]}" --version
}

# Where there is an nvcc but no nvdisasm (the toolkit's Debian packages and images often lack it), takes it from PyPI. Not being
# able to is no error: the test that needs it says so.
ensure_nvdisasm() {
  local log=$1 work
  [[ -x ${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} ]] || return 0
  find_nvdisasm >/dev/null && return 0
  work=$(mktemp -d)
  if run_step "$log" "fetching nvdisasm from PyPI" fetch_nvdisasm "$work"; then
    mkdir -p "$(nvdisasm_cache)"
    cp -r "$work/nvidia" "$(nvdisasm_cache)/"
  else
    say "no nvdisasm: PyPI gave none (see $log). cuda.budget will be skipped after registers and spills: issue slots stay uncounted"
  fi
  rm -rf "$work"
}

#!/usr/bin/env python3
"""Issue slots of the loops around tensor-core instructions, from machine code.

    cuda_slots.py CUBIN…        one line per kernel with such a loop: slots, of them mma, inner loops, name

A slot is an instruction in the smallest loop that holds an mma, as a warp issues it on its way round: inner loops are told
apart (they run as often as data say), and so is what a forward branch of more than 8 instructions jumps over. Needs nvdisasm
(part of the toolkit, or PyPI's nvidia-cuda-nvdisasm): on PATH or in NVDISASM. Exit code 77 without it.
"""
import os
import re
import shutil
import subprocess
import sys


def disassembly(cubin, nvdisasm):
    """{mangled name: [(opcode, target or None)]}; targets are indices into the same list."""
    text = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
    kernels, name, labels = {}, None, {}
    for line in text.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", line):
            name, labels[section.group(1)], kernels[section.group(1)] = section.group(1), {}, []
        elif name and (label := re.match(r"(\.L_x_\d+):", line.strip())):
            labels[name][label.group(1)] = len(kernels[name])
        elif name and (code := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line)):
            words = code.group(1).split()
            opcode = next((word for word in words if not word.startswith("@") and word not in ("{", "}")), "")
            target = re.search(r"`\((\.L_x_\d+)\)", code.group(1))
            kernels[name].append((opcode, target.group(1) if target else None))
    return {kernel: [(op, labels[kernel].get(target)) for op, target in code] for kernel, code in kernels.items()}


def hot_loop(code):
    """(begin, end, inner loops, skips) of the smallest loop around an mma; None: there is none."""
    is_mma = [bool(re.match(r"[HIQ]MMA", op)) for op, _ in code]
    loops = [(target, i) for i, (op, target) in enumerate(code) if op.startswith("BRA") and target is not None and target <= i]
    around = [(end - begin, begin, end) for begin, end in loops if any(is_mma[begin:end + 1])]
    if not around:
        return None
    _, begin, end = min(around)
    inner = [(a, b) for a, b in loops if begin <= a and b <= end and (a, b) != (begin, end)]
    skips = [(i, target) for i, (op, target) in enumerate(code) if begin <= i <= end and op.startswith("BRA")
             and target is not None and i + 8 < target <= end + 1]
    return begin, end, inner, skips


def main():
    nvdisasm = os.environ.get("NVDISASM") or shutil.which("nvdisasm") or "/usr/local/cuda/bin/nvdisasm"
    if not os.access(nvdisasm, os.X_OK):
        print("no nvdisasm", file=sys.stderr)
        return 77
    for cubin in sys.argv[1:]:
        for kernel, code in sorted(disassembly(cubin, nvdisasm).items()):
            found = hot_loop(code)
            if found is None:
                continue
            begin, end, inner, skips = found
            inside = [any(a <= i <= b for a, b in inner) for i in range(begin, end + 1)]
            mma = sum(bool(re.match(r"[HIQ]MMA", op)) for op, _ in code[begin:end + 1])
            lengths = ",".join(str(b - a + 1) for a, b in inner) or "-"
            jumps = ",".join(str(target - i - 1) for i, target in skips) or "-"
            print(f"{inside.count(False)}\t{mma}\t{lengths}\t{jumps}\t{kernel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

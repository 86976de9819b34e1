#!/usr/bin/env python3
"""Issue slots of the loops around tensor-core instructions, from machine code.

    cuda_slots.py CUBIN…        tab-separated, per kernel and way through its loop: slots, most slots, mma, copies, stores,
                                loads, name

A slot is an instruction that a warp issues on one pass through the smallest loop that holds an mma. Ways that run every mma
are told apart by the numbers of copies (LDGSTS), of stores to shared memory (codes of 8 bits that are widened) and of loads
from it (the prior): a stage of a block of 128 threads has fewer of them per thread than one of 32. Of ways with the same numbers the shortest is counted (tiles
that every row sees whole, maxima that do not move), and the longest beside it. An inner loop counts as one pass. Needs nvdisasm (part of the toolkit, or PyPI's nvidia-cuda-nvdisasm), on PATH, in
NVDISASM or among this Python's packages. Exit code 77 without it.
"""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys


def disassembly(cubin, nvdisasm):
    """{mangled name: [(opcode, predicated, target or None)]}; targets are indices into the same list."""
    text = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
    kernels, name, labels = {}, None, {}
    for line in text.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", line):
            name, labels[section.group(1)], kernels[section.group(1)] = section.group(1), {}, []
        elif name and (label := re.match(r"(\.L_x_\d+):", line.strip())):
            labels[name][label.group(1)] = len(kernels[name])
        elif name and (code := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line)):
            words = code.group(1).replace("{", " ").split()
            conditional = words[0].startswith("@") or bool(re.search(r"BRA(\.\w+)*\s+!?U?P\d", code.group(1)))
            opcode = next((word for word in words if not word.startswith("@")), "")
            target = re.search(r"`\((\.L_x_\d+)\)", code.group(1))
            kernels[name].append((opcode, conditional, target.group(1) if target else None))
    return {kernel: [(op, cond, labels[kernel].get(target)) for op, cond, target in code]
            for kernel, code in kernels.items()}


def is_mma(opcode):
    return bool(re.match(r"[HIQ]MMA", opcode))


def hot_loop(code):
    """(begin, end) of the smallest loop around an mma; None: there is none."""
    loops = [(i - target, target, i) for i, (op, _, target) in enumerate(code)
             if op.startswith("BRA") and target is not None and target <= i
             and any(is_mma(code[k][0]) for k in range(target, i + 1))]
    return min(loops)[1:] if loops else None


def ways(code, begin, end):
    """{(copies, stores, loads): (least slots, most slots, mma)} over ways from begin round to begin that run the most mma."""
    # state at an instruction: {(mma, copies, stores, loads): (least, most)} of instructions issued before it
    states = {begin: {(0, 0, 0, 0): (0, 0)}}
    finished = {}
    for i in range(begin, end + 1):
        here = states.pop(i, None)
        if here is None:
            continue
        op, conditional, target = code[i]
        kind = (is_mma(op), op.startswith("LDGSTS"), op.startswith("STS"), bool(re.match(r"LDS\b", op)))
        after = {tuple(map(sum, zip(key, kind))): (least + 1, most + 1) for key, (least, most) in here.items()}
        exits = []
        falls = conditional or not re.match(r"EXIT|RET|BRX|BRA", op)
        if op.startswith("BRA") and target is not None:
            if target == begin:
                exits.append(finished)
            elif i < target <= end:
                exits.append(states.setdefault(target, {}))
            falls = falls or begin < target <= i  # an inner loop: one pass
        if falls and i < end:
            exits.append(states.setdefault(i + 1, {}))
        for to in exits:
            for key, (least, most) in after.items():
                known = to.get(key, (least, most))
                to[key] = (min(known[0], least), max(known[1], most))
    best = max((key[0] for key in finished), default=0)
    return {key[1:]: (*slots, key[0]) for key, slots in sorted(finished.items()) if key[0] == best}


def find_nvdisasm():
    spec = importlib.util.find_spec("nvidia")  # PyPI's packages
    packages = [path for folder in (spec.submodule_search_locations if spec else []) or []
                for path in pathlib.Path(folder).glob("*/bin/nvdisasm")]
    candidates = [os.environ.get("NVDISASM"), shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm", *packages]
    return next((str(path) for path in candidates if path and os.access(path, os.X_OK)), None)


def main():
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        print("no nvdisasm", file=sys.stderr)
        return 77
    for cubin in sys.argv[1:]:
        for kernel, code in sorted(disassembly(cubin, nvdisasm).items()):
            loop = hot_loop(code)
            if loop is None:
                continue
            for key, (least, most, mma) in ways(code, *loop).items():
                print("\t".join(map(str, (least, most, mma, *key, kernel))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The kernels' machine code beside its budget: cuda_budget.py BUDGET ROWS SLOTS, from cuda_report.sh.

Prints, for every line of the budget whose architecture was compiled: issue slots per warp and stage, share of them that are
mma, registers, static and dynamic shared bytes. Exit code 1 if one of them is more than the budget says, or a kernel is gone.
Without slots (no disassembler) the rest is checked and a line says so.
"""
import sys


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]


def main():
    budget, rows, slots = (lines(path) for path in sys.argv[1:4])
    known = {(arch, name): (int(registers), int(static)) for arch, registers, static, _, _, _, name in rows}
    loops = {(arch, name, int(copies), int(stores), int(loads)): (int(least), int(most), int(mma))
             for arch, least, most, mma, copies, stores, loads, name in slots}
    wrong = []
    print(f"\n{'':7}{'slots':>6}{'budget':>7}{'most':>6}{'mma':>5}{'share':>7}{'regs':>6}{'static':>7}{'dynamic':>8}  kernel")
    for arch, name, what, copies, stores, loads, most_slots, all_mma, most_registers, most_static, dynamic in budget:
        if not any(row[0] == arch for row in rows):
            continue
        label = f"{arch} {name}, {what}"
        registers, static = known.get((arch, name), (None, None))
        if registers is None:
            wrong.append(f"{label}: no such kernel")
            continue
        least, most, mma = loops.get((arch, name, int(copies), int(stores), int(loads)), (None, None, None))
        if least is None and slots:
            known_ways = sorted(way[2:] for way in loops if way[:2] == (arch, name))
            wrong.append(f"{label}: no way through its loop with {copies} copies, {stores} stores and {loads} loads, only {known_ways}")
            continue
        if least is not None and least > int(most_slots):
            wrong.append(f"{label}: {least} issue slots, {most_slots} are allowed")
        if mma is not None and mma != int(all_mma):
            wrong.append(f"{label}: {mma} mma, the share of {all_mma} was budgeted")
        if registers > int(most_registers):
            wrong.append(f"{label}: {registers} registers, {most_registers} are allowed")
        if static > int(most_static):
            wrong.append(f"{label}: {static} bytes of static shared memory, {most_static} are allowed")
        share = "-" if least is None else f"{100 * mma / least:.0f} %"
        shown = [("-" if value is None else value) for value in (least, most, mma)]
        print(f"{arch:7}{shown[0]:>6}{most_slots:>7}{shown[1]:>6}{shown[2]:>5}{share:>7}{registers:>6}{static:>7}{dynamic:>8}  "
              f"{name}, {what}")
    if not slots:
        print("issue slots were not counted: no nvdisasm")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Prints the sizing table of docs/deploy.md: what `bam inspect` says about checkpoints, divided into memory sizes.

  deploy/sizing.py                      random checkpoints of the paper's three sizes, made and removed again (needs numpy)
  deploy/sizing.py DIR…                 your checkpoints
  deploy/sizing.py --memory 16,48 DIR…  other memory sizes, in GiB
  deploy/sizing.py --nodes 1,2,4,8      the table of docs/cluster.md: as many machines of each size together
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAPER_SIZES = ("120m", "432m", "1.1b")
# Buffers of a step, request bodies, streams, the program itself.
RESERVE_GIB = 1
# Bytes per parameter of the matrices; norms and priors are small change.
CLUSTER_KV = ("f16", "int8")
LINKS_GBIT = (10, 25, 100)
WEIGHT_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "int8": 1, "int4": 4.25 / 8}


def inspect(bam, folder, *flags):
    output = subprocess.run([bam, "inspect", "--model", str(folder), "--json", *flags], capture_output=True, text=True, check=False)
    if output.returncode != 0:
        sys.exit(output.stderr.strip())
    return json.loads(output.stdout)


def round_down(tokens):
    """Two digits and a unit: a table for planning, not for accounting."""
    for unit, size in (("M", 1_000_000), ("K", 1_000)):
        if tokens >= size:
            value = tokens / size
            return f"{int(value * 10) / 10:.1f}{unit}" if value < 10 else f"{int(value)}{unit}"
    return str(int(tokens)) if tokens > 0 else "-"


def rows(name, report, dtype, memory_gib):
    weights = report["parameters"] * WEIGHT_BYTES[dtype]
    for entry in report["kv"]:
        per_token = entry["bytes_per_token"]
        fits = [(gib - RESERVE_GIB) * 2 ** 30 - weights for gib in memory_gib]
        yield [name, f"{weights / 2 ** 30:.2f} GiB {dtype}", entry["dtype"], f"{per_token / 1000:.1f} kB",
               *(round_down(free / per_token) for free in fits), f"{131072 * per_token / 2 ** 30:.1f} GiB"]


def cluster_rows(name, bam, folder, dtype, memory_gib, nodes):
    """Tokens that fit into N machines: each keeps the pages of its own layers, so the fullest one decides."""
    for count in nodes:
        report = inspect(bam, folder, "--stages", str(count), "--dtype", dtype)
        stages = report["stages"]
        for entry in report["kv"]:
            if entry["dtype"] not in CLUSTER_KV:
                continue
            fits = [min(((gib - RESERVE_GIB) * 2 ** 30 - stage["weight_bytes"]) / (entry["bytes_per_token"] * stage["page_share"])
                        for stage in stages["split"]) for gib in memory_gib]
            boundary = stages["bytes_per_token_and_boundary"]
            network = "-" if count == 1 else " / ".join(round_down(gbit * 1e9 / 8 / boundary) for gbit in LINKS_GBIT)
            yield [name, str(count), entry["dtype"], *(round_down(tokens) for tokens in fits), f"{boundary / 1000:.1f} kB", network]


def print_table(lines, header):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", metavar="DIR")
    parser.add_argument("--bam", default=str(ROOT / "build" / "bam"))
    parser.add_argument("--memory", default="8,24,80", help="GiB, with commas (default: %(default)s)")
    parser.add_argument("--dtype", default="bf16", choices=sorted(WEIGHT_BYTES), help="of the weights (default: %(default)s)")
    parser.add_argument("--nodes", help="numbers of machines that serve one model together, with commas")
    options = parser.parse_args()
    memory = [int(part) for part in options.memory.split(",")]
    columns = [f"{gib} GiB" for gib in memory]
    if options.nodes:
        nodes = [int(part) for part in options.nodes.split(",")]
        header = ["model", "machines", "KV", *(f"× {column}" for column in columns), "per token and boundary", "tokens/s over 10 / 25 / 100 GbE"]

        def lines_of(name, folder):
            return cluster_rows(name, options.bam, folder, options.dtype, memory, nodes)
    else:
        header = ["model", "weights", "KV", "per token", *columns, "128K tokens"]

        def lines_of(name, folder):
            return rows(name, inspect(options.bam, folder), options.dtype, memory)
    lines = []
    for folder in options.checkpoints:
        lines += lines_of(pathlib.Path(folder).resolve().name, folder)
    if not options.checkpoints:
        for size in PAPER_SIZES:
            with tempfile.TemporaryDirectory() as scratch:
                made = subprocess.run([sys.executable, str(ROOT / "tools/make_random_checkpoint.py"), "--size", size, f"{scratch}/m"],
                                      check=False, stdout=subprocess.DEVNULL)
                if made.returncode != 0:
                    sys.exit(made.returncode)
                lines += lines_of(size.upper(), f"{scratch}/m")
    print_table(lines, header)


if __name__ == "__main__":
    main()

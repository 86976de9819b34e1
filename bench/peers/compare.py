#!/usr/bin/env python3
"""Our speed beside llama.cpp's on the same shape, in turn, medians of several rounds.

    bench/peers/compare.py --bench build/bench_model --model DIR --peer ./llama_speed --f16 F16.gguf --q8 Q8_0.gguf

DIR is a checkpoint of the 120M shape (tools/make_random_checkpoint.py), the GGUF files are models of the same shape,
llama_speed is built from llama_speed.cpp beside this file. Every command is printed with --verbose. llama.cpp does
everything with and without flash attention in the first round, later only what was not far slower; the better one
counts. --long is for 32,768 tokens: we read such a prompt; llama.cpp's is the mean of its time per token at the start
and at that depth, which takes a minute instead of a quarter of an hour.
"""
import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

OURS = {"f16": "bf16", "q8": "int8"}  # llama.cpp's file -> the weights we compare with it


def run(command, verbose):
    if verbose:
        print("   $", shlex.join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Table:
    """Samples by (what, weights, side); side is 'ours' or 'peer'."""

    def __init__(self):
        self.samples = {}

    def add(self, what, weights, side, value):
        self.samples.setdefault(what, {}).setdefault((weights, side), []).append(value)

    def print(self):
        print(f"\n{'tokens/s':<24} {'bf16':>9} {'f16 peer':>9} {'ratio':>6}   {'int8':>9} {'q8 peer':>9} {'ratio':>6}   samples")
        for what, sides in self.samples.items():
            cells, counts = [], []
            for weights in OURS:
                ours, peer = sides.get((weights, "ours")), sides.get((weights, "peer"))
                middle = [statistics.median(side) if side else None for side in (ours, peer)]
                ratio = middle[0] / middle[1] if all(middle) else None
                counts += [len(side) for side in (ours, peer) if side]
                cells += [f"{middle[0]:9.1f}" if middle[0] else "        -", f"{middle[1]:9.1f}" if middle[1] else "        -",
                          f"{ratio:6.2f}" if ratio else "     -"]
            print(f"{what:<24} {cells[0]} {cells[1]} {cells[2]}   {cells[3]} {cells[4]} {cells[5]}   {min(counts)}", flush=True)


def ours(args, table, weights, options, names):
    """names: what bench_model reports, as (kind, tokens or depth, streams) -> row of the table."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run([args.bench, "--model", args.model, "--dtype", OURS[weights], *options, "--out", out.name], args.verbose)
        for result in json.load(open(out.name))["results"]:
            key = (result["what"], result.get("tokens", result.get("depth")), result.get("streams", 1))
            if key in names:
                table.add(names[key], weights, "ours", result["tokens_per_s"])


class Peer:
    def __init__(self, args):
        self.args = args
        self.best = {}  # (weights, mode, size) -> the flags to try

    def measure(self, weights, mode, size):
        """Tokens per second with its better flags; those that were far behind the first time are not tried again."""
        def once(flags):
            model = {"f16": self.args.f16, "q8": self.args.q8}[weights]
            text = run([*shlex.split(self.args.peer), model, mode, str(size), *flags], self.args.verbose)
            return float(re.search(r": ([\d.]+) tok/s", text).group(1))

        key = (weights, mode, size)
        tried = {flags: once(flags) for flags in self.best.get(key, [(), ("no-flash",)])}
        best = max(tried.values())
        self.best.setdefault(key, [flags for flags, rate in tried.items() if rate > best / 1.3])
        return best


def short_round(args, table, peer, weights):
    ours(args, table, weights,
         ["--prefill", "512,4096", "--decode-there", "--decode", "0", "--streams", "1,16,64", "--repeats", "3"],
         {("prefill", 512, 1): "prefill 512", ("prefill", 4096, 1): "prefill 4096", ("decode", 4096, 1): "decode at 4096",
          ("decode", 0, 1): "decode, empty", ("decode", 0, 16): "decode, 16 streams",
          ("decode", 0, 64): "decode, 64 streams"})
    for length in (512, 4096):
        table.add(f"prefill {length}", weights, "peer", peer.measure(weights, "prefill", length))
    table.add("decode at 4096", weights, "peer", peer.measure(weights, "deep-decode", 4096))
    for streams, name in ((16, "decode, 16 streams"), (1, "decode, empty"), (64, "decode, 64 streams")):
        table.add(name, weights, "peer", peer.measure(weights, "streams", streams))


def long_round(args, table, peer, weights):
    length = 32768
    ours(args, table, weights, ["--prefill", str(length), "--decode-there", "--decode", "0", "--streams", "1", "--repeats", "1"],
         {("prefill", length, 1): "prefill 32768", ("decode", length, 1): "decode at 32768"})
    # Dense attention: the time per token grows with the depth in a straight line.
    at_start, at_end = (1 / peer.measure(weights, *mode) for mode in (("prefill", 512), ("deep-prefill", length)))
    table.add("prefill 32768", weights, "peer", 2 / (at_start + at_end))
    table.add("decode at 32768", weights, "peer", peer.measure(weights, "deep-decode", length))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--bench", "--model", "--peer", "--f16", "--q8"):
        parser.add_argument(name, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", action="store_true", help="a context of 32K instead of the short ones")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    table, peer = Table(), Peer(args)
    for number in range(args.rounds):
        for weights in OURS:
            print(f"round {number + 1} of {args.rounds}, {OURS[weights]} and {weights}", file=sys.stderr, flush=True)
            (long_round if args.long else short_round)(args, table, peer, weights)
        table.print()


if __name__ == "__main__":
    main()

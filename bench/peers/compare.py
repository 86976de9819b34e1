#!/usr/bin/env python3
"""Our speed beside llama.cpp's on the same shape, in turn, medians of several rounds.

    bench/peers/compare.py --bench build/bench_model --model DIR --peer ./llama_speed --f16 F16.gguf --q8 Q8_0.gguf
        [--bf16 BF16.gguf]

DIR is a checkpoint of the 120M shape (tools/make_random_checkpoint.py), the GGUF files are models of the same shape,
llama_speed is built from llama_speed.cpp beside this file. Every command is printed with --verbose. llama.cpp does
everything with and without flash attention in the first round, later only what was not far slower; the better one
counts. --bf16 is for processors that multiply bfloat16 (AVX512-BF16), where it is llama.cpp's fastest format; it rounds
activations to 8 bits there, which we do not. --long is for 32,768 tokens: we read such a prompt; llama.cpp's is the
mean of its time per token at the start and at that depth, which takes a minute instead of a quarter of an hour.
"""
import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

PEERS = {"bf16": ["f16", "bf16"], "int8": ["q8"]}  # our weights -> llama.cpp's files to compare with


def run(command, verbose):
    if verbose:
        print("   $", shlex.join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Table:
    """Samples by row and side; a side is our weights or llama.cpp's file."""

    def __init__(self, files):
        self.files = files
        self.samples = {}

    def add(self, what, side, value):
        self.samples.setdefault(what, {}).setdefault(side, []).append(value)

    def print(self):
        head = f"\n{'tokens/s':<20}"
        for weights, peers in PEERS.items():
            head += f" {'ours ' + weights:>10}"
            for peer in (p for p in peers if p in self.files):
                head += f" {'peer ' + peer:>10} {'ratio':>6}"
        print(head + "   samples")
        for what, sides in self.samples.items():
            line = f"{what:<20}"
            for weights, peers in PEERS.items():
                ours = statistics.median(sides["ours " + weights])
                line += f" {ours:10.1f}"
                for peer in (p for p in peers if p in self.files):
                    theirs = statistics.median(sides[peer])
                    line += f" {theirs:10.1f} {ours / theirs:6.2f}"
            print(f"{line}   {min(len(side) for side in sides.values())}", flush=True)


def ours(args, table, weights, options, names):
    """names: what bench_model reports, as (kind, tokens or depth, streams) -> row of the table."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run([args.bench, "--model", args.model, "--dtype", weights, *options, "--out", out.name], args.verbose)
        for result in json.load(open(out.name))["results"]:
            key = (result["what"], result.get("tokens", result.get("depth")), result.get("streams", 1))
            if key in names:
                table.add(names[key], "ours " + weights, result["tokens_per_s"])


class Peer:
    def __init__(self, args):
        self.args = args
        self.best = {}  # (file, mode, size) -> the flags to try

    def measure(self, file, mode, size):
        """Tokens per second with its better flags; those that were far behind the first time are not tried again."""
        def once(flags):
            text = run([*shlex.split(self.args.peer), getattr(self.args, file), mode, str(size), *flags], self.args.verbose)
            return float(re.search(r": ([\d.]+) tok/s", text).group(1))

        key = (file, mode, size)
        tried = {flags: once(flags) for flags in self.best.get(key, [(), ("no-flash",)])}
        best = max(tried.values())
        self.best.setdefault(key, [flags for flags, rate in tried.items() if rate > best / 1.3])
        return best


def short_round(args, table, peer):
    for weights in PEERS:
        ours(args, table, weights,
             ["--prefill", "512,4096", "--decode-there", "--decode", "0", "--streams", "1,16,64", "--repeats", "3"],
             {("prefill", 512, 1): "prefill 512", ("prefill", 4096, 1): "prefill 4096", ("decode", 4096, 1): "decode at 4096",
              ("decode", 0, 1): "decode, empty", ("decode", 0, 16): "decode, 16 streams",
              ("decode", 0, 64): "decode, 64 streams"})
        for file in (f for f in PEERS[weights] if f in table.files):
            for length in (512, 4096):
                table.add(f"prefill {length}", file, peer.measure(file, "prefill", length))
            table.add("decode at 4096", file, peer.measure(file, "deep-decode", 4096))
            for streams, name in ((16, "decode, 16 streams"), (1, "decode, empty"), (64, "decode, 64 streams")):
                table.add(name, file, peer.measure(file, "streams", streams))


def long_round(args, table, peer):
    length = 32768
    for weights in PEERS:
        ours(args, table, weights,
             ["--prefill", str(length), "--decode-there", "--decode", "0", "--streams", "1", "--repeats", "1"],
             {("prefill", length, 1): "prefill 32768", ("decode", length, 1): "decode at 32768"})
        for file in (f for f in PEERS[weights] if f in table.files):
            # Dense attention: the time per token grows with the depth in a straight line.
            at_start, at_end = (1 / peer.measure(file, *mode) for mode in (("prefill", 512), ("deep-prefill", length)))
            table.add("prefill 32768", file, 2 / (at_start + at_end))
            table.add("decode at 32768", file, peer.measure(file, "deep-decode", length))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--bench", "--model", "--peer", "--f16", "--q8"):
        parser.add_argument(name, required=True)
    parser.add_argument("--bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", action="store_true", help="a context of 32K instead of the short ones")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    table, peer = Table([file for file in ("f16", "bf16", "q8") if getattr(args, file)]), Peer(args)
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        (long_round if args.long else short_round)(args, table, peer)
        table.print()


if __name__ == "__main__":
    main()

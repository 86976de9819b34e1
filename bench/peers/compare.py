#!/usr/bin/env python3
"""Our speed beside other engines' on the same shape, in turn, medians of several rounds: the best peer of every row.

    bench/peers/compare.py --bench build/bench_model --model DIR [--weights bf16-fast,int8,int4]
        --peer 'int8:llama.cpp=./llama_speed Q8_0.gguf {mode} {size}'
        --peer 'int8:OpenVINO=VENV/bin/python bench/peers/openvino_speed.py run IR_INT8 {mode} {size}'
        --peer 'int8:vLLM=VENV/bin/python bench/peers/vllm_speed.py HF_W8A8 {mode} {size}'

A peer is CLASS:NAME=COMMAND. CLASS (bf16, int8, int4) says which of our weights it stands beside, the command measures
one thing and prints ": RATE tok/s"; {mode} is prefill, deep-decode (one stream at a depth) or streams, {size} its tokens,
depth or number. Flags to try are peers of their own with the same name (llama_speed's no-flash): the better one counts.
DIR is a checkpoint of the shape (tools/make_random_checkpoint.py), the peers' models are of the same shape. Our weights
bf16 are multiplied in float32, bf16-fast as --math fast does; with -kv8 behind the name, keys and values are int8 pages and
attention is computed in integers (OpenVINO keeps eight bits by itself). Peers are not part of this repository: llama_speed.cpp
beside this file is built against a llama.cpp (or a fork of it) that you built for your machine, the Python peers live in
virtual environments of their own. --samples FILE keeps what was measured and goes on from there, so that rounds may lie
in different quiet hours; medians are over all of them.
"""
import argparse
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

# Rows by part: what is measured, and how bench_model is asked for all of a part at once.
ROWS = {"prompts": {"prefill 512": ("prefill", 512), "prefill 4096": ("prefill", 4096),
                    "one stream at 4096": ("deep-decode", 4096)},
        "streams": {"one stream": ("streams", 1), "16 streams": ("streams", 16), "64 streams": ("streams", 64)}}
FLAGS = {"prompts": ["--prefill", "512,4096", "--decode-there", "--decode", "0", "--streams", "1"],
         "streams": ["--prefill", "0", "--decode", "0", "--streams", "1,16,64"]}
OURS = {("prefill", 512, 1): "prefill 512", ("prefill", 4096, 1): "prefill 4096", ("decode", 4096, 1): "one stream at 4096",
        ("decode", 0, 1): "one stream", ("decode", 0, 16): "16 streams", ("decode", 0, 64): "64 streams"}


def run(command, verbose):
    if verbose:
        print("   $", shlex.join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def parse_peer(text):
    match = re.fullmatch(r"(bf16|int8|int4):([^=]+)=(.+)", text)
    if not match or "{mode}" not in text or "{size}" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not CLASS:NAME=COMMAND with {{mode}} and {{size}}")
    return match.groups()


def weight_class(weights):
    return weights.split("-")[0]


class Table:
    """Samples by row and side; a side is our weights or (class, name) of a peer."""

    def __init__(self):
        self.samples = {}

    def add(self, row, side, value):
        self.samples.setdefault(row, {}).setdefault(side, []).append(value)

    def load(self, path):
        for row, side, values in json.loads(path.read_text()):
            for value in values:
                self.add(row, tuple(side) if isinstance(side, list) else side, value)

    def save(self, path):
        path.write_text(json.dumps([[row, side, values] for row, sides in self.samples.items()
                                    for side, values in sides.items()], indent=1))

    def print(self, all_weights):
        print("\n| tokens/s | ours | | best peer | | ratio | others |\n|---|---|---|---|---|---|---|")
        for weights in all_weights:
            for row, sides in self.samples.items():
                medians = {side: statistics.median(values) for side, values in sides.items()}
                peers = sorted(((rate, name) for (kind, name), rate in
                                ((side, rate) for side, rate in medians.items() if isinstance(side, tuple))
                                if kind == weight_class(weights)), reverse=True)
                ours = medians.get(weights)
                if ours is None:
                    continue
                best = f"{peers[0][1]} | {peers[0][0]:.0f} | {ours / peers[0][0]:.2f}" if peers else "– | – | –"
                others = ", ".join(f"{name} {rate:.0f}" for rate, name in peers[1:])
                print(f"| {row} | {weights} | {ours:.0f} | {best} | {others} |")
        counts = [len(side) for row in self.samples.values() for side in row.values()]
        print(f"medians of {min(counts)} to {max(counts)} rounds", flush=True)


def measure_ours(args, table, weights, part):
    options = weights.split("-")[1:]
    pages = ["--kv-dtype", "int8", "--attention-math", "int8"] if "kv8" in options else ["--kv-dtype", "f16"]
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run([args.bench, "--model", args.model, "--dtype", weight_class(weights), "--math",
             "fast" if "fast" in options else "exact", *pages, *FLAGS[part], "--repeats", "3", "--out", out.name],
            args.verbose)
        for result in json.load(open(out.name))["results"]:
            key = (result["what"], result.get("tokens", result.get("depth")), result.get("streams", 1))
            if key in OURS:
                table.add(OURS[key], weights, result["tokens_per_s"])


def measure_peers(args, table, part):
    for row, (mode, size) in ROWS[part].items():
        best = {}
        for kind, name, command in args.peer:
            text = run(shlex.split(command.format(mode=mode, size=size)), args.verbose)
            rate = float(re.search(r": ([\d.]+) tok/s", text).group(1))
            best[kind, name] = max(rate, best.get((kind, name), 0))
        for side, rate in best.items():
            table.add(row, side, rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="build/bench_model")
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", action="append", default=[], type=parse_peer)
    parser.add_argument("--weights", default="bf16,bf16-fast,bf16-fast-kv8,int8,int8-kv8,int4,int4-kv8",
                        help="ours (default: %(default)s)")
    parser.add_argument("--samples", type=pathlib.Path, help="JSON file: read if it is there, written after every round")
    parser.add_argument("--only", choices=ROWS, help="prompts and one stream behind them, or short streams")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--verbose", action="store_true", help="print every command")
    args = parser.parse_args()
    table = Table()
    if args.samples and args.samples.exists():
        table.load(args.samples)
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        for part in [args.only] if args.only else ROWS:
            for weights in args.weights.split(","):
                measure_ours(args, table, weights, part)
            measure_peers(args, table, part)
        if args.samples:
            table.save(args.samples)
        table.print(args.weights.split(","))


if __name__ == "__main__":
    main()

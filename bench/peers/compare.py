#!/usr/bin/env python3
"""Our speed beside other engines' on the same shape, in turn, medians of several rounds: the best peer of every row.

    bench/peers/compare.py --bench build/bench_model --model DIR [--weights bf16,bf16-fast-kv8,int8-kv8,int4-kv8]
        --peer 'int8:llama.cpp=./llama_speed Q8_0.gguf'
        --peer 'int8:OpenVINO=VENV/bin/python bench/peers/openvino_speed.py run IR_INT8'
        --peer 'int8:vLLM=VENV/bin/python bench/peers/vllm_speed.py HF_W8A8'

A peer is CLASS:NAME=COMMAND. CLASS (bf16, int8, int4) says which of our weights it stands beside; the command answers
lines as protocol.py says, runs as long as this program and is stopped by a signal while it is not its turn. Flags to try
are peers of their own with the same name (llama_speed's no-flash): the better one counts. DIR is a checkpoint of the shape
(tools/make_random_checkpoint.py), the peers' models are of the same shape (models.py, openvino_speed.py make). Our weights
bf16 are multiplied in float32, bf16-fast as --math fast does; with -kv8 behind the name, keys and values are int8 pages and
attention is computed in integers (OpenVINO keeps eight bits by itself); -head4 is a head of four bits. Peers are not part of this repository: llama_speed.cpp
beside this file is built against a llama.cpp (or a fork of it) that you built for your machine, the Python peers live in
virtual environments of their own. --samples FILE keeps what was measured and goes on from there, so that rounds may lie
in different quiet hours; medians are over all of them.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

# What a peer is asked, and the rows that its answer fills.
ASKED = {("prompt", 512): {"prefill": "prefill 512"},
         ("prompt", 4096): {"prefill": "prefill 4096", "decode": "one stream at 4096"},
         ("streams", 1): {"decode": "one stream"},
         ("streams", 16): {"decode": "16 streams"},
         ("streams", 64): {"decode": "64 streams"}}
ROWS = [row for rows in ASKED.values() for row in rows.values()]
OURS = {("prefill", 512, 1): "prefill 512", ("prefill", 4096, 1): "prefill 4096", ("decode", 4096, 1): "one stream at 4096",
        ("decode", 0, 1): "one stream", ("decode", 0, 16): "16 streams", ("decode", 0, 64): "64 streams"}


def parse_peer(text):
    match = re.fullmatch(r"(bf16|int8|int4):([^=]+)=(.+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not CLASS:NAME=COMMAND")
    return match.groups()


def weight_class(weights):
    return weights.split("-")[0]


def figure(rate):
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def sizes(what, rows):
    """Which prompts or streams fill these rows."""
    return [size for (kind, size), filled in ASKED.items() if kind == what and not rows.isdisjoint(filled.values())]


class Peer:
    """A program that answers while it is its turn and is stopped otherwise."""

    def __init__(self, kind, name, command):
        self.side, self.command = (kind, name), command
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, start_new_session=True)

    def ask(self, what, size):
        os.killpg(self.process.pid, signal.SIGCONT)
        self.process.stdin.write(f"{what} {size}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                os.killpg(self.process.pid, signal.SIGSTOP)
                os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped
                return json.loads(line)
        self.errors.seek(0)
        sys.exit(f"{self.command} ended instead of answering {what} {size}:\n{self.errors.read()[-2000:]}")

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


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
        """A table per class: ours with the ratio to the best peer, which is in bold."""
        for kind in dict.fromkeys(map(weight_class, all_weights)):
            ours = [weights for weights in all_weights if weight_class(weights) == kind]
            peers = list(dict.fromkeys(side for sides in self.samples.values() for side in sides
                                       if isinstance(side, tuple) and side[0] == kind))
            header = [f"tokens/s, {kind}", *ours, *(name for _, name in peers)]
            print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
            for row in (row for row in ROWS if row in self.samples):
                medians = {side: statistics.median(values) for side, values in self.samples[row].items()}
                best = max((medians[side] for side in peers if side in medians), default=None)
                cells = [figure(medians[w]) + (f" ({medians[w] / best:.2f})" if best else "") if w in medians else "–" for w in ours]
                for side in peers:
                    rate = figure(medians[side]) if side in medians else "–"
                    cells.append(f"**{rate}**" if medians.get(side) == best else rate)
                print(f"| {row} | {' | '.join(cells)} |")
        sides = [values for row in self.samples.values() for values in row.values()]
        spread = statistics.median((max(values) - min(values)) / statistics.median(values) for values in sides)
        print(f"\nmedians of {min(map(len, sides))} to {max(map(len, sides))} rounds; half of the figures vary by more than "
              f"{100 * spread:.0f} % (largest less smallest, of the median)", flush=True)


def measure_ours(args, table, weights):
    options = weights.split("-")[1:]
    pages = ["--kv-dtype", "int8", "--attention-math", "int8"] if "kv8" in options else ["--kv-dtype", "f16"]
    head = ["--head-dtype", "int4"] if "head4" in options else []
    prompts, streams = (sizes(what, args.rows) for what in ("prompt", "streams"))
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [args.bench, "--model", args.model, "--dtype", weight_class(weights), "--math",
                   "fast" if "fast" in options else "exact", *pages, *head, "--prefill", ",".join(map(str, prompts or [0])), "--decode-there",
                   "--decode", "0", "--streams", ",".join(map(str, streams or [1])), "--repeats", "3", "--out", out.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
        if args.verbose:
            print(done.stdout, file=sys.stderr, flush=True)
        for result in json.load(open(out.name))["results"]:
            row = OURS.get((result["what"], result.get("tokens", result.get("depth")), result.get("streams", 1)))
            if row in args.rows:
                table.add(row, weights, result["tokens_per_s"])


def ask_peers(peers, rows):
    """The best rate of every (row, side)."""
    best = {}
    for peer in peers:
        for (what, size), filled in ASKED.items():
            if rows.isdisjoint(filled.values()):
                continue
            answer = peer.ask(what, size)
            for key, row in filled.items():
                best[row, peer.side] = max(answer[key], best.get((row, peer.side), 0))
    return {key: rate for key, rate in best.items() if key[0] in rows}


def parse_rows(text):
    rows = set(text.split(","))
    if not rows <= set(ROWS):
        raise argparse.ArgumentTypeError(f"{', '.join(rows - set(ROWS))}: not among {', '.join(ROWS)}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="build/bench_model")
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", action="append", default=[], type=parse_peer)
    parser.add_argument("--weights", default="bf16,bf16-fast,bf16-fast-kv8,int8,int8-kv8,int4,int4-kv8",
                        help="ours (default: %(default)s)")
    parser.add_argument("--samples", type=pathlib.Path, help="JSON file: read if it is there, written after every round")
    parser.add_argument("--rows", type=parse_rows, default=set(ROWS), help=f"some of: {','.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--verbose", action="store_true", help="print what bench_model prints, and each peer's warm-up")
    args = parser.parse_args()
    table = Table()
    if args.samples and args.samples.exists():
        table.load(args.samples)
    peers = []
    try:
        for definition in args.peer:
            peers.append(Peer(*definition))
            warm = ask_peers(peers[-1:], args.rows)
            if args.verbose:
                print(f"warm: {definition[1]}", {row: round(rate) for (row, _), rate in warm.items()}, file=sys.stderr, flush=True)
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
            for kind in dict.fromkeys(map(weight_class, args.weights.split(","))):
                for weights in args.weights.split(","):
                    if weight_class(weights) == kind:
                        measure_ours(args, table, weights)
                for (row, side), rate in ask_peers([peer for peer in peers if peer.side[0] == kind], args.rows).items():
                    table.add(row, side, rate)
            if args.samples:
                table.save(args.samples)
            table.print(args.weights.split(","))
    finally:
        for peer in peers:
            peer.stop()


if __name__ == "__main__":
    main()

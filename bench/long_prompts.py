#!/usr/bin/env python3
"""Long passkey prompts of a trained checkpoint: certified beside dense attention, and one through a real server.

    bench/long_prompts.py [--runs 5] [--lengths 8192,32768,131072,500000] [--dense 8192,32768,131072] [--serve 500000]
    bench/long_prompts.py --model DIR --flags "--dtype int8 --kv-dtype int8" --any-answer --dense 0 --serve 0

Every run reads each length once with each kind of attention (`bam inspect --measure N`), so that both see the same
machine; the table shows medians and the growth exponent of the time to the first token. --serve starts a fresh
`bam serve` per run and asks it through `bam passkey`. Any wrong answer ends the program with 1, unless the model is one
of random weights, which knows none (--any-answer).
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def progress(text):
    print(text, file=sys.stderr, flush=True)


def measure(args, length, attention):
    command = [args.bam, "inspect", "--model", args.model, "--attention", attention, "--measure", str(length), "--json", *args.flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout)["measured"]


def visited_share(measured):
    total = {key: sum(c[key] for c in measured["classes"].values()) for key in ("tiles_visited", "tiles_skipped")}
    return total["tiles_visited"] / (total["tiles_visited"] + total["tiles_skipped"])


class Served:
    """One `bam serve` on a free port, and the most memory it had."""

    def __init__(self, args, flags):
        command = [args.bam, "serve", "--model", args.model, "--port", "0", *args.flags, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            ready = re.search(r"ready after .*(http://[^ ]*:\d+)", line)
            if ready:
                self.url = ready.group(1)
                return
        sys.exit(f"{command} did not become ready")

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=60)


def serve_once(args, length, flags):
    """(seconds to the first token, peak MiB, right) of one prompt in the middle of which the key is hidden."""
    server = Served(args, flags)
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = folder + "/passkey.jsonl"
            subprocess.run([args.bam, "passkey", "--url", server.url, "--lengths", str(length), "--depths", "0.5", "--out", out],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            samples = [json.loads(line) for line in open(out, encoding="utf-8")]
        result = next(sample for sample in samples if sample["type"] == "result")
        return result["ttft_ms"] / 1000, server.peak_mib(), result["score"] == 1
    finally:
        server.stop()


def print_table(samples):
    print(f"\n{'prompt':>8} {'attention':>10} {'first token':>12} {'of dense':>9} {'visited':>8} {'KV pages':>10} {'right':>6}")
    middle = {}
    for (length, attention), runs in samples.items():
        middle[length, attention] = statistics.median(run["first_token_seconds"] for run in runs)
    for (length, attention), runs in samples.items():
        seconds, dense = middle[length, attention], middle.get((length, "dense"))
        print(f"{length:>8} {attention:>10} {seconds:>10.3f} s {f'{seconds / dense:.3f}' if dense else '-':>9} "
              f"{100 * visited_share(runs[0]):>6.2f} % {runs[0]['kv_bytes'] / 2**20:>6.1f} MiB "
              f"{sum(run['right'] for run in runs)}/{len(runs)}")
    for attention in ("certified", "dense"):
        lengths = sorted(length for length, kind in middle if kind == attention and length >= 32768)
        if len(lengths) > 1:
            first, last = lengths[0], lengths[-1]
            exponent = math.log(middle[last, attention] / middle[first, attention]) / math.log(last / first)
            print(f"growth of {attention} from {first} to {last}: exponent {exponent:.2f}")
    sys.stdout.flush()


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bam", default=str(ROOT / "build" / "bam"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--lengths", type=numbers, default=[8192, 32768, 131072, 500000])
    parser.add_argument("--dense", type=numbers, default=[8192, 32768, 131072])
    parser.add_argument("--serve", type=int, default=500000, help="length of the prompt for the server; 0: none")
    parser.add_argument("--flags", type=str.split, default=[], help="more flags for inspect and serve, in one word")
    parser.add_argument("--any-answer", action="store_true", help="wrong answers do not matter")
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args()

    samples, served = {}, {}
    for run in range(args.runs):
        for length in args.lengths:
            for attention in ("certified", "dense"):
                if attention == "dense" and length not in args.dense:
                    continue
                started = time.time()
                samples.setdefault((length, attention), []).append(measure(args, length, attention))
                progress(f"run {run + 1} of {args.runs}: {length} {attention}, {time.time() - started:.1f} s")
        for flags in ([], ["--prefix-cache", "off"]) if args.serve else []:
            served.setdefault(" ".join(["bam serve", *flags]), []).append(serve_once(args, args.serve, flags))
    print_table(samples)
    for name, runs in served.items():
        print(f"{name}, {args.serve} tokens: first token after {statistics.median(run[0] for run in runs):.1f} s, "
              f"peak resident {statistics.median(run[1] for run in runs):.0f} MiB, right {sum(run[2] for run in runs)}/{len(runs)}")
    if args.out:
        rows = [{"tokens": length, "attention": attention, "runs": runs} for (length, attention), runs in samples.items()]
        pathlib.Path(args.out).write_text(json.dumps({"prompts": rows, "served": served}, indent=1) + "\n", encoding="utf-8")
    right = [run["right"] for runs in samples.values() for run in runs] + [run[2] for runs in served.values() for run in runs]
    return 0 if args.any_answer or all(right) else 1


if __name__ == "__main__":
    sys.exit(main())

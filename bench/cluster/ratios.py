#!/usr/bin/env python3
"""How near a pipeline on this machine comes to what the balance of its stages allows.

    bench/cluster/ratios.py [--runs 3] [--lengths 32768,131072] [--stages 2] [--model DIR] [--flags "--kv-dtype int8"]

Each run reads one prompt of each length with one rank of one thread, then with N ranks of one thread each, so that both
see the same machine; it needs N idle cores. Medians of the time to one token, their ratio, and sum / slowest of the times
in which the stages computed (`/props`), which is the most that the ratio can be; and how much of the time the slowest stage
computed. Ranks of one machine share its caches and memory, so their stages take longer than alone. `--stages 1` instead compares the server
without that flag to the one with it. Ends with 1 if the answers differ.
"""
import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Served:
    """One `bam serve` on a free port."""

    def __init__(self, args, flags):
        command = [args.bam, "serve", "--model", args.model, "--port", "0", "--prefix-cache", "off", *args.flags, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            ready = re.search(r"ready after .*(http://[^ ]*:\d+)", line)
            if ready:
                self.url = ready.group(1)
                return
        sys.exit(f"{command} did not become ready")

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as reply:
            return json.load(reply)

    def read(self, prompt):
        """(seconds, answer, seconds that each stage computed and waited) of one prompt."""
        before, start = self.ask("/props")["stages"], time.monotonic()
        reply = self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 0})
        seconds = time.monotonic() - start
        after = self.ask("/props")["stages"]
        spent = {key: [now[key] - then[key] for now, then in zip(after, before, strict=True)] for key in ("busy_seconds", "wait_seconds")}
        choice = reply["choices"][0]
        return seconds, (choice["text"], choice["logprobs"]), spent

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=60)


def prompt_of(length):
    rng = random.Random(length)
    return [rng.randrange(5, 250) for _ in range(length)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bam", default=str(ROOT / "build" / "bam"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=[32768, 131072])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--flags", type=str.split, default=[], help="more flags for serve, in one word")
    args = parser.parse_args()
    alone, together = ["--threads", "1"], ["--threads", str(args.stages), "--stages", str(args.stages)]
    samples, same = {}, True
    for run in range(args.runs):
        answers = {}
        for kind, flags in (("one", alone), ("all", together)):
            server = Served(args, flags)
            try:
                server.read(prompt_of(4096))  # the cost model learns
                for length in args.lengths:
                    seconds, answer, spent = server.read(prompt_of(length))
                    samples.setdefault((length, kind), []).append((seconds, spent))
                    same = same and answers.setdefault(length, answer) == answer
                    print(f"run {run} {kind} {length}: {seconds:.3f} s, {spent}", file=sys.stderr, flush=True)
            finally:
                server.stop()
    print(f"{'prompt':>8} {'1 rank':>9} {f'{args.stages} ranks':>9} {'ratio':>6} {'sum/slowest':>12} {'reached':>8} {'busy':>7}  computed, waited by stage")
    for length in args.lengths:
        one, many = samples[length, "one"], samples[length, "all"]
        ratio = statistics.median(a[0] / b[0] for a, b in zip(one, many, strict=True))
        busy = [statistics.median(times) for times in zip(*(spent["busy_seconds"] for _, spent in many), strict=True)]
        wait = [statistics.median(times) for times in zip(*(spent["wait_seconds"] for _, spent in many), strict=True)]
        most = sum(busy) / max(busy)
        share = statistics.median(max(spent["busy_seconds"]) / seconds for seconds, spent in many)
        print(f"{length:>8} {statistics.median(s for s, _ in one):>7.3f} s {statistics.median(s for s, _ in many):>7.3f} s {ratio:>6.2f} {most:>12.2f} "
              f"{100 * ratio / most:>6.1f} % {100 * share:>5.1f} %  {', '.join(f'{b:.2f}+{w:.2f} s' for b, w in zip(busy, wait, strict=True))}")
    if not same:
        sys.exit("the answers differ")


if __name__ == "__main__":
    main()

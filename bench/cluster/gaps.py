#!/usr/bin/env python3
"""Gaps between the tokens of short streams, alone and while a long prompt is read, by number of stages.

    bench/cluster/gaps.py [--stages 1,2,4] [--streams 8] [--length 100000] [--model DIR] [--flags "--step-target-ms 50"]

Every server has all cores of this machine, shared out among its ranks. Times are those at which a client has read an event.
"""
import argparse
import json
import pathlib
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from ratios import ROOT, Served, prompt_of  # pylint: disable=wrong-import-position

ALONE_S = 3.0


class Stream(threading.Thread):
    """One text that is being written, and when each piece of it was read."""

    def __init__(self, url, over):
        super().__init__(daemon=True)
        self.url, self.over, self.times = url, over, []
        self.start()

    def run(self):
        body = json.dumps({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as reply:
            for line in reply:
                if self.over.is_set():
                    return
                if line.startswith(b"data:"):
                    self.times.append(time.monotonic())


def gaps_between(streams, begin, end):
    return sorted(1000 * (after - before) for stream in streams
                  for before, after in zip(stream.times, stream.times[1:]) if begin <= before and after <= end)


def at(gaps, share):
    return gaps[min(len(gaps) - 1, int(share * len(gaps)))]


def measure(args, stages):
    server, over = Served(args, ["--stages", str(stages)]), threading.Event()
    try:
        server.read(prompt_of(4096))
        streams = [Stream(server.url, over) for _ in range(args.streams)]
        while not all(len(stream.times) > 20 for stream in streams):
            time.sleep(0.01)
        begin = time.monotonic()
        time.sleep(ALONE_S)
        middle = time.monotonic()
        server.read(prompt_of(args.length))
        end = time.monotonic()
        return gaps_between(streams, begin, middle), gaps_between(streams, middle, end), end - middle
    finally:
        over.set()
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bam", default=str(ROOT / "build" / "bam"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--stages", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--length", type=int, default=100_000)
    parser.add_argument("--flags", type=str.split, default=[], help="more flags for serve, in one word")
    args = parser.parse_args()
    print(f"{'stages':>6}  {'alone p50':>9} {'p99':>7}  {'beside the prompt p50':>21} {'p99':>7} {'max':>7}  {'prompt':>8}")
    for stages in args.stages:
        alone, beside, seconds = measure(args, stages)
        print(f"{stages:>6}  {at(alone, 0.5):>6.1f} ms {at(alone, 0.99):>4.1f} ms  {at(beside, 0.5):>18.1f} ms {at(beside, 0.99):>4.1f} ms {beside[-1]:>4.1f} ms  {seconds:>6.2f} s",
              flush=True)


if __name__ == "__main__":
    main()

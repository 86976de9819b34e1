#!/usr/bin/env python3
"""How near a pipeline on this machine comes to what the balance of its stages allows.

    bench/cluster/ratios.py [--runs 3] [--lengths 32768,131072] [--stages 2] [--model DIR] [--no-beside] [--flags "--kv-dtype int8"]

Each run reads one prompt of each length with one rank of one thread, then with N ranks of one thread each, so that both
see the same machine; it needs N idle cores. Medians of the time to one token, their ratio, and sum / slowest of the times
in which the stages computed (`/props`), which is the most that the ratio can be; and how much of the time the slowest stage
computed. Cores of one machine share its clock, caches and memory: so N servers of one rank also read the prompt at the same
time (`beside`), which is what a rank takes while the other cores compute as much. `--stages 1` instead compares the server
without that flag to the one with it. Ends with 1 if the answers differ.

What tells whether the cores were idle: `delayed`, the time in which the thread that computes had work and no core, as a
share of the run; and `work`, the processor time of all stages over that of the one rank, which other programs hardly
change. Bytes are those of the TCP connections between the ranks.
"""
import argparse
import concurrent.futures
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

    def ranks(self):
        """Process numbers, rank 0 first."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [self.process.pid, *map(int, found.stdout.split())]

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as reply:
            return json.load(reply)

    def read(self, prompt):
        """(seconds, answer, what it took) of one prompt."""
        ranks = self.ranks()
        threads, sent = [threads_of(pid) for pid in ranks], bytes_between(ranks)
        before, start = self.ask("/props")["stages"], time.monotonic()
        reply = self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 0})
        seconds = time.monotonic() - start
        after = self.ask("/props")["stages"]
        spent = {key: [now[key] - then[key] for now, then in zip(after, before, strict=True)] for key in ("busy_seconds", "wait_seconds")}
        workers = [busiest(then, threads_of(pid)) for then, pid in zip(threads, ranks, strict=True)]
        spent["cpu_seconds"], spent["delayed"] = [cpu for cpu, _ in workers], max(delayed for _, delayed in workers) / seconds
        spent["sent"] = {pair: count - sent.get(pair, 0) for pair, count in bytes_between(ranks).items()}
        choice = reply["choices"][0]
        return seconds, (choice["text"], choice["logprobs"]), spent

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=60)


def threads_of(pid):
    """thread -> (seconds that it ran, seconds that it could have run and had no core)."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            ran, delayed, _ = (task / "schedstat").read_text(encoding="ascii").split()
        except FileNotFoundError:
            continue
        found[task.name] = int(ran) / 1e9, int(delayed) / 1e9
    return found


def busiest(before, after):
    """(ran, delayed) of the thread that ran most in between."""
    return max((ran - before.get(thread, (0, 0))[0], delayed - before.get(thread, (0, 0))[1]) for thread, (ran, delayed) in after.items())


def bytes_between(ranks):
    """(rank, rank) -> bytes that the first has sent to the second, by `ss`."""
    listing = subprocess.run(["ss", "-tinOHp", "state", "established"], capture_output=True, text=True, check=True).stdout
    ends, sent = {}, {}
    for line in listing.splitlines():
        owner = re.search(r"pid=(\d+),", line)
        if owner and int(owner.group(1)) in ranks:
            local, remote = line.split()[2:4]
            sent_bytes = re.search(r"bytes_sent:(\d+)", line)
            ends[local] = ranks.index(int(owner.group(1))), remote, int(sent_bytes.group(1)) if sent_bytes else 0
    for rank, remote, count in ends.values():
        if remote in ends:
            pair = rank, ends[remote][0]
            sent[pair] = sent.get(pair, 0) + count
    return sent


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
    parser.add_argument("--no-beside", action="store_true", help="leave out what takes as long as one rank again")
    parser.add_argument("--flags", type=str.split, default=[], help="more flags for serve, in one word")
    args = parser.parse_args()
    alone, together = ["--threads", "1"], ["--threads", str(args.stages), "--stages", str(args.stages)]
    samples, same = {}, True
    for run in range(args.runs):
        answers = {}
        for kind, flags in (("one", alone), *([("beside", alone)] if args.stages > 1 and not args.no_beside else []), ("all", together)):
            servers = []
            try:
                for _ in range(args.stages if kind == "beside" else 1):
                    servers.append(Served(args, flags))
                    servers[-1].read(prompt_of(4096))  # the cost model learns
                for length in args.lengths:
                    prompt = prompt_of(length)
                    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
                        results = list(pool.map(lambda server, prompt=prompt: server.read(prompt), servers))
                    for seconds, answer, spent in results:
                        samples.setdefault((length, kind), []).append((seconds, spent))
                        same = same and answers.setdefault(length, answer) == answer
                        print(f"run {run} {kind} {length}: {seconds:.3f} s, {spent}", file=sys.stderr, flush=True)
            finally:
                for server in servers:
                    server.stop()
    hidden = json.loads((pathlib.Path(args.model) if args.model != "demo" else ROOT / "checkpoints" / "demo").joinpath("config.json").read_text(encoding="utf-8"))["hidden_size"]
    print(f"{'prompt':>8} {'1 rank':>9} {'beside':>9} {f'{args.stages} ranks':>9} {'ratio':>6} {'sum/slowest':>11} {'reached':>8} {'beside':>8} {'busy':>7} {'work':>5} "
          f"{'delayed':>14}  computed, waited by stage")
    for length in args.lengths:
        one, many = samples[length, "one"], samples[length, "all"]
        beside = statistics.median(seconds for seconds, _ in samples.get((length, "beside"), one))
        ratio = statistics.median(a[0] / b[0] for a, b in zip(one, many, strict=True))
        together_s = statistics.median(seconds for seconds, _ in many)
        busy = [statistics.median(times) for times in zip(*(spent["busy_seconds"] for _, spent in many), strict=True)]
        wait = [statistics.median(times) for times in zip(*(spent["wait_seconds"] for _, spent in many), strict=True)]
        most = sum(busy) / max(busy)
        share = statistics.median(max(spent["busy_seconds"]) / seconds for seconds, spent in many)
        work = statistics.median(sum(b["cpu_seconds"]) / sum(a["cpu_seconds"]) for (_, a), (_, b) in zip(one, many, strict=True))
        delays = (100 * statistics.median(spent["delayed"] for _, spent in kind) for kind in (one, many))
        print(f"{length:>8} {statistics.median(s for s, _ in one):>7.3f} s {beside:>7.3f} s {together_s:>7.3f} s {ratio:>6.2f} {most:>11.2f} {100 * ratio / most:>6.1f} % "
              f"{100 * beside / together_s / most:>6.1f} % {100 * share:>5.1f} % {work:>5.2f} {'{:5.1f}, {:4.1f} %'.format(*delays):>14}  "
              f"{', '.join(f'{b:.2f}+{w:.2f} s' for b, w in zip(busy, wait, strict=True))}")
    print("bytes sent, of rows x hidden x 4:")
    for length in args.lengths:
        _, spent = samples[length, "all"][-1]
        print(f"{length:>8} {'  '.join(f'{a}->{b} {100 * count / (length * hidden * 4):.3f} %' for (a, b), count in sorted(spent['sent'].items()))}")
    if not same:
        sys.exit("the answers differ")


if __name__ == "__main__":
    main()

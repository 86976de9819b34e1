#!/usr/bin/env python3
"""bench/peers/compare.py: medians over rounds of several calls, the best peer of a row, which flags ours is asked with, and
that peers do nothing while it is not their turn."""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

PEERS = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "peers"

# Stands in for build/bench_model: keeps its arguments and what state the peers are in, answers with the next rate of its list.
BENCH = """#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
calls = folder / "calls.json"
known = json.loads(calls.read_text()) if calls.exists() else []
states = [pathlib.Path("/proc", pid.read_text(), "stat").read_text().rsplit(")", 1)[1].split()[0] for pid in folder.glob("*.pid")]
calls.write_text(json.dumps(known + [dict(arguments=sys.argv[1:], states=states)]))
rate = [100, 300, 900][len(known)]
results = [dict(what="decode", depth=0, streams=n, tokens_per_s=rate * n) for n in (1, 16, 64)]
pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps(dict(results=results)))
"""

# A peer whose prompts are as fast as its argument says and whose streams are ten times that, the first time half of it.
PEER = """
import json, os, pathlib, sys
pathlib.Path(sys.argv[1] + ".pid").write_text(str(os.getpid()))
rate, seen = float(sys.argv[2]), set()
for line in sys.stdin:
    print("noise", flush=True)
    value = rate if line in seen else rate / 2
    seen.add(line)
    print(json.dumps(dict(decode=10 * value) if line.startswith("streams") else dict(prefill=value, decode=value)), flush=True)
"""
STREAMS = "one stream,16 streams,64 streams"


class ComparePeers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.bench = self.folder / "bench"
        self.bench.write_text(BENCH.format(python=sys.executable, folder=str(self.folder)))
        self.bench.chmod(0o755)
        (self.folder / "peer.py").write_text(PEER)

    def peer(self, kind, name, rate):
        command = [sys.executable, str(self.folder / "peer.py"), str(self.folder / name), str(rate)]
        return ["--peer", f"{kind}:{name}={shlex.join(command)}"]

    def compare(self, *arguments):
        return subprocess.run([sys.executable, str(PEERS / "compare.py"), "--bench", str(self.bench), "--model", "DIR", *arguments],
                              capture_output=True, text=True)

    def calls(self):
        return json.loads((self.folder / "calls.json").read_text())

    def test_rounds_of_several_calls_make_one_median(self):
        common = ("--weights", "int8-kv8", "--rows", STREAMS, "--rounds", "1", "--samples", str(self.folder / "samples.json"),
                  *self.peer("int8", "slow", 5), *self.peer("int8", "quick", 15), *self.peer("bf16", "other", 7))
        for _ in range(3):
            last = self.compare(*common)
            self.assertEqual(last.returncode, 0, last.stderr)
        self.assertIn("| tokens/s, int8 | int8-kv8 | slow | quick |", last.stdout, "other stands beside other weights")
        self.assertIn("| one stream | 300 (2.00) | 50.0 | **150** |", last.stdout, "100, 300 and 900; warm peers only")
        self.assertIn("| 64 streams | 19200 (128.00) | 50.0 | **150** |", last.stdout)
        self.assertIn("medians of 3 to 3 rounds", last.stdout)
        self.assertNotIn("prefill", last.stdout)
        self.assertEqual([call["states"] for call in self.calls()], [["T"] * 3] * 3, "stopped while ours is measured")

    def test_the_name_of_our_weights_says_how_they_run(self):
        self.assertEqual(self.compare("--weights", "bf16-fast-kv8,int8", "--rows", STREAMS, "--rounds", "1").returncode, 0)
        fast, int8 = (call["arguments"] for call in self.calls())
        for flag, value in (("--dtype", "bf16"), ("--math", "fast"), ("--kv-dtype", "int8"), ("--attention-math", "int8")):
            self.assertEqual(fast[fast.index(flag) + 1], value)
        for flag, value in (("--dtype", "int8"), ("--math", "exact"), ("--kv-dtype", "f16"), ("--streams", "1,16,64")):
            self.assertEqual(int8[int8.index(flag) + 1], value)
        self.assertNotIn("--attention-math", int8)

    def test_a_peer_that_ends_is_named_with_what_it_said(self):
        done = self.compare("--peer", "int8:broken=sh -c 'read line; echo no such model >&2'")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ended instead of answering prompt 512", done.stderr)
        self.assertIn("no such model", done.stderr)


class Protocol(unittest.TestCase):
    """What a Python peer's steps are worth (protocol.py), on a clock that the test moves."""

    def test_rates_count_prompts_and_full_steps_only(self):
        sys.path.insert(0, str(PEERS))
        self.addCleanup(sys.path.remove, str(PEERS))
        import protocol

        prompt = [(2.0, 0), (2.0, 1)]  # two chunks, the second gives the first token
        warm, steps, last = [(9.0, 1)] * protocol.WARM_STEPS, [(0.5, 1)] * protocol.STEPS, [(7.0, 1)]
        self.assertEqual(protocol.prefill_seconds(prompt + steps), 4.0)
        self.assertEqual(protocol.decode_rate(prompt + warm + steps + last, 1), 2.0)
        ragged = [(1.0, 3), (1.0, 4)] + [(9.0, 4)] * protocol.WARM_STEPS + [(0.5, 4)] * protocol.STEPS + [(0.1, 1)]
        self.assertEqual(protocol.decode_rate(ragged, 4), 8.0)


if __name__ == "__main__":
    unittest.main()

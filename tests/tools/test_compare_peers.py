#!/usr/bin/env python3
"""bench/peers/compare.py: medians over rounds of several calls, the best peer of a row, and which flags ours is asked with."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "peers" / "compare.py"

# Stands in for build/bench_model: keeps its arguments, answers with the next rate of its list.
BENCH = """#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
calls = folder / "calls.json"
known = json.loads(calls.read_text()) if calls.exists() else []
calls.write_text(json.dumps(known + [sys.argv[1:]]))
rate = [100, 300, 900][len(known)]
results = [dict(what="decode", depth=0, streams=n, tokens_per_s=rate * n) for n in (1, 16, 64)]
pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps(dict(results=results)))
"""


class ComparePeers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.bench = self.folder / "bench"
        self.bench.write_text(BENCH.format(python=sys.executable, folder=str(self.folder)))
        self.bench.chmod(0o755)

    def compare(self, *arguments):
        done = subprocess.run([sys.executable, str(COMPARE), "--bench", str(self.bench), "--model", "DIR", *arguments],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_rounds_of_several_calls_make_one_median(self):
        slow, quick = (f"int8:{name}=echo {{mode}} {{size}}: {rate} tok/s" for name, rate in (("slow", 50), ("quick", 150)))
        common = ("--weights", "int8-kv8", "--only", "streams", "--rounds", "1", "--samples", str(self.folder / "samples.json"),
                  "--peer", slow, "--peer", quick, "--peer", "bf16:other=echo {mode} {size}: 7 tok/s")
        for _ in range(2):
            self.compare(*common)
        last = self.compare(*common)
        self.assertIn("| one stream | int8-kv8 | 300 | quick | 150 | 2.00 | slow 50 |", last, "100, 300 and 900")
        self.assertIn("| 64 streams | int8-kv8 | 19200 | quick | 150 | 128.00 | slow 50 |", last)
        self.assertIn("medians of 3 to 3 rounds", last)
        self.assertNotIn("prefill", last)

    def test_the_name_of_our_weights_says_how_they_run(self):
        self.compare("--weights", "bf16-fast-kv8,int8", "--only", "streams", "--rounds", "1")
        fast, int8 = json.loads((self.folder / "calls.json").read_text())
        for flag, value in (("--dtype", "bf16"), ("--math", "fast"), ("--kv-dtype", "int8"), ("--attention-math", "int8")):
            self.assertEqual(fast[fast.index(flag) + 1], value)
        for flag, value in (("--dtype", "int8"), ("--math", "exact"), ("--kv-dtype", "f16")):
            self.assertEqual(int8[int8.index(flag) + 1], value)
        self.assertNotIn("--attention-math", int8)


if __name__ == "__main__":
    unittest.main()

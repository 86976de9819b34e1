#!/usr/bin/env python3
"""tools/report.py: tables, labels and figures of result files."""
import csv
import json
import math
import pathlib
import tempfile
import unittest

from tooltest import assert_one_line_failure, run_tool

try:
    import matplotlib  # noqa: F401
    FIGURES = True
except ImportError:
    FIGURES = False


class Report(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def passkey(self, name, hits, label="demo"):
        lines = [{"type": "header", "schema": "bam.passkey/1", "label": label}]
        for length, right in hits.items():
            lines += [{"type": "result", "length": length, "depth": d / 10, "repeat": 0, "score": float(d < right)} for d in range(10)]
        lines.insert(1, {"type": "result", "length": min(hits), "depth": 0.0, "repeat": 0, "score": 0.0})  # answered again later
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.folder / name

    def report(self, *arguments):
        result = run_tool("report.py", *arguments, "--out", self.folder / "out")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def rows(self, name):
        with (self.folder / "out" / name).open() as file:
            return list(csv.reader(file))

    def test_two_runs_of_one_model_and_the_training_length(self):
        files = [self.passkey("first.jsonl", {512: 10, 65536: 5}), self.passkey("second.jsonl", {512: 9, 131072: 0})]
        result = self.report(*files, "--trained", 512, "--title", "Passkeys")
        self.assertEqual(self.rows("table.csv"), [["run", "512", "65536", "131072"], ["demo (first)", "1.0", "0.5", ""],
                                                  ["demo (second)", "0.9", "", "0.0"]])
        self.assertIn("| demo (first) | 100.0 % | 50.0 % |  |", result.stdout)
        self.assertIn("| 512 | 64K | 128K |", result.stdout)
        point = next(row for row in self.rows("points.csv") if row[:2] == ["demo (first)", "65536"])
        self.assertTrue(0 < float(point[3]) < 0.5 < float(point[4]) < 1)
        if FIGURES:
            self.assertEqual((self.folder / "out/figure.png").read_bytes()[:4], b"\x89PNG")
            self.assertEqual((self.folder / "out/figure.pdf").read_bytes()[:5], b"%PDF-")
        else:
            self.assertIn("matplotlib is missing", result.stderr)

    def test_perplexity_and_tasks(self):
        windows = [{"begin": i * 512, "end": (i + 1) * 512, "nats": 2.0, "nats_stderr": 0.1} for i in range(3)]
        (self.folder / "p.json").write_text(json.dumps({"schema": "bam.perplexity/1", "label": "demo", "windows": windows}))
        self.report(self.folder / "p.json", "--trained", 512)
        self.assertAlmostEqual(float(self.rows("table.csv")[1][1]), math.exp(2))
        (self.folder / "e.json").write_text(json.dumps({"schema": "bam.eval/1", "label": "demo", "results": {"arc": {"acc,none": 0.25}},
                                                        "tasks": {"arc": {"intervals_95": {"acc,none": [0.1, 0.4]}}}}))
        self.report(self.folder / "e.json")
        self.assertEqual(self.rows("table.csv"), [["run", "arc acc"], ["demo", "0.25"]])

    def test_what_is_no_result_file(self):
        (self.folder / "x.json").write_text("{}")
        assert_one_line_failure(self, run_tool("report.py", self.folder / "x.json"), 1, "x.json")
        mixed = [self.passkey("a.jsonl", {512: 1}), self.folder / "p.json"]
        mixed[1].write_text(json.dumps({"schema": "bam.perplexity/1", "windows": [{"end": 1, "nats": 1}]}))
        assert_one_line_failure(self, run_tool("report.py", *mixed), 1, "different kinds")


if __name__ == "__main__":
    unittest.main()

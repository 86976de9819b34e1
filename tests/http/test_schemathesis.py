#!/usr/bin/env python3
"""schemathesis against /openapi.json: some hundred generated requests, no 5xx, no reply outside its schema."""

import re
import subprocess
import tempfile
import unittest

import bamtest
import pypi

# Allow of every path and method is test_errors.py's.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def generate_requests(test, examples_per_operation, at_least, *options, timeout=800):
    """Runs schemathesis and returns how many requests it made."""
    python = pypi.python_with("schemathesis>=4,<5")
    folder = tempfile.TemporaryDirectory()
    server = bamtest.Server("--max-model-len", "256", "--request-timeout", "20s", "--admin-key", "admin", "--kv-dir", folder.name,
                            "--batch-dir", folder.name + "/batches")
    try:
        command = [python, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", CHECKS,
                   "--max-examples", str(examples_per_operation), "--phases", "fuzzing", "--seed", "1", "--workers", "1",
                   "-H", "Authorization: Bearer admin", "--request-timeout", "60", "--suppress-health-check", "all",
                   "--generation-database", "none", *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        test.assertEqual(result.returncode, 0, result.stdout[-20000:] + result.stderr[-2000:] + server.log())
        cases = re.search(r"(\d[\d,]*) generated", result.stdout)
        test.assertTrue(cases, result.stdout[-2000:])
        total = int(cases.group(1).replace(",", ""))
        print(f"\nschemathesis: {total} cases")
        test.assertGreaterEqual(total, at_least)
        test.assertEqual(server.get("/readyz").status, 200)
    finally:
        server.stop()
        folder.cleanup()


class Schemathesis(unittest.TestCase):
    def test_generated_requests(self):
        generate_requests(self, 25, 200)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""schemathesis against /openapi.json: at least 2,000 generated requests, no 5xx, no reply outside its schema."""

import re
import subprocess
import tempfile
import unittest

import bamtest
import pypi


class Schemathesis(unittest.TestCase):
    def test_generated_requests(self):
        python = pypi.python_with("schemathesis")
        folder = tempfile.TemporaryDirectory()
        server = bamtest.Server("--max-model-len", "256", "--request-timeout", "20s", "--admin-key", "admin", "--kv-dir", folder.name)
        try:
            command = [python, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks",
                       "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                       "--max-examples", "320", "--phases", "fuzzing", "--seed", "1", "--workers", "1", "-H", "Authorization: Bearer admin", "--request-timeout", "60",
                       "--exclude-path", "/v1/selftest/passkey", "--suppress-health-check", "all", "--generation-database", "none"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
            self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-2000:] + server.log())
            cases = re.search(r"(\d[\d,]*) generated", result.stdout)
            self.assertTrue(cases, result.stdout[-2000:])
            total = int(cases.group(1).replace(",", ""))
            print(f"\nschemathesis: {total} cases")
            self.assertGreaterEqual(total, 2000)
            self.assertEqual(server.get("/readyz").status, 200)
        finally:
            server.stop()
            folder.cleanup()


if __name__ == "__main__":
    bamtest.main()

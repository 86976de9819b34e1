#!/usr/bin/env python3
"""The official openai client: completions, chat, streams, logprobs, errors, timeouts and automatic retries."""

import pathlib
import subprocess
import unittest

import bamtest
import pypi


class OpenAiClient(unittest.TestCase):
    def test_official_client(self):
        self.run_checks("openai<4")

    def test_the_version_before(self):
        self.run_checks("openai<3")

    def run_checks(self, package):
        python = pypi.python_with(package)
        server = bamtest.Server("--api-key", "right", "--max-num-seqs", "4", "--max-queue", "4")
        try:
            script = pathlib.Path(__file__).with_name("openai_client_checks.py")
            result = subprocess.run([python, str(script), f"http://127.0.0.1:{server.port}/v1", "right"], capture_output=True, text=True,
                                    timeout=300, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr + server.log())
            print(result.stdout)
        finally:
            server.stop()


if __name__ == "__main__":
    bamtest.main()

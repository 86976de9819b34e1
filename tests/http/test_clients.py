#!/usr/bin/env python3
"""The official clients of the other APIs: openai's responses, anthropic, ollama. First-page examples, tools, schemas."""

import pathlib
import subprocess
import tempfile
import unittest

import bamtest
import pypi


class Clients(bamtest.ServerTest):
    folder = tempfile.TemporaryDirectory()
    arguments = ("--batch-dir", folder.name)

    def run_checks(self, script, *packages):
        python = pypi.python_with(*packages)
        result = subprocess.run([python, str(pathlib.Path(__file__).with_name(script)), f"http://127.0.0.1:{self.server.port}"],
                                capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + self.server.log())
        print(result.stdout)

    def test_openai_responses(self):
        for package in ("openai<4", "openai<3"):
            self.run_checks("client_checks_responses.py", package)

    def test_anthropic(self):
        self.run_checks("client_checks_anthropic.py", "anthropic<2")

    def test_types_of_every_reply_and_event(self):
        self.run_checks("client_checks_types.py", "openai<4", "anthropic<2", "ollama<1")

    def test_ollama(self):
        self.run_checks("client_checks_ollama.py", "ollama<1")


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Frameworks that people use on top of the APIs. Each its first-page example and its example of tools or structured output. The
model cannot really chat: shapes and valid arguments are what counts."""

import pathlib
import subprocess
import unittest

import bamtest
import pypi


class Frameworks(bamtest.ServerTest):
    arguments = ("--max-model-len", "4096")

    def run_checks(self, name, *packages):
        python = pypi.python_with(*packages)
        script = pathlib.Path(__file__).with_name("client_checks_frameworks.py")
        result = subprocess.run([python, str(script), name, f"http://127.0.0.1:{self.server.port}"], capture_output=True, text=True,
                                timeout=600, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + self.server.log())
        print(result.stdout.strip().splitlines()[-1])

    def test_langchain(self):
        self.run_checks("langchain", "langchain-openai")

    def test_pydantic_ai(self):
        self.run_checks("pydantic_ai", "pydantic-ai-slim[openai]")

    def test_openai_agents(self):
        self.run_checks("openai_agents", "openai-agents")

    def test_litellm(self):
        self.run_checks("litellm", "litellm", "mcp")  # it needs mcp for tools and does not say so

    def test_instructor(self):
        self.run_checks("instructor", "instructor")

    def test_outlines(self):
        self.run_checks("outlines", "outlines[openai]")


if __name__ == "__main__":
    bamtest.main()

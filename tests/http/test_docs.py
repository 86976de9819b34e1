#!/usr/bin/env python3
"""Every curl line of docs/api.md works, its Python example runs with the official client, and its tables are what the program says.

BAM_WRITE_TABLES=1 writes the tables anew."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import api_tables
import bamtest
import pypi

FILE = bamtest.ROOT / "docs" / "api.md"
DOCUMENT = FILE.read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


class Documentation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = bamtest.Server("--served-model-name", "demo", "--admin-key", "ADMIN", "--kv-dir", cls.folder.name,
                                    "--batch-dir", cls.folder.name)
        cls.base = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def test_curl_lines(self):
        count, ids = 0, {}
        prompt = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 20
        (pathlib.Path(self.folder.name) / "handbook.json").write_text(json.dumps({"name": "handbook", "prompt": prompt}))
        (pathlib.Path(self.folder.name) / "requests.jsonl").write_text(json.dumps({"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "x"}}))
        self.assertEqual(self.server.complete(prompt, max_tokens=1).status, 200)
        for block in blocks("bash"):
            for words in self.commands(block):
                words = [re.sub("FILE_ID|BATCH_ID", lambda name: ids[name[0]], word) for word in words]
                stream = None
                if "my-request" in " ".join(words):
                    stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True,
                                                                    "request_id": "my-request"})
                    stream.next_event()
                result = subprocess.run(words + ["-sS", "-w", "\n%{http_code}"], capture_output=True, text=True, timeout=bamtest.PATIENCE,
                                        check=False, cwd=self.folder.name)
                self.assertEqual(result.stdout.rsplit("\n", 1)[-1], "200", (words, result.stdout[-500:], result.stderr))
                if stream:
                    stream.close()
                for kind, name in (("file", "FILE_ID"), ("batch", "BATCH_ID")):
                    if f'"object":"{kind}"' in result.stdout and "-X" not in words and name not in ids:
                        ids[name] = json.loads(result.stdout.rsplit("\n", 1)[0])["id"]
                count += 1
        self.assertGreater(count, 20)

    def commands(self, block):
        """The commands of a block as argument lists; quotes may run over several lines."""
        words, command = shlex.split(block.replace("http://127.0.0.1:8000", self.base).replace("\\\n", " "), comments=True), []
        for word in words:
            if word == "curl" and command:
                yield command
                command = []
            command.append(word)
        yield command

    def test_every_route_has_a_curl_line(self):
        asked = set()
        for block in blocks("bash"):
            for words in self.commands(block):
                method = words[words.index("-X") + 1] if "-X" in words else "POST" if {"-d", "-F"} & set(words) else "GET"
                asked |= {(method, word.removeprefix(self.base).partition("?")[0]) for word in words if word.startswith(self.base)}
        for path, methods in self.server.get("/openapi.json").json()["paths"].items():
            pattern = re.escape(path).replace(re.escape("{id}"), "[^/]+")
            for method in methods:
                self.assertTrue(any(m == method.upper() and re.fullmatch(pattern, p) for m, p in asked), (method, path))

    def test_tables_say_what_the_program_says(self):
        made = api_tables.with_tables(DOCUMENT, self.server.get("/openapi.json").json())
        if os.environ.get("BAM_WRITE_TABLES"):
            FILE.write_text(made, encoding="utf-8")
        else:
            self.assertEqual(made.splitlines(), DOCUMENT.splitlines(), "BAM_WRITE_TABLES=1 tests/http/test_docs.py writes them")

    def test_python_example(self):
        python = pypi.python_with("openai<4")
        for block in blocks("python"):
            script = pathlib.Path(self.folder.name) / "example.py"
            script.write_text(block.replace("http://127.0.0.1:8000", self.base), encoding="utf-8")
            result = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(result.stdout.strip())

    def run_node(self, block, *arguments):
        node = shutil.which("node")
        if node is None:
            self.skipTest("SKIPPED: node is not installed (apt-get install nodejs)")
        script = pathlib.Path(self.folder.name) / "example.mjs"
        script.write_text(block.replace("http://127.0.0.1:8000", self.base), encoding="utf-8")
        return subprocess.run([node, *arguments, str(script)], capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False)

    def test_node_example_without_packages(self):
        examples = [block for block in blocks("javascript") if "fetch(" in block]
        self.assertEqual(len(examples), 1)
        result = self.run_node(examples[0])
        self.assertEqual(result.returncode, 0, result.stderr)
        reply = self.server.complete(max_tokens=16).json()["choices"][0]["text"]
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32,
                                                         "temperature": 0}).json()["choices"][0]["message"]["content"]
        self.assertEqual(result.stdout, reply + "\n" + chat + "\n")

    def test_node_example_with_the_official_client_is_valid_javascript(self):
        """Its grammar only: the client comes from a registry that a test machine need not reach."""
        for block in blocks("javascript"):
            result = self.run_node(block, "--check")
            self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    bamtest.main()

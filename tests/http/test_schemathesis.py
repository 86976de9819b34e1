#!/usr/bin/env python3
"""schemathesis against /openapi.json: some hundred generated requests, no 5xx, no reply outside its schema."""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import bamtest
import pypi

CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
          "unsupported_method")


def generate_requests(test, examples_per_operation, at_least, *options, timeout=800):
    """Runs schemathesis and returns how many requests it made."""
    python = pypi.python_with("schemathesis>=4,<5")
    folder = tempfile.TemporaryDirectory()
    server = bamtest.Server("--max-model-len", "256", "--request-timeout", "20s", "--admin-key", "admin", "--kv-dir", folder.name,
                            "--batch-dir", folder.name + "/batches")
    try:
        command = [python, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", CHECKS,
                   "--max-examples", str(examples_per_operation), "--phases", "coverage,fuzzing", "--seed", "1", "--workers", "1",
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


# Small requests for streams; what is not said here comes from the schema of the operation.
STREAMS = {
    "/v1/completions": {"prompt": {"enum": ["x", "The grass is"]}, "max_tokens": {"enum": [1, 9]}, "logprobs": {"enum": [None, 0, 2]},
                        "n": {"enum": [1, 2]}, "stop": {"enum": [None, "e"]}, "return_token_ids": {"type": "boolean"},
                        "return_progress": {"type": "boolean"}, "stream_options": {"enum": [None, {"include_usage": True}]}},
    "/v1/chat/completions": {"messages": {"const": [{"role": "user", "content": "Hello"}]}, "max_tokens": {"enum": [1, 40]},
                             "logprobs": {"type": "boolean"}, "tools": {"const": [{"type": "function", "function": {"name": "ping"}}]},
                             "tool_choice": {"enum": ["required", "none"]}, "return_progress": {"type": "boolean"},
                             "stream_options": {"enum": [None, {"include_usage": True, "continuous_usage_stats": True}]}},
    "/v1/responses": {"input": {"const": "Hello"}, "max_output_tokens": {"enum": [1, 40]}, "tool_choice": {"enum": ["required", "none"]},
                      "tools": {"const": [{"type": "function", "name": "ping"}]}},
    "/v1/messages": {"messages": {"const": [{"role": "user", "content": "Hello"}]}, "max_tokens": {"enum": [1, 40]},
                     "tool_choice": {"enum": [{"type": "any"}, {"type": "none"}]},
                     "tools": {"const": [{"name": "ping", "input_schema": {"type": "object"}}]}},
    "/completion": {"prompt": {"const": "x"}, "n_predict": {"enum": [0, 1, 9]}, "n_probs": {"enum": [0, 2]}, "return_progress": {"type": "boolean"}},
}


class Schemathesis(unittest.TestCase):
    def test_streams(self):
        """Every event of a stream is of the schema that /openapi.json has for it, and a wrong schema is noticed."""
        python = pypi.python_with("schemathesis>=4,<5")
        with bamtest.running_server("--max-model-len", "256") as server, tempfile.TemporaryDirectory() as folder:
            document = server.get("/openapi.json").json()
            document["paths"] = {path: {"post": document["paths"][path]["post"]} for path in STREAMS}
            for path, fields in STREAMS.items():
                fields = {**fields, "stream": {"const": True}}
                document["paths"][path]["post"]["requestBody"]["content"] = {"application/json": {"schema": {
                    "type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}}}
            chunk = document["components"]["schemas"]["CompletionChunk"]["properties"]
            for kind, expected in (({"type": "integer"}, 0), ({"type": "string"}, 1)):
                chunk["created"] = kind
                file = pathlib.Path(folder) / "openapi.json"
                file.write_text(json.dumps(document), encoding="utf-8")
                only = ["--include-path", "/v1/completions"] if expected else []
                result = subprocess.run([python, "-m", "schemathesis.cli", "run", str(file), "--url", f"http://127.0.0.1:{server.port}", "--checks",
                                         "not_a_server_error,status_code_conformance,response_schema_conformance", "--max-examples", "12", "--mode",
                                         "positive", "--phases", "fuzzing", "--seed", "1", "--generation-database", "none", *only],
                                        capture_output=True, text=True, timeout=600, check=False)
                self.assertEqual(result.returncode, expected, result.stdout[-6000:] + result.stderr[-2000:])
            self.assertIn("SSE event violates schema", result.stdout)

    def test_the_description_is_valid(self):
        python = pypi.python_with("openapi-spec-validator<1")
        with bamtest.running_server() as server, tempfile.TemporaryDirectory() as folder:
            document = server.get("/openapi.json").json()
            for version, expected in ((document["openapi"], 0), ("3.1.0", 1)):  # streams can be described since 3.2
                file = pathlib.Path(folder) / "openapi.json"
                file.write_text(json.dumps({**document, "openapi": version}), encoding="utf-8")
                result = subprocess.run([python, "-m", "openapi_spec_validator", str(file)], capture_output=True, text=True, timeout=300, check=False)
                self.assertEqual(result.returncode, expected, result.stdout[-2000:] + result.stderr[-2000:])

    def test_generated_requests(self):
        generate_requests(self, 25, 200)


if __name__ == "__main__":
    bamtest.main()

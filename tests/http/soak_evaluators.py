#!/usr/bin/env python3
"""Evaluation harnesses and load testers of others: lm-eval, guidellm, vLLM's and SGLang's bench clients."""

import pathlib
import subprocess

import bamtest
import pypi

# The engines of vLLM and SGLang need a GPU, their bench clients do not: both without their kernels, in one environment.
BENCH_CLIENTS = ("vllm", "sglang", "xgrammar")
BENCH_NEEDS = ("torch", "torchvision", "aiohttp", "apache-tvm-ffi", "blake3", "cachetools", "cbor2", "cloudpickle", "compressed-tensors", "datasets", "einops",
               "fastapi", "gguf", "ipython", "llguidance", "msgspec", "numpy", "openai", "openai-harmony", "orjson", "pandas", "partial-json-parser", "pillow",
               "prometheus-client", "protobuf", "psutil", "py-cpuinfo", "pybase64", "pydantic", "pyzmq", "regex", "requests", "sentencepiece",
               "setproctitle", "starlette", "tqdm", "transformers", "uvloop")


class Evaluators(bamtest.ServerTest):
    arguments = ("--max-model-len", "4096")

    def run_checks(self, name, *packages, bare=()):
        python = pypi.python_with(*packages, bare=bare)
        script = pathlib.Path(__file__).with_name("client_checks_evaluators.py")
        result = subprocess.run([python, str(script), name, f"http://127.0.0.1:{self.server.port}", bamtest.checkpoint()],
                                capture_output=True, text=True, timeout=1200, check=False)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:] + self.server.log())
        print(result.stdout.strip().splitlines()[-1])

    def test_lm_eval(self):
        self.run_checks("lm_eval", "lm-eval[api]")

    def test_guidellm(self):
        self.run_checks("guidellm", "guidellm", "sentencepiece", "protobuf")

    def test_vllm_bench(self):
        self.run_checks("vllm_bench", *BENCH_NEEDS, bare=BENCH_CLIENTS)

    def test_sglang_bench(self):
        self.run_checks("sglang_bench", *BENCH_NEEDS, bare=BENCH_CLIENTS)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""--device: the plugin is loaded, refused with a reason, or done without. Machines without a GPU, and an emulated one."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import bamtest

PROMPT = "Once upon a time there was a little dog who"


def clean_environment(**changes):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
    return {**clean, **changes}


def generate(*arguments, tokens=12, **environment):
    return subprocess.run(
        [bamtest.BAM, "generate", "--model", bamtest.checkpoint(), "-p", PROMPT, "-n", str(tokens), "--temperature", "0",
         "--kv-memory", "64MiB", "--max-model-len", "1024", "-q", *arguments],
        capture_output=True, text=True, timeout=600, check=False, env=clean_environment(**environment))


def emulated_plugin():
    """The CUDA backend compiled for the CPU emulation, or None in builds without it."""
    plugin = pathlib.Path(bamtest.BAM).parent / "tests" / "cuda_emu" / "plugin" / "libbam_cuda.so"
    return plugin if plugin.exists() else None


class NoDevice(unittest.TestCase):
    """A folder without a plugin, or with something else under its name."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def expect_refused(self, result, *words):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        for word in ("--device cuda", *words):
            self.assertIn(word, lines[0])

    def test_generate_says_what_is_missing(self):
        self.expect_refused(generate("--device", "cuda", BAM_PLUGIN_DIR=self.folder.name), "libbam_cuda.so", "make cuda")

    def test_a_file_that_is_no_plugin(self):
        plugin = pathlib.Path(self.folder.name) / "libbam_cuda.so"
        plugin.write_text("not a library")
        self.expect_refused(generate("--device", "cuda", BAM_PLUGIN_DIR=self.folder.name), "does not load")
        auto = generate("--device", "auto", BAM_PLUGIN_DIR=self.folder.name)
        self.assertEqual(auto.returncode, 0, auto.stderr)

    def test_a_library_that_is_no_plugin(self):
        library = next((path for folder in ("/lib", "/usr/lib", "/lib64") for path in
                        pathlib.Path(folder).glob("**/libm.so.6")), None)
        if library is None:
            self.skipTest("no libm.so.6 to stand in for a foreign library")
        shutil.copy(library, pathlib.Path(self.folder.name) / "libbam_cuda.so")
        self.expect_refused(generate("--device", "cuda", BAM_PLUGIN_DIR=self.folder.name), "bam_plugin_abi")

    def test_auto_is_the_cpu(self):
        auto = generate("--device", "auto", BAM_PLUGIN_DIR=self.folder.name)
        cpu = generate("--device", "cpu")
        self.assertEqual((auto.returncode, cpu.returncode), (0, 0), auto.stderr + cpu.stderr)
        self.assertEqual(auto.stdout, cpu.stdout)
        self.assertNotEqual(cpu.stdout.strip(), "")

    def test_serve_cuda_ends_with_one_line(self):
        result = subprocess.run(
            [bamtest.BAM, "serve", "--model", bamtest.checkpoint(), "--port", "0", "--device", "cuda"],
            capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False,
            env=clean_environment(BAM_PLUGIN_DIR=self.folder.name))
        self.assertEqual(result.returncode, 1, result.stderr)
        own = [line for line in result.stderr.splitlines() if line.startswith("bam serve:")]
        self.assertEqual(len(own), 1, result.stderr)
        self.assertIn("--device cuda", own[0])
        self.assertIn("libbam_cuda.so", own[0])

    def test_serve_auto_serves_on_the_cpu_and_says_so(self):
        with bamtest.running_server("--device", "auto", "--log-level", "debug", environment={"BAM_PLUGIN_DIR": self.folder.name}) as server:
            self.assertEqual(server.complete(PROMPT, max_tokens=4).status, 200)
            self.assertIn("cpu", server.get("/v1/models").json()["data"][0]["meta"]["device"])
            log = server.log()
        told = [line for line in log.splitlines() if "--device auto" in line]
        self.assertEqual(len(told), 1, log)
        self.assertIn("using the CPU", told[0])


class FormatsOfTheGpuOnly(unittest.TestCase):
    """KV formats that the CPU has not: one line with those that it has, exit code 2."""

    def expect_refused(self, result, dtype):
        self.assertEqual(result.returncode, 2, result.stderr)
        own = [line for line in result.stderr.splitlines() if line.startswith("bam ")]
        self.assertEqual(len(own), 1, result.stderr)
        for word in ("--kv-dtype", dtype, "it has f32, f16, int8, int4"):
            self.assertIn(word, own[0])

    def test_the_cpu_refuses_them(self):
        with tempfile.TemporaryDirectory() as folder:  # no plugin: auto is the CPU
            for device in ("cpu", "auto"):
                for dtype in ("fp8", "bf16"):
                    with self.subTest(device=device, dtype=dtype):
                        self.expect_refused(
                            generate("--device", device, "--kv-dtype", dtype, BAM_PLUGIN_DIR=folder), dtype)
            served = subprocess.run(
                [bamtest.BAM, "serve", "--model", bamtest.checkpoint(), "--port", "0", "--device", "auto"],
                capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False,
                env=clean_environment(BAM_PLUGIN_DIR=folder, BAM_KV_DTYPE="fp8"))
            self.expect_refused(served, "fp8")

    def test_the_gpu_takes_them(self):
        plugin = emulated_plugin()
        if plugin is None:
            self.skipTest("this build has no emulated CUDA plugin")
        for dtype in ("fp8", "bf16"):
            with self.subTest(dtype=dtype):
                result = generate("--device", "cuda", "--kv-dtype", dtype, tokens=3, BAM_PLUGIN_DIR=str(plugin.parent))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotEqual(result.stdout.strip(), "")


class FourBitWeights(unittest.TestCase):
    def test_the_cpu_serves_them(self):
        result = generate("--device", "cpu", "--dtype", "int4", tokens=3)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotEqual(result.stdout.strip(), "")

    def test_the_gpu_refuses_them_in_one_line(self):
        plugin = emulated_plugin()
        if plugin is None:
            self.skipTest("this build has no emulated CUDA plugin")
        result = generate("--device", "cuda", "--dtype", "int4", BAM_PLUGIN_DIR=str(plugin.parent))
        self.assertEqual(result.returncode, 2, result.stderr)
        own = [line for line in result.stderr.splitlines() if line.startswith("bam ")]
        self.assertEqual(len(own), 1, result.stderr)
        self.assertIn("--dtype int4", own[0])
        self.assertIn("int8", own[0])


def selftest(*arguments, **environment):
    return subprocess.run([bamtest.BAM, "selftest", *arguments], capture_output=True, text=True, timeout=600, check=False,
                          env=clean_environment(**environment))


class SelfTest(unittest.TestCase):
    """`bam selftest` as a user runs it."""

    OPERATIONS = ("embed", "rms_norm", "linear", "swiglu", "attention bam bf16", "attention bam fp8", "draw tokens", "pages",
                  "fp8 codes")

    def expect_good(self, result, *words):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("all operations agree with the CPU", result.stdout)
        self.assertNotIn("BAD", result.stdout)
        for word in words:
            self.assertIn(word, result.stdout)

    def test_the_cpu_agrees_with_itself(self):
        self.expect_good(selftest("--device", "cpu", "--size", "small"), "attention", "pages")

    def test_the_emulated_gpu_agrees_with_the_cpu(self):
        plugin = emulated_plugin()
        if plugin is None:
            self.skipTest("this build has no emulated CUDA plugin")
        for arguments in (("--dtype", "f16"), ("--dtype", "f32", "--cuda-gemm", "cublas")):
            with self.subTest(arguments=arguments):
                result = selftest("--device", "cuda", "--size", "small", *arguments, BAM_PLUGIN_DIR=str(plugin.parent))
                self.expect_good(result, "Emulated sm_80", *self.OPERATIONS)

    def test_a_missing_cublas_is_told(self):
        plugin = emulated_plugin()
        if plugin is None:
            self.skipTest("this build has no emulated CUDA plugin")
        result = selftest("--device", "cuda", "--size", "small", "--cuda-gemm", "cublas",
                          BAM_PLUGIN_DIR=str(plugin.parent), BAM_CUDA_EMU_CUBLAS="no")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("libcublas", result.stderr)

    def test_no_plugin_and_wrong_words(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = selftest("--device", "cuda", BAM_PLUGIN_DIR=folder)
        self.assertEqual(missing.returncode, 1, missing.stdout)
        self.assertIn("libbam_cuda.so", missing.stderr)
        self.assertEqual(selftest("--device", "tpu").returncode, 2)


class EmulatedDevice(unittest.TestCase):
    """The same program with the CUDA backend on the CPU emulation: the whole path from dlopen to tokens."""

    def setUp(self):
        if emulated_plugin() is None:
            self.skipTest("this build has no emulated CUDA plugin")

    def run_on(self, device, *arguments, **environment):
        return generate("--device", device, "--dtype", "f32", "--kv-dtype", "f16", *arguments,
                        BAM_PLUGIN_DIR=str(emulated_plugin().parent), **environment)

    def test_the_gpu_gives_the_tokens_of_the_cpu(self):
        cuda, cpu = self.run_on("cuda"), self.run_on("cpu")
        self.assertEqual((cuda.returncode, cpu.returncode), (0, 0), cuda.stderr + cpu.stderr)
        self.assertEqual(cuda.stdout, cpu.stdout)

    def test_auto_takes_the_gpu(self):
        result = subprocess.run(
            [bamtest.BAM, "generate", "--model", bamtest.checkpoint(), "-p", "Once", "-n", "2", "--temperature", "0",
             "--kv-memory", "64MiB", "--max-model-len", "256"],
            capture_output=True, text=True, timeout=600, check=False,
            env=clean_environment(BAM_PLUGIN_DIR=str(emulated_plugin().parent)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Emulated sm_80", result.stderr)

    def test_paths_without_tensor_cores_say_so_at_start(self):
        for kv_dtype, slow in (("int4", True), ("f32", True), ("f16", False), ("int8", False)):
            result = subprocess.run(
                [bamtest.BAM, "generate", "--model", bamtest.checkpoint(), "-p", "Once", "-n", "1", "--temperature", "0", "--device", "cuda",
                 "--dtype", "f16", "--kv-dtype", kv_dtype, "--kv-memory", "64MiB", "--max-model-len", "256"],
                capture_output=True, text=True, timeout=600, check=False,
                env=clean_environment(BAM_PLUGIN_DIR=str(emulated_plugin().parent)))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("attention runs without tensor cores" in result.stderr, slow, result.stderr)

    def test_machines_that_cannot_run_it_say_why(self):
        cases = [({"BAM_CUDA_EMU_DEVICES": "0"}, "no NVIDIA GPU was found"),
                 ({"BAM_CUDA_EMU_DRIVER": "old"}, "which comes with driver 580 and newer; a build with CUDA 12.8 runs from driver 525 on"),
                 ({"BAM_CUDA_EMU_CC": "75"}, "compute capability 7.5")]
        for environment, reason in cases:
            with self.subTest(reason=reason):
                refused = self.run_on("cuda", **environment)
                self.assertEqual(refused.returncode, 1, refused.stderr)
                self.assertIn(reason, refused.stderr)
                self.assertEqual(self.run_on("auto", tokens=2, **environment).returncode, 0)

    def test_one_of_several_gpus(self):
        two = {"BAM_CUDA_EMU_DEVICES": "2"}
        first, second = self.run_on("cuda:0", **two), self.run_on("cuda:1", **two)
        self.assertEqual((first.returncode, second.returncode), (0, 0), first.stderr + second.stderr)
        self.assertEqual(first.stdout, second.stdout)
        missing = self.run_on("cuda:2", **two)
        self.assertEqual(missing.returncode, 1, missing.stderr)
        self.assertIn("there is no GPU 2: the machine shows 2 (cuda:0 to cuda:1)", missing.stderr)
        for wrong in ("cuda:", "cuda:x", "cuda:-1", "cuda:99999", "cuda0"):
            self.assertEqual(self.run_on(wrong, **two).returncode, 2, wrong)

    def test_props_show_the_gpu(self):
        environment = {"BAM_PLUGIN_DIR": str(emulated_plugin().parent), "BAM_CUDA_EMU_DEVICES": "2"}
        with bamtest.running_server("--device", "cuda:1", "--max-model-len", "256", environment=environment) as server:
            self.assertIn("cuda:1 (Emulated", server.get("/props").text)

    def test_a_lost_gpu_ends_requests_and_the_process(self):
        # The demo model launches some dozen kernels per token: the device breaks in the middle of a text.
        environment = {"BAM_PLUGIN_DIR": str(emulated_plugin().parent), "BAM_CUDA_EMU_BREAK": "600"}
        server = bamtest.Server("--device", "cuda", "--max-model-len", "512", environment=environment)
        try:
            self.assertEqual(server.get("/readyz").status, 200)
            answer = server.complete("Once upon a time", max_tokens=400, temperature=0)
            self.assertEqual(answer.status, 500, answer.text)
            self.assertIn("illegal memory access", answer.text)
            self.assertEqual(server.process.wait(bamtest.PATIENCE), 75, server.log())
            self.assertIn("exit code 75", server.log())
        finally:
            server.kill()


if __name__ == "__main__":
    bamtest.main()

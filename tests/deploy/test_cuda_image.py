#!/usr/bin/env python3
"""The GPU image on a machine without a GPU: complete, and honest about what is missing."""

import json
import os
import unittest

import containers
from containers import Bam, podman

IMAGE = os.environ.get("BAM_IMAGE", "")


class CudaImage(unittest.TestCase):
    def test_configuration(self):
        config = json.loads(podman("image", "inspect", IMAGE).stdout)[0]["Config"]
        self.assertEqual((config["User"], config["Entrypoint"], config["Cmd"]), ("10001:10001", ["bam"], ["serve"]))
        self.assertIn("NVIDIA_DRIVER_CAPABILITIES=compute,utility", config["Env"])

    def run_in_image(self, program, *arguments):
        return podman("run", "--rm", "--network", "none", *containers.LIMITS, "--entrypoint", program, IMAGE, *arguments).stdout

    def test_the_plugin_finds_its_libraries(self):
        libraries = self.run_in_image("ldd", "/usr/local/lib/bam/libbam_cuda.so")
        self.assertNotIn("not found", libraries)
        # Opened by name when --cuda-gemm asks for it.
        known = self.run_in_image("/sbin/ldconfig", "-p")
        for name in ("libcublas", "libcublasLt"):  # of the toolkit's major version, 13 or 12
            self.assertRegex(known, rf"({name}\.so\.1[23]) \(libc6,x86-64\) => /usr/local/lib/cuda/\1")
        # The driver comes from the machine that runs the image, and must not be needed to start.
        self.assertNotIn("libcuda.so", libraries)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "SKIPPED: there is a GPU")
    def test_without_a_gpu_it_serves_from_the_cpu(self):
        with Bam(environment={"BAM_DEVICE": "auto"}) as bam:
            bam.wait_ready()
            self.assertEqual(bam.complete(max_tokens=4).status, 200)
            # The plugin itself says that, so it was found and loaded.
            self.assertRegex(bam.logs(), r"--device auto: no NVIDIA (driver|GPU) .*; using the CPU")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "SKIPPED: there is a GPU")
    def test_asked_for_a_gpu_it_says_that_there_is_none(self):
        with Bam(environment={"BAM_DEVICE": "cuda", "BAM_LOG_LEVEL": "off"}) as bam:
            self.assertEqual(bam.wait_exit(), 1)
            self.assertEqual(len(bam.logs().strip().splitlines()), 1, bam.logs())
            self.assertIn("cuda", bam.logs().lower())


if __name__ == "__main__":
    containers.main()

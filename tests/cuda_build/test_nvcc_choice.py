#!/usr/bin/env python3
"""Which nvcc a build takes: the one that CUDACXX names, whatever else is installed. test_nvcc_choice.py --source REPOSITORY"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = None


class NvccChoice(unittest.TestCase):
    def found(self, **environment):
        """What bam_find_nvcc() finds; names in braces stand for two folders, each with an nvcc of its own."""
        with tempfile.TemporaryDirectory() as scratch:
            folders = {}
            for name in ("one", "two"):
                folders[name] = pathlib.Path(scratch, name)
                nvcc = folders[name] / "bin/nvcc"
                nvcc.parent.mkdir(parents=True)
                nvcc.write_text("#!/bin/sh\n")
                nvcc.chmod(0o755)
            script = pathlib.Path(scratch, "script.cmake")
            script.write_text(f'include({SOURCE}/cmake/FindNvcc.cmake)\nbam_find_nvcc(NVCC)\nmessage("${{NVCC}}")\n')
            clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
            told = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=True,
                                  env=clean | {name: value.format(**folders) for name, value in environment.items()})
            return told.stderr.strip().removeprefix(scratch)

    def test_cudacxx_is_a_program(self):
        self.assertEqual(self.found(CUDACXX="{two}/bin/nvcc", PATH="{one}/bin:" + os.environ["PATH"]), "/two/bin/nvcc")

    def test_cudacxx_is_a_folder(self):
        self.assertEqual(self.found(CUDACXX="{two}/bin", PATH="{one}/bin:" + os.environ["PATH"]), "/two/bin/nvcc")

    def test_a_toolkit_by_its_root(self):
        self.assertEqual(self.found(CUDA_PATH="{two}", PATH="{one}/bin:" + os.environ["PATH"]), "/two/bin/nvcc")

    def test_on_path(self):
        self.assertEqual(self.found(PATH="{one}/bin:" + os.environ["PATH"]), "/one/bin/nvcc")

    def test_cudacxx_that_is_not_there(self):
        self.assertEqual(self.found(CUDACXX="/nowhere/nvcc", PATH="{one}/bin:" + os.environ["PATH"]), "/one/bin/nvcc")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    args, rest = parser.parse_known_args()
    SOURCE = args.source.resolve()
    unittest.main(argv=[sys.argv[0], *rest])

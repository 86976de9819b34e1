#!/usr/bin/env python3
"""Where there is an nvcc: the real plugin is built for one architecture, loaded by the real program, and asked to work.

    test_plugin_builds.py --bam BUILD/bam --source REPOSITORY --build FOLDER [--prefix CMAKE_PREFIX_PATH]

Exit code 77: no CUDA toolkit here. `make cuda` builds all architectures.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

OLDEST_TOOLKIT = (12, 8)


def find_nvcc():
    candidates = [os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    for nvcc in filter(None, candidates):
        if not os.access(nvcc, os.X_OK):
            continue
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"release (\d+)\.(\d+)", told)
        if version and tuple(map(int, version.groups())) >= OLDEST_TOOLKIT:
            return nvcc
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--bam", "--source", "--build"):
        parser.add_argument(name, required=True, type=pathlib.Path)
    parser.add_argument("--prefix", default="")
    args = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        print(f"no CUDA toolkit {OLDEST_TOOLKIT[0]}.{OLDEST_TOOLKIT[1]} or newer on this machine")
        return 77
    subprocess.run(["cmake", "-S", args.source, "-B", args.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBAM_CUDA=ON",
                    "-DBAM_CUDA_ARCHITECTURES=80-real", f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_PREFIX_PATH={args.prefix}"],
                   check=True)
    subprocess.run(["cmake", "--build", args.build, "--target", "bam_cuda"], check=True)
    plugin = args.build / "libbam_cuda.so"
    print(f"{plugin.name}: {plugin.stat().st_size / 1e6:.1f} MB for sm_80")

    told = subprocess.run([args.bam, "selftest", "--device", "cuda"], capture_output=True, text=True, check=False,
                          env={**os.environ, "BAM_PLUGIN_DIR": str(args.build)})
    print(told.stdout + told.stderr)
    # A GPU, and every operation agrees with the CPU; or the plugin fits the program and has looked for a device.
    return 0 if told.returncode == 0 or re.search("no NVIDIA driver|driver is too old|no NVIDIA GPU", told.stderr) else 1


if __name__ == "__main__":
    sys.exit(main())

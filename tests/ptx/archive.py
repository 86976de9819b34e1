#!/usr/bin/env python3
"""The PTX of the kernels, for machines without nvcc: tests/ptx/sm_80.tar.xz.

    archive.py --check     0: it is that of the sources, 1: it is not, 77: it is not and there is no nvcc to make it
    archive.py --make      compiles the kernels for sm_80 and replaces it
    archive.py --unpack DIR

It holds one .ptx per kernels/cuda/*.cu and SOURCES, a hash of everything that they include but comments and blanks.
"""
import argparse
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "tests/ptx/sm_80.tar.xz"
STAMP = "SOURCES"
# As kernels/cuda/CMakeLists.txt asks for.
NVCC_FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-arch=sm_80", "-ptx"]


def included_files():
    """The .cu files and what they include of this repository, directly or not."""
    found, waiting = set(), sorted(ROOT.glob("kernels/cuda/*.cu"))
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            if (ROOT / name).exists():
                waiting.append(ROOT / name)
    return sorted(found)


def code_of(text):
    """Without what makes no code: comments, blank lines and ends of lines."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', lambda match: match[0] if match[0][0] == '"' else " ", text, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def source_hash():
    digest = hashlib.sha256(" ".join(NVCC_FLAGS).encode())
    for path in included_files():
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0{code_of(path.read_text())}\0".encode())
    return digest.hexdigest()


def find_nvcc():
    return next((n for n in (os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc")
                 if n and os.access(n, os.X_OK)), None)


def archived_hash():
    if not ARCHIVE.exists():
        return None
    with tarfile.open(ARCHIVE) as archive:
        return archive.extractfile(STAMP).read().decode().strip()


def make(nvcc):
    if nvcc is None:
        sys.exit("no nvcc: put it on PATH or set CUDACXX")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        def add(name, data):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for source in sorted(ROOT.glob("kernels/cuda/*.cu")):
            out = pathlib.Path(folder) / (source.stem + ".ptx")
            subprocess.run([nvcc, *NVCC_FLAGS, "-I.", "-o", out, source.relative_to(ROOT)], check=True, cwd=ROOT)
            add(out.name, out.read_bytes())
        add(STAMP, source_hash().encode() + b"\n")
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true")
    group.add_argument("--make", action="store_true")
    group.add_argument("--unpack", type=pathlib.Path)
    args = parser.parse_args()
    if args.make:
        return make(find_nvcc())
    if args.unpack:
        args.unpack.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE) as archive:
            for member in archive:  # files of one folder; the filters of tarfile are newer than Debian 12's Python
                (args.unpack / pathlib.PurePath(member.name).name).write_bytes(archive.extractfile(member).read())
        return 0
    if archived_hash() == source_hash():
        return 0
    print("tests/ptx/sm_80.tar.xz is not the PTX of these sources: run tests/ptx/archive.py --make where there is an nvcc")
    return 1 if find_nvcc() else 77


if __name__ == "__main__":
    sys.exit(main())

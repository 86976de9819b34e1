#!/usr/bin/env python3
"""How large the rooms are: rooms.py [COMMIT…], lines and files of C++ and CUDA in each folder with sources."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP = ("base", "kernels", "transport", "models", "engine", "server", "app")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def git(*arguments: str, text: bytes = b"") -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, input=text, capture_output=True, check=True).stdout


def sizes(commit: str) -> tuple[Counter, Counter]:
    """Lines and files by folder."""
    names = git("ls-tree", "-r", "-z", "--name-only", commit, "--", *TOP).decode().split("\0")
    names = [name for name in names if Path(name).suffix in SUFFIXES]
    blobs = git("cat-file", "--batch", text="".join(f"{commit}:{name}\n" for name in names).encode())
    lines, files, at = Counter(), Counter(), 0
    for name in names:
        end = blobs.index(b"\n", at)
        length = int(blobs[at:end].split()[-1])
        room = "/".join(Path(name).parts[:2] if len(Path(name).parts) > 2 else Path(name).parts[:1])
        lines[room] += blobs.count(b"\n", end + 1, end + 1 + length)
        files[room] += 1
        at = end + 1 + length + 1
    return lines, files


def main() -> None:
    counted = [sizes(commit) for commit in sys.argv[1:] or ["HEAD"]]
    rooms = sorted({room for lines, _ in counted for room in lines}, key=lambda room: (TOP.index(room.split("/")[0]), room))
    for room in rooms:
        print(f"| {room} | " + " | ".join(f"{lines[room]:,} in {files[room]}" if lines[room] else "" for lines, files in counted) + " |")
    print("| all | " + " | ".join(f"{lines.total():,} in {files.total()}" for lines, files in counted) + " |")


if __name__ == "__main__":
    main()

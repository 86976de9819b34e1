#!/usr/bin/env python3
"""Fails on unfinished work, on a particular machine's paths, on over-long files and on large files nobody meant to add."""

import re
import sys
import tempfile
from pathlib import Path

from repo_files import CODE_SUFFIXES, SCRIPT_SUFFIXES, finish, read_text, repo_files, root_from_arguments

MAX_LINES = 500
MAX_BYTES = 4_000_000
# Model weights and tokenizers are large by nature.
LARGE_BY_NATURE = {".safetensors", ".model", ".spm"}

# The words are put together here so that this file does not contain them.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "not (yet )?imple" + "mented"]) + r")\b")
# Somebody's home or working folder; system folders such as /usr and /etc are fine.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(home/[\w.-]+|root|Users/\w+|work|tmp/[a-z]\w*)/")
# Homes of the containers and services that the repository itself defines.
PATHS_ALLOWED_BELOW = ("docker/", "deploy/")


def problems_of(root: Path, path: Path) -> list[str]:
    found = []
    size = (root / path).stat().st_size
    if size > MAX_BYTES and path.suffix not in LARGE_BY_NATURE:
        found.append(f"{path}: {size} bytes: is it meant to be here?")
    text = read_text(root / path) if size <= MAX_BYTES else None
    if text is None:
        return found
    lines = text.splitlines()
    if path.suffix in CODE_SUFFIXES | SCRIPT_SUFFIXES and len(lines) > MAX_LINES:
        found.append(f"{path}: {len(lines)} lines, more than {MAX_LINES}: split it")
    for number, line in enumerate(lines, 1):
        if path.suffix != ".md" and UNFINISHED.search(line):
            found.append(f"{path}:{number}: unfinished: {line.strip()[:80]}")
        if MACHINE_PATH.search(line) and not path.as_posix().startswith(PATHS_ALLOWED_BELOW):
            found.append(f"{path}:{number}: a path of one machine: {line.strip()[:80]}")
    if path.suffix in CODE_SUFFIXES | SCRIPT_SUFFIXES and text and not text.endswith("\n"):
        found.append(f"{path}: no newline at the end")
    return found


def check_tree(root: Path) -> tuple[int, list[str]]:
    files = repo_files(root)
    return len(files), [problem for path in files for problem in problems_of(root, path)]


SELF_TEST = [
    ("good.cpp", "int main() {}  // see /usr/share/doc/x and docs/work/ and $HOME/root/\n", None),
    ("later.cpp", "int x;  // TO" + "DO: y\n", "later.cpp:1: unfinished"),
    ("home.py", "\nopen('/home/" + "anna/x')\n", "home.py:2: a path of one machine"),
    ("scratch.sh", "cp x /tmp/" + "mine/\n", "scratch.sh:1: a path of one machine"),
    ("long.h", "//\n" * (MAX_LINES + 1), "more than 500"),
    ("end.cpp", "int x;", "no newline"),
    ("data.bin", "\0" * (MAX_BYTES + 1), "meant to be here"),
    ("weights.safetensors", "\0" * (MAX_BYTES + 1), None),
]


def self_test() -> list[str]:
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text, _ in SELF_TEST:
            (root / name).write_text(text, encoding="utf-8")
        _, found = check_tree(root)
        for name, _, complaint in SELF_TEST:
            of_file = [line for line in found if line.startswith(name + ":")]
            if (complaint is None) != (not of_file) or (complaint and complaint not in of_file[0]):
                wrong.append(f"self-test: {name} should give {complaint!r}, gave {of_file}")
    return wrong


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    finish("hygiene", *check_tree(root_from_arguments()))


if __name__ == "__main__":
    main()

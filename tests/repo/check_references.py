#!/usr/bin/env python3
"""Fails when a comment or a document names a source file that does not exist."""

import re
import sys
import tempfile
from pathlib import Path

from repo_files import CODE_SUFFIXES, finish, read_text, repo_files, root_from_arguments

# Kinds of files that are ours when they are named; data files in examples are not.
NAMED = re.compile(r"(?<![\w./*<{$-])((?:[\w.-]+/)*[\w-]+\.(?:h|cpp|cu|cuh|cmake|py|sh|md))(?![\w*/]|\.\w)")
# `engine/scheduler` in backticks: a module without its suffix, or a folder.
MODULE = re.compile(r"`((?:base|kernels|models|engine|server|app|bench|tests|tools|web|scripts|docs|cmake|docker|deploy)/[\w./-]+)`")
# Files of other projects, and of the reader.
ELSEWHERE = {"llama.cpp", "foreach_target.h", "malloc.h"}
# Made by the build.
GENERATED = {"web_assets.cpp", "build_commit.cpp"}
ADDRESS = re.compile(r"https?://\S+")


def comments_of(path: Path, text: str) -> list[tuple[int, str]]:
    """(line, text) of what is prose in a file: everything in a document, comments in code."""
    if path.suffix == ".md":
        return list(enumerate(text.splitlines(), 1))
    mark = r"//(.*)" if path.suffix in CODE_SUFFIXES | {".js"} else r"(?:^|\s)#(.*)"
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*#\s*(include|define|pragma|if|endif|undef)", line) and path.suffix in CODE_SUFFIXES:
            line = line.split("//", 1)[1] if "//" in line else ""
            line = "//" + line
        if match := re.search(mark, line):
            found.append((number, match[1]))
    return found


def known_names(files: list[Path]) -> tuple[set[str], set[str]]:
    """Every tail of every path ("cpu/gemm.h", "gemm.h"), and every path, stem and folder from the root."""
    tails, modules = set(), set()
    for path in files:
        parts = path.parts
        tails |= {"/".join(parts[i:]) for i in range(len(parts))}
        modules |= {"/".join(parts[:i]) for i in range(1, len(parts) + 1)} | {path.with_suffix("").as_posix()}
    return tails, modules


def check_tree(root: Path) -> tuple[int, list[str]]:
    files = repo_files(root)
    tails, modules = known_names(files)
    problems, looked_at = [], 0
    for path in files:
        if path.parts[:2] == ("tests", "repo"):  # checks name what their self-tests make up
            continue
        if path.suffix not in CODE_SUFFIXES | {".md", ".py", ".sh", ".cmake"} and path.name not in ("CMakeLists.txt", "Makefile"):
            continue
        text = read_text(root / path)
        for number, line in comments_of(path, text or ""):
            line = ADDRESS.sub("", line)
            for name in NAMED.findall(line):
                looked_at += 1
                base = (path.parent / name).as_posix()
                if name.lstrip("./") not in tails and base not in modules and Path(name).name not in ELSEWHERE | GENERATED:
                    problems.append(f"{path}:{number}: there is no {name}")
            for name in MODULE.findall(line) if path.suffix == ".md" else []:
                looked_at += 1
                if name.rstrip("/.") not in modules and name not in tails and "results" not in name:
                    problems.append(f"{path}:{number}: there is no {name}")
    return looked_at, problems


SELF_TEST = [
    ("engine/real.h", "// see engine/real.h, real.h and https://x.org/other.h\nint x;  // engine/gone.h\n", "engine/real.h:2: there is no engine/gone.h"),
    ("docs/a.md", "`engine/real` is `engine/`; `engine/lost`\n", "docs/a.md:1: there is no engine/lost"),
    ("tools/t.py", "x = 'nothing.py'  # nothing2.py\n", "tools/t.py:1: there is no nothing2.py"),
    ("base/ok.cpp", '#include "base/gone.h"\nconst char* s = "gone.py";\n', None),
]


def self_test() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text, _ in SELF_TEST:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        _, found = check_tree(root)
    expected = sorted(complaint for _, _, complaint in SELF_TEST if complaint)
    return [] if sorted(found) == expected else [f"self-test: {found} instead of {expected}"]


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    finish("file names", *check_tree(root_from_arguments()))


if __name__ == "__main__":
    main()

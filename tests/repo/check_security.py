#!/usr/bin/env python3
"""Fails when a row of SECURITY.md's tables names no test, or one that does not exist.

In the last column, `path/to/file` or the bare name of an attack suite or fuzzer is a file; names and patterns that follow it
(`test_c1_*`, `Machine.*`, `ForeignPages`) are tests of the last file before them.
"""

import fnmatch
import re
import sys
from pathlib import Path

from repo_files import finish, root_from_arguments

PLACES = ("tests/attack/{}.py", "tests/fuzz/{}.cpp")
TEST = re.compile(r"^\s*(?:def (test_\w+)|class (\w+)|(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+), (\w+)\))", re.M)


def file_of(root: Path, name: str) -> Path | None:
    """What a name in backticks stands for, if it is a file or a folder."""
    return next((root / place.format(name) for place in (*PLACES, "{}") if name and (root / place.format(name)).exists()), None)


def tests_in(file: Path) -> set[str]:
    sources = [file] if file.is_file() else sorted(file.rglob("*_test.cpp"))
    names = set()
    for source in sources:
        for function, group, suite, test in TEST.findall(source.read_text(encoding="utf-8")):
            names |= {function, group} if function or group else {test, f"{suite}.{test}"}
    return names - {""}


def check_row(root: Path, cell: str) -> list[str]:
    """What is wrong with the last column of one row."""
    names = [name.replace("…", "*") for name in re.findall(r"`([^`]+)`", cell)]
    names = [name for name in names if re.fullmatch(r"[\w./*]+", name)]  # flags and bytes are no tests
    problems, file = [], None
    for name in names:
        found = file_of(root, name)
        if found:
            file = found
        elif file is None or not fnmatch.filter(tests_in(file), name):
            problems.append(f"`{name}` is neither a file nor a test of {file and file.relative_to(root)}")
    return problems if file or problems else ["no test is named"]


# Every point of the attack but H8, which was about the tests themselves.
POINTS = {"C1", "C2", *(f"H{i}" for i in range(1, 10) if i != 8), *(f"M{i}" for i in range(1, 12)), "low"}


def missing_points(rows: list[tuple[str, str]]) -> list[str]:
    named = {point for first, _ in rows for point in first.split(", ")}
    return [f"SECURITY.md has no row for {point}" for point in sorted(POINTS - named)]


def rows_of(text: str) -> list[tuple[str, str]]:
    """First and last cell of every row of every table, headings left out."""
    rows = []
    for line, before in zip(text.splitlines(), ["", *text.splitlines()]):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and before.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            rows.append((cells[0], cells[-1]))
    return rows


def self_test() -> None:
    root = root_from_arguments()
    cases = [("`test_framing`: `test_c1_*`", 0), ("`test_framing`: `test_c9_*`", 1), ("nothing", 1), ("`test_nowhere`", 1),
             ("`request_fuzz`, 400 for `n: 3`", 0), ("`tests/base/memory_test.cpp`: `LazyMemory.*`", 0)]
    for cell, count in cases:
        if len(found := check_row(root, cell)) != count:
            sys.exit(f"self-test: {cell!r} gives {found}")
    if len(missing_points([("M2, H7", "x")])) != len(POINTS) - 2:
        sys.exit("self-test: missing_points() is blind")
    if rows_of("| a | b |\n|---|---|\n| 1 | `x` |\n") != [("1", "`x`")]:
        sys.exit("self-test: rows_of() reads a table wrongly")


def main() -> None:
    self_test()
    root = root_from_arguments()
    rows = rows_of((root / "SECURITY.md").read_text(encoding="utf-8"))
    fuzzing = (root / "docs/fuzzing.md").read_text(encoding="utf-8")
    unknown = [f"docs/fuzzing.md does not say what {path.stem} is for" for path in sorted(root.glob("tests/fuzz/*_fuzz.cpp"))
               if f"`{path.stem}`" not in fuzzing]
    finish("attacks and their tests", len(rows), unknown + missing_points(rows) + [f"SECURITY.md, {first}: {problem}" for first, last in rows for problem in check_row(root, last)])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Builds and runs the unit tests of what changed: quick.py [BASE]. BASE is a commit, HEAD unless told.

A changed source runs the suites of the test file that bears its name, else of those that include its header, else all of
its module; a changed test file runs its own suites. No fuzzers, no HTTP, no kernels of other modules.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\((\w+),", re.MULTILINE)
INSTANCE = re.compile(r"^INSTANTIATE_TEST_SUITE_P\(\s*(\w*)\s*,\s*(\w+)", re.MULTILINE)
# Folders with a test program, the longest names first: server/api before server.
MODULES = ("server/grammar", "server/jinja", "server/events", "server/store", "server/api", "server/http", "base", "kernels", "transport", "models",
           "engine", "app")


def changed_files(base: str) -> list[str]:
    def git(*arguments: str) -> list[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted({*git("diff", "--name-only", base), *git("ls-files", "-o", "--exclude-standard")})


def module_of(path: str) -> str | None:
    inner = path.removeprefix("tests/")
    return next((module for module in MODULES if inner.startswith(module + "/")), None)


def suites_in(test: Path) -> set[str]:
    """gtest filters that run a file's tests, parameterised ones included."""
    text = test.read_text(encoding="utf-8")
    found = set(SUITE.findall(text))
    return {f"{suite}.*" for suite in found} | {f"*/{suite}.*" for _, suite in INSTANCE.findall(text)} | {
        f"{suite}/*" for suite in found if "TYPED_TEST" in text}


def filters_of(path: str, module: str, root: Path = ROOT) -> set[str]:
    """What to run for one changed file; {"*"} is everything of its module."""
    tests = sorted((root / "tests" / module).glob("*_test.cpp"))
    if path.startswith("tests/"):
        own = root / path
        return suites_in(own) if own.name.endswith("_test.cpp") and own.exists() else {"*"}
    stem = Path(path).stem
    named = [t for t in tests if t.stem == f"{stem}_test"]
    header = f'#include "{Path(path).with_suffix(".h").as_posix()}"'
    users = named or [t for t in tests if header in t.read_text(encoding="utf-8")]
    return set().union(*(suites_in(t) for t in users)) if users else {"*"}


def plan(paths: list[str]) -> dict[str, set[str]]:
    """Module -> gtest filters."""
    wanted: dict[str, set[str]] = {}
    for path in paths:
        module = module_of(path)
        if module and Path(path).suffix in {".h", ".cpp"}:
            wanted.setdefault(module, set()).update(filters_of(path, module))
    return wanted


def main() -> None:
    begun = time.monotonic()
    wanted = plan(changed_files(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))
    if not wanted:
        print("nothing that has unit tests has changed")
        return
    programs = {module: f"bam_{module.replace('/', '_')}_tests" for module in wanted}
    subprocess.run([ROOT / "scripts/build.sh", "release", *programs.values()], check=True)
    failed = []
    for module, filters in wanted.items():
        choice = "*" if "*" in filters else ":".join(sorted(filters))
        print(f"==> {programs[module]} {choice}", flush=True)
        if subprocess.run([ROOT / "build" / programs[module], f"--gtest_filter={choice}", "--gtest_brief=1"], cwd=ROOT).returncode:
            failed.append(programs[module])
    print(f"{'failed: ' + ', '.join(failed) if failed else 'passed'} after {time.monotonic() - begun:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fails when a list of files under "How to add" in CONTRIBUTING.md is not true any more.

Each recipe has an example that exists. Every file of its list must mention the example; where the list is complete, every
source file that mentions it must be in the list.
"""

import re
import sys
import tempfile
from pathlib import Path

from repo_files import CODE_SUFFIXES, finish, repo_files, root_from_arguments

# Title -> folders in which the list is complete; none: it names the places to begin with.
COMPLETE = {
    "A flag": ("app", "server", "engine"),
    "A request field": ("server",),
    "An endpoint": ("server",),
    "A dialect": ("server",),
    "A metric": (),
    "A position encoding": (),
    "A KV format": (),
    "A backend": (),
}
RECIPE = re.compile(r"^### (.+?)\n+Example: `([^`]+)`(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^- `([\w./-]+)`", re.MULTILINE)


def mentions(text: str, example: str) -> bool:
    return re.search(rf"\b{re.escape(example)}\b", text, re.IGNORECASE) is not None or example.lower() in text.lower()


def check_tree(root: Path) -> tuple[int, list[str]]:
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipes = {title: (example, ENTRY.findall(body)) for title, example, body in RECIPE.findall(text)}
    problems = [f"CONTRIBUTING.md: the recipe '{title}' is missing" for title in COMPLETE if title not in recipes]
    sources = [p for p in repo_files(root) if p.suffix in CODE_SUFFIXES]
    looked_at = 0
    for title, (example, listed) in recipes.items():
        looked_at += len(listed)
        if not listed:
            problems.append(f"CONTRIBUTING.md: '{title}' lists no files")
        for name in listed:
            if not (root / name).is_file():
                problems.append(f"CONTRIBUTING.md: '{title}' lists {name}, which does not exist")
            elif not mentions((root / name).read_text(encoding="utf-8"), example):
                problems.append(f"CONTRIBUTING.md: '{title}' lists {name}, which does not mention {example}")
        for path in sources:
            if path.parts[0] in COMPLETE.get(title, ()) and path.as_posix() not in listed and mentions(
                    (root / path).read_text(encoding="utf-8"), example):
                problems.append(f"CONTRIBUTING.md: '{title}' does not list {path}, which mentions {example}")
    return looked_at, problems


def self_test() -> list[str]:
    recipe = "### {}\n\nExample: `thing`.\n\n- `app/a.cpp` why\n- `app/gone.cpp` why\n- `app/other.cpp` why\n"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "app").mkdir()
        for name, text in {"a": "thing", "other": "else", "b": "int thing;"}.items():
            (root / f"app/{name}.cpp").write_text(text)
        (root / "CONTRIBUTING.md").write_text("\n".join(recipe.format(title) for title in ("A flag", "A backend")))
        _, found = check_tree(root)
    counts = [sum(word in problem for problem in found) for word in ("which does not exist", "does not mention", "does not list", "is missing")]
    return [] if counts == [2, 2, 1, len(COMPLETE) - 2] else [f"self-test: {found}"]


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    finish("recipes", *check_tree(root_from_arguments()))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fails when one name of the program has two definitions: which of them runs would depend on the linker and on inlining.

    check_symbols.py SOURCE [BUILD]

With a build folder, nm looks at the libraries: a function that is inline in one file and not in another, or defined by two
files. Types leave no symbols, so headers and sources are read for them.
"""

import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from repo_files import CODE_SUFFIXES, finish, repo_files, root_from_arguments

PRODUCT = ("base", "kernels", "models", "engine", "transport", "server", "app")
# The plugin is a program of its own, with a namespace of its own.
APART = ("kernels/cuda",)
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'(?!\w)|^[ \t]*#(?:\\\n|[^\n])*',
                   re.DOTALL | re.MULTILINE)
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[[^\]]*\]\]\s*)?([A-Za-z_]\w*)\s*"
                  r"(?:final\s*)?(?::(?!:)[^;{}()]*)?$")
NAMESPACE = re.compile(r"\bnamespace(?:\s+([\w:]+))?\s*$")


def blank(match: re.Match) -> str:
    return "\n" * match[0].count("\n")


def types_of(text: str) -> list[tuple[str, int]]:
    """(qualified name, line) of every type that is defined at namespace scope, outside of anonymous namespaces."""
    text = TOKEN.sub(blank, text)
    scopes: list[str | None] = []  # a namespace's name; "" for an anonymous one; None for anything else
    found, start = [], 0
    for match in re.finditer(r"[{};]", text):
        head = text[start:match.start()]
        start = match.end()
        if match[0] == "}":
            if scopes:
                scopes.pop()
        elif match[0] == "{":
            space = NAMESPACE.search(head)
            if space:
                scopes.append(space[1] or "")
                continue
            kind = TYPE.search(head)
            # A template's specialisation has arguments behind its name and does not match.
            if kind and all(scopes) and "template" not in head.split(kind[0])[-1]:
                found.append(("::".join([*scopes, kind[1]]), text.count("\n", 0, match.start()) + 1))
            scopes.append(None)
    return found


def repeated_types(root: Path) -> tuple[int, list[str]]:
    places = collections.defaultdict(list)
    for path in repo_files(root):
        if path.suffix in CODE_SUFFIXES and path.parts[0] in PRODUCT and not path.as_posix().startswith(APART):
            for name, line in types_of((root / path).read_text(encoding="utf-8")):
                places[name].append(f"{path}:{line}")
    # Twice in one file are the branches of an #if: the compiler would refuse anything else.
    return len(places), [f"{name} is defined twice: {', '.join(where)}" for name, where in sorted(places.items())
                         if len({place.rpartition(":")[0] for place in where}) > 1]


def symbols_of(library: Path) -> list[tuple[str, str, str]]:
    """(object, kind, mangled name) of what a library defines for others."""
    listing = subprocess.run(["nm", "-A", "--defined-only", "--extern-only", str(library)], capture_output=True, text=True, check=True)
    rows = []
    for line in listing.stdout.splitlines():
        where, rest = line.rsplit(":", 1)
        parts = rest.split()
        if len(parts) == 3:
            rows.append((where.rsplit(":", 1)[-1], parts[1], parts[2]))
    return rows


def libraries_of(build: Path) -> list[Path]:
    """The product's libraries as Ninja knows them: a folder may still hold those of an older layout."""
    graph = (build / "build.ninja").read_text(encoding="utf-8")
    names = re.findall(r"^build ((?:" + "|".join(PRODUCT) + r")/[\w./]*libbam_\w+\.a)\b", graph, re.MULTILINE)
    return sorted(build / name for name in names if (build / name).exists())


def repeated_symbols(libraries: list[Path]) -> tuple[int, list[str]]:
    strong, weak = collections.defaultdict(set), collections.defaultdict(set)
    for library in libraries:
        for where, kind, name in symbols_of(library):
            (weak if kind in "WVuwv" else strong)[name].add(f"{library.name}({where})")
    twice = {name: places for name, places in strong.items() if len(places) > 1}
    both = {name: strong[name] | weak[name] for name in strong if name in weak}
    names = sorted({**twice, **both})
    if not names:
        return len(strong) + len(weak), []
    readable = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    return len(strong) + len(weak), [
        f"{plain} is defined {'inline and not inline' if name in both else 'twice'}: {', '.join(sorted({**twice, **both}[name]))}"
        for name, plain in zip(names, readable)]


def self_test() -> list[str]:
    wrong = []
    text = """namespace bam { struct A { int x; }; struct B;  // struct C {
    namespace { struct D {}; }  enum class E : int { kX };  class F final : public A { struct G {}; };
    template <typename T> struct H { }; struct H<int> {}; void f() { struct I {}; } const char* s = "struct J {"; }
    struct bam::K { };
    """
    if [name for name, _ in types_of(text)] != ["bam::A", "bam::E", "bam::F", "bam::H"]:
        wrong.append(f"self-test: types_of gives {types_of(text)}")
    sources = {"a": "inline int f(int x) { return x; } int (*keep)(int) = f;", "b": "int f(int x) { return x + 1; }",
               "c": "int g() { return 1; }", "d": "int g() { return 2; } inline int h() { return 3; } int (*p)() = h;",
               "e": "inline int h() { return 3; } static int (*q)() = h; int use() { return q(); }"}
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for name, source in sources.items():
            (Path(folder) / f"{name}.cpp").write_text("namespace bam { " + source + " }\n")
            subprocess.run(["c++", "-c", f"{name}.cpp"], cwd=folder, check=True)
            objects.append(f"{name}.o")
        subprocess.run(["ar", "rc", "libx.a", *objects], cwd=folder, check=True)
        _, found = repeated_symbols([Path(folder) / "libx.a"])
    expected = ["bam::f(int) is defined inline and not inline: libx.a(a.o), libx.a(b.o)", "bam::g() is defined twice: libx.a(c.o), libx.a(d.o)"]
    return wrong if found == expected else [*wrong, f"self-test: {found}"]


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    looked_at, problems = repeated_types(root_from_arguments())
    if len(sys.argv) > 2:
        build = Path(sys.argv[2])
        libraries = libraries_of(build)
        count, found = repeated_symbols(libraries)
        looked_at += count
        problems += found if libraries else [f"{build} has no libraries"]
    finish("names", looked_at, problems)


if __name__ == "__main__":
    main()

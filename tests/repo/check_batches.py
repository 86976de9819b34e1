#!/usr/bin/env python3
"""Fails when two sources of one library could not be compiled together.

With BAM_UNITY a batch of sources is one translation unit, and which ones share a batch changes with every new file. So no
name that a source keeps to itself (in an anonymous namespace, or static, or a macro) may stand in another source of its
library for something else: kept there, too, or in a header that sources of this library see.
"""

import collections
import re
import sys
import tempfile
from pathlib import Path

from repo_files import finish, repo_files, root_from_arguments

from check_symbols import NAMESPACE, PRODUCT, TOKEN, TYPE, blank

# What is a library is what bam_library() gathers: a folder, with these of its folders. None: not compiled in batches.
LIBRARIES = {"app/client": "app", "app/chat": "app", "app/eval": "app", "kernels/cpu": "kernels", "kernels/cuda": None,
             "transport/gloo": None, "transport/mpi": None}
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
UNDEFINED = re.compile(r"^[ \t]*#[ \t]*undef[ \t]+(\w+)", re.MULTILINE)
SPECIFIERS = {"const", "constexpr", "constinit", "inline", "static", "extern", "thread_local", "volatile", "mutable", "auto", "operator"}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def without_arguments(text: str) -> str:
    """The text without what stands between angle brackets, nested ones included."""
    kept, depth = [], 0
    for char in text:
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif not depth:
            kept.append(char)
    return "".join(kept)


def without_first_parentheses(text: str) -> str:
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[i + 1:]
    return ""


def declared(head: str) -> list[str]:
    """The names that a declaration at namespace scope introduces; head is its text up to `{` or `;`."""
    head = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^)]*\)|__attribute__\s*\(\([^)]*\)\)", " ", head, flags=re.DOTALL).strip()
    if not head or head.startswith(("using namespace", "static_assert", "extern \"\"", "friend", "template class", "template struct")):
        return []
    if using := re.match(r"using\s+(\w+)\s*=", head):
        return [using[1]]
    if using := re.match(r"using\s+[\w:\s]*?(\w+)$", head):  # a name from elsewhere: the same name again is the same thing
        return []
    head, _, value = head.partition("=") if "operator" not in head else (head, "", "")
    further = re.findall(r",\s*(\w+)\s*(?:\[[^\]]*\])?\s*(?==|$)", re.sub(r"\([^()]*\)", "", value))
    head = without_arguments(head)
    head = re.sub(r"^\s*template\b", " ", head)
    if clause := re.match(r"\s*requires\s*(?=\()", head):
        head = without_first_parentheses(head[clause.end():])
    if kind := TYPE.search(head):
        return [kind[1]]
    if re.match(r"\s*enum\s*(?::|$)", head):
        return []
    if re.match(r"\s*(?:struct|class|union|enum)\b[^(]*$", head):
        words = IDENTIFIER.findall(head)  # a forward declaration, or a variable of a type that is named so
        return [words[-1]] if len(words) <= 3 and words[-1] not in SPECIFIERS else []
    if "(" in head:
        before = head.partition("(")[0].strip()
        name = re.search(r"([A-Za-z_]\w*)$", before)
        # A member's definition, an operator, a macro's call.
        if not name or re.search(r"::\s*~?\w+$", before) or "operator" in before or len(IDENTIFIER.findall(before)) < 2:
            return []
        return [name[1]]
    names = []
    for part in re.sub(r"\[[^\]]*\]", "", head).split(","):
        words = IDENTIFIER.findall(part)
        if words and words[-1] not in SPECIFIERS and not re.search(r"::\s*\w+$", part.strip()):
            names.append(words[-1])
    return names + further if len(IDENTIFIER.findall(head)) > 1 else []


def names_of(text: str) -> tuple[dict[str, tuple[int, str]], dict[str, tuple[int, str]]]:
    """{qualified name: (line, what it is another name for)} of what stands at namespace scope: kept to the file, and seen
    by others."""
    text = TOKEN.sub(blank, text)
    scopes: list[str | None] = []  # a namespace's name; "" for an anonymous one; None for anything else
    kept, seen, head, start = {}, {}, "", 0
    for match in re.finditer(r"[{};]", text):
        head = text[start:match.start()]
        start = match.end()
        if match[0] == "}":
            if scopes:
                scopes.pop()
            continue
        space = NAMESPACE.search(head) if match[0] == "{" else None
        if space:
            scopes.append((space[1] or "").removeprefix("::"))
            continue
        if None not in scopes:
            own = "" in scopes or re.match(r"\s*(?:template\b.*>)?\s*(?:inline\s+)?static\b", head, re.DOTALL)
            where = "::".join(scope for scope in scopes if scope)
            alias = " ".join(head.partition("=")[2].split()) if head.lstrip().startswith("using ") else ""
            names = declared(head)
            if match[0] == "{" and re.search(r"\benum\b(?!\s+(?:class|struct)\b)[^=()]*$", head):  # its values are names, too
                names = [*names, *re.findall(r"(?:^|,)\s*([A-Za-z_]\w*)", text[start:text.find("}", start)])]
            for name in names:
                (kept if own else seen).setdefault(f"{where}::{name}", (text.count("\n", 0, start) + 1, alias))
        if match[0] == "{":
            scopes.append(None)
    return kept, seen


def library_of(path: Path) -> str | None:
    folder = path.parent.as_posix()
    return LIBRARIES.get(folder, folder)


def headers_seen(root: Path, sources: list[Path]) -> set[Path]:
    """What these sources include of the project, directly or through other headers."""
    seen, todo = set(), list(sources)
    while todo:
        for name in INCLUDE.findall((root / todo.pop()).read_text(encoding="utf-8")):
            if Path(name) not in seen and (root / name).is_file():
                seen.add(Path(name))
                todo.append(Path(name))
    return seen


def macros_of(text: str) -> dict[str, tuple[int, str]]:
    """{name: (line, "")} of what a source defines and does not undefine."""
    code = TOKEN.sub(lambda match: match[0] if match[0].lstrip().startswith("#") else blank(match), text)
    gone = set(UNDEFINED.findall(code))
    return {f"#define {match[1]}": (code.count("\n", 0, match.start(1)) + 1, "") for match in MACRO.finditer(code) if match[1] not in gone}


def check_tree(root: Path) -> tuple[int, list[str]]:
    libraries = collections.defaultdict(list)
    for path in repo_files(root):
        if path.parts[0] in PRODUCT and path.suffix == ".cpp" and library_of(path):
            libraries[library_of(path)].append(path)
    problems = []
    for sources in libraries.values():
        places = collections.defaultdict(list)
        for path in sources:
            text = (root / path).read_text(encoding="utf-8")
            for name, (line, alias) in {**names_of(text)[0], **macros_of(text)}.items():
                places[name].append((f"{path}:{line}", alias))
        for path in sorted(headers_seen(root, sources)):
            for name, (line, alias) in names_of((root / path).read_text(encoding="utf-8"))[1].items():
                if name in places:
                    places[name].append((f"{path}:{line}", alias))
        for name, found in places.items():
            aliases = {alias for _, alias in found}
            if len(found) > 1 and (len(aliases) > 1 or "" in aliases):
                problems.append(f"{name} stands in {' and in '.join(place for place, _ in found)}: give one of them another name")
    return sum(map(len, libraries.values())), sorted(problems)


SELF_TEST = [
    ("app/a.cpp", "namespace bam { namespace { int text(int x) { return x; } } void run() { int text = 1; } }\n", "bam::text"),
    ("app/client/b.cpp", "namespace bam {\nnamespace {\nconst char* text(double x) { return {}; }\n}\n}\n", None),
    ("engine/c.cpp", "namespace bam { namespace { struct Row { int text; }; constexpr int kMost = 3, kLeast[] = {1, 2}; } }\n",
     "bam::Row stands in engine/c.cpp:1 and in engine/d.cpp:1"),
    ("engine/d.cpp", "namespace bam { namespace { class Row : public Base<int> { }; } namespace x { namespace { struct kMost {}; } } }\n", None),
    ("engine/e.cpp", "namespace bam { static std::vector<int> kLeast = {1}; Row::Row() : a{1} {} std::string member() { return {}; } }\n", None),
    ("engine/f.cpp", "#include \"engine/seen.h\"\nnamespace bam { namespace { template <typename T> requires(A<T>) T shared(T x) { return x; } } }\n",
     "bam::shared stands in engine/f.cpp:2 and in base/g.h:1"),
    ("base/g.h", "namespace bam { template <typename T> T shared(T x); std::string member(); class Box; }\n", None),
    ("engine/seen.h", "#include \"base/g.h\"\n", None),
    ("base/unseen.h", "namespace bam { class Row; }\n", None),
    ("base/h.cpp", "namespace bam { void Box::member() {} using Words = int; namespace { using Alias = int; using Twin = std::vector<int>; enum : unsigned { kPlain = 0, kOther }; } }\n", None),
    ("base/i.cpp", "#define TWICE(x) \\\n  x x\nnamespace bam { namespace { enum class Alias { kPlain }; using Twin = std::vector<int>; bool kOther = 1; } }\n", "bam::Alias"),
    ("base/j.cpp", "#define TWICE 2\n#define ONCE 1\n#undef ONCE\n", "#define TWICE"),
    ("base/k.cpp", "#define ONCE 2\n#undef ONCE\n", None),
    ("kernels/cuda/l.cpp", "namespace bam { namespace { int other; } }\n", None),
    ("kernels/cuda/m.cpp", "namespace bam { namespace { int other; } }\n", None),
]


def self_test() -> list[str]:
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text, _ in SELF_TEST:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        _, found = check_tree(root)
    expected = [complaint for _, _, complaint in SELF_TEST if complaint] + ["bam::kLeast", "bam::kOther"]
    for complaint in expected:
        if sum(line.startswith(complaint) for line in found) != 1:
            wrong.append(f"self-test: one '{complaint}' expected, found {found}")
    return wrong or ([] if len(found) == len(expected) else [f"self-test: {len(expected)} expected, found {found}"])


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    finish("sources of batches", *check_tree(root_from_arguments()))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fails when README.md or docs/ name a make target, file, sub-command, flag or link that does not exist."""

import os
import re
import sys
from pathlib import Path

from repo_files import CODE_SUFFIXES, finish, repo_files, root_from_arguments

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SHELL_LANGUAGES = {"", "sh", "bash", "shell", "console"}
SUB_COMMANDS = {"serve", "worker", "batch", "chat", "completion", "generate", "man", "inspect", "bench", "passkey", "eval", "probe", "selftest", "help", "version"}
# A word that starts so must be a file of the repository.
REPO_PATH = re.compile(r"^(?:\./)?((?:scripts|tools|docker|configs|docs|deploy|tests|bench)/[\w./-]+)$")


def make_targets(root: Path) -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def anchors(text: str) -> set[str]:
    """The fragment names that a Markdown viewer gives to the headings."""
    names = set()
    for heading in re.findall(r"^#+ +(.*)$", re.sub(FENCE, "", text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower()
        names.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return names


def check_links(root: Path, path: Path, text: str) -> list[str]:
    problems = []
    for target in LINK.findall(re.sub(FENCE, "", text)):
        if re.match(r"^(https?|mailto):", target):
            continue
        name, _, fragment = target.partition("#")
        file = (root / path.parent / name) if name else root / path
        if not file.exists():
            problems.append(f"{path}: the link {target} leads nowhere")
        elif fragment and file.suffix == ".md" and fragment not in anchors(file.read_text(encoding="utf-8")):
            problems.append(f"{path}: {target}: there is no such heading")
    return problems


def images_of(path: Path, text: str) -> list[Path]:
    """The repository's pictures that a document shows, as paths below its root."""
    names = [a or b for a, b in IMAGE.findall(re.sub(FENCE, "", text))]
    return [Path(os.path.normpath(path.parent / name)) for name in names if not name.startswith("http")]


def check_images(root: Path, files: list[Path], documents: list[Path]) -> list[str]:
    """A picture that no document shows grows old unseen."""
    shown = {image: path for path in documents for image in images_of(path, (root / path).read_text(encoding="utf-8"))}
    problems = [f"{path}: the picture {image} does not exist" for image, path in shown.items() if not (root / image).exists()]
    return problems + [f"{path} is shown by no document" for path in files
                       if path.parts[:2] == ("docs", "images") and path.suffix in {".png", ".svg"} and path not in shown]


def check_command(root: Path, words: list[str], targets: set[str], program: str) -> list[str]:
    """What is wrong with one command line of a shell block."""
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words = words[1:]
    problems = [f"{match[1]} does not exist" for word in words if (match := REPO_PATH.match(word))
                and not match[1].startswith("bench/results") and not (root / match[1]).exists()]
    if words[:1] == ["make"]:
        for word in words[1:]:
            if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets:
                problems.append(f"make has no target {word}")
    elif words and words[0] in {"bam", "build/bam", "./build/bam"}:
        if len(words) > 1 and not words[1].startswith("-") and words[1] not in SUB_COMMANDS:
            problems.append(f"bam has no sub-command {words[1]}")
        for word in words[1:]:
            flag = re.match(r"^--([a-z][a-z-]+)", word)
            if flag and flag[1] != "help" and not knows_flag(program, flag[1]):
                problems.append(f"bam has no flag --{flag[1]}")
    return problems


def knows_flag(program: str, flag: str) -> bool:
    return any(re.search(rf"[\"',-]{re.escape(name)}[\"',\s=]", program) for name in {flag, flag.replace("-", "_")})


def commands(block: str) -> list[list[str]]:
    """The command lines of a block as words; comments, output of a console block and quoting are dropped."""
    lines = re.sub(r"\\\n", " ", block).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found = []
    for line in lines:
        plain = re.sub(r"'[^']*'|\"[^\"]*\"", "_", line)
        for part in re.split(r"&&|\|\||[|;]", re.sub(r"(^|\s)#.*", "", plain)):
            words = part.split()
            if words:
                found.append(words)
    return found


def check_document(root: Path, path: Path, targets: set[str], program: str) -> list[str]:
    text = (root / path).read_text(encoding="utf-8")
    problems = check_links(root, path, text)
    for language, block in FENCE.findall(text):
        if language in SHELL_LANGUAGES:
            for words in commands(block):
                problems += [f"{path}: `{' '.join(words)}`: {p}" for p in check_command(root, words, targets, program)]
    for inline in re.findall(r"`(make [a-z][^`]*)`", re.sub(FENCE, "", text)):
        words = re.sub(r"\"[^\"]*\"", "_", inline).split()
        problems += [f"{path}: `{inline}`: {p}" for p in check_command(root, words, targets, program)]
    return problems


def self_test() -> list[str]:
    targets, program = {"test", "serve"}, 'app.add_option("-p,--prompt", x); {"kv_memory", "…"}'
    cases = [("make test", 0), ("make tset", 1), ("build/bam serve --kv-memory 1GiB", 0), ("bam serve --kv-mem 1GiB", 1),
             ("bam sevre", 1), ("python3 tools/nowhere.py", 1), ("FOO=1 make serve ARGS=_", 0), ("bam generate --prompt x", 0)]
    root = Path(__file__).parent
    wrong = [f"self-test: {line!r} gives {found}" for line, count in cases
             if len(found := check_command(root, line.split(), targets, program)) != count]
    if commands("$ make test # why\nout\n$ a && b | c\n") != [["make", "test"], ["a"], ["b"], ["c"]]:
        wrong.append("self-test: commands() reads a block wrongly")
    if images_of(Path("docs/a.md"), '![x](images/b.png) <img src="../c.svg"> ![y](https://z/d.png)') != [Path("docs/images/b.png"), Path("c.svg")]:
        wrong.append("self-test: images_of() reads a document wrongly")
    return wrong


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    root = root_from_arguments()
    files = repo_files(root)
    documents = [path for path in files if path.suffix == ".md"]
    program = "\n".join((root / p).read_text(encoding="utf-8") for p in files if p.parts[0] in {"app", "engine"} and p.suffix in CODE_SUFFIXES)
    problems = [] if (root / "README.md").exists() else ["README.md is missing"]
    targets = make_targets(root)
    for path in documents:
        problems += check_document(root, path, targets, program)
    problems += check_images(root, files, documents)
    finish("documents", len(documents), problems)


if __name__ == "__main__":
    main()

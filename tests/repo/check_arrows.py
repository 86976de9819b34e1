#!/usr/bin/env python3
"""Fails when an include, or a library that CMake links, goes against base <- kernels <- models <- engine <- server <- app."""

import re
import sys
import tempfile
from pathlib import Path

from repo_files import CODE_SUFFIXES, finish, repo_files, root_from_arguments

# What each folder may include of the others.
ALLOWED = {
    "base": {"base"},
    "kernels": {"base", "kernels"},
    "models": {"base", "kernels", "models"},
    "engine": {"base", "kernels", "models", "engine"},
    "server": {"base", "models", "engine", "server"},  # the server never sees a tensor
    "app": {"base", "kernels", "models", "engine", "server", "app"},
}
# What CMake may link: as above, but through the engine the server's program contains the kernels.
LINKABLE = {**ALLOWED, "server": ALLOWED["server"] | {"kernels"}}

# Headers from outside that are at home in some places only: (what, pattern, path prefixes where it is welcome).
OUTSIDE = [
    ("Drogon", re.compile(r"^(drogon|trantor)/"), ("server/", "app/")),
    ("JSON", re.compile(r"^(nlohmann|json)/"), ("models/", "server/", "app/")),
    ("CUDA", re.compile(r"^(cuda|cublas|cudnn|nv|cub/|thrust/|mma\.h|curand)"), ("kernels/cuda/",)),
    ("sentencepiece", re.compile(r"^sentencepiece"), ("models/",)),
    ("libcurl", re.compile(r"^curl/"), ("app/",)),
    ("command-line", re.compile(r"^CLI/"), ("app/",)),
    ("Highway", re.compile(r"^hwy/"), ("kernels/",)),
    ("file", re.compile(r"^(fstream|filesystem)$"), ("base/", "models/", "engine/", "server/", "app/")),
    ("regular-expression", re.compile(r"^regex$"), ()),
]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def check_include(root: Path, path: Path, quote: str, target: str) -> str | None:
    """What is wrong with one include of `path`, or None."""
    folder, target_folder = path.parts[0], target.split("/")[0]
    if ".." in target.split("/"):
        return f"relative include {target}: write it from the root"
    if target_folder in ALLOWED:
        if target_folder not in ALLOWED[folder]:
            return f"{folder} must not include {target}"
        if not (root / target).exists():
            return f"{target} does not exist"
        return None
    for what, pattern, welcome in OUTSIDE:
        if pattern.search(target) and not path.as_posix().startswith(welcome):
            return f"a {what} header ({target}) does not belong in {folder}"
    if quote == '"' and (root / path.parent / target).exists():
        return f"include {target} from the root: {(path.parent / target).as_posix()}"
    return None


def check_tree(root: Path) -> tuple[int, list[str]]:
    looked_at, problems = 0, []
    for path in repo_files(root):
        folder = path.parts[0]
        if folder not in ALLOWED:
            continue
        if path.suffix in CODE_SUFFIXES:
            looked_at += 1
            text = (root / path).read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                problem = check_include(root, path, match[1], match[2])
                if problem:
                    problems.append(f"{path}:{line_of(text, match.start())}: {problem}")
        elif path.name == "CMakeLists.txt":
            text = re.sub(r"#.*", "", (root / path).read_text(encoding="utf-8"))
            for match in re.finditer(r"\bbam_([a-z]+)\b", text):
                if match[1] in ALLOWED and match[1] not in LINKABLE[folder]:
                    problems.append(f"{path}:{line_of(text, match.start())}: {folder} must not link bam_{match[1]}")
    return looked_at, problems


# (file, its text, part of the complaint that must come, or None for a file that is in order)
SELF_TEST = [
    ("base/error.h", "#pragma once\n#include <string>\n", None),
    ("kernels/ok.cpp", '#include "base/error.h"\n#include "hwy/highway.h"\n', None),
    ("kernels/up.cpp", '#include "models/bam.h"\n', "kernels must not include models/bam.h"),
    ("kernels/file.cpp", "#include <fstream>\n", "file header"),
    ("kernels/cuda/ok.cu", "#include <cuda_runtime.h>\n", None),
    ("kernels/cpu/gpu.cpp", "#include <cuda_runtime.h>\n", "CUDA header"),
    ("base/up.h", '  #  include "kernels/ok.h"\n', "base must not include"),
    ("engine/json.cpp", "// why\n#include <nlohmann/json.hpp>\n", "engine/json.cpp:2: a JSON header"),
    ("engine/http.cpp", "#include <drogon/drogon.h>\n", "Drogon header"),
    ("engine/gpu.cpp", "#include <cublasLt.h>\n", "CUDA header"),
    ("server/tensor.cpp", '#include "kernels/tensor.h"\n', "server must not include kernels/tensor.h"),
    ("server/ok.cpp", "#include <drogon/drogon.h>\n#include <nlohmann/json.hpp>\n// #include \"app/x.h\"\n", None),
    ("server/regex.cpp", "#include <regex>\n", "regular-expression header"),
    ("models/relative.cpp", '#include "../base/error.h"\n', "write it from the root"),
    ("models/beside.cpp", '#include "beside.h"\n', "from the root: models/beside.h"),
    ("models/beside.h", "", None),
    ("models/gone.cpp", '#include "base/gone.h"\n', "base/gone.h does not exist"),
    ("models/CMakeLists.txt", "bam_library(models DEPS bam_kernels bam_engine)\n", "models must not link bam_engine"),
    ("server/CMakeLists.txt", "bam_library(server DEPS bam_engine) # not bam_app\n", None),
]


def self_test() -> list[str]:
    """Runs the check on a tree with known faults; returns what it got wrong."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text, _ in SELF_TEST:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        _, found = check_tree(root)
        for name, _, complaint in SELF_TEST:
            of_file = [line for line in found if line.startswith(name + ":")]
            if complaint is None and of_file:
                wrong.append(f"self-test: false alarm: {of_file[0]}")
            if complaint is not None and (len(of_file) != 1 or complaint not in of_file[0]):
                wrong.append(f"self-test: {name} should give one '{complaint}', gave {of_file}")
    return wrong


def main() -> None:
    wrong = self_test()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)
    finish("include arrows", *check_tree(root_from_arguments()))


if __name__ == "__main__":
    main()

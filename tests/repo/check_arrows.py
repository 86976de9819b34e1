#!/usr/bin/env python3
"""Fails when an include, or a library that CMake links, goes against base <- kernels <- models <- engine <- server <- app
and base <- transport <- engine,
or, inside server/, against grammar, jinja <- api <- http."""

import re
import sys
import tempfile
from pathlib import Path

from repo_files import CODE_SUFFIXES, finish, repo_files, root_from_arguments

# What each room may include of the others. A room is a folder, or one of the folders inside server/.
ALLOWED = {
    "base": {"base"},
    "kernels": {"base", "kernels"},
    "models": {"base", "kernels", "models"},
    "transport": {"base", "transport"},
    "engine": {"base", "kernels", "models", "transport", "engine"},
    "server/grammar": {"base", "server/grammar"},
    "server/jinja": {"base", "server/jinja"},
    "server/api": {"base", "models", "engine", "server", "server/grammar", "server/jinja", "server/api"},  # no tensors
    "server/events": {"base", "engine", "server/events"},
    "server/store": {"base", "engine", "server/store"},
    "server/http": {"base", "models", "engine", "server", "server/api", "server/http"},
    "server": {"base", "server", "server/api"},
    "app": {"base", "kernels", "models", "engine", "server", "server/grammar", "server/jinja", "server/api", "server/http",
            "server/events", "server/store", "transport", "app"},
}
# What CMake may link: as above; server/ itself only adds its rooms up.
LINKABLE = {**ALLOWED, "server": {room for room in ALLOWED if room != "app"}}

# Headers from outside that are at home in some places only: (what, pattern, path prefixes where it is welcome).
OUTSIDE = [
    ("Drogon", re.compile(r"^(drogon|trantor)/"), ("server/http/",)),
    ("JSON", re.compile(r"^(nlohmann|json)/"), ("base/json", "app/")),
    ("CUDA", re.compile(r"^(cuda|cublas|cudnn|nv|cub/|thrust/|mma\.h|curand)"), ("kernels/cuda/", "transport/nccl/")),
    ("transport", re.compile(r"^(gloo/|mpi\.h|nccl\.h)"), ("transport/",)),
    ("Redis", re.compile(r"^hiredis/"), ("transport/", "server/store/")),
    ("ZeroMQ", re.compile(r"^zmq"), ("server/events/",)),
    ("sentencepiece", re.compile(r"^sentencepiece"), ("models/",)),
    ("libcurl", re.compile(r"^curl/"), ("app/", "server/store/")),
    ("command-line", re.compile(r"^CLI/"), ("app/",)),
    ("xxHash", re.compile(r"^xxhash"), ("base/",)),
    ("Highway", re.compile(r"^hwy/"), ("kernels/",)),
    ("file", re.compile(r"^(fstream|filesystem)$"), ("base/", "transport/", "models/", "engine/", "server/", "app/")),
    ("regular-expression", re.compile(r"^regex$"), ()),
]

# Headers that a room must not see even through the headers that it may include.
UNSEEN = {"server/": {"kernels/backend.h"}}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def room_of(path: str) -> str | None:
    """The longest name of ALLOWED that `path` lies in."""
    return max((room for room in ALLOWED if path.startswith(room + "/")), key=len, default=None)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def check_include(root: Path, path: Path, quote: str, target: str) -> str | None:
    """What is wrong with one include of `path`, or None."""
    room, target_room = room_of(path.as_posix()), room_of(target)
    if ".." in target.split("/"):
        return f"relative include {target}: write it from the root"
    if target_room:
        if target_room not in ALLOWED[room]:
            return f"{room} must not include {target}"
        if not (root / target).exists():
            return f"{target} does not exist"
        return None
    for what, pattern, welcome in OUTSIDE:
        if pattern.search(target) and not path.as_posix().startswith(welcome):
            return f"a {what} header ({target}) does not belong in {room}"
    if quote == '"' and (root / path.parent / target).exists():
        return f"include {target} from the root: {(path.parent / target).as_posix()}"
    return None


def seen_through(root: Path, path: str, unseen: set[str], known: dict[str, list[str]]) -> list[str] | None:
    """The chain of includes from `path` to one of `unseen`, or None. `known`: the includes of files looked at before."""
    chains = [[path]]
    visited = {path}
    while chains:
        chain = chains.pop()
        if chain[-1] not in known:
            file = root / chain[-1]
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            known[chain[-1]] = [match[2] for match in INCLUDE.finditer(text) if match[1] == '"']
        for target in known[chain[-1]]:
            if target in unseen:
                return [*chain, target]
            if target not in visited:
                visited.add(target)
                chains.append([*chain, target])
    return None


def check_tree(root: Path) -> tuple[int, list[str]]:
    looked_at, problems, known = 0, [], {}
    for path in repo_files(root):
        room = room_of(path.as_posix())
        if not room:
            continue
        if path.suffix in CODE_SUFFIXES:
            looked_at += 1
            text = (root / path).read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                problem = check_include(root, path, match[1], match[2])
                if problem:
                    problems.append(f"{path}:{line_of(text, match.start())}: {problem}")
            for prefix, unseen in UNSEEN.items():
                if path.as_posix().startswith(prefix) and (chain := seen_through(root, path.as_posix(), unseen, known)):
                    problems.append(f"{path}: sees {' <- '.join(reversed(chain[1:]))}")
        elif path.name == "CMakeLists.txt":
            text = re.sub(r"#.*", "", (root / path).read_text(encoding="utf-8"))
            for match in re.finditer(r"\bbam_([a-z_]+)\b", text):
                linked = room_of(match[1].replace("_", "/") + "/")
                if linked and linked not in LINKABLE[room]:
                    problems.append(f"{path}:{line_of(text, match.start())}: {room} must not link bam_{match[1]}")
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
    ("server/api/tensor.cpp", '#include "kernels/tensor.h"\n', "server/api must not include kernels/tensor.h"),
    ("engine/leak.h", '#include "kernels/backend.h"\n', None),
    ("kernels/backend.h", "", None),
    ("server/api/leak.cpp", '#include "engine/leak.h"\n', "sees kernels/backend.h <- engine/leak.h"),
    ("app/ok_json.cpp", "#include <nlohmann/json.hpp>\n// #include \"app/x.h\"\n", None),
    ("server/api/drogon.cpp", "#include <drogon/drogon.h>\n", "Drogon header"),
    ("server/api/up.cpp", '#include "server/http/ok.h"\n', "server/api must not include server/http/ok.h"),
    ("server/store/ok.cpp", "#include <hiredis/hiredis.h>\n#include <curl/curl.h>\n", None),
    ("server/events/redis.cpp", "#include <hiredis/hiredis.h>\n", "Redis header"),
    ("server/http/ok.h", '#include <trantor/net/EventLoop.h>\n#include "server/api/drogon.cpp"\n', None),
    ("server/grammar/tokenizer.cpp", '#include "models/ok.h"\n', "server/grammar must not include models/ok.h"),
    ("server/grammar/regex.cpp", "#include <regex>\n", "regular-expression header"),
    ("server/jinja/json.cpp", "#include <nlohmann/json.hpp>\n", "JSON header"),
    ("models/relative.cpp", '#include "../base/error.h"\n', "write it from the root"),
    ("models/beside.cpp", '#include "beside.h"\n', "from the root: models/beside.h"),
    ("models/beside.h", "", None),
    ("models/gone.cpp", '#include "base/gone.h"\n', "base/gone.h does not exist"),
    ("models/CMakeLists.txt", "bam_library(models DEPS bam_kernels bam_engine)\n", "models must not link bam_engine"),
    ("server/CMakeLists.txt", "target_link_libraries(bam_server INTERFACE bam_server_http) # not bam_app\n", None),
    ("server/grammar/CMakeLists.txt", "bam_library(server_grammar DEPS bam_base bam_server_api)\n",
     "server/grammar must not link bam_server_api"),
    ("server/http/CMakeLists.txt", "bam_library(server_http DEPS bam_server_api bam_app)\n", "must not link bam_app"),
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

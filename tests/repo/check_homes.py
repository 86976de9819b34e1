#!/usr/bin/env python3
"""Fails when a .cpp has neither a header of its own name nor a stated home: the header that declares what it defines.

A file that merely continues a class has to be named here with what sets its half apart; a length is no reason."""

import fnmatch
import re
import sys
import tempfile
from pathlib import Path

from repo_files import finish, read_text, repo_files, root_from_arguments

FOLDERS = ("app", "base", "engine", "kernels", "models", "server", "transport")

# (pattern, the header that it implements a part of, why it stands alone)
HOMES = [
    # One of a family behind one declaration each: the header is the list of them.
    ("app/*.cpp", "app/commands.h", "one command of `bam` each"),
    ("app/main.cpp", "app/commands.h", "the program"),
    ("app/chat/*_partner.cpp", "app/chat/partner.h", "one way to reach a model each"),
    ("server/api/handlers_*.cpp", "server/api/handlers.h", "the endpoints about one subject each"),
    ("server/api/handlers_generation.cpp", "server/api/completions.h", "the endpoints that start a generation"),
    ("server/api/dialect_*.cpp", "server/api/handlers.h", "one foreign API each"),
    ("server/store/*_store.cpp", "server/store/object_store.h", "one kind of store each, behind its factory"),
    ("transport/*/*_wire.cpp", "transport/wire_plugin.h", "a plugin: reached by bam_make_wire() only"),
    ("transport/nccl/plugin.cpp", "transport/wire_plugin.h", "what the plugin exports; tests do without"),
    ("transport/local_transport.cpp", "transport/transport.h", "one transport, behind its factory"),
    # Tables, apart from the code that reads them.
    ("app/serve_options.cpp", "app/serve_config.h", "the table of settings"),
    ("server/api/openai_fields.cpp", "server/api/openai_api.h", "the table of request fields"),
    ("server/api/routes.cpp", "server/api/route.h", "the table of routes"),
    ("server/api/openapi_dialects.cpp", "server/api/openapi.h", "the schemas of foreign APIs"),
    ("server/api/openapi_schemas.cpp", "server/api/openapi.h", "the schemas of our own"),
    ("server/jinja/filters.cpp", "server/jinja/builtins.h", "what stands behind `|`"),
    ("server/jinja/methods.cpp", "server/jinja/builtins.h", "what stands behind `.`"),
    # One language or format each, with a function of the header as its only door.
    ("server/api/openai_messages.cpp", "server/api/openai_api.h", "messages, apart from the fields around them"),
    ("server/api/openai_parse.cpp", "server/api/openai_api.h", "from a body to a request"),
    ("server/grammar/gbnf_parser.cpp", "server/grammar/cfg.h", "GBNF"),
    ("server/grammar/lark_parser.cpp", "server/grammar/cfg.h", "Lark"),
    ("server/grammar/regex_parser.cpp", "server/grammar/regex_ast.h", "from a pattern to its tree"),
    ("server/grammar/schema_types.cpp", "server/grammar/schema_compiler.h", "one JSON type each"),
    ("server/jinja/expression_parser.cpp", "server/jinja/parser.h", "expressions, apart from the statements around them"),
    ("models/safetensors_shards.cpp", "models/safetensors.h", "folders of shards; the fuzzer of single files does without"),
    ("app/client/bench_table.cpp", "app/client/bench_result.h", "the result as text"),
    ("app/client/perplexity_report.cpp", "app/client/perplexity.h", "the result as text"),
    # Halves of a class that know nothing of each other.
    ("engine/engine_drafts.cpp", "engine/engine_core.h", "drafts"),
    ("engine/engine_deferred.cpp", "engine/engine_core.h", "samples that are put off"),
    ("engine/engine_scores.cpp", "engine/engine_core.h", "log-probabilities of prompts"),
    ("engine/engine_store.cpp", "engine/engine_core.h", "requests that wait for a store of prefixes"),
    ("engine/engine_flight.cpp", "engine/engine_core.h", "steps on their way, and their loss"),
    ("kernels/cpu/cpu_attention.cpp", "kernels/cpu/cpu_backend.h", "attention"),
    ("kernels/cpu/cpu_kv_write.cpp", "kernels/cpu/cpu_backend.h", "writing pages"),
    ("kernels/cpu/gemm_pack.cpp", "kernels/cpu/gemm.h", "packing, once at load; compiled once, not per instruction set"),
    ("kernels/cuda/cuda_attention.cpp", "kernels/cuda/cuda_backend.h", "attention"),
    ("kernels/cuda/cuda_tables.cpp", "kernels/cuda/cuda_backend.h", "block tables on the device"),
    ("kernels/cuda/cuda_transfer.cpp", "kernels/cuda/cuda_backend.h", "between host and device"),
]


def home_of(path: str):
    """The most particular row that fits: later rows go before earlier ones."""
    return next((row for row in reversed(HOMES) if fnmatch.fnmatchcase(path, row[0]) and path.count("/") == row[0].count("/")), None)


def check_tree(root: Path) -> tuple[int, list[str]]:
    sources = [path for path in repo_files(root) if path.suffix == ".cpp" and path.parts[0] in FOLDERS]
    problems, used = [], set()
    for path in sources:
        if (root / path).with_suffix(".h").is_file():
            continue
        row = home_of(path.as_posix())
        if row is None:
            problems.append(f"{path}: no header of its own, and tests/repo/check_homes.py knows no home for it")
            continue
        used.add(row)
        if not re.search(rf'^#include "{re.escape(row[1])}"', read_text(root / path) or "", re.M):
            problems.append(f"{path}: does not include its home {row[1]}")
    if sources and root == root_from_arguments():
        problems += [f"tests/repo/check_homes.py: no file needs the home of {row[0]} any more" for row in HOMES if row not in used]
    return len(sources), problems


SELF_TEST = [
    ("engine/own.cpp", "", {"engine/own.h": ""}, None),
    ("engine/alone.cpp", "", {}, "no header of its own"),
    ("engine/engine_drafts.cpp", '#include "engine/engine_core.h"\n', {}, None),
    ("engine/engine_drafts.cpp", '#include "engine/engine.h"\n', {}, "does not include its home"),
    ("app/deep/command.cpp", '#include "app/commands.h"\n', {}, "no header of its own"),
]


def self_test() -> None:
    for name, text, others, expected in SELF_TEST:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for file, content in {name: text, **others}.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content, encoding="utf-8")
            _, problems = check_tree(root)
            if (expected is None) != (not problems) or (expected and expected not in problems[0]):
                sys.exit(f"self-test {name}: expected {expected}, found {problems}")


def main() -> None:
    self_test()
    finish("homes of sources", *check_tree(root_from_arguments()))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks configs/: every key is a flag of `bam serve` with a value of the right kind; the model shapes have the paper's sizes."""

import json
import re
import sys
from pathlib import Path

from repo_files import finish, root_from_arguments

SIZE = re.compile(r"^[1-9][0-9]*(KiB|MiB|GiB)$")


def one_of(*values):
    return lambda value: value in values


def whole(low: int):
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low


def number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def text(value) -> bool:
    return isinstance(value, str) and value != ""


def size(value) -> bool:
    return isinstance(value, str) and bool(SIZE.match(value))


SERVE_KEYS = {
    "host": text, "port": whole(1), "model": text, "served_model_name": text, "device": one_of("auto", "cpu", "cuda"),
    "threads": whole(1), "dtype": one_of("auto", "f32", "bf16", "int8"), "math": one_of("exact", "fast"), "kv_dtype": one_of("f32", "f16", "bf16", "int8", "fp8", "int4"),
    "kv_memory": lambda v: v == "auto" or size(v), "page_size": whole(1), "max_model_len": lambda v: v == "auto" or whole(1)(v),
    "max_num_seqs": whole(1), "max_batched_tokens": whole(1), "step_target_ms": number, "attention": one_of("certified", "dense"),
    "attention_epsilon": number, "prefix_cache": one_of("on", "off"), "kv_dir": text, "api_key_file": text, "cors_origins": text,
    "tls_cert": text, "tls_key": text, "max_body": size, "max_queue": whole(1), "max_queued_tokens": whole(1),
    "queue_timeout": number, "request_timeout": number, "drain_timeout": number,
    "log_level": one_of("trace", "debug", "info", "warn", "error"), "log_format": one_of("text", "json"),
    "metrics_compat": one_of("vllm", "off"), "stages": whole(1), "stage_layers": text, "rendezvous": text,
    "transport": one_of("gloo", "mpi", "gloo+nccl", "mpi+nccl"), "stage_address": text, "stage_deadline": number,
    "replay_limit": whole(0), "group_timeout": number,
}

# Embedding and other parameters in millions, as the paper counts them.
PAPER_SIZES = {"bam-120m.json": (25, 96), "bam-432m.json": (50, 381), "bam-1.1b.json": (67, 1040)}


def check_server(path: Path) -> list[str]:
    problems = []
    for key, value in json.loads(path.read_text(encoding="utf-8")).items():
        if key not in SERVE_KEYS:
            problems.append(f"{path.name}: {key} is not a flag of `bam serve`")
        elif not SERVE_KEYS[key](value):
            problems.append(f"{path.name}: {key} has the value {value!r}")
    return problems


def parameters(config: dict) -> tuple[int, int]:
    """(embedding, everything else) of a model with an untied head."""
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    attention = 2 * hidden * heads * head_dim + 2 * hidden * config["num_key_value_heads"] * head_dim
    layer = attention + 3 * hidden * config["intermediate_size"] + 2 * hidden + 4 * heads
    embedding = config["vocab_size"] * hidden
    return embedding, config["num_hidden_layers"] * layer + hidden + embedding


def check_model(path: Path) -> list[str]:
    config = json.loads(path.read_text(encoding="utf-8"))
    problems = []
    if path.name not in PAPER_SIZES:
        return [f"{path.name}: not one of the paper's sizes"]
    for actual, paper in zip(parameters(config), PAPER_SIZES[path.name]):
        if abs(actual / 1e6 - paper) > 0.05 * paper:
            problems.append(f"{path.name}: {actual / 1e6:.1f}M parameters, the paper has {paper}M")
    expected = {"model_type": "bam", "position_encoding": "bam", "ssmax": True, "ssmax_prior": True,
                "prior_form": "scale_outside", "prior_scope": "layer", "vocab_size": 32768}
    for key, value in expected.items():
        if config.get(key) != value:
            problems.append(f"{path.name}: {key} should be {value!r}")
    return problems


def check_known_to_the_program(root: Path, servers: list[Path]) -> list[str]:
    """Every key that a file uses is spelled somewhere in the program's own flag table."""
    source = "\n".join(p.read_text(encoding="utf-8") for p in sorted((root / "app").rglob("*.cpp")))
    keys = {key for path in servers for key in json.loads(path.read_text(encoding="utf-8"))}
    return [f"configs use {key}, which app/ does not know" for key in sorted(keys)
            if key not in source and key.replace("_", "-") not in source]


def main() -> None:
    root = root_from_arguments()
    servers = sorted((root / "configs").glob("*.json"))
    models = sorted((root / "configs" / "models").glob("*.json"))
    problems = [problem for path in servers for problem in check_server(path)]
    problems += [problem for path in models for problem in check_model(path)]
    problems += [f"configs/models/{name} is missing" for name in PAPER_SIZES if name not in {p.name for p in models}]
    problems += check_known_to_the_program(root, servers)
    finish("configurations", len(servers) + len(models), problems)


if __name__ == "__main__":
    sys.exit(main())

"""What the tests of the Python tools share: running a tool, and a strict reader of what it wrote."""
import contextlib
import importlib
import io
import json
import math
import pathlib
import struct
import subprocess
import sys
import unittest.mock
from typing import NamedTuple

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = REPO / "tools"
TOKENIZER = REPO / "tests" / "fixtures" / "tokenizer.model"
TOKENIZER_VOCAB = 512
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}

sys.path.insert(0, str(TOOLS))
from bamlib.failure import run  # noqa: E402


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def run_tool(name: str, *arguments: object) -> subprocess.CompletedProcess:
    """A tool as its user runs it."""
    command = [sys.executable, str(TOOLS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def call_tool(name: str, *arguments: object) -> subprocess.CompletedProcess:
    """The same inside this process: importing torch takes seconds, so only a few tests start a process."""
    command = [str(TOOLS / name), *map(str, arguments)]
    module = importlib.import_module(name.removesuffix(".py"))
    stdout, stderr, exit_code = io.StringIO(), io.StringIO(), 0
    with unittest.mock.patch.object(sys, "argv", command):
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            try:
                run(module.main)
            except SystemExit as exit_request:
                exit_code = exit_request.code
    return subprocess.CompletedProcess(command, exit_code, stdout.getvalue(), stderr.getvalue())


def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"duplicate keys in {keys}"
    return dict(pairs)


def read_safetensors(path: pathlib.Path) -> dict[str, Tensor]:
    """Every rule of the format is asserted: no hole, no overlap, sizes that fit, nothing after the last tensor."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + header_bytes], object_pairs_hook=refuse_duplicates)
    for key, value in header.pop("__metadata__", {}).items():
        assert isinstance(key, str) and isinstance(value, str)
    tensors, expected_begin = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"}, name
        begin, end = entry["data_offsets"]
        assert begin == expected_begin, name
        assert end - begin == math.prod(entry["shape"]) * DTYPE_BYTES[entry["dtype"]], name
        data = content[8 + header_bytes + begin : 8 + header_bytes + end]
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), data)
        expected_begin = end
    assert 8 + header_bytes + expected_begin == len(content)
    return tensors


def read_checkpoint(folder: pathlib.Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json and all tensors, from one file or from shards with an index."""
    config = json.loads((folder / "config.json").read_text(), object_pairs_hook=refuse_duplicates)
    index_path = folder / "model.safetensors.index.json"
    if not index_path.exists():
        return config, read_safetensors(folder / "model.safetensors")
    weight_map = json.loads(index_path.read_text(), object_pairs_hook=refuse_duplicates)["weight_map"]
    tensors = {}
    for file in sorted(set(weight_map.values())):
        shard = read_safetensors(folder / file)
        assert set(shard) == {name for name, where in weight_map.items() if where == file}, file
        tensors |= shard
    return config, tensors


def network_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """The tensors that a checkpoint with this config must have, and no others."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    q_size, kv_size = heads * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    shapes = {"tok_embeddings.weight": (config["vocab_size"], hidden), "norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = (config["vocab_size"], hidden)
    priors = ["prior."] if config.get("prior_scope") == "global" else []
    for n in range(config["num_hidden_layers"]):
        shapes |= {
            f"layers.{n}.attention.wq.weight": (q_size, hidden),
            f"layers.{n}.attention.wk.weight": (kv_size, hidden),
            f"layers.{n}.attention.wv.weight": (kv_size, hidden),
            f"layers.{n}.attention.wo.weight": (hidden, q_size),
            f"layers.{n}.feed_forward.w1.weight": (inner, hidden),
            f"layers.{n}.feed_forward.w2.weight": (hidden, inner),
            f"layers.{n}.feed_forward.w3.weight": (inner, hidden),
            f"layers.{n}.attention_norm.weight": (hidden,),
            f"layers.{n}.ffn_norm.weight": (hidden,),
        }
        if config["ssmax"]:
            shapes[f"layers.{n}.attention.seq_scale"] = (1, heads, 1, 1)
        if config.get("prior_scope") == "layer":
            priors.append(f"layers.{n}.attention.prior.")
    for prefix in priors:
        if config["position_encoding"] == "t5":
            shapes[prefix.removesuffix("prior.") + "relative_bias"] = (config["relative_attention_num_buckets"], heads)
            continue
        shapes |= {prefix + name: (1, heads, 1, 1) for name in ("shape", "scale", "loc")}
    return shapes


def assert_one_line_failure(test, result: subprocess.CompletedProcess, exit_code: int, *words: str) -> None:
    """One line that names the problem; argparse puts its usage in front of it."""
    test.assertEqual(result.returncode, exit_code, result.stderr)
    if not result.stderr.startswith("usage:"):
        test.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
    for word in words:
        test.assertIn(word, result.stderr.strip().splitlines()[-1])

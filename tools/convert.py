#!/usr/bin/env python3
"""Turns a published PyTorch checkpoint (model.pt + args.json) into a checkpoint folder that bam serves.

The file is read with torch.load(weights_only=True): nothing stored in it is executed. Every tensor is checked by name,
shape and value; what the converter does not understand it refuses. Needs torch and numpy.
"""
import argparse
import json
import pathlib
import pickle
import re
import sys
from typing import Iterator, NamedTuple

from bamlib.checkpoint import (TORCH_DTYPE, TensorSpec, count_parameters, describe_tensors, new_checkpoint_folder,
                               parse_size, write_json, write_tensors, write_tokenizer)
from bamlib.failure import Failure, UsageFailure, run
from bamlib.sentencepiece_file import TokenizerInfo, read_tokenizer
from bamlib.verify import find_program

try:
    import torch
except ImportError as error:
    torch, torch_error = None, error  # --help works without it
else:
    from bamlib import int4

EXAMPLES = """example:
  convert.py --tokenizer mistral/tokenizer.model --dtype bf16 logs/l12/bam_ssmax/version_00 checkpoints/bam-120m

exit code: 0 done, 1 the checkpoint is not one this converter understands, 2 wrong usage
"""


class Variant(NamedTuple):
    position_encoding: str
    ssmax: bool


VARIANTS = {
    "bam": Variant("bam", False),
    "bam_ssmax": Variant("bam", True),
    "alibi": Variant("alibi", False),
    "alibi_ssmax": Variant("alibi", True),
    "nope": Variant("nope", False),
    "nope_ssmax": Variant("nope", True),
    "rotary": Variant("rope", False),
    "rotary_ssmax": Variant("rope", True),
    "rotary_local": Variant("rope_local", False),
    "sinusoidal": Variant("sinusoidal", False),
    "sinusoidal_ssmax": Variant("sinusoidal", True),
    "t5": Variant("t5", False),
    "t5_ssmax": Variant("t5", True),
}
# model_args that shape the network, and those that only say how it was trained.
NETWORK_ARGS = {"dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier",
                "norm_eps", "rope_theta", "sinusoidal_theta", "max_seq_len", "global_positional_encoding",
                "ssmax_prior", "relative_attention_num_buckets", "relative_attention_max_distance"}
TRAINING_ARGS = {"max_batch_size", "shape_init", "scale_init", "loc_init", "train_shape", "train_scale", "train_loc",
                 "seq_scale"}
FILE_DTYPES = {f"torch.{name}": dtype for dtype, name in TORCH_DTYPE.items()}
# int4: the matrices of the layers in four bits (bamlib/int4.py), embedding and head in bfloat16.
DTYPE_FLAGS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "int4": "BF16", "keep": None}
Tensors = dict[str, "torch.Tensor"]
WRAPPER_PREFIXES = ("module.", "_orig_mod.")
WRAPPER_KEYS = ("model", "state_dict", "model_state_dict")
CHUNK_ELEMENTS = 1 << 24


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="folder with model.pt and args.json, or a .pt file beside it")
    parser.add_argument("out", type=pathlib.Path, help="checkpoint folder to create")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FILE", help="sentencepiece model to copy")
    parser.add_argument("--no-add-bos", action="store_true", help="no BOS before prompts (default: as in training)")
    parser.add_argument("--dtype", choices=DTYPE_FLAGS, default="keep",
                        help="of the matrices (default: keep); unless kept, norms, priors and SSMax scales are f32; "
                             "int4: the layers in four bits, embedding and head in bf16")
    parser.add_argument("--prior-form", choices=("scale_outside", "scale_inside"),
                        help="bam: overrides the form (default: scale_outside for bam_ssmax, scale_inside for bam)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="split into shards, e.g. 4GB (default: one file)")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is there")
    parser.add_argument("--verify", action="store_true",
                        help="afterwards compare the program with a float64 computation of the source, on one prompt")
    parser.add_argument("--bam", metavar="PATH", help="the program for --verify (default: build/bam, else the installed one)")
    return parser.parse_args()


def find_source(source: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The paths of model.pt and args.json."""
    if not source.exists():
        raise UsageFailure(f"{source} does not exist")
    model_path = source / "model.pt" if source.is_dir() else source
    args_path = model_path.parent / "args.json"
    for path in (model_path, args_path):
        if not path.is_file():
            raise Failure(f"{path} is missing")
    return model_path, args_path


def load_args(path: pathlib.Path) -> tuple[str, dict]:
    """position_encoding and model_args of args.json."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        encoding = content["args"]["position_encoding"]
        model_args = content["model_args"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        expected = '{"args": {"position_encoding": ...}, "model_args": {...}}'
        raise Failure(f"{path}: {what}; expected {expected}") from None
    if encoding not in VARIANTS:
        raise Failure(f"{path}: position_encoding {encoding!r} is unknown; known: {', '.join(VARIANTS)}")
    if not isinstance(model_args, dict):
        raise Failure(f"{path}: model_args is not an object")
    for key in model_args:
        if key not in NETWORK_ARGS | TRAINING_ARGS:
            raise Failure(f"{path}: model_args.{key} is unknown, so its effect on the network is too")
    return encoding, model_args


def load_state(path: pathlib.Path) -> Tensors:
    """The tensors by name, without the prefixes that DDP and torch.compile leave."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise Failure(f"{path}: not a plain file of tensors (reading it would execute code stored in it)") from None
    except Exception as error:  # torch raises many types for broken archives
        raise Failure(f"{path}: cannot be read: {first_line(error)}") from None
    # A training script may keep the weights beside its optimizer and counters.
    for key in WRAPPER_KEYS:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state:
        raise Failure(f"{path}: not a state dict")
    tensors = {}
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            raise Failure(f"{path}: not a state dict: {key!r} is no tensor")
        name = key
        while name.startswith(WRAPPER_PREFIXES):
            name = name.split(".", 1)[1]
        if name in tensors:
            raise Failure(f"{path}: {name} occurs twice, with different prefixes")
        tensors[name] = value
    return tensors


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def integer(model_args: dict, key: str, default: int | None = None) -> int | None:
    value = model_args.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value <= 0:
        raise Failure(f"args.json: model_args.{key} = {value!r} is not a positive integer")
    return int(value)


def number(model_args: dict, key: str, default: float | None) -> float | None:
    value = model_args.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise Failure(f"args.json: model_args.{key} = {value!r} is not a positive number")
    return float(value)


def flag(model_args: dict, key: str) -> bool | None:
    value = model_args.get(key)
    if value not in (None, True, False):
        raise Failure(f"args.json: model_args.{key} = {value!r} is not a boolean")
    return value


def matrix_shape(tensors: Tensors, name: str) -> tuple[int, int]:
    if name not in tensors:
        raise Failure(f"tensor {name} is missing")
    shape = tuple(tensors[name].shape)
    if len(shape) != 2 or 0 in shape:
        raise Failure(f"tensor {name} has shape {list(shape)}; expected a matrix")
    return shape


def make_config(encoding: str, model_args: dict, tensors: Tensors, prior_form: str | None) -> dict:
    """Sizes come from the tensors; every size that args.json gives too must agree."""
    variant = VARIANTS[encoding]
    vocab_size, hidden = matrix_shape(tensors, "tok_embeddings.weight")
    q_size = matrix_shape(tensors, "layers.0.attention.wq.weight")[0]
    kv_size = matrix_shape(tensors, "layers.0.attention.wk.weight")[0]
    intermediate = matrix_shape(tensors, "layers.0.feed_forward.w1.weight")[0]
    layers = 1 + max(int(match[1]) for match in map(re.compile(r"layers\.(\d{1,6})\.").match, tensors) if match)

    heads = integer(model_args, "n_heads")
    if heads is None:
        raise Failure("args.json: model_args.n_heads is missing")
    kv_heads = integer(model_args, "n_kv_heads", heads)
    if q_size % heads or heads % kv_heads:
        raise Failure(f"args.json: n_heads {heads} and n_kv_heads {kv_heads} do not divide wq's {q_size} rows")
    head_dim = q_size // heads
    multiple_of = integer(model_args, "multiple_of", 1)
    multiplier = number(model_args, "ffn_dim_multiplier", None)
    stated_intermediate = hidden if multiplier is None else int(multiplier * hidden)
    stated_intermediate = -(-stated_intermediate // multiple_of) * multiple_of
    max_seq_len = integer(model_args, "max_seq_len")
    if max_seq_len is None:
        raise Failure("args.json: model_args.max_seq_len is missing")
    for what, stated, found in (
        ("dim", integer(model_args, "dim"), hidden),
        ("n_layers", integer(model_args, "n_layers"), layers),
        ("vocab_size", integer(model_args, "vocab_size"), vocab_size),
        ("dim / n_heads", hidden // heads, head_dim),
        ("n_kv_heads * head_dim", kv_heads * head_dim, kv_size),
        ("the FFN size of dim, ffn_dim_multiplier and multiple_of", stated_intermediate, intermediate),
    ):
        if stated is not None and stated != found:
            raise Failure(f"args.json says {stated} for {what}, the tensors say {found}")

    config = {
        "model_type": "bam",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "rms_norm_eps": number(model_args, "norm_eps", 1e-5),
        "tie_word_embeddings": False,
        "max_position_embeddings": max_seq_len,
        "position_encoding": variant.position_encoding,
        "ssmax": variant.ssmax,
    }
    if variant.position_encoding == "bam":
        config |= prior_config(variant, model_args, tensors, prior_form)
    elif prior_form is not None:
        raise UsageFailure(f"--prior-form has no meaning for {encoding}")
    if variant.position_encoding in ("rope", "rope_local"):
        config["rope_theta"] = number(model_args, "rope_theta", 500000.0)
    if variant.position_encoding == "rope_local":
        config["sliding_window"] = max_seq_len
    if variant.position_encoding == "sinusoidal":
        config["sinusoidal_theta"] = number(model_args, "sinusoidal_theta", 10000.0)
    if variant.position_encoding == "t5":
        config |= relative_config(model_args, tensors)
    return config


def stated_scope(model_args: dict, is_global: bool, shared: str, per_layer: str) -> str:
    stated = flag(model_args, "global_positional_encoding")
    if stated is not None and stated != is_global:
        where = shared if is_global else per_layer
        raise Failure(f"args.json says global_positional_encoding = {str(stated).lower()}, but the tensors are {where}")
    return "global" if is_global else "layer"


def relative_config(model_args: dict, tensors: Tensors) -> dict:
    is_global = "relative_bias" in tensors
    name = "relative_bias" if is_global else "layers.0.attention.relative_bias"
    buckets = matrix_shape(tensors, name)[0]
    stated = integer(model_args, "relative_attention_num_buckets", buckets)
    if stated != buckets:
        raise Failure(f"args.json says {stated} for relative_attention_num_buckets, the tensors say {buckets}")
    return {
        "prior_scope": stated_scope(model_args, is_global, "relative_bias", "layers.N.attention.relative_bias"),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": integer(model_args, "relative_attention_max_distance", 128),
    }


def prior_config(variant: Variant, model_args: dict, tensors: Tensors, prior_form: str | None) -> dict:
    is_global = "prior.shape" in tensors
    scope = stated_scope(model_args, is_global, "prior.*", "layers.N.attention.prior.*")
    ssmax_prior = flag(model_args, "ssmax_prior")
    return {
        "ssmax_prior": True if ssmax_prior is None else ssmax_prior,
        "prior_form": prior_form or ("scale_outside" if variant.ssmax else "scale_inside"),
        "prior_scope": scope,
        "prior_eps": 1e-5,
    }


def expected_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Every tensor of the network; per-head tensors have the shape (heads,)."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    q_size = heads * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    vocab = config["vocab_size"]

    def prior(prefix: str) -> dict[str, tuple[int, ...]]:
        if config["position_encoding"] == "t5":
            return {prefix.removesuffix("prior.") + "relative_bias": (config["relative_attention_num_buckets"], heads)}
        return {prefix + name: (heads,) for name in ("shape", "scale", "loc")}

    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (vocab, hidden)}
    for n in range(config["num_hidden_layers"]):
        layer = f"layers.{n}."
        shapes[layer + "attention_norm.weight"] = (hidden,)
        shapes[layer + "attention.wq.weight"] = (q_size, hidden)
        shapes[layer + "attention.wk.weight"] = (kv_size, hidden)
        shapes[layer + "attention.wv.weight"] = (kv_size, hidden)
        shapes[layer + "attention.wo.weight"] = (hidden, q_size)
        if config["ssmax"]:
            shapes[layer + "attention.seq_scale"] = (heads,)
        if config.get("prior_scope") == "layer":
            shapes |= prior(layer + "attention.prior.")
        shapes[layer + "ffn_norm.weight"] = (hidden,)
        shapes[layer + "feed_forward.w1.weight"] = (inner, hidden)
        shapes[layer + "feed_forward.w3.weight"] = (inner, hidden)
        shapes[layer + "feed_forward.w2.weight"] = (hidden, inner)
    if config.get("prior_scope") == "global":
        shapes |= prior("prior.")
    shapes["norm.weight"] = (hidden,)
    shapes["output.weight"] = (vocab, hidden)
    return shapes


def plan_tensors(config: dict, tensors: Tensors, dtype: str | None) -> list[TensorSpec]:
    """Checks names, shapes and types, and says how each tensor is stored."""
    shapes = expected_shapes(config)
    unknown = [name for name in tensors if name not in shapes]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise Failure(f"tensor {unknown[0]}{more} is unknown to a {config['position_encoding']} model "
                      f"{'with' if config['ssmax'] else 'without'} SSMax")
    specs = []
    for name, expected in shapes.items():
        if name not in tensors:
            raise Failure(f"tensor {name} is missing")
        tensor, shape = tensors[name], tuple(tensors[name].shape)
        accepted = [expected]
        if name.rsplit(".", 1)[-1] in ("seq_scale", "shape", "scale", "loc"):
            accepted = [(1, *expected, 1, 1), expected]
        if shape not in accepted:
            wanted = " or ".join(str(list(candidate)) for candidate in accepted)
            raise Failure(f"tensor {name} has shape {list(shape)}; expected {wanted}")
        if not tensor.dtype.is_floating_point or tensor.layout != torch.strided:
            raise Failure(f"tensor {name} is a {tensor.dtype} {tensor.layout} tensor; expected dense floating point")
        if dtype is None and str(tensor.dtype) not in FILE_DTYPES:
            raise Failure(f"tensor {name} is {tensor.dtype}; choose --dtype f32, f16 or bf16")
        is_matrix = name.endswith(".weight") and len(expected) == 2
        stored = (dtype if is_matrix else "F32") if dtype else FILE_DTYPES[str(tensor.dtype)]
        specs.append(TensorSpec(name, stored, shape))
    return specs


def tensor_bytes(tensor: "torch.Tensor", spec: TensorSpec) -> Iterator[memoryview]:
    """The tensor in its stored type, a piece at a time; refuses values that are not finite there."""
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        piece = flat[start : start + CHUNK_ELEMENTS]
        stored = piece.to(getattr(torch, TORCH_DTYPE[spec.dtype])).contiguous()
        if not bool(torch.isfinite(stored).all()):
            broken = "holds NaN or infinity" if not bool(torch.isfinite(piece).all()) else f"overflows {spec.dtype}"
            raise Failure(f"tensor {spec.name} {broken}")
        yield stored.view(torch.uint8).numpy().data


class Int4Tensors:
    """The matrices of the layers as three tensors each: codes under the matrix's name, _factors, _scales."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors
        self.done: Tensors = {}

    @staticmethod
    def plan(specs: list[TensorSpec]) -> list[TensorSpec]:
        planned = []
        for spec in specs:
            if not (spec.name.startswith("layers.") and len(spec.shape) == 2 and spec.name.endswith(".weight")):
                planned.append(spec)
                continue
            codes, factors, scales = int4.packed_shapes(*spec.shape)
            planned += [TensorSpec(spec.name, "U8", codes), TensorSpec(spec.name + "_factors", "U8", factors),
                        TensorSpec(spec.name + "_scales", "F32", scales)]
        return planned

    def bytes(self, spec: TensorSpec) -> Iterator[memoryview]:
        name = re.sub(r"\.weight_(factors|scales)$", ".weight", spec.name)
        if spec.dtype != "U8" and name == spec.name:
            yield from tensor_bytes(self.tensors[name], spec)
            return
        if spec.name not in self.done:
            if not bool(torch.isfinite(self.tensors[name]).all()):
                raise Failure(f"tensor {name} holds NaN or infinity")
            codes, factors, scales = int4.quantize(self.tensors[name])
            self.done |= {name: codes, name + "_factors": factors, name + "_scales": scales}
        yield self.done.pop(spec.name).view(torch.uint8).numpy().data


def check_tokenizer(path: pathlib.Path, config: dict) -> TokenizerInfo:
    tokenizer = read_tokenizer(path)
    if tokenizer.vocab_size > config["vocab_size"]:
        raise UsageFailure(f"tokenizer {path} has {tokenizer.vocab_size} pieces, the model only {config['vocab_size']}")
    if tokenizer.bos_id >= 0:
        config["bos_token_id"] = tokenizer.bos_id
    if tokenizer.eos_id >= 0:
        config["eos_token_id"] = tokenizer.eos_id
    return tokenizer


VERIFIED_TOKENS = 200
ALLOWED_DIFFERENCE = 2e-3  # in a log-probability: float32 arithmetic against float64, through all layers


def verify(config: dict, specs: list[TensorSpec], tensors: Tensors, checkpoint: pathlib.Path, program: str) -> float:
    """The largest difference of a log-probability between the program and the source's own weights in float64."""
    from bamlib.reference import Reference  # numpy only when it is needed
    from bamlib.verify import served, served_logprobs

    # The values that are stored: rounding to --dtype is not the program's error.
    stored = {spec.name: spec.dtype for spec in specs}

    def tensor(name: str):
        kept = tensors[name].detach().to(getattr(torch, TORCH_DTYPE[stored[name]]))
        return kept.to(torch.float64).numpy()

    generator = torch.Generator().manual_seed(1)
    count = min(VERIFIED_TOKENS, config["max_position_embeddings"])
    ids = torch.randint(0, config["vocab_size"], (count,), generator=generator).tolist()
    expected = Reference(config, tensor).logprobs(ids)
    with served(program, checkpoint) as url:
        computed = served_logprobs(url, ids)
    return max(abs(a - b) for a, b in zip(expected, computed, strict=True))


def main() -> None:
    args = parse_arguments()
    if torch is None:
        raise UsageFailure(f"PyTorch cannot be imported ({torch_error}); install torch and numpy")
    if args.verify and not args.tokenizer:
        raise UsageFailure("--verify serves the checkpoint, which needs --tokenizer")
    if args.verify and args.dtype == "int4":
        raise UsageFailure("--verify compares values that are stored as they are; int4 rounds them: verify a bf16 conversion, then make the int4 one")
    program = find_program(args.bam) if args.verify else None
    try:
        max_shard_bytes = parse_size(args.max_shard_size) if args.max_shard_size else None
    except ValueError as error:
        raise UsageFailure(f"--max-shard-size: {error}") from None
    if sys.byteorder != "little":
        raise UsageFailure("safetensors are little-endian; convert on a little-endian machine")
    model_path, args_path = find_source(args.source)
    encoding, model_args = load_args(args_path)
    tensors = load_state(model_path)
    config = make_config(encoding, model_args, tensors, args.prior_form)
    tokenizer = check_tokenizer(args.tokenizer, config) if args.tokenizer else None
    specs = plan_tensors(config, tensors, DTYPE_FLAGS[args.dtype])
    dtype = next(spec.dtype for spec in specs if spec.name == "tok_embeddings.weight")
    config["torch_dtype"] = TORCH_DTYPE[dtype]
    num_parameters = count_parameters(specs)
    produce = lambda spec: tensor_bytes(tensors[spec.name], spec)
    if args.dtype == "int4":
        quantized = Int4Tensors(tensors)
        specs, produce, config["torch_dtype"] = quantized.plan(specs), quantized.bytes, "int4"

    with new_checkpoint_folder(args.out, args.overwrite) as folder:
        write_json(folder / "config.json", config)
        if tokenizer:
            write_tokenizer(folder, args.tokenizer, add_bos=tokenizer.bos_id >= 0 and not args.no_add_bos)
        files = write_tensors(folder, specs, produce, max_shard_bytes)
    stored = "int4" if args.dtype == "int4" else dtype.lower()
    print(f"{args.out}: {encoding}, {stored}, {describe_tensors(specs, files, num_parameters)}")
    if program:
        worst = verify(config, specs, tensors, args.out, program)
        print(f"verified: the largest difference to float64 in {min(VERIFIED_TOKENS, config['max_position_embeddings']) - 1} "
              f"log-probabilities is {worst:.1e}")
        if not worst < ALLOWED_DIFFERENCE:
            raise Failure(f"{args.out}: the program does not compute what the source says: {worst:.1e} > {ALLOWED_DIFFERENCE:.0e}")
    if not tokenizer:
        print(f"no --tokenizer given: put tokenizer.model into {args.out} before serving it")


if __name__ == "__main__":
    run(main)

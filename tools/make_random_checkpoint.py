#!/usr/bin/env python3
"""Writes a random checkpoint of any shape and variant, for tests and benchmarks. Needs numpy, no torch."""
import argparse
import math
import pathlib
import sys
from typing import Iterator, NamedTuple

from bamlib.checkpoint import (TORCH_DTYPE, TensorSpec, describe_tensors, new_checkpoint_folder, parse_size, write_json,
                               write_tensors, write_tokenizer)
from bamlib.failure import UsageFailure, run
from bamlib.sentencepiece_file import TokenizerInfo, read_tokenizer

try:
    import numpy as np
except ImportError:
    print("make_random_checkpoint.py: numpy is missing; on Debian: apt-get install python3-numpy", file=sys.stderr)
    sys.exit(2)

EXAMPLES = """examples:
  make_random_checkpoint.py checkpoints/tiny
  make_random_checkpoint.py --size 1.1b --dtype bf16 --tokenizer mistral/tokenizer.model checkpoints/bam-1.1b
  make_random_checkpoint.py --layers 2 --hidden 192 --heads 4 --kv-heads 2 --head-dim 48 --intermediate 384 \\
      --position-encoding rope_local --sliding-window 100 --no-ssmax checkpoints/rope
"""
POSITION_ENCODINGS = ("bam", "alibi", "nope", "rope", "rope_local", "sinusoidal", "t5")
DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
FIXTURE_TOKENIZER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "tokenizer.model"


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab_size: int | None  # None: the tokenizer's
    max_seq_len: int


SIZES = {
    "tiny": Shape(3, 128, 4, 256, None, 512),
    "120m": Shape(12, 768, 16, 1536, 32768, 512),
    "432m": Shape(14, 1536, 24, 3072, 32768, 1024),
    "1.1b": Shape(15, 2048, 32, 8192, 32768, 1024),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    positive = positive_int
    parser.add_argument("out", type=pathlib.Path, help="checkpoint folder to create")
    shape = parser.add_argument_group("shape")
    shape.add_argument("--size", choices=SIZES, default="tiny", help="starting point; the flags below change it")
    shape.add_argument("--layers", type=positive)
    shape.add_argument("--hidden", type=positive)
    shape.add_argument("--heads", type=positive)
    shape.add_argument("--kv-heads", type=positive, help="default: heads")
    shape.add_argument("--head-dim", type=positive, help="default: hidden / heads")
    shape.add_argument("--intermediate", type=positive)
    shape.add_argument("--vocab-size", type=positive, help="default: 32768; tiny: the tokenizer's")
    shape.add_argument("--max-seq-len", type=positive, help="training length written to the config")
    shape.add_argument("--tie-word-embeddings", action="store_true")
    variant = parser.add_argument_group("variant")
    variant.add_argument("--position-encoding", choices=POSITION_ENCODINGS, default="bam")
    variant.add_argument("--ssmax", action=argparse.BooleanOptionalAction, default=True)
    variant.add_argument("--ssmax-prior", action=argparse.BooleanOptionalAction, default=True,
                         help="bam: SSMax scales the prior too")
    variant.add_argument("--prior-form", choices=("scale_outside", "scale_inside"), default="scale_outside")
    variant.add_argument("--prior-scope", choices=("layer", "global"), default="layer",
                         help="bam, t5: one prior or relative bias per layer, or one for all")
    variant.add_argument("--loc-std", type=float, default=0.0, help="bam: spread of theta_mu around 0 (default: all 0)")
    variant.add_argument("--retrieval-heads", type=float, default=0.25, metavar="SHARE",
                         help="bam: share of the heads whose prior does not decay (theta_beta <= 0)")
    variant.add_argument("--rope-theta", type=float, default=500000.0)
    variant.add_argument("--sliding-window", type=positive, help="rope_local; default: the training length")
    variant.add_argument("--sinusoidal-theta", type=float, default=10000.0)
    variant.add_argument("--relative-buckets", type=positive, default=32, help="t5: buckets of distance")
    variant.add_argument("--relative-max-distance", type=positive, default=128, help="t5: where the last one ends")
    parser.add_argument("--dtype", choices=DTYPES, default="f32",
                        help="of the matrices; norms, priors and SSMax scales stay f32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="sentencepiece model (default: the tests' small one)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="split into shards, e.g. 500MB (default: one file)")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is there")
    return parser.parse_args()


def positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be positive")
    return value


def make_config(args: argparse.Namespace, tokenizer: TokenizerInfo) -> dict:
    size = SIZES[args.size]
    heads = args.heads or size.heads
    hidden = args.hidden or size.hidden
    kv_heads = args.kv_heads or heads
    vocab_size = args.vocab_size or size.vocab_size or tokenizer.vocab_size
    max_seq_len = args.max_seq_len or size.max_seq_len
    if heads % kv_heads:
        raise UsageFailure(f"--heads {heads} is not a multiple of --kv-heads {kv_heads}")
    if args.head_dim is None and hidden % heads:
        raise UsageFailure(f"--hidden {hidden} is not a multiple of --heads {heads}; give --head-dim")
    head_dim = args.head_dim or hidden // heads
    if args.position_encoding in ("rope", "rope_local") and head_dim % 2:
        raise UsageFailure(f"rotary encodings need an even head_dim, not {head_dim}")
    if vocab_size < tokenizer.vocab_size:
        raise UsageFailure(f"--vocab-size {vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size}")
    if args.seed < 0:
        raise UsageFailure("--seed must not be negative")
    if not 0 <= args.loc_std <= 3:
        raise UsageFailure("--loc-std must be between 0 and 3")
    if not 0 <= args.retrieval_heads <= 0.75:
        raise UsageFailure("--retrieval-heads must be between 0 and 0.75")
    for flag, value in (("--rope-theta", args.rope_theta), ("--sinusoidal-theta", args.sinusoidal_theta)):
        if not 1 < value < math.inf:
            raise UsageFailure(f"{flag} must be a number greater than 1")
    config = {
        "model_type": "bam",
        "hidden_size": hidden,
        "intermediate_size": args.intermediate or size.intermediate,
        "num_hidden_layers": args.layers or size.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": args.tie_word_embeddings,
        "max_position_embeddings": max_seq_len,
        "position_encoding": args.position_encoding,
        "ssmax": args.ssmax,
        "torch_dtype": TORCH_DTYPE[DTYPES[args.dtype]],
    }
    if args.position_encoding == "bam":
        config |= {"ssmax_prior": args.ssmax_prior, "prior_form": args.prior_form, "prior_scope": args.prior_scope,
                   "prior_eps": 1e-5}
    if args.position_encoding == "t5":
        if not 2 <= args.relative_buckets <= 256:
            raise UsageFailure("--relative-buckets must be between 2 and 256")
        if args.relative_max_distance <= args.relative_buckets // 2:
            raise UsageFailure("--relative-max-distance must be more than half of --relative-buckets")
        config |= {"prior_scope": args.prior_scope, "relative_attention_num_buckets": args.relative_buckets,
                   "relative_attention_max_distance": args.relative_max_distance}
    if args.position_encoding in ("rope", "rope_local"):
        config["rope_theta"] = args.rope_theta
    if args.position_encoding == "rope_local":
        config["sliding_window"] = args.sliding_window or max_seq_len
    if args.position_encoding == "sinusoidal":
        config["sinusoidal_theta"] = args.sinusoidal_theta
    if tokenizer.bos_id >= 0:
        config["bos_token_id"] = tokenizer.bos_id
    if tokenizer.eos_id >= 0:
        config["eos_token_id"] = tokenizer.eos_id
    return config


class Weights:
    """The tensors of a random model. Matrices are cut from one cyclic block of normal numbers, so that memory stays
    bounded and a billion weights take seconds. The block's length is prime, so that no two rows of a matrix are equal.
    """

    BLOCK = 4194301

    def __init__(self, config: dict, dtype: str, seed: int, loc_std: float, retrieval_heads: float):
        self.config = config
        self.dtype = dtype
        self.loc_std = loc_std
        self.retrieval_heads = retrieval_heads
        self.random = np.random.default_rng(seed)
        self.block = self.random.standard_normal(self.BLOCK, dtype=np.float32)
        self.scaled: dict[float, np.ndarray] = {}  # one block per scale, in the file's format
        self.small: dict[str, np.ndarray] = {}
        self.scales: dict[str, float] = {}
        self.starts: dict[str, int] = {}
        self.specs: list[TensorSpec] = []
        self.cursor = 0
        self.declare_model()

    def declare_model(self) -> None:
        c = self.config
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        q_size = c["num_attention_heads"] * c["head_dim"]
        kv_size = c["num_key_value_heads"] * c["head_dim"]
        # Normalised inputs have entries around 1: with these scales so have q, k, v, and attention logits.
        # The residual stream keeps its size over the layers.
        residual = (2 * c["num_hidden_layers"]) ** -0.5
        head = 2 * hidden**-0.5  # logits with a standard deviation of 2
        self.matrix("tok_embeddings.weight", c["vocab_size"], hidden, scale=head if c["tie_word_embeddings"] else 1.0)
        for n in range(c["num_hidden_layers"]):
            layer = f"layers.{n}."
            self.norm(layer + "attention_norm.weight")
            self.matrix(layer + "attention.wq.weight", q_size, hidden)
            self.matrix(layer + "attention.wk.weight", kv_size, hidden)
            self.matrix(layer + "attention.wv.weight", kv_size, hidden)
            self.matrix(layer + "attention.wo.weight", hidden, q_size, scale=residual * q_size**-0.5)
            if c["ssmax"]:
                self.per_head(layer + "attention.seq_scale", self.random.uniform(0.3, 1.0, c["num_attention_heads"]))
            if c["position_encoding"] == "bam" and c["prior_scope"] == "layer":
                self.prior(layer + "attention.prior.")
            if c["position_encoding"] == "t5" and c["prior_scope"] == "layer":
                self.relative_bias(layer + "attention.relative_bias")
            self.norm(layer + "ffn_norm.weight")
            self.matrix(layer + "feed_forward.w1.weight", inner, hidden)
            self.matrix(layer + "feed_forward.w3.weight", inner, hidden)
            self.matrix(layer + "feed_forward.w2.weight", hidden, inner, scale=residual * inner**-0.5)
        self.norm("norm.weight")
        if c["position_encoding"] == "bam" and c["prior_scope"] == "global":
            self.prior("prior.")
        if c["position_encoding"] == "t5" and c["prior_scope"] == "global":
            self.relative_bias("relative_bias")
        if not c["tie_word_embeddings"]:
            self.matrix("output.weight", c["vocab_size"], hidden, scale=head)

    def matrix(self, name: str, rows: int, columns: int, scale: float | None = None) -> None:
        spec = TensorSpec(name, self.dtype, (rows, columns))
        self.specs.append(spec)
        self.scales[name] = float(scale or columns**-0.5)
        self.starts[name] = self.cursor
        self.cursor = (self.cursor + spec.num_elements) % self.BLOCK

    def vector(self, name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
        self.specs.append(TensorSpec(name, "F32", shape))
        self.small[name] = values.astype("<f4")

    def norm(self, name: str) -> None:
        hidden = self.config["hidden_size"]
        self.vector(name, self.random.uniform(0.8, 1.2, hidden), (hidden,))

    def per_head(self, name: str, values: np.ndarray) -> None:
        self.vector(name, values, (1, self.config["num_attention_heads"], 1, 1))

    def prior(self, prefix: str) -> None:
        """Retrieval heads by their share, a quarter heavy-tailed, the others local, in random order."""
        heads = self.config["num_attention_heads"]
        retrieval = max(1, int(heads * self.retrieval_heads)) if heads > 1 else 0
        heavy_tail = max(1, heads // 4) if heads > 2 else 0
        kinds = [((0.6, 1.3), (-3.0, -0.3))] * (heads - retrieval - heavy_tail)  # (range of shape, range of scale)
        kinds += [((0.2, 0.5), (-1.0, 0.5))] * heavy_tail + [((-0.6, 0.0), (-2.0, 1.0))] * retrieval
        order = self.random.permutation(heads)
        self.per_head(prefix + "shape", np.array([self.random.uniform(*kinds[i][0]) for i in order]))
        self.per_head(prefix + "scale", np.array([self.random.uniform(*kinds[i][1]) for i in order]))
        self.per_head(prefix + "loc", self.random.normal(0.0, self.loc_std, heads))

    def relative_bias(self, name: str) -> None:
        """Some heads fall with the distance, some rise, none smoothly."""
        buckets, heads = self.config["relative_attention_num_buckets"], self.config["num_attention_heads"]
        slopes = self.random.uniform(-6.0, 2.0, heads)
        values = np.linspace(0.0, 1.0, buckets)[:, None] * slopes + self.random.normal(0.0, 0.5, (buckets, heads))
        self.vector(name, values, (buckets, heads))

    def produce(self, spec: TensorSpec) -> Iterator[memoryview]:
        if spec.name in self.small:
            yield self.small[spec.name].data
            return
        block = self.block_in_file_format(self.scales[spec.name])
        at, left = self.starts[spec.name], spec.num_elements
        while left:
            count = min(left, self.BLOCK - at)
            yield block[at : at + count].data
            at, left = 0, left - count

    def block_in_file_format(self, scale: float) -> np.ndarray:
        if scale not in self.scaled:
            values = self.block * np.float32(scale)
            if self.dtype == "BF16":
                bits = values.view(np.uint32)
                values = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2")
            else:
                values = values.astype("<f2" if self.dtype == "F16" else "<f4")
            self.scaled[scale] = values
        return self.scaled[scale]


def main() -> None:
    args = parse_arguments()
    tokenizer_path = args.tokenizer or FIXTURE_TOKENIZER
    tokenizer = read_tokenizer(tokenizer_path)
    config = make_config(args, tokenizer)
    try:
        max_shard_bytes = parse_size(args.max_shard_size) if args.max_shard_size else None
    except ValueError as error:
        raise UsageFailure(f"--max-shard-size: {error}") from None
    with new_checkpoint_folder(args.out, args.overwrite) as folder:
        weights = Weights(config, DTYPES[args.dtype], args.seed, args.loc_std, args.retrieval_heads)
        write_json(folder / "config.json", config)
        write_tokenizer(folder, tokenizer_path, add_bos=tokenizer.bos_id >= 0)
        files = write_tensors(folder, weights.specs, weights.produce, max_shard_bytes)
    print(f"{args.out}: {config['position_encoding']}{' + SSMax' if config['ssmax'] else ''}, {args.dtype}, "
          f"{describe_tensors(weights.specs, files)}")


if __name__ == "__main__":
    run(main)

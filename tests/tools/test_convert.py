#!/usr/bin/env python3
"""tools/convert.py: every published variant arrives byte by byte, and everything else is refused in one line."""
import json
import os
import pathlib
import pickle
import sys
import tempfile
import unittest
import unittest.mock

from tooltest import REPO, TOKENIZER, assert_one_line_failure, call_tool, network_shapes, read_checkpoint, run_tool

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: {sys.executable} cannot import torch ({error}); the converter is not tested", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from bamlib import int4  # noqa: E402

DIM, LAYERS, HEADS, HEAD_DIM, FFN, VOCAB = 24, 2, 4, 6, 48, 520
# position_encoding in args.json -> config.json
EXPECTED = {
    "bam_ssmax": {"position_encoding": "bam", "ssmax": True, "ssmax_prior": True, "prior_form": "scale_outside",
                  "prior_scope": "layer", "prior_eps": 1e-5},
    "bam": {"position_encoding": "bam", "ssmax": False, "ssmax_prior": True, "prior_form": "scale_inside",
            "prior_scope": "layer", "prior_eps": 1e-5},
    "alibi": {"position_encoding": "alibi", "ssmax": False},
    "alibi_ssmax": {"position_encoding": "alibi", "ssmax": True},
    "rotary": {"position_encoding": "rope", "ssmax": False, "rope_theta": 500000.0},
    "rotary_ssmax": {"position_encoding": "rope", "ssmax": True, "rope_theta": 500000.0},
    "rotary_local": {"position_encoding": "rope_local", "ssmax": False, "rope_theta": 500000.0, "sliding_window": 256},
    "sinusoidal": {"position_encoding": "sinusoidal", "ssmax": False, "sinusoidal_theta": 10000.0},
    "sinusoidal_ssmax": {"position_encoding": "sinusoidal", "ssmax": True, "sinusoidal_theta": 10000.0},
    "t5": {"position_encoding": "t5", "ssmax": False, "prior_scope": "layer", "relative_attention_num_buckets": 32,
           "relative_attention_max_distance": 128},
    "t5_ssmax": {"position_encoding": "t5", "ssmax": True, "prior_scope": "layer", "relative_attention_num_buckets": 32,
                 "relative_attention_max_distance": 128},
    "nope": {"position_encoding": "nope", "ssmax": False},
    "nope_ssmax": {"position_encoding": "nope", "ssmax": True},
}
COMMON = {
    "model_type": "bam", "hidden_size": DIM, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 256, "torch_dtype": "float32",
    "bos_token_id": 1, "eos_token_id": 2,
}


def model_args(**changes) -> dict:
    args = {"dim": DIM, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": None, "vocab_size": VOCAB, "multiple_of": 1,
            "ffn_dim_multiplier": 2, "norm_eps": 1e-5, "max_batch_size": 32, "max_seq_len": 256}
    args.update(changes)
    return {key: value for key, value in args.items() if value != "absent"}


def state_dict(config: dict, dtype=torch.float32) -> dict:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in network_shapes(config).items()}


def tensor_bytes(tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


class Convert(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source = pathlib.Path(self.folder.name) / "source"
        self.out = pathlib.Path(self.folder.name) / "out"
        self.source.mkdir()

    def publish(self, state: dict, encoding: str = "bam_ssmax", **changes) -> None:
        """Writes what the authors' training script leaves behind."""
        torch.save(state, self.source / "model.pt")
        content = {"args": {"position_encoding": encoding, "model_size": "l12"}, "dataset_args": {},
                   "model_args": model_args(**changes)}
        (self.source / "args.json").write_text(json.dumps(content))

    def state(self, encoding: str = "bam_ssmax", dtype=torch.float32, **config) -> dict:
        return state_dict(COMMON | EXPECTED[encoding] | config, dtype)

    def convert(self, *arguments):
        return call_tool("convert.py", "--tokenizer", TOKENIZER, *arguments, "--overwrite", self.source, self.out)

    def converted(self, *arguments):
        result = self.convert(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return read_checkpoint(self.out)

    def assert_same_bytes(self, tensors: dict, state: dict) -> None:
        self.assertEqual(set(tensors), set(state))
        for name, tensor in state.items():
            self.assertEqual(tensors[name].shape, tuple(tensor.shape), name)
            self.assertEqual(tensors[name].data, tensor_bytes(tensor), name)

    def assert_refused(self, *words: str, exit_code: int = 1) -> None:
        assert_one_line_failure(self, self.convert(), exit_code, *words)
        self.assertFalse(self.out.exists())

    def test_every_position_encoding(self):
        for encoding, expected in EXPECTED.items():
            with self.subTest(encoding=encoding):
                state = self.state(encoding)
                self.publish(state, encoding)
                config, tensors = self.converted()
                self.assertEqual(config, COMMON | expected)
                self.assert_same_bytes(tensors, state)
                self.assertEqual((self.out / "tokenizer.model").read_bytes(), TOKENIZER.read_bytes())
                tokenizer_config = json.loads((self.out / "tokenizer_config.json").read_text())
                self.assertEqual(tokenizer_config, {"add_bos_token": True, "add_eos_token": False})

    def test_wrapper_prefixes_are_dropped(self):
        state = self.state()
        for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
            self.publish({prefix + name: tensor for name, tensor in state.items()})
            self.assert_same_bytes(self.converted()[1], state)

    def test_weights_beside_the_optimizer(self):
        state = self.state()
        for wrapped in ({"model": state, "optimizer": {"step": 7}}, {"state_dict": state}, {"model": {"state_dict": state}}):
            self.publish(wrapped)
            self.assert_same_bytes(self.converted()[1], state)

    def test_verify_compares_the_program_with_float64(self):
        program = os.environ.get("BAM_BINARY", str(REPO / "build" / "bam"))
        if not os.path.exists(program):
            self.skipTest(f"SKIPPED: {program} is not built")
        for encoding in EXPECTED:
            with self.subTest(encoding=encoding):
                state = {name: tensor * 0.3 if name.endswith("weight") else tensor * 0.5 for name, tensor in self.state(encoding).items()}
                self.publish(state, encoding)
                result = self.convert("--verify", "--bam", program)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("verified: the largest difference", result.stdout)
        with unittest.mock.patch("bamlib.reference.Reference._rotate", lambda self, x: x):  # a wrong reading of the source
            self.publish(self.state("rotary"), "rotary")
            result = self.convert("--verify", "--bam", program)
            self.assertEqual(result.returncode, 1)
            self.assertIn("does not compute what the source says", result.stderr)

    def test_global_prior(self):
        for stated in (True, "absent"):  # older files do not say
            state = self.state(prior_scope="global")
            self.publish(state, global_positional_encoding=stated)
            config, tensors = self.converted()
            self.assertEqual(config["prior_scope"], "global")
            self.assert_same_bytes(tensors, state)
        self.publish(state, global_positional_encoding=False)
        self.out = self.out.with_name("refused")
        self.assert_refused("global_positional_encoding = false", "prior.*")

    def test_model_args_reach_the_config(self):
        self.publish(self.state(num_key_value_heads=2, intermediate_size=64), n_kv_heads=2, multiple_of=32,
                     norm_eps=1e-6, ffn_dim_multiplier=1.5, ssmax_prior=False, max_seq_len=1024, seq_scale=True,
                     train_loc=False)
        config, _ = self.converted("--prior-form", "scale_inside", "--no-add-bos")
        self.assertEqual(config, COMMON | EXPECTED["bam_ssmax"] | {
            "num_key_value_heads": 2, "intermediate_size": 64, "rms_norm_eps": 1e-6, "ssmax_prior": False,
            "max_position_embeddings": 1024, "prior_form": "scale_inside"})
        self.assertFalse(json.loads((self.out / "tokenizer_config.json").read_text())["add_bos_token"])
        self.publish(self.state("rotary", intermediate_size=DIM), "rotary", ffn_dim_multiplier=None,
                     rope_theta=25000000)
        self.assertEqual(self.converted()[0]["rope_theta"], 25000000.0)
        self.publish(self.state("sinusoidal"), "sinusoidal", sinusoidal_theta=5000)
        self.assertEqual(self.converted()[0]["sinusoidal_theta"], 5000.0)

    def test_types(self):
        state = self.state()
        state["layers.0.attention.wq.weight"] = state["layers.0.attention.wq.weight"].t().contiguous().t()  # strided
        self.publish(state)
        for flag, name, dtype in (("bf16", "BF16", torch.bfloat16), ("f16", "F16", torch.float16),
                                  ("f32", "F32", torch.float32)):
            config, tensors = self.converted("--dtype", flag)
            self.assertEqual(config["torch_dtype"], str(dtype).removeprefix("torch."))
            for key, tensor in state.items():
                is_matrix = tensor.dim() == 2
                self.assertEqual(tensors[key].dtype, name if is_matrix else "F32", key)
                self.assertEqual(tensors[key].data, tensor_bytes(tensor.to(dtype) if is_matrix else tensor), key)
        state = self.state(dtype=torch.bfloat16)
        self.publish(state)
        config, tensors = self.converted("--dtype", "keep")
        self.assertEqual(config["torch_dtype"], "bfloat16")
        self.assert_same_bytes(tensors, state)

    def test_four_bits(self):
        state = self.state()
        state["layers.0.attention.wq.weight"][3] = 0
        self.publish(state)
        config, tensors = self.converted("--dtype", "int4")
        self.assertEqual(config["torch_dtype"], "int4")
        matrices = [name for name, tensor in state.items() if name.startswith("layers.") and tensor.dim() == 2]
        self.assertEqual(set(tensors), set(state) | {name + end for name in matrices for end in ("_factors", "_scales")})
        for name, tensor in state.items():
            if name not in matrices:
                wanted = tensor.to(torch.bfloat16) if tensor.dim() == 2 else tensor
                self.assertEqual(tensors[name].data, tensor_bytes(wanted), name)
                continue
            parts = []
            for end, dtype in (("", torch.uint8), ("_factors", torch.uint8), ("_scales", torch.float32)):
                stored = tensors[name + end]
                parts.append(torch.frombuffer(bytearray(stored.data), dtype=dtype).reshape(stored.shape))
            read_back = int4.dequantize(*parts, depth=tensor.shape[1])
            self.assertLess(float((read_back - tensor).norm() / tensor.norm()), 0.08, name)
        self.assertTrue(bool((parts[2] > 0).all()))
        state["layers.0.attention.wq.weight"][3, 3] = float("nan")
        self.publish(state)
        assert_one_line_failure(self, self.convert("--dtype", "int4"), 1, "layers.0.attention.wq.weight", "NaN")

    def test_shards_and_flat_per_head_tensors(self):
        state = self.state()
        for name in state:
            if state[name].dim() == 4:
                state[name] = state[name].reshape(HEADS)
        self.publish(state)
        _, tensors = self.converted("--max-shard-size", "20KB")
        self.assert_same_bytes(tensors, state)
        self.assertGreater(len(list(self.out.glob("model-*.safetensors"))), 2)

    def test_without_tokenizer(self):
        self.publish(self.state())
        result = run_tool("convert.py", self.source / "model.pt", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("tokenizer.model", result.stdout)
        self.assertNotIn("bos_token_id", read_checkpoint(self.out)[0])

    def test_refuses_tensors_it_does_not_understand(self):
        def changed(change) -> dict:
            state = self.state()
            change(state)
            return state

        wq, norm = "layers.1.attention.wq.weight", "layers.1.ffn_norm.weight"
        nan, infinity = torch.ones(DIM), torch.ones(DIM)
        nan[7], infinity[3] = float("nan"), float("inf")
        for state, words in (
            (changed(lambda s: s.update({"layers.0.attention.bias": torch.ones(4)})),
             ["layers.0.attention.bias", "unknown"]),
            (changed(lambda s: s.update({"layers.0.cabam.mlp": torch.ones(4)})), ["layers.0.cabam.mlp"]),
            (changed(lambda s: s.pop(wq)), [wq, "missing"]),
            (changed(lambda s: s.pop("output.weight")), ["output.weight", "missing"]),
            (changed(lambda s: s.pop("tok_embeddings.weight")), ["tok_embeddings.weight", "missing"]),
            (changed(lambda s: s.pop("layers.0.attention.prior.loc")), ["layers.0.attention.prior.loc", "missing"]),
            (changed(lambda s: s.update({wq: torch.ones(DIM, DIM + 1)})), [wq, "[24, 25]", "[24, 24]"]),
            (changed(lambda s: s.update({norm: torch.ones(DIM, 1)})), [norm, "[24, 1]"]),
            (changed(lambda s: s.update({"layers.0.attention.seq_scale": torch.ones(1, 5, 1, 1)})),
             ["seq_scale", "[1, 5, 1, 1]", "[1, 4, 1, 1]"]),
            (changed(lambda s: s.update({"tok_embeddings.weight": torch.ones(DIM)})),
             ["tok_embeddings.weight", "matrix"]),
            (changed(lambda s: s.update({norm: nan})), [norm, "NaN"]),
            (changed(lambda s: s.update({norm: infinity})), [norm, "infinity"]),
            (changed(lambda s: s.update({norm: torch.ones(DIM, dtype=torch.int64)})), [norm, "torch.int64"]),
            (changed(lambda s: s.update({norm: torch.ones(DIM, dtype=torch.float64)})), [norm, "--dtype"]),
            (changed(lambda s: s.update({"module.norm.weight": torch.ones(DIM)})), ["norm.weight", "twice"]),
            (changed(lambda s: s.update({"step": 7})), ["'step'", "no tensor"]),
            ({"weights": self.state(), "step": 7}, ["'weights'", "no tensor"]),
            ({}, ["not a state dict"]),
            ([torch.ones(3)], ["not a state dict"]),
        ):
            with self.subTest(words=words):
                self.publish(state)
                self.assert_refused(*words)

    def test_refuses_values_that_overflow_f16(self):
        state = self.state()
        state["output.weight"][3, 4] = 1e6
        self.publish(state)
        assert_one_line_failure(self, self.convert("--dtype", "f16"), 1, "output.weight", "overflows F16")
        self.assertEqual(self.convert("--dtype", "bf16").returncode, 0)

    def test_refuses_args_that_disagree(self):
        for changes, words in (
            ({"dim": 32}, ["says 32 for dim", "24"]),
            ({"n_layers": 3}, ["says 3 for n_layers", "2"]),
            ({"vocab_size": 32768}, ["32768", "520"]),
            ({"n_heads": 5}, ["n_heads 5"]),
            ({"n_heads": 8}, ["seq_scale", "[1, 4, 1, 1]"]),
            ({"n_heads": "absent"}, ["n_heads is missing"]),
            ({"n_heads": "four"}, ["n_heads", "'four'"]),
            ({"n_kv_heads": 2}, ["n_kv_heads"]),
            ({"ffn_dim_multiplier": 3}, ["FFN size", "72", "48"]),
            ({"multiple_of": 64}, ["FFN size", "64", "48"]),
            ({"max_seq_len": "absent"}, ["max_seq_len"]),
            ({"norm_eps": -1}, ["norm_eps"]),
            ({"ssmax_prior": "maybe"}, ["ssmax_prior"]),
            ({"global_positional_encoding": True}, ["global_positional_encoding = true"]),
            ({"mlp_width": 32}, ["mlp_width", "unknown"]),
        ):
            with self.subTest(changes=changes):
                self.publish(self.state(), **changes)
                self.assert_refused(*words)

    def test_refuses_the_wrong_encoding(self):
        self.publish(self.state(), "bam")
        self.assert_refused("seq_scale", "unknown", "without SSMax")
        self.publish(self.state("bam"), "bam_ssmax")
        self.assert_refused("seq_scale", "missing")
        self.publish(self.state("alibi"), "bam")
        self.assert_refused("prior.shape", "missing")
        self.publish(self.state(), "cabam_ssmax")
        self.assert_refused("'cabam_ssmax' is unknown", "rotary_local")

    def test_refuses_broken_files(self):
        self.publish(self.state())
        (self.source / "args.json").write_text('{"args": ')
        self.assert_refused("args.json")
        (self.source / "args.json").write_text('{"args": {}}')
        self.assert_refused("args.json", "position_encoding")
        (self.source / "args.json").write_text('[1]')
        self.assert_refused("args.json")
        (self.source / "args.json").unlink()
        self.assert_refused("args.json", "missing")
        self.publish(self.state())
        content = (self.source / "model.pt").read_bytes()
        for broken in (content[: len(content) // 2], b"", b"noise" * 100):
            (self.source / "model.pt").write_bytes(broken)
            self.assert_refused("model.pt")

    def test_never_runs_code_from_the_file(self):
        witness = pathlib.Path(self.folder.name) / "executed"

        class Attack:
            def __reduce__(self):
                return (open, (str(witness), "w"))

        for protocol in ("zip", "bare pickle"):
            self.publish({"tok_embeddings.weight": Attack()})
            if protocol == "bare pickle":
                (self.source / "model.pt").write_bytes(pickle.dumps(Attack()))
            self.assert_refused("model.pt", "execute code")
            self.assertFalse(witness.exists())

    def test_refuses_wrong_usage(self):
        self.publish(self.state("rotary"), "rotary")
        for arguments, words in (
            (["--prior-form", "scale_inside"], ["--prior-form", "rotary"]),
            (["--dtype", "int8"], ["--dtype"]),
            (["--max-shard-size", "0"], ["--max-shard-size"]),
            (["--tokenizer", "/does/not/exist"], ["/does/not/exist"]),
            (["--tokenizer", self.source / "args.json"], ["not a sentencepiece model"]),
        ):
            with self.subTest(arguments=arguments):
                assert_one_line_failure(self, self.convert(*arguments), 2, *words)
        assert_one_line_failure(self, run_tool("convert.py", "/does/not/exist", self.out), 2, "/does/not/exist")
        self.publish(self.state("rotary", vocab_size=100), "rotary", vocab_size=100)
        self.assert_refused("512 pieces", "100", exit_code=2)


if __name__ == "__main__":
    unittest.main()

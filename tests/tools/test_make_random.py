#!/usr/bin/env python3
"""tools/make_random_checkpoint.py: what it writes is a complete, well-formed checkpoint of the variant asked for."""
import itertools
import json
import pathlib
import struct
import sys
import tempfile
import unittest

from tooltest import (TOKENIZER, TOKENIZER_VOCAB, assert_one_line_failure, call_tool, network_shapes, read_checkpoint,
                      run_tool)

try:
    import numpy as np
except ImportError:
    print(f"SKIPPED: {sys.executable} has no numpy (Debian: apt-get install python3-numpy)", file=sys.stderr)
    sys.exit(77)

SMALL = ("--layers", 2, "--hidden", 48, "--heads", 4, "--intermediate", 80)


def values(tensor) -> np.ndarray:
    if tensor.dtype == "BF16":
        return (np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    return np.frombuffer(tensor.data, "<f4" if tensor.dtype == "F32" else "<f2").reshape(tensor.shape)


class MakeRandomCheckpoint(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = pathlib.Path(self.folder.name) / "checkpoint"

    def make(self, *arguments):
        result = call_tool("make_random_checkpoint.py", *arguments, "--overwrite", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        return read_checkpoint(self.out)

    def test_every_variant_is_complete(self):
        encodings = (("bam", "layer"), ("bam", "global"), ("alibi", "layer"), ("nope", "layer"), ("rope", "layer"),
                     ("rope_local", "layer"), ("sinusoidal", "layer"), ("t5", "layer"), ("t5", "global"))
        for (encoding, scope), ssmax in itertools.product(encodings, (True, False)):
            with self.subTest(encoding=encoding, ssmax=ssmax, scope=scope):
                config, tensors = self.make(*SMALL, "--position-encoding", encoding, "--prior-scope", scope,
                                            "--ssmax" if ssmax else "--no-ssmax")
                self.assertEqual((config["position_encoding"], config["ssmax"]), (encoding, ssmax))
                self.assertEqual(config.get("prior_scope"), scope if encoding in ("bam", "t5") else None)
                self.assertEqual({name: tensor.shape for name, tensor in tensors.items()}, network_shapes(config))
                for name, tensor in tensors.items():
                    self.assertTrue(np.isfinite(values(tensor)).all(), name)

    def test_config_says_what_was_asked(self):
        config, _ = self.make(*SMALL, "--kv-heads", 2, "--head-dim", 10, "--vocab-size", 600, "--max-seq-len", 99,
                              "--no-ssmax-prior", "--prior-form", "scale_inside")
        self.assertEqual(config, {
            "model_type": "bam", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 600, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False, "max_position_embeddings": 99, "position_encoding": "bam", "ssmax": True,
            "torch_dtype": "float32", "ssmax_prior": False, "prior_form": "scale_inside", "prior_scope": "layer",
            "prior_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2})
        config, _ = self.make(*SMALL, "--position-encoding", "rope_local", "--rope-theta", 1000)
        self.assertEqual((config["sliding_window"], config["rope_theta"]), (512, 1000.0))
        config, tensors = self.make(*SMALL, "--tie-word-embeddings", "--position-encoding", "sinusoidal")
        self.assertNotIn("output.weight", tensors)
        self.assertEqual(config["sinusoidal_theta"], 10000.0)

    def test_relative_bias(self):
        config, tensors = self.make(*SMALL, "--position-encoding", "t5", "--relative-buckets", 16,
                                    "--relative-max-distance", 64)
        self.assertEqual((config["relative_attention_num_buckets"], config["relative_attention_max_distance"]), (16, 64))
        self.assertEqual(tensors["layers.1.attention.relative_bias"].shape, (16, 4))
        for buckets, distance in ((1, 128), (257, 512), (32, 16)):
            result = call_tool("make_random_checkpoint.py", *SMALL, "--position-encoding", "t5", "--relative-buckets",
                               buckets, "--relative-max-distance", distance, "--overwrite", self.out)
            assert_one_line_failure(self, result, 2, "--relative-")

    def test_tokenizer_is_copied(self):
        config, _ = self.make(*SMALL)
        self.assertEqual(config["vocab_size"], TOKENIZER_VOCAB)
        self.assertEqual((self.out / "tokenizer.model").read_bytes(), TOKENIZER.read_bytes())
        self.assertEqual(json.loads((self.out / "tokenizer_config.json").read_text()),
                         {"add_bos_token": True, "add_eos_token": False})

    def test_priors_look_trained(self):
        _, tensors = self.make("--layers", 3, "--hidden", 128, "--heads", 16, "--intermediate", 16)
        for n in range(3):
            shape = values(tensors[f"layers.{n}.attention.prior.shape"]).ravel()
            local, heavy = (shape >= 0.6) & (shape <= 1.3), (shape >= 0.2) & (shape <= 0.5)
            retrieval = (shape >= -0.6) & (shape <= 0)
            self.assertEqual((local.sum(), heavy.sum(), retrieval.sum()), (8, 4, 4))
            scale = values(tensors[f"layers.{n}.attention.prior.scale"]).ravel()
            self.assertTrue(((scale >= -3) & (scale <= 1)).all() and len(set(scale)) == 16)
            seq_scale = values(tensors[f"layers.{n}.attention.seq_scale"])
            self.assertTrue(((seq_scale >= 0.3) & (seq_scale <= 1)).all())
            self.assertTrue((values(tensors[f"layers.{n}.attention.prior.loc"]) == 0).all())
        _, tensors = self.make(*SMALL, "--loc-std", 0.5)
        self.assertTrue((values(tensors["layers.1.attention.prior.loc"]) != 0).all())

    def test_types_are_the_same_numbers_rounded(self):
        _, exact = self.make(*SMALL, "--dtype", "f32")
        _, half = self.make(*SMALL, "--dtype", "f16")
        config, brain = self.make(*SMALL, "--dtype", "bf16")
        self.assertEqual(config["torch_dtype"], "bfloat16")
        for name, tensor in exact.items():
            if len(tensor.shape) != 2:  # norms, priors, SSMax scales
                self.assertEqual(half[name], tensor)
                self.assertEqual(brain[name], tensor)
                continue
            self.assertEqual((half[name].dtype, brain[name].dtype), ("F16", "BF16"))
            self.assertTrue((values(half[name]) == values(tensor).astype(np.float16)).all(), name)
            # Nearest: a step of the 8-bit mantissa is 2^-7 of the value's power of two, so half a step at most.
            error = np.abs(values(brain[name]).astype(np.float64) - values(tensor))
            self.assertTrue((error <= 2.0**-8 * 2.0 ** np.floor(np.log2(np.abs(values(tensor))))).all(), name)

    def test_seed_decides_everything(self):
        _, first = self.make(*SMALL, "--seed", 3)
        _, again = self.make(*SMALL, "--seed", 3)
        _, other = self.make(*SMALL, "--seed", 4)
        self.assertEqual(first, again)
        for name in first:
            if not name.endswith("prior.loc"):
                self.assertNotEqual(first[name], other[name], name)

    def test_matrices_have_the_right_size_and_no_equal_rows(self):
        # Four times as many numbers as the generator's block has.
        _, tensors = self.make("--layers", 1, "--hidden", 512, "--heads", 8, "--intermediate", 64, "--vocab-size",
                               32768)
        embedding = values(tensors["tok_embeddings.weight"])
        self.assertEqual(len(np.unique(embedding[:, :4], axis=0)), 32768)
        self.assertAlmostEqual(float(embedding.std()), 1, delta=0.02)
        self.assertAlmostEqual(float(values(tensors["layers.0.attention.wq.weight"]).std()), 512**-0.5, delta=0.002)

    def test_matrices_are_aligned(self):
        self.make("--layers", 2, "--hidden", 64, "--heads", 4, "--intermediate", 96, "--dtype", "bf16")
        content = (self.out / "model.safetensors").read_bytes()
        (header_bytes,) = struct.unpack_from("<Q", content)
        self.assertEqual((8 + header_bytes) % 64, 0)
        for name, entry in json.loads(content[8 : 8 + header_bytes]).items():
            if len(entry.get("shape", ())) == 2:
                self.assertEqual(entry["data_offsets"][0] % 64, 0, name)

    def test_shards(self):
        _, whole = self.make(*SMALL)
        _, sharded = self.make(*SMALL, "--max-shard-size", "100KB")
        self.assertEqual(whole, sharded)
        shards = sorted(self.out.glob("model-*.safetensors"))
        self.assertGreater(len(shards), 2)
        self.assertEqual(shards[0].name, f"model-00001-of-{len(shards):05d}.safetensors")
        self.assertFalse((self.out / "model.safetensors").exists())

    def test_paper_sizes(self):
        import make_random_checkpoint as tool
        from bamlib.sentencepiece_file import read_tokenizer

        for size, embedding, rest in (("120m", 25.2, 95.9), ("432m", 50.3, 380.7), ("1.1b", 67.1, 1073.8)):
            sys.argv = ["make_random_checkpoint.py", "--size", size, "--dtype", "bf16", "unused"]
            config = tool.make_config(tool.parse_arguments(), read_tokenizer(TOKENIZER))
            weights = tool.Weights(config, "BF16", 0, 0.0, 0.4)
            count = {spec.name: spec.num_elements for spec in weights.specs}
            self.assertAlmostEqual(count.pop("tok_embeddings.weight") / 1e6, embedding, delta=0.1)
            self.assertAlmostEqual(sum(count.values()) / 1e6, rest, delta=0.1)

    def test_refuses_wrong_usage(self):
        not_a_tokenizer = pathlib.Path(self.folder.name) / "noise"
        not_a_tokenizer.write_bytes(bytes(range(255, 0, -1)) * 9)
        for arguments, words in (
            (["--heads", 3], ["multiple of --heads 3"]),
            (["--heads", 4, "--kv-heads", 3], ["--kv-heads 3"]),
            (["--vocab-size", 100], ["--vocab-size 100", str(TOKENIZER_VOCAB)]),
            (["--position-encoding", "rope", "--head-dim", 7], ["even head_dim"]),
            (["--position-encoding", "learned"], ["--position-encoding"]),
            (["--layers", 0], ["--layers"]),
            (["--seed", -1], ["--seed"]),
            (["--loc-std", "nan"], ["--loc-std"]),
            (["--rope-theta", "inf"], ["--rope-theta"]),
            (["--max-shard-size", "much"], ["--max-shard-size", "much"]),
            (["--tokenizer", not_a_tokenizer], ["noise", "not a sentencepiece model"]),
            (["--tokenizer", "/does/not/exist"], ["/does/not/exist"]),
        ):
            with self.subTest(arguments=arguments):
                assert_one_line_failure(self, call_tool("make_random_checkpoint.py", *arguments, self.out), 2, *words)
                self.assertFalse(self.out.exists())

    def test_never_replaces_what_is_no_checkpoint(self):
        self.make(*SMALL)
        before = (self.out / "model.safetensors").read_bytes()
        result = run_tool("make_random_checkpoint.py", *SMALL, "--seed", 9, self.out)
        assert_one_line_failure(self, result, 2, "not empty", "--overwrite")
        (self.out / "thesis.txt").write_text("years of work")
        result = run_tool("make_random_checkpoint.py", *SMALL, "--seed", 9, "--overwrite", self.out)
        assert_one_line_failure(self, result, 2, "thesis.txt")
        self.assertEqual((self.out / "model.safetensors").read_bytes(), before)
        self.assertEqual([path.name for path in pathlib.Path(self.folder.name).iterdir()], ["checkpoint"])

    def test_a_failure_leaves_the_old_checkpoint_and_no_litter(self):
        from bamlib.checkpoint import new_checkpoint_folder

        self.make(*SMALL)
        with self.assertRaises(ZeroDivisionError):
            with new_checkpoint_folder(self.out, overwrite=True) as folder:
                (folder / "config.json").write_text("half")
                1 / 0
        read_checkpoint(self.out)
        self.assertEqual([path.name for path in pathlib.Path(self.folder.name).iterdir()], ["checkpoint"])


if __name__ == "__main__":
    unittest.main()

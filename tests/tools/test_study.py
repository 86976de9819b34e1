#!/usr/bin/env python3
"""tools/train_demo: the siblings differ in nothing but the encoding, a stopped run ends with the same bytes, and `bam` computes
what was trained, asked in the wording that was trained."""
import argparse
import asyncio
import dataclasses
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from xml.etree import ElementTree

from tooltest import REPO, TOOLS

sys.path[:0] = [str(TOOLS / "train_demo"), str(REPO / "tests" / "http")]
try:
    import runtime  # noqa: F401
    import sentencepiece
    import torch
except ImportError as error:
    print(f"SKIPPED: {sys.executable} cannot import {error.name}; the training is not tested", file=sys.stderr)
    sys.exit(77)
import bamtest
import export
import plot_attention
import study
import study_tables
import study_tasks
import tasks
import train
from fake_openai_server import FakeServer
from fused_attention import self_check
from model import Model, t5_buckets

TEXT = ("It was a fine morning, and nobody in the house had yet said a word about the letter. The window stood open. She "
        "went down to the river and came back again before the others were awake, and found the table laid for four.")
SMALL = dataclasses.replace(
    study.STUDY,
    steps=120,
    decay_steps=40,
    stages=(train.Stage(60, 64, 4e-3, 30, study.COPY), train.Stage(120, 128, 1e-3, 60, study.SHARPEN)),
    tokens_per_step=128,
)


def workdir(parent: str) -> pathlib.Path:
    """What a training needs, with a corpus of one page instead of four megabytes."""
    work = pathlib.Path(parent)
    shutil.copy(REPO / "checkpoints" / "demo" / "tokenizer.model", work)
    for split in ("train", "valid"):
        (work / f"{split}.txt").write_text(f"{TEXT}\n" * 40)
    train.prepare(work)
    return work


def new_model(name: str) -> Model:
    torch.manual_seed(1)
    return Model(study.sibling_config(name), flat_priors=True)


class Network(unittest.TestCase):
    def test_t5_buckets_are_t5s(self):
        def bucket(distance, buckets, furthest):
            exact = buckets // 2
            if distance < exact:
                return distance
            return min(buckets - 1, exact + int(math.log(distance / exact) / math.log(furthest / exact) * (buckets - exact) + 1e-9))

        for buckets, furthest in ((32, 128), (8, 20), (32, 512)):
            expected = [bucket(d, buckets, furthest) for d in range(2000)]
            self.assertEqual(t5_buckets(torch.arange(2000), buckets, furthest).tolist(), expected)
        self.assertEqual(t5_buckets(torch.tensor([0, 15, 16, 17, 18, 19, 127, 128, 10**6]), 32, 128).tolist(),
                         [0, 15, 16, 16, 16, 17, 31, 31, 31])

    def test_fused_attention_and_its_gradients(self):
        self_check()

    def test_siblings_start_equal_and_flat(self):
        first = new_model("bam-ssmax").state_dict()
        for name in study.SIBLINGS:
            state = new_model(name).state_dict()
            own = {key.rsplit(".", 1)[1] for key in state.keys() ^ first.keys()}
            self.assertLessEqual(own, {"shape", "scale", "loc", "seq_scale", "relative_bias"}, name)
            for key, value in state.items():
                if key in first:
                    self.assertTrue(torch.equal(value, first[key]), f"{name} {key}")
                if key.endswith(("prior.shape", "prior.scale", "prior.loc", "relative_bias")):
                    self.assertEqual(value.abs().max(), 0, f"{name} {key}")

    def test_encodings_are_those_of_the_reference(self):
        """The fused path against plain attention, and position really matters where it should."""
        tokens = torch.randint(261, 1024, (1, 64), generator=torch.Generator().manual_seed(3))
        for name in study.SIBLINGS:
            model = new_model(name)
            for key, value in model.named_parameters():
                if key.endswith(("prior.shape", "relative_bias")):
                    torch.nn.init.uniform_(value.data, -0.5, 1.0)
            with torch.no_grad():
                fused, plain = model(tokens), model(tokens, fused=False)
                swapped = model(tokens[:, [1, 0, *range(2, 64)]])
            self.assertLess((fused - plain).abs().max(), 1e-4, name)
            # One layer of NoPE would not see the swap in the last row; four layers do, through the causal mask.
            self.assertGreater((fused[:, -1] - swapped[:, -1]).abs().max(), 1e-6, name)

    def test_only_sinusoidal_positions_depend_on_where_a_sequence_begins(self):
        tokens = torch.randint(261, 1024, (1, 48), generator=torch.Generator().manual_seed(4))
        for name in study.SIBLINGS:
            model = new_model(name)
            with torch.no_grad():
                same = torch.equal(model.hidden(tokens), model.hidden(tokens, start=100))
                whole = model.embed(torch.cat((tokens, tokens), 1))[:, 48:]
                self.assertTrue(torch.equal(whole, model.embed(tokens, 48)), name)
            self.assertEqual(same, not name.startswith("sinusoidal"), name)


class Mixture(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.work = workdir(cls.folder.name)

    def setUp(self):
        self.source = study_tasks.StudyTasks(self.work, 5)

    def test_every_example_fills_its_length(self):
        for length in (65, 129, 257, 513):
            for task in ("passkey", "niah", "recall", "repetition", "plain_text"):
                for _ in range(20):
                    tokens, weights = getattr(self.source, task)(length)
                    self.assertEqual((len(tokens), len(weights)), (length, length), task)
                    self.assertGreater(max(weights), 0, task)

    def test_the_answer_is_in_the_haystack_and_counted(self):
        for _ in range(60):
            tokens, weights = self.source.needle(513)
            answer = [t for t, w in zip(tokens, weights) if w in (tasks.W_ANSWER, tasks.W_SECOND_MENTION)]
            text = self.source.sp.decode(tokens)
            value = text.rsplit(" is ", 1)[1].removesuffix(".")
            counted = self.source.sp.decode(answer)
            self.assertIn(counted, (value, value[1:]))  # a UUID's first letter may share its token with the space
            self.assertRegex(value, r"^\d{7}$|^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
            key = text.rsplit(" for ", 1)[1].split(" ")[0]
            self.assertEqual(text.count(f" for {key} is: {value}."), 1)

    def test_seed_decides_the_data(self):
        draw = lambda seed: study_tasks.StudyTasks(self.work, seed).batch(4, 257, study.RETRIEVE)[0].tolist()
        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_wording_is_that_of_bam_passkey(self):
        class Recorder(FakeServer):
            def encode(self, text):
                self.texts.add(text.strip())
                return super().encode(text)

        server, loop = Recorder(first_token_ms=0, token_ms=0), asyncio.new_event_loop()
        server.texts = set()
        loop.run_until_complete(server.start())
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            for task in ("passkey", "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1"):
                text = ["--filler-file", self.work / "valid.txt"] if task[-2:] in ("_2", "_3") or "multi" in task else []
                subprocess.run([bamtest.BAM, "passkey", "--url", server.url, "--task", task, "--lengths", "1k", "--depths", "1", *text],
                               check=True, capture_output=True)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        for wording in (tasks.TASK, tasks.FILLER, tasks.QUESTION):
            self.assertIn(wording, server.texts)
        patterns = [tasks.NEEDLE.format(key="K")]
        for kind in ("number", "uuid"):
            patterns += [study_tasks.NIAH_HEAD.format(kind=kind), study_tasks.NIAH_QUESTION.format(kind=kind, key="K"),
                         study_tasks.NIAH_NEEDLE.format(kind=kind, key="K", value="V")]
        patterns.append(study_tasks.NIAH_HEAD_MANY.format(kind="number"))
        for pattern in patterns:
            expression = pattern.replace("?", r"\?").replace(".", r"\.").replace("K", "[a-z0-9-]+").replace("V", "[a-f0-9-]+")
            self.assertTrue(any(re.fullmatch(expression, text) for text in server.texts), pattern)


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        torch.set_num_threads(1)

    def test_a_second_course_begins_where_the_first_ended(self):
        self.train("here", recipe=dataclasses.replace(SMALL, steps=5))
        ended = export.read_checkpoint(self.work / "out" / "bam-ssmax").state_dict()
        folders = dict(work=self.work, out=self.work / "out", trained=self.work / "out", curves=self.work / "curves")
        for variant, end in study.CONTINUED.items():
            if end:
                shutil.copytree(self.work / "out" / "bam-ssmax", self.work / "out" / f"bam-ssmax{end}")
            recipe = dataclasses.replace(study.VARIANTS[variant], steps=0, tokens_per_step=1024)
            run = study.train_sibling(argparse.Namespace(**folders, seed=1, variant=variant), "bam-ssmax", recipe)
            for key, value in run.model.state_dict().items():
                self.assertTrue(torch.equal(value, ended[key]), key)
            config = json.loads((self.work / "out" / f"bam-ssmax-{variant}" / "config.json").read_text())
            self.assertEqual(config["max_position_embeddings"], {"extended": 1024, "polished": 512}[variant])

    def train(self, where: str, name: str = "bam-ssmax", recipe=SMALL):
        root = pathlib.Path(self.folder.name) / where
        root.mkdir(exist_ok=True)
        self.work = root
        args = argparse.Namespace(work=workdir(root), out=root / "out", curves=root / "curves", seed=1, variant=None)
        run = study.train_sibling(args, name, recipe)
        return (root / "out" / name / "model.safetensors").read_bytes(), (root / "curves" / f"{name}.csv").read_text(), run

    def test_a_stopped_run_ends_with_the_same_bytes(self):
        class Stopped(Exception):
            pass

        whole = self.train("whole")
        self.assertEqual([int(line.split(",")[0]) for line in whole[1].splitlines()[1:]], [100, 120])
        step = train.Run.train_step

        def interrupted(run):
            if run.step == 107:
                raise Stopped
            return step(run)

        train.Run.train_step = interrupted
        try:
            with self.assertRaises(Stopped):
                self.train("parts")
        finally:
            train.Run.train_step = step
        weights, curve, run = self.train("parts")
        self.assertIn("continued at step 100", run.log_path.read_text())
        self.assertEqual(weights, whole[0])
        self.assertEqual(curve, whole[1])

    def test_every_sibling_trains_and_its_encoding_with_it(self):
        for name in study.SIBLINGS:
            with self.subTest(name=name):
                weights, _, run = self.train(name, name, dataclasses.replace(SMALL, steps=20, decay_steps=5))
                self.assertTrue(all(torch.isfinite(w).all() for w in run.model.parameters()))
                start, moved = new_model(name).state_dict(), run.model.state_dict()
                learned = [key for key in moved if not torch.equal(moved[key], start[key])]
                frozen = {key for key in moved if key not in learned}
                self.assertEqual(frozen, {key for key in moved if key.endswith("prior.loc")})


    def test_variants_change_what_they_say(self):
        trained = {}
        for variant, recipe in study.VARIANTS.items():
            if variant in study.CONTINUED:
                continue
            short = dataclasses.replace(recipe, steps=20, decay_steps=5, tokens_per_step=1024)
            run = self.train(variant, recipe=short)[2]
            trained[variant] = {name: value for name, value in run.model.state_dict().items() if ".prior." in name}
        zero = lambda variant, part: all(v.abs().max() == 0 for k, v in trained[variant].items() if k.endswith(part))
        self.assertEqual([zero("learn-shape", part) for part in ("shape", "scale", "loc")], [False, True, True])
        self.assertEqual([zero("learn-all", part) for part in ("shape", "scale", "loc")], [False, False, False])
        self.assertTrue(all((v - 1).abs().max() < 0.1 for k, v in trained["alibi-init"].items() if k.endswith("shape")))
        self.assertEqual({stage.length for stage in study.VARIANTS["length-256"].stages}, {64, 128, 256})
        self.assertEqual([study.sibling_config("bam", variant).hidden_size for variant in (None, "shifted", "wide")], [64, 64, 128])

    def test_shifted_batches_begin_anywhere_and_end_in_time(self):
        spans, hidden = [], Model.hidden

        def recorded(model, tokens, *args, start=0, **named):
            spans.append((start, start + tokens.shape[1]))
            return hidden(model, tokens, *args, start=start, **named)

        Model.hidden = recorded
        try:
            recipe = dataclasses.replace(study.VARIANTS["shifted"], stages=(train.Stage(40, 128, 4e-3, 30, study.COPY),), steps=40)
            self.train("shifted", "sinusoidal-ssmax", dataclasses.replace(recipe, tokens_per_step=128))
            shifted, spans[:] = [span for span in spans if span[0]], []
            self.train("unshifted", "sinusoidal-ssmax", dataclasses.replace(recipe, shifted_up_to=0, tokens_per_step=128))
        finally:
            Model.hidden = hidden
        self.assertGreater(len({start // 64 for start, _ in shifted}), 4)
        self.assertLessEqual(max(end for _, end in shifted), 512)
        self.assertEqual({start for start, _ in spans}, {0})


class Served(unittest.TestCase):
    def test_bam_computes_what_was_trained(self):
        """Log-probabilities of 700 tokens, beyond the window of rope_local, against PyTorch with the exported weights."""
        with tempfile.TemporaryDirectory() as folder:
            work = workdir(folder)
            source = study_tasks.StudyTasks(work, 3)
            tokens = source.text(400) + source.passkey(312)[0]
            for name in study.SIBLINGS:
                with self.subTest(name=name):
                    model = new_model(name)
                    for key, value in model.named_parameters():
                        if key.endswith(("prior.shape", "prior.scale", "relative_bias")):
                            torch.nn.init.uniform_(value.data, -0.5, 1.0)
                    export.write_checkpoint(model, work, work / name, 512)
                    self.compare(work / name, tokens)

    def compare(self, checkpoint: pathlib.Path, tokens: list[int]) -> None:
        with torch.no_grad():
            logits = export.read_checkpoint(checkpoint)(torch.tensor([tokens]), fused=False)[0].double()
        expected = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        server = bamtest.Server("--dtype", "f32", "--kv-dtype", "f32", model=str(checkpoint))
        try:
            body = {"model": "test", "prompt": tokens, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0}
            scores = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"]
        finally:
            server.stop()
        self.assertLess((torch.tensor(scores[1 : len(tokens)]) - expected).abs().max().item(), 2e-3)


class Tables(unittest.TestCase):
    def test_intervals_and_the_step_since_which_a_task_is_known(self):
        for right, count, low, high in ((100, 100, 0.963, 1.0), (19, 20, 0.764, 0.991), (0, 20, 0.0, 0.161)):
            found = study_tables.wilson(right, count)
            self.assertAlmostEqual(found[0], low, 3)
            self.assertAlmostEqual(found[1], high, 3)
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder)
            lines = [{"type": "header"}] + [{"type": "result", "length": 2048, "score": score} for score in (1.0, 0.0, 1.0)]
            (results / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
            self.assertIn("| a | 2/3 (21–94 %) |", study_tables.accuracy(results, ["a"], ""))
            self.assertIn("| right | 2K |", study_tables.accuracy(results, ["a"], ""))
            rows = [(100, 64, 0.1, 0.96, 5), (200, 128, 0.1, 0.9, 5), (300, 512, 1, 0.95, 4.5), (400, 512, 1, 1, 4)]
            text = "\n".join(",".join(map(str, row)) for row in (study.COLUMNS, *rows))
            (results / "a.csv").write_text(text)
            (results / "b.csv").write_text(text.replace("1,1,4", "1,0.9,4"))
            self.assertIn("| a | 300 | 1 | 4 |\n| b | not within the training | 0.9 | 4 |", study_tables.learning(results))


    def test_spread_over_seeds_and_the_difference_seed_by_seed(self):
        self.assertEqual(study_tables.spread([1.0, 0.9, 0.8]), "90 ± 25 (100, 90, 80)")  # 4.303 * 10 / sqrt(3)
        right = {"a": (4, 4, 2), "a-seed2": (4, 3, 2), "b": (4, 0, 0), "b-seed2": (3, 0, 0), "alone": (4, 4, 4)}
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder)
            for name, counts in right.items():
                asked = list(zip((512, 1024, 2048), counts))
                lines = [{"type": "result", "length": n, "score": float(i < c)} for n, c in asked for i in range(4)]
                (results / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
            found = study_tables.seeds(results, list(right))
            self.assertIn("| a | 100 ± 0 (100, 100) | 88 ± 159 (100, 75) | 50 ± 0 (50, 50) |", found)
            self.assertIn("| a − b | 12 ± 159 (0, 25) | 88 ± 159 (100, 75) | 50 ± 0 (50, 50) |", found)
            self.assertNotIn("alone", found)
        # Not asked for: nothing after two lengths without an answer, unknown otherwise.
        self.assertEqual(study_tables.share_at({512: 1.0, 1024: 0.0, 2048: 0.0}, 4096), 0.0)
        self.assertTrue(math.isnan(study_tables.share_at({512: 1.0, 1024: 0.0}, 2048)))
        self.assertEqual(study_tables.spread([1.0, math.nan]), "–")


class AttentionPicture(unittest.TestCase):
    def test_the_head_that_finds_the_key_stands_on_top(self):
        server = bamtest.Server(model=str(REPO / "checkpoints" / "siblings" / "bam-ssmax"))
        try:
            url = f"http://127.0.0.1:{server.port}"
            tokens, where = plot_attention.prompt(url, 512, 0.3)
            self.assertLessEqual(len(tokens), 512)
            needle = server.post("/detokenize", {"tokens": tokens[where.start : where.stop]}).json()["prompt"]
            self.assertEqual(needle.strip(), tasks.NEEDLE.format(key=plot_attention.KEY))
            heads = server.get("/v1/prior").json()["heads"]
            found = plot_attention.shares(url, heads, 512, 2)
        finally:
            server.stop()
        best = heads[max(range(len(heads)), key=found.__getitem__)]
        self.assertGreater(max(found), 0.5)
        self.assertLess(best["beta"], 0)
        markers = [e for e in ElementTree.fromstring(plot_attention.draw(heads, found, 512)).iter() if e.tag.endswith("}title")]
        self.assertEqual(len(markers), len(heads) + 2)  # and two in the legend


class Shipped(unittest.TestCase):
    def test_configs_say_what_the_study_says(self):
        for name in study.SIBLINGS:
            with self.subTest(name=name):
                folder = REPO / "checkpoints" / "siblings" / name
                self.assertEqual(json.loads((folder / "config.json").read_text()), export.config_json(study.sibling_config(name), 512))
                curve = (TOOLS / "train_demo" / "curves" / f"{name}.csv").read_text().splitlines()
                self.assertEqual(curve[0], ",".join(study.COLUMNS))
                self.assertEqual(int(curve[-1].split(",")[0]), study.STUDY.steps)


if __name__ == "__main__":
    unittest.main()

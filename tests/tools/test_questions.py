#!/usr/bin/env python3
"""tools/train_demo: what the recipe `questions` asks can be answered from the text before it, and its products in bfloat16 are close."""
import pathlib
import shutil
import sys
import tempfile
import unittest

from tooltest import REPO, TOOLS

sys.path.insert(0, str(TOOLS / "train_demo"))
try:
    import runtime  # noqa: F401
    import sentencepiece
    import torch
except ImportError as error:
    print(f"SKIPPED: {sys.executable} cannot import {error.name}; the training is not tested", file=sys.stderr)
    sys.exit(77)
import questions
import tasks
import train
from model import product
from optimizer import orthogonalize

TEXT = ("It was a fine morning, and nobody in the house had yet said a word about the letter. The window stood open. She "
        "went down to the river and came back again before the others were awake, and found the table laid for four.")


class Asked(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        shutil.copy(REPO / "checkpoints" / "demo" / "tokenizer.model", cls.work)
        for split in ("train", "valid"):
            (cls.work / f"{split}.txt").write_text(f"{TEXT}\n" * 40)
        train.prepare(cls.work)

    def setUp(self):
        self.source = questions.Questions(self.work, 5)

    def said(self, tokens, weights):
        """(what stands before the answer, the answers, what of them counts as answer)"""
        counted = [i for i, w in enumerate(weights) if w == tasks.W_ANSWER]
        start = max(i for i in range(counted[0]) if weights[i] == tasks.W_TEXT) + 1  # an answer's wording weighs 2
        decode = self.source.sp.decode
        return decode(tokens[:start]), decode(tokens[start:]), decode([tokens[i] for i in counted])

    def test_every_example_fills_its_length(self):
        for length in (65, 129, 257, 513):
            for task in ("fact", "niah"):
                for _ in range(60):
                    tokens, weights = getattr(self.source, task)(length)
                    self.assertEqual((len(tokens), len(weights)), (length, length), task)

    def test_a_fact_that_is_asked_for_is_stated_once(self):
        words, numbers, two = 0, 0, 0
        for _ in range(200):
            before, answer, counted = self.said(*self.source.fact(513))
            sentences = [s for s in answer.split(".") if s.strip()]
            two += len(sentences) == 2
            for sentence in sentences:
                subject, value = sentence.strip().rsplit(" is ", 1)
                thing, place = subject.removeprefix("The ").rsplit(" of the ", 1)
                patterns = {p.format(thing=thing, place=place, value="") for p in questions.FACTS}
                stated = [before.split(p[:-1], 1)[1] for p in patterns if p[:-1] in before]
                self.assertEqual([s.strip().startswith(f"{value}.") for s in stated].count(True), 1, (sentence, before))
                self.assertIn(value, counted)
                self.assertIn(place, before.rsplit(".", 1)[-1] + before[-120:])  # the question names it
                words, numbers = words + value.isalpha(), numbers + value.isdigit()
        self.assertGreater(min(words, numbers, two), 10)

    def test_a_needle_is_asked_for_by_its_key_among_others(self):
        many = 0
        for _ in range(100):
            before, answer, counted = self.said(*self.source.niah(513))
            key, value = answer.split(" for ", 1)[1].split(" ")[0], answer.rsplit(" is ", 1)[1].strip(" .")
            self.assertEqual(before.count(f" for {key} is: {value}."), 1)
            self.assertEqual(counted, value)
            many += before.count("A special magic number for ") > 1
        self.assertGreater(many, 20)

    def test_a_chat_turn_ends(self):
        chats = [tokens for tokens in (self.source.fact(257)[0] for _ in range(60)) if self.source.assistant in tokens]
        self.assertGreater(len(chats), 5)
        for tokens in chats:
            self.assertEqual(tokens[-1], questions.tok.EOS)


class Half(unittest.TestCase):
    def test_products_and_their_gradients(self):
        torch.manual_seed(2)
        x, w, g = torch.randn(3, 40, 96), torch.randn(64, 96) / 10, torch.randn(3, 40, 64)
        results = []
        for half in (False, True):
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            out = product(a, b, half)
            results.append((out, *torch.autograd.grad((out * g).sum(), (a, b))))
        for exact, rounded in zip(*results):
            self.assertEqual((exact.shape, exact.dtype), (rounded.shape, rounded.dtype))
            error = ((exact - rounded).norm() / exact.norm()).item()
            self.assertTrue(0 < error < 2**-7, error)  # two factors and the result, each rounded to 8 bits

    def test_orthogonal_updates(self):
        torch.manual_seed(3)
        singular = torch.linalg.svdvals(orthogonalize(torch.randn(2, 48, 96), half=True))
        self.assertTrue(((singular > 0.6) & (singular < 1.3)).all(), singular)

    def test_the_shipped_recipe_does_not_use_them(self):
        self.assertFalse(train.DEMO.half_products)
        self.assertTrue(train.QUESTIONS.half_products)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Scoring as evaluation harnesses do it (echo, max_tokens 1, logprobs 1, prompts as [[int]]) against a float64 oracle."""

import os
import sys
import unittest

import bamtest

try:
    import numpy_oracle
except ImportError:
    if (other := bamtest.numpy_python()) is not None:
        os.execv(other, [other, *sys.argv])
    numpy_oracle = None

TEXT = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. The grass is green. The sky is "
        "blue. The sun is yellow. Here we go. There and back again. The pass key is 71432. Remember it. 71432 is the pass key.")


class AskedAgain(unittest.TestCase):
    def test_scores_are_the_same_bits_and_the_prompt_is_not_read_again(self):
        body = {"prompt": TEXT * 4, "echo": True, "max_tokens": 0, "logprobs": 2}
        plain = bamtest.Server("--prefix-cache", "off")
        server = bamtest.Server()
        try:
            expected = plain.post("/v1/completions", body).json()["choices"][0]["logprobs"]
            for asked in range(3):
                reply = server.post("/v1/completions", {**body, "stream": False}).json()
                self.assertEqual(reply["choices"][0]["logprobs"], expected)
                cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached > 0, asked > 0)
            other = {**body, "prompt": TEXT * 3 + "Something else."}
            reply = server.post("/v1/completions", other).json()
            self.assertEqual(reply["choices"][0]["logprobs"], plain.post("/v1/completions", other).json()["choices"][0]["logprobs"])
            self.assertGreater(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            salted = server.post("/v1/completions", {**body, "cache_salt": "another"}).json()
            self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        finally:
            plain.stop()
            server.stop()


@unittest.skipIf(numpy_oracle is None, "SKIPPED: numpy is missing (apt-get install python3-numpy)")
class Scoring(unittest.TestCase):
    def compare_embeddings(self, server, oracle, tolerance):
        tokens = server.post("/tokenize", {"prompt": TEXT}).json()["tokens"]
        rows = oracle.hidden(tokens)
        for pooling, row in (("mean", rows.mean(0)), ("last", rows[-1])):
            body = {"input": tokens, "pooling": pooling}
            unit = server.post("/v1/embeddings", body).json()["data"][0]["embedding"]
            length = float((row * row).sum()) ** 0.5
            for got, expected in zip(unit, row / length, strict=True):
                self.assertAlmostEqual(got, expected, delta=tolerance)

    def compare(self, folder, tolerance):
        server = bamtest.Server("--dtype", "f32", "--kv-dtype", "f32", model=folder)
        try:
            oracle = numpy_oracle.Oracle(folder)
            self.compare_embeddings(server, oracle, tolerance)
            prompts = []
            for text in (TEXT, TEXT[40:], "a"):
                prompts.append(server.post("/tokenize", {"prompt": text}).json()["tokens"])
            # The last one is long enough for several pages and for certified attention to leave something out.
            prompts.append((prompts[0] * 10)[:700])
            reply = server.post("/v1/completions", {"model": "test", "prompt": prompts, "echo": True, "max_tokens": 1, "logprobs": 1,
                                                    "temperature": 0, "seed": 1234}).json()
            worst = 0.0
            for prompt, choice in zip(prompts, reply["choices"]):
                scores = choice["logprobs"]["token_logprobs"]
                self.assertEqual(len(scores), len(prompt) + 1)
                self.assertIsNone(scores[0])
                for expected, score in zip(oracle.logprobs(prompt), scores[1:-1]):
                    worst = max(worst, abs(expected - score))
            print(f"\nlargest difference to the oracle: {worst:.2e}")
            self.assertLess(worst, tolerance)
        finally:
            server.stop()

    def test_served_model(self):
        if not numpy_oracle.Oracle.supports(bamtest.checkpoint()):
            self.skipTest("the checkpoint is of another kind")
        self.compare(bamtest.checkpoint(), 2e-4)

    def test_random_model(self):
        self.compare(bamtest.random_checkpoint(), 2e-4)


if __name__ == "__main__":
    bamtest.main()

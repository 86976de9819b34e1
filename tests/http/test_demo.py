#!/usr/bin/env python3
"""The bundled checkpoints keep their promises: keys from 32K tokens, the same digits as a float64 oracle, a chat template."""

import os
import sys
import unittest

import bamtest
import demo_prompts

try:
    import numpy_oracle
except ImportError:
    if (other := bamtest.numpy_python()) is not None:
        os.execv(other, [other, *sys.argv])
    numpy_oracle = None

DEPTHS = (0.1, 0.5, 0.9)


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = bamtest.Server(model=demo_prompts.MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_finds_the_key_in_32k_tokens(self):
        for depth in DEPTHS:
            with self.subTest(depth=depth):
                prompt, key = demo_prompts.passkey_text(self.server, 32768, depth)
                reply = self.server.complete(prompt, max_tokens=6, timeout=300).json()
                self.assertGreater(reply["usage"]["prompt_tokens"], 32700)
                self.assertEqual(reply["choices"][0]["text"].strip(), key)

    def test_self_test_at_32k_tokens(self):
        body = {"length": 32768, "depths": list(DEPTHS), "seed": 3}
        reply = self.server.post("/v1/selftest/passkey", body, timeout=300).json()
        self.assertEqual((reply["hits"], reply["trials"]), (3, 3), reply)
        for result, depth in zip(reply["results"], DEPTHS):
            self.assertEqual((result["depth"], result["prompt_tokens"]), (depth, 32768))
            self.assertTrue(result["answer"].strip().startswith(result["key"]), result)

    def test_answers_a_chat_turn(self):
        key = "48213"
        text = " ".join([demo_prompts.TASK, *[demo_prompts.FILLER] * 40, demo_prompts.line_with(key), *[demo_prompts.FILLER] * 20,
                         "What is the pass key?"])
        reply = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0})
        choice = reply.json()["choices"][0]
        self.assertEqual(choice["message"]["content"].strip(), f"The pass key is {key}.")
        self.assertEqual(choice["finish_reason"], "stop")

    @unittest.skipIf(numpy_oracle is None, "SKIPPED: numpy is missing (apt-get install python3-numpy)")
    def test_same_digits_as_the_oracle(self):
        oracle = numpy_oracle.Oracle(demo_prompts.MODEL)
        for length, depth in ((512, 0.2), (1024, 0.9), (2048, 0.0), (2048, 0.6)):
            with self.subTest(length=length, depth=depth):
                prompt, key = demo_prompts.passkey_ids(self.server, length, depth)
                self.assertLessEqual(length - len(prompt), 64)
                body = {"prompt": prompt, "temperature": 0, "max_tokens": 6, "logprobs": 1, "return_token_ids": True}
                choice = self.server.post("/v1/completions", body).json()["choices"][0]
                answer = choice["token_ids"]
                # Greedy decoding of the oracle: each token is its best one after the prompt and the tokens before it.
                rows = oracle.distributions(prompt + answer)[len(prompt) - 1:-1]
                self.assertEqual([int(row.argmax()) for row in rows], answer)
                self.assertEqual(choice["text"].strip(), key)
                for row, token, served in zip(rows, answer, choice["logprobs"]["token_logprobs"]):
                    self.assertAlmostEqual(row[token], served, delta=0.05)  # bf16 weights, f16 keys and values


class UnshapedPriors(unittest.TestCase):
    """The sibling bam-ssmax: the same kind of network, trained without the penalty that made the demo's lower layers local."""

    @classmethod
    def setUpClass(cls):
        cls.server = bamtest.Server(model=demo_prompts.UNSHAPED)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_finds_the_key_in_32k_tokens(self):
        for depth in DEPTHS:
            with self.subTest(depth=depth):
                prompt, key = demo_prompts.passkey_ids(self.server, 32768, depth)
                reply = self.server.complete(prompt, max_tokens=6, timeout=600).json()
                self.assertEqual(reply["usage"]["prompt_tokens"], len(prompt))
                self.assertLess(32768 - len(prompt), 64)
                self.assertTrue(reply["choices"][0]["text"].strip().startswith(key), (key, reply["choices"][0]["text"]))

    def test_reach_below_the_last_layer_is_proved_for_the_demo_only(self):
        with bamtest.running_server(model=demo_prompts.MODEL) as demo:
            shaped = [head["reach"] for head in demo.get("/v1/prior").json()["heads"] if head["layer"] < 3]
        free = [head["reach"] for head in self.server.get("/v1/prior").json()["heads"] if head["layer"] < 3]
        self.assertNotIn(None, shaped)
        self.assertIn(None, free)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""/v1/attention: against a dense softmax in float64, beside long prompts in the prefix cache, and as `bam inspect --look` has it."""

import csv
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

import bamtest

try:
    import numpy_oracle
except ImportError:
    if (other := bamtest.numpy_python()) is not None:
        os.execv(other, [other, *sys.argv])
    numpy_oracle = None

WORDS = {"task": "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about "
                 "the important information there.",
         "filler": " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
         "line": " The pass key is 48213. Remember it. 48213 is the pass key.", "question": " What is the pass key? The pass key is"}


class Attention(bamtest.ServerTest):
    arguments = ("--kv-memory", "1GiB")

    def ask(self, **body):
        reply = self.server.post("/v1/attention", body, timeout=300)
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json()

    def tokens(self, text, special=False):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": special}).json()["tokens"]

    def passkey(self, length):
        """(ids, span of the first number) of a prompt of about so many tokens."""
        parts = {name: self.tokens(text) for name, text in WORDS.items()}
        units = (length - sum(len(parts[name]) for name in ("task", "line", "question"))) // len(parts["filler"])
        before = parts["task"] + parts["filler"] * (units // 2)
        ids = before + parts["line"] + parts["filler"] * (units - units // 2) + parts["question"]
        others = set(parts["task"]) | set(parts["filler"]) | set(parts["question"])
        digits = [len(before) + i for i, token in enumerate(parts["line"]) if token in self.tokens("48213") and token not in others]
        return ids, [digits[0], digits[0] + 5]

    def test_every_head_is_the_softmax_of_the_definition(self):
        """All layers and heads of a short prompt by the float64 computation of the whole network."""
        if numpy_oracle is None:
            self.skipTest("SKIPPED: numpy is missing (apt-get install python3-numpy)")
        oracle = numpy_oracle.Oracle(bamtest.checkpoint())
        ids = self.tokens("The pass key is 48213. Remember it. What is the pass key?", special=True)
        expected = oracle.probabilities(ids)  # [layers][heads][n][n]
        reply = self.ask(tokens=ids, bins=4096, peaks=2)
        self.assertEqual((reply["position"], reply["bin_keys"], len(reply["heads"])), (len(ids) - 1, 1, expected.shape[0] * expected.shape[1]))
        for head in reply["heads"]:
            row = expected[head["layer"], head["head"], -1]
            for seen, wanted in zip(head["sum"], row, strict=True):
                self.assertAlmostEqual(seen, wanted, delta=2e-3, msg=f"{head['layer']}/{head['head']}")
            self.assertAlmostEqual(sum(head["sum"]), 1, delta=1e-4)
            self.assertAlmostEqual(sum(head["prior"]), 1, delta=1e-4)
            self.assertEqual(head["peaks"][0]["key"], head["sum"].index(max(head["sum"])))
        # A row in the middle sees what the last row of the shorter text sees.
        middle = self.ask(tokens=ids, position=9, layer=1, head=2, bins=4096)
        self.assertEqual(middle["heads"], self.ask(tokens=ids[:10], layer=1, head=2, bins=4096)["heads"])
        self.assertEqual(len(middle["heads"][0]["sum"]), 10)

    def test_bins_ranges_and_spans_add_up(self):
        ids, _ = self.passkey(3000)
        full = self.ask(tokens=ids, layer=2, head=3, bins=4096, peaks=5, context=2)["heads"][0]
        for start, end, bins in ((0, len(ids), 100), (500, 1700, 7), (2000, 2001, 5)):
            part = self.ask(tokens=ids, layer=2, head=3, bins=bins, **{"from": start, "to": end}, spans=[[start, end], [10, 20]])
            head, size = part["heads"][0], part["bin_keys"]
            for i, (total, largest) in enumerate(zip(head["sum"], head["max"], strict=True)):
                keys = full["sum"][start + i * size:min(end, start + (i + 1) * size)]
                self.assertAlmostEqual(total, sum(keys), delta=1e-5)
                self.assertAlmostEqual(largest, max(keys), delta=1e-5)
            self.assertAlmostEqual(head["outside"] + sum(head["sum"]), 1, delta=1e-4)
            self.assertAlmostEqual(head["spans"][0], sum(head["sum"]), delta=1e-5)
            self.assertAlmostEqual(head["spans"][1], sum(full["sum"][10:20]), delta=1e-5)

    def test_a_long_passkey_is_found_by_a_head_that_points_at_it(self):
        """64K tokens: the generation leaves its pages behind, the look reads them, and some head looks at the number."""
        ids, key = self.passkey(65536)
        answer = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 3, "temperature": 0, "return_token_ids": True},
                                  timeout=600).json()["choices"][0]
        at_digit = next(i for i in range(3) if set(answer["text"]) & set("48213") and self.server.post(
            "/detokenize", {"tokens": answer["token_ids"][:i + 1]}).json()["prompt"].strip()[-1:].isdigit())
        look = ids + answer["token_ids"][:at_digit]
        reply = self.ask(tokens=look, bins=64, peaks=1, spans=[key, [key[0] - 40, key[1] + 40]])
        self.assertGreater(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 65000 - 200)
        best = max(reply["heads"], key=lambda head: head["spans"][0])
        self.assertGreater(best["spans"][0], 0.1, "no head looks at the number")
        self.assertTrue(key[0] - 1 <= best["peaks"][0]["key"] < key[1] + 40, best["peaks"])
        zoomed = self.ask(tokens=look, layer=best["layer"], head=best["head"], **{"from": key[0] - 16, "to": key[1] + 16}, bins=64, peaks=3)
        self.assertEqual(zoomed["bin_keys"], 1)
        spelled = "".join(zoomed["tokens"][str(i)] for i in range(*key))
        self.assertEqual(spelled.replace("▁", ""), "48213")

    def test_a_stream_goes_on_beside_a_look(self):
        ids, _ = self.passkey(30000)
        body = {"prompt": "Once upon a time", "max_tokens": 100000, "ignore_eos": True, "stream": True}
        stream = self.server.stream("/v1/completions", body)
        stream.next_event()
        reply = self.ask(tokens=ids, bins=32)
        self.assertAlmostEqual(sum(reply["heads"][0]["sum"]), 1, delta=1e-4)
        self.assertIsNotNone(stream.next_event())
        stream.close()
        alone = self.ask(tokens=ids, bins=32)
        self.assertEqual(reply["heads"], alone["heads"])

    def test_a_client_that_leaves_is_forgotten(self):
        random.seed(4)
        ids = [random.randrange(300, 1000) for _ in range(60000)]
        client = socket.create_connection(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/attention", {"tokens": ids}))
        self.wait_for(lambda: self.server.get("/v1/requests").json()["data"], "the look to be seen")
        client.close()
        self.wait_for(lambda: not self.server.get("/v1/requests").json()["data"], "the look to be forgotten")

    def test_a_chat_and_a_named_position(self):
        chat = self.ask(messages=[{"role": "user", "content": "What is the pass key?"}], bins=8, layer=0)
        self.assertEqual(len(chat["heads"]), self.server.get("/v1/prior").json()["num_heads"])
        self.assertEqual(self.server.post("/v1/attention", {"prompt": "one two", "position": 99}).status, 400)

    def test_inspect_says_the_same(self):
        text = "The pass key is 48213. What is the pass key? The pass key is"
        reply = self.ask(prompt=text, bins=16, peaks=4)
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "row.csv"
            run = subprocess.run([bamtest.BAM, "inspect", bamtest.checkpoint(), "--look", text, "--bins", "16", "--json",
                                  "--csv", str(table)], capture_output=True, text=True, check=True)
            own = json.loads(run.stdout)
            rows = list(csv.DictReader(table.open()))
        self.assertEqual((own["heads"], own["tokens"]), (reply["heads"], reply["tokens"]))
        self.assertEqual(len(rows), len(reply["heads"]) * len(reply["heads"][0]["sum"]))
        self.assertEqual(float(rows[0]["weight"]), reply["heads"][0]["sum"][0])
        shown = subprocess.run([bamtest.BAM, "inspect", bamtest.checkpoint(), "--look", text, "--layer", "1"],
                               capture_output=True, text=True, check=True).stdout
        self.assertIn("tokens there", shown)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Fields that constrain the output: each one holds, and what cannot be honoured is refused by name."""

import json
import re

import bamtest

# Required the other way round than declared: the declaration's order must win.
SCHEMA = ('{"type": "object", "properties": {"why": {"enum": ["a", "b"]}, "answer": {"$ref": "#/$defs/answer"}},'
          ' "required": ["answer", "why"], "additionalProperties": false,'
          ' "$defs": {"answer": {"type": "object", "properties": {"z": {"type": "boolean"}, "c": {"type": "null"}},'
          ' "required": ["c", "z"], "additionalProperties": false}}}')
GBNF = 'root ::= root "+" term | term "="\nterm ::= [0-9] | "(" [a-c]{2} ")"'
LARK = 'start: term ("+" term)* "="\nterm: DIGIT | "(" /[a-c]{2}/ ")"\n%import common.DIGIT'


class Constraints(bamtest.ServerTest):
    def text(self, **fields):
        """A finished text under the constraint; several seeds, because a random model may not find the end."""
        for seed in range(20):
            reply = self.server.complete("x", **{"max_tokens": 400, "temperature": 1, "seed": seed, **fields})
            self.assertEqual(reply.status, 200, reply.body)
            choice = reply.json()["choices"][0]
            if choice["finish_reason"] == "stop":
                return choice["text"]
        self.fail(f"no text ended under {fields}")

    def test_schema_properties_keep_their_order(self):
        schema = json.loads(SCHEMA)
        for fields in ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
                       {"response_format": {"type": "json_object", "schema": schema}},
                       {"response_format": {"type": "json_schema", "schema": schema}},
                       {"json_schema": schema}, {"guided_json": schema}, {"guided_json": SCHEMA},
                       {"structured_outputs": {"json": schema}}, {"structured_outputs": {"json": SCHEMA}}):
            with self.subTest(fields=list(fields)):
                value = json.loads(self.text(**fields))
                self.assertEqual(list(value), ["why", "answer"])
                self.assertEqual(list(value["answer"]), ["z", "c"])

    def test_grammars(self):
        term = r"(?:[0-9]|\([a-c]{2}\))"
        for fields, language in (({"grammar": GBNF}, rf"{term}=(\+{term})*"), ({"guided_grammar": GBNF}, rf"{term}=(\+{term})*"),
                                 ({"ebnf": GBNF}, rf"{term}=(\+{term})*"),
                                 ({"structured_outputs": {"grammar": GBNF}}, rf"{term}=(\+{term})*"),
                                 ({"guided_grammar": LARK}, rf"{term}(\+{term})*="),
                                 ({"grammar": LARK, "guided_decoding_backend": "auto"}, rf"{term}(\+{term})*=")):
            with self.subTest(fields=fields):
                self.assertRegex(self.text(**fields), f"^{language}$")
        json.loads(self.text(structured_outputs={"json_object": True}))

    def test_allowed_token_ids(self):
        ids = self.server.post("/tokenize", {"prompt": "one two", "add_special_tokens": False}).json()["tokens"]
        reply = self.server.complete("x", allowed_token_ids=ids, max_tokens=12, temperature=2, return_token_ids=True)
        tokens = reply.json()["choices"][0]["token_ids"]
        self.assertEqual(len(tokens), 12)
        self.assertLessEqual(set(tokens), set(ids))

    def test_bad_words(self):
        plain = self.server.complete("The", max_tokens=24, temperature=0, return_token_ids=True, ignore_eos=True)
        text = plain.json()["choices"][0]["text"]
        words = re.findall(r"[A-Za-z]{2,}", text) or [text.strip()[:4]]
        reply = self.server.complete("The", max_tokens=24, temperature=0, bad_words=[words[0]], ignore_eos=True)
        self.assertEqual(reply.status, 200)
        self.assertNotEqual(reply.json()["choices"][0]["text"], text)
        # A single token that is bad never comes, whatever is before it.
        first = plain.json()["choices"][0]["token_ids"][0]
        piece = self.server.post("/detokenize", {"tokens": [first]}).json()["prompt"]
        if piece.strip():
            again = self.server.complete("The", max_tokens=24, temperature=0, bad_words=[piece.strip()], ignore_eos=True,
                                         return_token_ids=True)
            self.assertNotEqual(again.json()["choices"][0]["token_ids"][0], first)

    def test_bad_words_however_they_are_spelled(self):
        # A constraint may leave no spelling but one that the tokenizer would never choose; whoever has begun it can only fail.
        for good, bad in (("no", "yes"), ("yes", "no")):
            outcomes = [self.server.complete("x", max_tokens=8, temperature=2, seed=seed, choice=["yes", "no"], bad_words=[bad]) for seed in range(12)]
            texts = [reply.json()["choices"][0]["text"] for reply in outcomes if reply.status == 200]
            self.assertEqual(set(texts), {good})
            self.assertEqual({reply.error["param"] for reply in outcomes if reply.status != 200} - {"choice"}, set())
        self.assertEqual(self.server.complete("x", max_tokens=8, regex="[ab]", bad_words=["a"]).json()["choices"][0]["text"], "b")
        for word in ("a", "yes", "Grass"):
            reply = self.server.complete("x", choice=[word], bad_words=[word], max_tokens=8)
            self.assertEqual((reply.status, reply.json()["error"]["param"]), (400, "choice"), reply.body)
            self.assertIn("'choice' and 'bad_words'", reply.error["message"])

    def test_what_cannot_be_honoured_is_named(self):
        for fields, param in (({"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern"),
                              ({"structural_tag": {"a": 1}}, "structural_tag"),
                              ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
                              ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
                              ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format.schema"),
                              ({"json_schema": 5}, "json_schema"),
                              ({"grammar": "root ::= (", "max_tokens": 1}, "grammar"),
                              ({"guided_grammar": "start: nothing"}, "guided_grammar"),
                              ({"grammar_lazy": True, "grammar": GBNF}, "grammar_lazy"),
                              ({"allowed_token_ids": [10 ** 6]}, "allowed_token_ids"),
                              ({"allowed_token_ids": []}, "allowed_token_ids"),
                              ({"bad_words": [1]}, "bad_words"),
                              ({"grammar": GBNF, "regex": "a"}, "grammar")):
            with self.subTest(fields=fields):
                reply = self.server.complete("x", **fields)
                self.assertEqual(reply.status, 400, reply.body)
                self.assertEqual(reply.error["param"], param)

    def digits(self):
        ids = self.server.post("/tokenize", {"prompt": "123", "add_special_tokens": False}).json()["tokens"]
        return [i for i in ids if self.server.post("/detokenize", {"tokens": [i]}).json()["prompt"].strip()]

    def test_fields_that_contradict_each_other_are_named(self):
        digits = self.digits()
        for fields, names in (({"guided_choice": ["yes"], "allowed_token_ids": digits}, ["guided_choice", "allowed_token_ids"]),
                              ({"structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": digits},
                               ["structured_outputs.choice", "allowed_token_ids"]),
                              ({"regex": "[a-z]+", "allowed_token_ids": digits, "n": 2}, ["regex", "allowed_token_ids"]),
                              ({"allowed_token_ids": digits, "bad_words": list("123")}, ["allowed_token_ids", "bad_words"])):
            with self.subTest(fields=fields):
                reply = self.server.complete("x", max_tokens=4, **fields)
                self.assertEqual(reply.status, 400, reply.body)
                self.assertEqual(reply.error["type"], "invalid_request_error")
                self.assertEqual(reply.error["param"], names[0])
                for name in names:
                    self.assertIn(f"'{name}'", reply.error["message"])
        # A bias of false says never, a constraint what must be.
        everything = [[token, False] for token in range(self.server.get("/tokenizer_info").json()["vocab_size"])]
        if len(everything) <= 1024:
            for fields, names in (({}, ["logit_bias"]), ({"choice": ["yes"]}, ["choice", "logit_bias"])):
                reply = self.server.complete("x", max_tokens=4, logit_bias=everything, **fields)
                self.assertEqual((reply.status, reply.error["param"]), (400, names[0]), reply.body)
                for name in names:
                    self.assertIn(f"'{name}'", reply.error["message"])
        reply = self.server.complete("x", max_tokens=4, allowed_token_ids=digits[:1], logit_bias=[[digits[0], False]])
        self.assertEqual((reply.status, reply.error["param"]), (400, "allowed_token_ids"), reply.body)
        # A large negative bias is no ban, and a text that is complete ends before min_tokens.
        for fields in ({"logit_bias": {str(token): -100 for token, _ in everything[:1024]}}, {"min_tokens": 8}, {"ignore_eos": True}):
            reply = self.server.complete("x", max_tokens=8, choice=["yes"], **fields)
            self.assertEqual(reply.json()["choices"][0]["text"], "yes", fields)
        # What both allow is still generated.
        reply = self.server.complete("x", regex="[0-9]{3}", allowed_token_ids=digits, max_tokens=9)
        self.assertEqual(reply.status, 200, reply.body)

    def test_fields_that_contradict_each_other_later_are_named(self):
        def check(error):
            self.assertEqual((error["type"], error["param"]), ("invalid_request_error", "regex"))
            self.assertIn("'regex' and 'allowed_token_ids': no token may come next (at token 2)", error["message"])
        fields = {"regex": "[0-9][a-z]", "allowed_token_ids": self.digits(), "max_tokens": 9}
        for more in ({}, {"n": 2}):
            with self.subTest(more=more):
                reply = self.server.complete("x", **fields, **more)
                self.assertEqual(reply.status, 400, reply.body)
                check(reply.error)
        *tokens, error = self.server.stream("/v1/completions", {"prompt": "x", **fields}).chunks()
        self.assertRegex("".join(c["choices"][0]["text"] for c in tokens), "^[0-9]$")
        check(error["error"])

    def test_a_constraint_that_is_too_expensive_ends_its_own_request(self):
        letters = "|".join(f"[ -~]*{c}[ -~]{{900}}" for c in "aeinorst ")
        fields = {"prompt": "x", "regex": f"({letters})", "max_tokens": 1000, "temperature": 1, "seed": 3}
        reply = self.server.post("/v1/completions", fields, timeout=10 * bamtest.PATIENCE)  # seconds of work, minutes with sanitizers
        if reply.status != 200:
            self.assertEqual((reply.status, reply.error["param"]), (400, "regex"), reply.body)
            self.assertIn("too expensive", reply.error["message"])
        self.assertEqual(self.server.complete("x", regex="[0-9]{3}", max_tokens=9).json()["choices"][0]["finish_reason"], "stop")


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""What clients of vLLM, llama.cpp and OpenAI rely on beyond the contract's own words, each through plain HTTP."""

import json
import pathlib
import tempfile
import unittest

import bamtest

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


def checkpoint_with(folder, **files):
    """The bundled model with other small files: links to its own, but for those given."""
    source = pathlib.Path(bamtest.checkpoint())
    target = pathlib.Path(folder) / "model"
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    for name, change in files.items():
        path = target / f"{name}.json"
        old = json.loads(path.read_text()) if path.exists() else {}
        path.unlink(missing_ok=True)
        if change is not None:
            path.write_text(json.dumps({**old, **change}))
    return str(target)


class DefaultLength(unittest.TestCase):
    """D2: how long a chat goes on when nobody says."""

    def generated(self, *arguments, **files):
        with tempfile.TemporaryDirectory() as folder:
            model = checkpoint_with(folder, **files)
            with bamtest.running_server("--max-model-len", "400", *arguments, model=model) as server:
                reply = server.post("/v1/chat/completions", {**CHAT, "ignore_eos": True}).json()
                self.assertEqual(reply["choices"][0]["finish_reason"], "length")
                return reply["usage"]["completion_tokens"], reply["usage"]["prompt_tokens"]

    def test_generation_config(self):
        self.assertEqual(self.generated(generation_config={"max_new_tokens": 33})[0], 33)

    def test_flag_when_the_checkpoint_does_not_say(self):
        self.assertEqual(self.generated("--default-max-tokens", "21", generation_config=None)[0], 21)

    def test_the_rest_of_the_context(self):
        for arguments in (("--default-max-tokens", "0"), ()):
            tokens, prompt = self.generated(*arguments, generation_config=None)
            self.assertEqual(tokens, 400 - prompt)


class Specials(bamtest.ServerTest):
    """D6 and D8: special tokens in texts."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        info = cls.server.get("/tokenizer_info").json()
        cls.bos, cls.eos = (info["bos_token_id"], info["bos_token"]), (info["eos_token_id"], info["eos_token"])

    def tokenize(self, text, **fields):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False, **fields}).json()["tokens"]

    def test_prompts_are_parsed_as_tokenize_parses_them(self):
        text = f"a{self.eos[1]}b{self.bos[1]}"
        parsed = self.tokenize(text)
        self.assertEqual(parsed.count(self.eos[0]), 1)
        self.assertEqual(parsed[-1], self.bos[0])
        self.assertEqual(self.tokenize("<unk>"), [0])
        plain = self.tokenize(text, parse_special=False)
        self.assertNotIn(self.eos[0], plain)
        for fields, expected in (({}, parsed), ({"parse_special": False}, plain)):
            reply = self.server.complete(text, max_tokens=1, return_token_ids=True, add_special_tokens=False, **fields).json()
            self.assertEqual(reply["choices"][0]["prompt_token_ids"], expected)
        with_bos = self.server.complete(text, max_tokens=1, return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
        self.assertEqual(with_bos, [self.bos[0], *parsed])

    def test_special_tokens_are_no_part_of_the_text_unless_asked(self):
        special = self.tokenize("<|user|>")
        if len(special) != 1:
            self.skipTest("SKIPPED: the bundled model with its special pieces is missing")
        fields = {"max_tokens": 3, "allowed_token_ids": special, "ignore_eos": True, "logprobs": 0}
        self.assertEqual(self.server.complete(**fields).json()["choices"][0]["text"], "")
        shown = self.server.complete(skip_special_tokens=False, **fields).json()["choices"][0]["text"]
        self.assertEqual(shown, "<|user|>" * 3)
        spaced = self.server.complete(skip_special_tokens=False, spaces_between_special_tokens=True, **fields).json()
        self.assertEqual(spaced["choices"][0]["text"], " ".join(["<|user|>"] * 3))
        self.assertEqual(self.server.post("/detokenize", {"tokens": special}).json()["prompt"], "")

    def test_offsets_of_an_echoed_prompt_count_what_it_spells(self):
        text = f"The{self.eos[1]}grass is green"
        choice = self.server.complete(text, max_tokens=1, echo=True, logprobs=0).json()["choices"][0]
        self.assertTrue(choice["text"].startswith(text))
        offsets, names = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
        at = names.index(self.eos[1])
        self.assertEqual(text[offsets[at]:offsets[at + 1]], self.eos[1])
        self.assertEqual(offsets[:2], [0, 0], "BOS is not spelled")

    def test_pieces(self):
        reply = self.server.post("/tokenize", {"content": "The é", "with_pieces": True, "add_special": False}).json()
        text = b"".join(piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
                        for piece in reply["tokens"])
        self.assertEqual(text.decode().strip(), "The é")
        self.assertEqual([piece["id"] for piece in reply["tokens"]], self.tokenize("The é"))
        bos = self.server.get("/tokenizer_info").json()["bos_token_id"]
        for fields, begins in (({"content": "The"}, False), ({"content": "The", "add_special": True}, True), ({"prompt": "The"}, True),
                               ({"prompt": "The", "add_special_tokens": False}, False)):  # the defaults of llama.cpp and of vLLM
            self.assertEqual(self.server.post("/tokenize", fields).json()["tokens"][0] == bos, begins, fields)
        strings = self.server.post("/tokenize", {"prompt": "The grass", "return_token_strs": True}).json()["token_strs"]
        self.assertTrue(any(piece.startswith("▁") for piece in strings), strings)


class ChatTemplates(unittest.TestCase):
    """D12: what a request may tell the template, and a message that goes on."""

    TEMPLATE = ("{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}{% endfor %}"
                "{% if mood is defined %}(in a {{ mood.name }} mood){% endif %}{% if add_generation_prompt %}[assistant]{% endif %}")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = bamtest.Server(model=checkpoint_with(cls.folder.name, tokenizer_config={"chat_template": cls.TEMPLATE}))

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def tokens(self, text):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]

    def prompt(self, path="/v1/chat/completions", **fields):
        """The chat's prompt, as tokens."""
        body = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The grass is"}], **fields}
        asked = self.server.post("/tokenize", body).json()["tokens"]
        reply = self.server.post("/v1/chat/completions", {**body, "max_tokens": 4, "temperature": 0, "return_token_ids": True})
        self.assertEqual(reply.status, 200, reply.text)
        self.assertEqual(reply.json()["prompt_token_ids"], asked)
        return asked, reply.json()["choices"][0]["message"]["content"]

    def test_generation_prompt(self):
        self.assertEqual(self.prompt()[0], self.tokens("<s>[user] Hi</s>[assistant] The grass is</s>[assistant]"))
        self.assertEqual(self.prompt(add_generation_prompt=False)[0], self.tokens("<s>[user] Hi</s>[assistant] The grass is</s>"))

    def test_developers_are_the_system_for_a_template_that_does_not_know_them(self):
        messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        expected = self.tokens("<s>[system] Be brief.</s>[user] Hi</s>[assistant]")
        self.assertEqual(self.prompt(messages=messages)[0], expected)
        template = self.server.post("/apply-template", {"messages": messages}).json()["prompt"]
        self.assertIn("[system] Be brief.", template)
        with tempfile.TemporaryDirectory() as folder:
            knows = self.TEMPLATE + "{% if messages[0].role == 'developer' %}!{% endif %}"
            with bamtest.running_server(model=checkpoint_with(folder, tokenizer_config={"chat_template": knows})) as server:
                self.assertIn("[developer] Be brief.", server.post("/apply-template", {"messages": messages}).json()["prompt"])

    def test_the_last_message_goes_on(self):
        ids, text = self.prompt(continue_final_message=True)
        self.assertEqual(ids, self.tokens("<s>[user] Hi</s>[assistant] The grass is"))
        plain = self.server.complete(ids, max_tokens=4).json()["choices"][0]["text"]
        self.assertEqual(text, plain, "with the blank between the words")
        both = {"continue_final_message": True, "add_generation_prompt": True}
        self.assertEqual(self.server.post("/v1/chat/completions", {**CHAT, **both}).error["param"], "continue_final_message")
        empty = {"messages": [{"role": "assistant", "content": " "}], "continue_final_message": True}
        self.assertEqual(self.server.post("/v1/chat/completions", empty).error["param"], "continue_final_message")

    def test_template_variables(self):
        ids, _ = self.prompt(chat_template_kwargs={"mood": {"name": "good"}}, add_generation_prompt=False)
        self.assertEqual(ids, self.tokens("<s>[user] Hi</s>[assistant] The grass is</s>(in a good mood)"))
        for kwargs in ({"messages": []}, {"bos_token": "x"}, {"x": "y" * 70000}, [], 5):
            reply = self.server.post("/v1/chat/completions", {**CHAT, "chat_template_kwargs": kwargs})
            self.assertEqual((reply.status, reply.error["param"]), (400, "chat_template_kwargs"))


class Replies(bamtest.ServerTest):
    arguments = ("--max-model-len", "4096", "--max-queued-tokens", "100000")

    def test_many_prompts(self):
        prompts = [f"Number {i}" for i in range(1024)]
        reply = self.server.complete(prompts, max_tokens=1, ignore_eos=True)
        self.assertEqual(reply.status, 200, reply.text[:300])
        self.assertEqual([choice["index"] for choice in reply.json()["choices"]], list(range(1024)))
        self.assertEqual(reply.json()["choices"][700]["text"],
                         self.server.complete(prompts[700], max_tokens=1, ignore_eos=True).json()["choices"][0]["text"])
        self.assertEqual(self.server.complete(prompts + ["x"], max_tokens=1).error["param"], "prompt")
        self.assertIn("--max-queued-tokens", self.server.complete([[5] * 1000] * 101, max_tokens=1).error["message"])

    def test_x_should_retry(self):
        for reply in (self.server.complete(temperature=-1), self.server.get("/v1/moderations"), self.server.get("/nowhere"),
                      self.server.complete(max_tokens=100_000), self.server.complete(model="other"),
                      self.server.complete([5] * 100, max_tokens=3000, ignore_eos=True, timeout=0.02)):
            self.assertGreaterEqual(reply.status, 400)
            self.assertEqual(reply.headers.get("x-should-retry"), "false", reply.text)

    def test_context_errors_in_the_words_that_clients_look_for(self):
        error = self.server.complete([5] * 4000, max_tokens=200).error
        self.assertTrue(error["message"].startswith("This model's maximum context length is 4096 tokens. However, "), error)
        self.assertIn("4000 in the prompt", error["message"])
        self.assertIn("context_length_exceeded", error["message"], "LangChain looks at the message only")
        self.assertEqual(error["code"], "context_length_exceeded")
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "no " * 5000}]}).error
        self.assertIn("in the messages", chat["message"])

    def test_truncation_side(self):
        ids = list(range(300, 320))
        for side, expected in ((None, ids[-5:]), ("left", ids[-5:]), ("right", ids[:5])):
            reply = self.server.complete(ids, max_tokens=1, truncate_prompt_tokens=5, truncation_side=side, return_token_ids=True)
            self.assertEqual(reply.json()["choices"][0]["prompt_token_ids"], expected)
        self.assertEqual(self.server.complete(truncation_side="up").error["param"], "truncation_side")

    def test_logit_bias_by_text(self):
        plain = self.server.complete(max_tokens=1, return_token_ids=True).json()["choices"][0]
        word = plain["text"].strip()
        ids = self.server.post("/tokenize", {"prompt": word, "add_special_tokens": False}).json()["tokens"]
        self.assertIn(plain["token_ids"][0], ids)
        for bias in ({word: -100}, [[word, False]], [[word, -100]]):
            other = self.server.complete(max_tokens=1, logit_bias=bias, return_token_ids=True).json()["choices"][0]
            self.assertNotIn(other["token_ids"][0], ids)
        self.assertIn("'grass'".strip("'"), self.server.complete(logit_bias={"grass": "much"}).error["message"])

    def test_tokens_as_ids(self):
        reply = self.server.complete(max_tokens=3, logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True).json()
        choice = reply["choices"][0]
        self.assertEqual(choice["logprobs"]["tokens"], [f"token_id:{token}" for token in choice["token_ids"]])
        self.assertTrue(all(name.startswith("token_id:") for top in choice["logprobs"]["top_logprobs"] for name in top))
        chat = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 2, "logprobs": True, "top_logprobs": 1,
                                                         "return_tokens_as_token_ids": True, "return_token_ids": True}).json()
        names = [entry["token"] for entry in chat["choices"][0]["logprobs"]["content"]]
        self.assertEqual(names, [f"token_id:{token}" for token in chat["choices"][0]["token_ids"]])

    def test_chat_logprobs_add_up_to_the_content(self):
        for fields in ({}, {"temperature": 1.5, "seed": 3, "ignore_eos": True}, {"stop": ["e"]}, {"max_tokens": 60}):
            body = {**CHAT, "max_tokens": 25, "temperature": 0, "logprobs": True, "top_logprobs": 2, **fields}
            choice = self.server.post("/v1/chat/completions", body).json()["choices"][0]
            entries, content = choice["logprobs"]["content"], choice["message"]["content"]
            self.assertEqual("".join(entry["token"] for entry in entries), content)
            if "�" not in content:
                self.assertEqual(bytes(byte for entry in entries for byte in entry["bytes"]).decode(), content)
            chunks = self.server.stream("/v1/chat/completions", body).chunks()
            streamed = [entry for chunk in chunks for part in chunk["choices"] for entry in (part["logprobs"] or {"content": []})["content"]]
            self.assertEqual(streamed, entries)

    def test_prompt_details_where_vllm_has_them(self):
        chat = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "prompt_logprobs": 1, "return_token_ids": True,
                                                         "n": 2}).json()
        tokens = self.server.post("/tokenize", CHAT).json()["tokens"]
        self.assertEqual(chat["prompt_token_ids"], tokens)
        self.assertEqual(len(chat["prompt_logprobs"]), len(tokens))
        self.assertIsNone(chat["prompt_logprobs"][0])
        for choice in chat["choices"]:
            self.assertNotIn("prompt_token_ids", choice)
            self.assertNotIn("prompt_logprobs", choice)
        chunks = self.server.stream("/v1/chat/completions", {**CHAT, "max_tokens": 2, "return_token_ids": True}).chunks()
        self.assertEqual([chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk], [tokens])

    def test_the_role_comes_with_the_first_token(self):
        body = {"messages": [{"role": "user", "content": "word " * 3000}], "max_tokens": 3, "ignore_eos": True,
                "return_progress": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        chunks = self.server.stream("/v1/chat/completions", body).chunks()
        kinds = ["progress" if "prompt_progress" in chunk else chunk["choices"][0]["delta"].get("role", "text") if chunk["choices"]
                 else "usage" for chunk in chunks]
        role = kinds.index("assistant")
        self.assertEqual(set(kinds[:role]), {"progress"}, "the prompt is read before the role is said")
        self.assertEqual(kinds[role + 1], "text")
        self.assertTrue(all(chunk["usage"] for chunk in chunks), "every chunk has the usage so far")
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 3)

    def test_unknown_formats_are_annotations(self):
        schema = {"type": "object", "properties": {"c": {"type": "string", "format": "colour", "maxLength": 3}}, "required": ["c"]}
        reply = self.server.complete("x", json_schema=schema, max_tokens=60, temperature=1, seed=1)
        self.assertEqual(reply.status, 200, reply.text)


class Habits(bamtest.ServerTest):
    """How clients of other servers send what they send."""

    def raw(self, body, headers=None):
        return self.server.request("POST", "/v1/completions", body, headers or {"Content-Type": "application/json"})

    def test_fields_that_mean_nothing_here_are_named(self):
        fields = {"service_tier": "auto", "store": False, "metadata": {"a": "b"}, "verbosity": "low", "reasoning_effort": "low"}
        reply = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, **fields, "user": "me"})
        self.assertEqual((reply.status, reply.headers["x-ignored-fields"]), (200, ", ".join(fields)))
        nulls = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, **{name: None for name in fields}, "tools": None, "stop": None})
        self.assertEqual(nulls.status, 200, "null is as good as no field")
        self.assertNotIn("x-ignored-fields", nulls.headers)

    def test_an_answer_is_text(self):
        for wish, status in ((["text"], 200), ([], 200), (None, 200), (["text", "audio"], 400)):
            reply = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "modalities": wish})
            self.assertEqual(reply.status, status, wish)
        self.assertEqual(reply.error["param"], "modalities")

    def test_bodies(self):
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        for sent, headers in ((b"\xef\xbb\xbf" + body, None), (body, {}), (body, {"Content-Type": "text/plain"}),
                              (body, {"Content-Type": "application/json; charset=utf-8", "Accept": "text/event-stream"})):
            self.assertEqual(self.raw(sent, headers).status, 200, (sent, headers))
        self.assertIn("'max_tokens' appears twice", self.raw(body[:-1] + b', "max_tokens": 2}').error["message"])
        self.assertEqual(self.raw(body.decode().encode("utf-16")).status, 400)

    def test_long_urls(self):
        self.assertEqual(self.server.get("/v1/models?" + "x" * 9000).status, 200)
        self.assertEqual(self.server.get("/v1/models?" + "x" * 100_000).status, 414)

    def test_head_is_get_without_its_body(self):
        for path in ("/", "/health", "/livez", "/v1/models", "/v1/models/test", "/props", "/api/tags", "/nowhere"):
            head, got = self.server.request("HEAD", path), self.server.get(path)
            self.assertEqual((head.status, head.body, head.headers["content-type"]), (got.status, b"", got.headers["content-type"]), path)
            self.assertGreater(int(head.headers["content-length"]), 0, path)

    def test_several_prompts_and_choices_in_one_stream(self):
        body = {"prompt": ["The grass", "The sky"], "n": 2, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        whole = self.server.post("/v1/completions", body).json()
        chunks = self.server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}}).chunks()
        for choice in whole["choices"]:
            self.assertEqual(bamtest.text_of(chunks, choice["index"]), choice["text"])
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        self.assertEqual(reasons, ["length"] * 4)
        self.assertEqual([chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]], [12], "once, for all")


if __name__ == "__main__":
    bamtest.main()

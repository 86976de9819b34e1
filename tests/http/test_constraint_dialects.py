#!/usr/bin/env python3
"""A constraint is honoured or refused by name, never dropped: every field that constrains, in every API that generates."""

import json
import unittest

import bamtest

HELLO = [{"role": "user", "content": "Hello"}]
# Declared against the alphabet, required the other way round: what is written keeps the order of the declaration.
SCHEMA = {"type": "object", "properties": {"why": {"enum": ["a", "b"]}, "answer": {"type": "boolean"}}, "required": ["answer", "why"],
          "additionalProperties": False}
NOT_KNOWN = {"type": "object", "patternProperties": {"a": {}}}
TOOL = {"type": "function", "function": {"name": "say", "parameters": SCHEMA}}

# API: path, body, (name of the limit, where it is), the text of a reply.
APIS = {
    "completions": ("/v1/completions", {"prompt": "x"}, ("max_tokens",), lambda reply: reply["choices"][0]["text"]),
    "chat": ("/v1/chat/completions", {"messages": HELLO}, ("max_tokens",), lambda reply: reply["choices"][0]["message"]["content"]),
    "responses": ("/v1/responses", {"input": "Hello"}, ("max_output_tokens",), lambda reply: reply["output"][0]["content"][0]["text"]),
    "messages": ("/v1/messages", {"messages": HELLO}, ("max_tokens",), lambda reply: reply["content"][0]["text"]),
    "ollama chat": ("/api/chat", {"messages": HELLO, "stream": False}, ("options", "num_predict"), lambda reply: reply["message"]["content"]),
    "ollama generate": ("/api/generate", {"prompt": "Hello", "stream": False}, ("options", "num_predict"), lambda reply: reply["response"]),
    "ollama raw": ("/api/generate", {"prompt": "Hello", "stream": False, "raw": True}, ("options", "num_predict"), lambda reply: reply["response"]),
    "llama.cpp": ("/completion", {"prompt": "Hello"}, ("n_predict",), lambda reply: reply["content"]),
}
COMPLETIONS = ("completions", "ollama raw", "llama.cpp")


def schema_in_order(test, text):
    test.assertEqual(list(json.loads(text)), ["why", "answer"], text)


class Dialects(bamtest.ServerTest):
    arguments = ("--max-model-len", "2048")

    def ask(self, api, **fields):
        path, body, limit, _ = APIS[api]
        body = {**body, **fields}
        if len(limit) == 2:
            body[limit[0]] = {limit[1]: 400, "temperature": 1, **body.get(limit[0], {})}
        else:
            body.update({limit[0]: 400, "temperature": 1})
        return self.server.post(path, body)

    def text(self, api, **fields):
        reply = self.ask(api, **fields)
        self.assertEqual(reply.status, 200, reply.text)
        return APIS[api][3](reply.json())

    def check_schema(self, api, **fields):
        for seed in range(8):  # a model that knows no JSON may write blanks until the limit
            text = self.text(api, seed=seed, **fields)
            if text.rstrip().endswith("}"):
                return schema_in_order(self, text)
        return self.fail(f"no value under {fields}")

    def check_refused(self, api, name, **fields):
        reply = self.ask(api, **fields)
        self.assertEqual(reply.status, 400, f"{api}, {fields}: {reply.text[:200]}")
        error = reply.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        self.assertIn(f"'{name}'", message)
        if "param" in error:
            self.assertEqual(error["param"], name)

    def test_every_constraint_in_every_api(self):
        for api in APIS:
            with self.subTest(api):
                self.assertRegex(self.text(api, regex="[0-9]{3}").strip(), "^[0-9]{3}$")
                self.assertIn(self.text(api, choice=["aa", "bb"]), ("aa", "bb"))
                self.assertEqual(self.text(api, grammar='root ::= "q" "w"'), "qw")
                self.assertEqual(self.text(api, structured_outputs={"regex": "aa", "structural_tag": None}), "aa", "null is nothing")
                for fields in ({"json_schema": SCHEMA}, {"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}},
                               {"response_format": {"type": "json_object", "schema": SCHEMA}},
                               {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}}):
                    self.check_schema(api, **fields)
                ids = self.server.post("/tokenize", {"prompt": "one", "add_special_tokens": False}).json()["tokens"][-1:]
                piece = self.server.post("/detokenize", {"tokens": ids}).json()["prompt"].strip()
                self.assertEqual(self.text(api, allowed_token_ids=ids, min_tokens=4).replace(" ", "").replace(piece, ""), "")
                self.assertEqual(self.text(api, regex="[ef]", bad_words=["e"]), "f")

    def test_schemas_of_the_apis_themselves(self):
        self.check_schema("responses", text={"format": {"type": "json_schema", "name": "s", "strict": True, "schema": SCHEMA}, "verbosity": "low"})
        self.check_schema("messages", output_config={"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"})
        self.check_schema("messages", output_format={"type": "json_schema", "schema": SCHEMA})
        for api in ("ollama chat", "ollama generate", "ollama raw"):
            self.check_schema(api, format=SCHEMA)
            self.assertEqual(self.text(api, format="json", allowed_token_ids=None).lstrip()[0], "{")

    def test_tools_keep_the_order_too(self):
        for api in ("chat", "responses", "messages", "ollama chat"):
            tool = {"messages": {"name": "say", "input_schema": SCHEMA}, "responses": {"type": "function", **TOOL["function"]}}.get(api, TOOL)
            choice = {"type": "any"} if api == "messages" else "required"
            parallel = {} if api == "messages" else {"parallel_tool_calls": False}
            reply = self.ask(api, tools=[tool], tool_choice=choice, **parallel).json()
            with self.subTest(api):
                if api == "chat":
                    schema_in_order(self, reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
                elif api == "responses":
                    schema_in_order(self, reply["output"][0]["arguments"])
                else:
                    values = reply["content"][0]["input"] if api == "messages" else reply["message"]["tool_calls"][0]["function"]["arguments"]
                    self.assertEqual(list(values), ["why", "answer"])

    def test_unknown_constraints_are_refused_everywhere(self):
        for api in APIS:
            for name, value in (("guided_json_object", True), ("guided_new_thing", {}), ("structured_output", {"json": SCHEMA}),
                                ("grammar_type", "x"), ("structural_tag", "x"), ("guided_whitespace_pattern", " "),
                                ("logits_processors", ["x"]), ("functions", [{}])):
                with self.subTest(api, field=name):
                    self.check_refused(api, name, **{name: value})
            self.check_refused(api, "structured_outputs.jsn", structured_outputs={"jsn": SCHEMA})

    def test_a_completion_calls_no_tools(self):
        for api in COMPLETIONS:
            self.check_refused(api, "tools", tools=[TOOL])
            self.check_refused(api, "tool_choice", tool_choice="required")
            self.assertEqual(self.ask(api, tools=[], tool_choice="none", regex="a").status, 200, "which ask for nothing")

    def test_fields_of_another_api(self):
        for name, value, own in (("format", SCHEMA, "ollama"), ("text", {"format": {"type": "json_object"}}, "responses"),
                                 ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}, "messages"),
                                 ("output_format", {"type": "json_schema", "schema": SCHEMA}, "messages")):
            for api in APIS:
                if not api.startswith(own):
                    self.check_refused(api, name, **{name: value})

    def test_halves_of_a_format(self):
        """Nothing in an object that holds a constraint is passed over."""
        for fields, name in (({"type": "text", "schema": SCHEMA}, "schema"), ({"type": "json_object", "json_schema": {"schema": SCHEMA}}, "json_schema"),
                             ({"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": {"type": "null"}}}, "json_schema"),
                             ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "regex": "x"}}, "json_schema.regex"),
                             ({"type": "json_schema", "json_schema": {"schema": NOT_KNOWN}}, "json_schema.schema"),
                             ({"type": "json_object", "value": SCHEMA}, "value"), ({"type": "regex", "value": "x"}, "type")):
            reply = self.ask("chat", response_format=fields)
            self.assertEqual(reply.status, 400, f"{fields}: {reply.text[:200]}")
            self.assertIn(f"'response_format.{name}'", reply.error["message"])
        for fields, name in (({"format": {"type": "text", "schema": SCHEMA}}, "text.format.schema"), ({"frmat": {"type": "json_object"}}, "text.frmat"),
                             ({"format": {"type": "json_schema", "schema": SCHEMA, "pattern": "x"}}, "text.format.pattern"),
                             ({"format": {"type": "json_schema", "schema": NOT_KNOWN}}, "text.format.schema"),
                             ({"format": {"type": "grammar", "grammar": "x"}}, "text.format.type"), ({"format": "json"}, "text.format")):
            reply = self.ask("responses", text=fields)
            self.assertEqual(reply.status, 400, f"{fields}: {reply.text[:200]}")
            self.assertIn(f"'{name}'", reply.error["message"])
        for value in ("yaml", 5, True, NOT_KNOWN, [SCHEMA]):
            self.check_refused("ollama chat", "format", format=value)
        for value in ({"formt": SCHEMA}, 5):
            self.check_refused("messages", "output_config", output_config=value)
        self.check_refused("messages", "output_config.format", output_config={"format": {"type": "json_object"}})

    def test_two_constraints(self):
        for api, fields, name in (("responses", {"text": {"format": {"type": "json_object"}}}, "text.format"), ("ollama chat", {"format": "json"}, "format"),
                                  ("messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_config.format")):
            reply = self.ask(api, response_format={"type": "json_schema", "schema": SCHEMA}, **fields)
            self.assertEqual(reply.status, 400, reply.text)
            self.assertIn(f"'{name}'", reply.text)
            self.assertEqual(self.ask(api, regex="a", **fields).status, 400)
        reply = self.ask("ollama chat", options={"regex": "a"}, regex="b")
        self.assertEqual(reply.status, 400, reply.text)

    def test_choices_of_tools(self):
        tool = {"name": "say", "input_schema": SCHEMA}
        for choice in ({"type": "wizard"}, "any", {"type": "tool", "name": "sing"}, {"type": "tool"}):
            self.check_refused("messages", "tool_choice", tools=[tool], tool_choice=choice)
        self.check_refused("messages", "tool_choice", tool_choice={"type": "any"})
        for api in ("chat", "responses", "ollama chat"):
            flat = {"type": "function", **TOOL["function"]} if api == "responses" else TOOL
            for choice in ("some", {"type": "mcp"}, {"type": "function", "name": "sing", "function": {"name": "sing"}}):
                self.check_refused(api, "tool_choice", tools=[flat], tool_choice=choice)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Tools of /v1/chat/completions: what may be called, valid arguments, streams, messages of tools, templates with and without tools."""

import json
import pathlib
import shutil
import tempfile
import unittest

import bamtest

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}}
PING = {"type": "function", "function": {"name": "ping"}}
CHAT = {"messages": [{"role": "user", "content": "What is the weather like?"}], "tools": [WEATHER, PING], "temperature": 0,
        "max_tokens": 400}
KNOWS_TOOLS = """{%- if tools %}TOOLS:{% for tool in tools %} {{ tool.function.name }}{% endfor %};{% endif %}
{%- for message in messages %}<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls or [] %}CALL {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"""


def calls_of(chunks):
    """The calls that the chunks of a stream add up to: (name, arguments)."""
    calls = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls", []):
                if "id" in delta:
                    assert delta["index"] == len(calls) and delta["type"] == "function"
                    calls.append([delta["function"]["name"], ""])
                calls[delta["index"]][1] += delta["function"]["arguments"]
    return [tuple(call) for call in calls]


class Tools(bamtest.ServerTest):
    def chat(self, status=200, **fields):
        reply = self.server.post("/v1/chat/completions", {**CHAT, **fields})
        self.assertEqual(reply.status, status, reply.text)
        return reply.json()

    def check_call(self, call):
        self.assertEqual(call["type"], "function")
        self.assertRegex(call["id"], "^[0-9A-Za-z]{9}$")
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "ping":
            self.assertEqual(arguments, {})
        else:
            self.assertEqual(list(arguments), ["city", "days"])
            self.assertIn(arguments["city"], ("Oslo", "Rome"))
            self.assertIn(arguments["days"], range(1, 10))

    def test_required_and_named(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("required", named):
            for seed in range(4):
                reply = self.chat(tool_choice=choice, parallel_tool_calls=False, temperature=1.5, seed=seed)["choices"][0]
                self.assertEqual(reply["finish_reason"], "tool_calls", reply)
                self.assertIsNone(reply["message"]["content"])
                self.assertEqual(len(reply["message"]["tool_calls"]), 1)
                self.check_call(reply["message"]["tool_calls"][0])
                if choice == named:
                    self.assertEqual(reply["message"]["tool_calls"][0]["function"]["name"], "get_weather")

    def test_a_named_function_is_called_once(self):
        # Clients that name a function (instructor) take a second call, or a reply that ends for its length, for a failure.
        named = {"type": "function", "function": {"name": "get_weather"}}
        for fields in ({}, {"parallel_tool_calls": True}):
            reply = self.chat(tool_choice=named, logit_bias={"2": -100}, **fields)["choices"][0]
            self.assertEqual((reply["finish_reason"], len(reply["message"]["tool_calls"])), ("tool_calls", 1), reply)

    def test_parallel_calls(self):
        # A bias against EOS makes the model go on calling.
        reply = self.chat(tool_choice="required", logit_bias={"2": -100}, max_tokens=1500)["choices"][0]
        self.assertEqual(reply["finish_reason"], "tool_calls", reply)
        self.assertEqual(len(reply["message"]["tool_calls"]), 16, "the documented bound")
        for call in reply["message"]["tool_calls"]:
            self.check_call(call)
        self.assertEqual(len({call["id"] for call in reply["message"]["tool_calls"]}), 16)

    def test_streams_say_the_same(self):
        for fields in ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": "required", "max_tokens": 150},
                       {"tool_choice": "auto", "max_tokens": 12}, {"tool_choice": "required", "max_tokens": 21}):
            with self.subTest(fields):
                whole = self.chat(**fields)["choices"][0]
                chunks = self.server.stream("/v1/chat/completions", {**CHAT, **fields}).chunks()
                said = [(call["function"]["name"], call["function"]["arguments"]) for call in whole["message"].get("tool_calls", [])]
                self.assertEqual(calls_of(chunks), said)
                self.assertEqual("".join(c["choices"][0]["delta"].get("content") or "" for c in chunks), whole["message"]["content"] or "")
                self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], whole["finish_reason"])

    def test_long_arguments(self):
        long = {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {
            "text": {"type": "string", "minLength": 40, "maxLength": 60}}, "required": ["text"]}}}
        body = {**CHAT, "tools": [long], "tool_choice": "required", "parallel_tool_calls": False}
        # How many tokens a chunk has depends on how busy the machine is.
        chunks = self.server.stream("/v1/chat/completions", body).chunks()
        calls = [c for c in chunks if c["choices"][0]["delta"].get("tool_calls")]
        self.assertEqual(["id" in c["choices"][0]["delta"]["tool_calls"][0] for c in calls], [True] + [False] * (len(calls) - 1))
        self.assertGreaterEqual(len(json.loads(calls_of(chunks)[0][1])["text"]), 40)

    def test_no_part_of_a_marker_is_content_where_it_is_cut_off(self):
        for length in range(1, 9):
            for choice in ("required", {"type": "function", "function": {"name": "ping"}}):
                reply = self.chat(tool_choice=choice, max_tokens=length)["choices"][0]
                self.assertEqual((reply["finish_reason"], reply["message"]["content"] or ""), ("length", ""))
        chunks = self.server.stream("/v1/chat/completions", {**CHAT, "tool_choice": "required", "max_tokens": 2}).chunks()
        self.assertEqual(bamtest.text_of(chunks), "")

    def test_auto_may_answer_with_text(self):
        reply = self.chat(max_tokens=8)["choices"][0]
        self.assertIn(reply["finish_reason"], ("length", "stop"))
        self.assertNotIn("tool_calls", reply["message"])
        plain = self.chat(tools=None, messages=[{"role": "user", "content": self.seen_prompt(CHAT)}], max_tokens=8)
        self.assertEqual(reply["message"]["content"], plain["choices"][0]["message"]["content"], "the constraint changes no text")

    def seen_prompt(self, _):
        """The user's message with the descriptions that a template without tools gets."""
        lines = ["You can call these tools:"] + [json.dumps(tool["function"], separators=(",", ":")) for tool in CHAT["tools"]]
        lines += ["To call one, answer with its name and its arguments in this form:", "<tool_call>",
                  '{"name": "NAME", "arguments": {…}}', "</tool_call>", "", CHAT["messages"][0]["content"]]
        return "\n".join(lines)

    def test_auto_calls_by_the_marker(self):
        # The model is made to begin with the marker; from there on the arguments are constrained.
        tokens = self.server.post("/tokenize", {"prompt": "<", "add_special_tokens": False, "with_pieces": True}).json()["tokens"]
        bias = {str(token["id"]): 100 for token in tokens if token["piece"] == "<"}
        if not bias:
            self.skipTest("the tokenizer has no token '<'")
        reply = self.chat(logit_bias=bias, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {
            "x": {"type": "boolean"}}, "required": ["x"]}}}, parallel_tool_calls=False)["choices"][0]
        self.assertEqual(reply["finish_reason"], "tool_calls", reply)
        self.check_call(reply["message"]["tool_calls"][0])

    def test_none_and_no_tools(self):
        for fields in ({"tool_choice": "none"}, {"tools": []}, {"tools": None, "tool_choice": "auto"}):
            reply = self.chat(max_tokens=4, **fields)["choices"][0]
            self.assertNotIn("tool_calls", reply["message"])
            self.assertIsInstance(reply["message"]["content"], str)

    def test_with_a_schema_for_the_answer(self):
        schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
        reply = self.chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
                          parallel_tool_calls=False)["choices"][0]
        if reply["finish_reason"] == "tool_calls":
            self.check_call(reply["message"]["tool_calls"][0])
        else:
            self.assertIn("x", json.loads(reply["message"]["content"]))

    def test_several_choices(self):
        for choice in self.chat(tool_choice="required", n=3, temperature=1.2, seed=5, parallel_tool_calls=False)["choices"]:
            self.check_call(choice["message"]["tool_calls"][0])
        fields = {"tool_choice": "required", "n": 2, "temperature": 1.2, "seed": 5, "stream_options": {"include_usage": True}}
        whole = self.chat(**{key: value for key, value in fields.items() if key != "stream_options"})
        *chunks, last = self.server.stream("/v1/chat/completions", {**CHAT, **fields}).chunks()
        for choice in whole["choices"]:
            own = [{"choices": [part for part in chunk["choices"] if part["index"] == choice["index"]]} for chunk in chunks]
            said = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
            self.assertEqual(calls_of(own), said, "calls are counted by choice")
        self.assertEqual((last["choices"], last["usage"]["completion_tokens"]), ([], whole["usage"]["completion_tokens"]))

    def test_messages_of_tools(self):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 1}'}}
        messages = CHAT["messages"] + [{"role": "assistant", "content": None, "tool_calls": [call]},
                                       {"role": "tool", "tool_call_id": "abcdefghi", "content": "Rain."}]
        self.chat(messages=messages, max_tokens=4)
        rendered = self.server.post("/tokenize", {"messages": messages}).json()["tokens"]
        text = self.server.post("/detokenize", {"tokens": rendered}).json()["prompt"]
        self.assertIn('<tool_call>\n{"name": "get_weather", "arguments": {"city":"Oslo","days":1}}\n</tool_call>', text)
        self.assertIn("<tool_response>\nRain.\n</tool_response>", text)

    def test_refused(self):
        def tool(**function):
            return [{"type": "function", "function": {"name": "f", **function}}]
        for fields, param in (({"tools": 5}, "tools"), ({"tools": [5]}, "tools"), ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                              ({"tools": tool(name="a b")}, "tools[0].function.name"),
                              ({"tools": tool(parameters={"type": "string"})}, "tools[0].function.parameters"),
                              ({"tools": tool(parameters={"properties": {"a": {"not": {}}}})}, "tools"),
                              ({"tools": tool() + tool()}, "tools[1].function.name"), ({"tools": tool() * 129}, "tools"),
                              ({"tool_choice": "sometimes"}, "tool_choice"), ({"tools": None, "tool_choice": "required"}, "tool_choice"),
                              ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
                              ({"regex": "a+"}, "tools"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
                              ({"functions": [{"name": "f"}]}, "functions")):
            with self.subTest(str(fields)[:80]):
                reply = self.server.post("/v1/chat/completions", {**CHAT, **fields})
                self.assertEqual((reply.status, reply.error["param"]), (400, param), reply.text)


class TemplateWithTools(unittest.TestCase):
    def test_the_template_gets_tools_and_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model"
            shutil.copytree(bamtest.checkpoint(), model)
            config = json.loads((model / "tokenizer_config.json").read_text())
            config["chat_template"] = KNOWS_TOOLS
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            with bamtest.running_server(model=str(model)) as server:
                call = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
                messages = CHAT["messages"] + [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "pong"}]
                reply = server.post("/v1/chat/completions", {**CHAT, "messages": messages, "max_tokens": 1, "return_token_ids": True}).json()
                text = server.post("/detokenize", {"tokens": reply["prompt_token_ids"]}).json()["prompt"]
                self.assertEqual(text.strip(), "TOOLS: get_weather ping;<user>What is the weather like?<assistant>CALL ping {}<tool>pong")


if __name__ == "__main__":
    bamtest.main()

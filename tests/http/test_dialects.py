#!/usr/bin/env python3
"""The APIs beside completions and chat: OpenAI's responses, Anthropic's messages, Ollama's /api, llama.cpp's /completion. Each says what
chat says, in one piece as in a stream, with tools and schemas, and its errors have its own shape."""

import base64
import json
import struct
import threading
import unittest

import bamtest

WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
FLAG = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
HELLO = [{"role": "user", "content": "Hello"}]


def named_events(stream):
    """(event, data) of a stream whose events have names."""
    found = []
    for event in stream.events():
        if event.startswith(": "):
            continue
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert found[-1][0] == found[-1][1]["type"], event
    return found


class Dialect(bamtest.ServerTest):
    def ask(self, path, body, status=200):
        reply = self.server.post(path, body)
        self.assertEqual(reply.status, status, reply.text)
        return reply.json()

    def chat_text(self, messages, **fields):
        reply = self.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 12, **fields})
        return reply["choices"][0]["message"]["content"]

    def check_arguments(self, arguments):
        self.assertEqual(list(arguments), ["city", "days"])
        self.assertIn(arguments["city"], ("Oslo", "Rome"))


class Responses(Dialect):
    def create(self, status=200, **fields):
        return self.ask("/v1/responses", {"input": "Hello", "temperature": 0, "max_output_tokens": 12, **fields}, status)

    def text(self, response):
        return response["output"][0]["content"][0]["text"]

    def test_says_what_chat_says(self):
        reply = self.create()
        self.assertEqual((reply["object"], reply["error"]), ("response", None))
        self.assertEqual(self.text(reply), self.chat_text(HELLO))
        self.assertEqual(reply["usage"]["output_tokens"], 12 if reply["status"] == "incomplete" else reply["usage"]["output_tokens"])
        if reply["status"] == "incomplete":
            self.assertEqual(reply["incomplete_details"], {"reason": "max_output_tokens"})
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]}]
        self.assertEqual(self.text(self.create(input=items)), self.text(reply))
        told = self.create(instructions="Be brief.")
        self.assertEqual(self.text(told), self.chat_text([{"role": "system", "content": "Be brief."}] + HELLO))

    def test_stream(self):
        whole = self.create(store=False)
        events = named_events(self.server.stream("/v1/responses", {"input": "Hello", "temperature": 0, "max_output_tokens": 12}))
        names = [name for name, _ in events]
        self.assertEqual(names[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(names[-4:-1], ["response.output_text.done", "response.content_part.done", "response.output_item.done"])
        self.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
        said = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
        self.assertEqual(said, self.text(whole))
        self.assertEqual(names[-1], "response." + whole["status"])
        last = events[-1][1]["response"]
        self.assertEqual(self.text(last), said)
        self.assertEqual(last["usage"]["output_tokens"], whole["usage"]["output_tokens"])
        self.assertEqual(self.server.get(f"/v1/responses/{last['id']}").json(), last, "it is stored as it was told")

    def test_stored(self):
        reply = self.create()
        path = f"/v1/responses/{reply['id']}"
        self.assertEqual(self.server.get(path).json(), reply)
        items = self.server.get(path + "/input_items").json()["data"]
        self.assertEqual(items[0]["content"], [{"type": "input_text", "text": "Hello"}])
        self.assertEqual(self.server.request("DELETE", path).json(), {"id": reply["id"], "object": "response", "deleted": True})
        for method in ("GET", "DELETE"):
            self.assertEqual(self.server.request(method, path).status, 404)
        self.assertEqual(self.server.request("PUT", path).headers["allow"], "GET, HEAD, DELETE, OPTIONS")
        self.assertEqual(self.server.get(f"/v1/responses/{self.create(store=False)['id']}").status, 404)
        kept = self.create()
        path = f"/v1/responses/{kept['id']}"
        self.assertEqual(self.server.post(path + "/cancel", b"").json(), kept, "it is complete and stays so")
        self.assertEqual(self.server.get(path + "?stream=true").error["param"], "stream")
        self.assertEqual(self.server.post("/v1/responses/resp_unknown/cancel", b"").status, 404)

    def test_cancelled(self):
        endless = {"input": "Hello", "max_output_tokens": 100000, "ignore_eos": True, "request_id": "endless"}
        stream = self.server.stream("/v1/responses", endless)
        self.assertIn("response.created", stream.next_event())
        for other in ("endless", "resp_other"):
            self.assertEqual(self.server.post(f"/v1/responses/{other}/cancel", b"").status, 404)
        cancelled = self.server.post("/v1/responses/resp_endless/cancel", b"").json()
        self.assertEqual((cancelled["id"], cancelled["status"]), ("resp_endless", "cancelled"))
        name, last = named_events(stream)[-1]
        self.assertEqual((name, last["response"]["status"]), ("response.incomplete", "cancelled"))
        self.assertEqual(self.server.get("/v1/responses/resp_endless").json(), last["response"])

    def test_previous_response_goes_on_from_the_cache(self):
        text = "The quick brown fox jumps over the lazy dog. " * 12
        first = self.create(input=text)
        second = self.create(input="And then?", previous_response_id=first["id"])
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": self.text(first)},
                    {"role": "user", "content": "And then?"}]
        self.assertEqual(self.text(second), self.chat_text(messages))
        self.assertGreaterEqual(second["usage"]["input_tokens_details"]["cached_tokens"], 64, "what was read is not read again")
        third = self.create(previous_response_id=second["id"], input="Go on.")
        self.assertGreater(third["usage"]["input_tokens"], second["usage"]["input_tokens"])
        deleted = self.server.request("DELETE", f"/v1/responses/{second['id']}")
        self.assertEqual(deleted.status, 200)
        for gone in ("resp_unknown", second["id"]):  # OpenAI's status, code and words, which clients look for
            error = self.create(400, previous_response_id=gone)["error"]
            self.assertEqual((error["code"], error["param"]), ("previous_response_not_found", "previous_response_id"))
            self.assertEqual(error["message"], f"Previous response with id '{gone}' not found.")
        self.assertEqual(self.server.get(f"/v1/responses/{third['id']}").status, 200, "what went on from it stays")

    def test_input_items_in_pages(self):
        items = [{"role": "user", "content": str(i)} for i in range(3)]
        path = f"/v1/responses/{self.create(input=items)['id']}/input_items"
        said = [item["content"][0]["text"] for item in self.server.get(path + "?order=asc").json()["data"]]
        self.assertEqual(said, ["0", "1", "2"])
        page = self.server.get(path + "?limit=2").json()
        self.assertEqual(([item["content"][0]["text"] for item in page["data"]], page["has_more"]), (["2", "1"], True))
        rest = self.server.get(f"{path}?limit=2&after={page['last_id']}").json()
        self.assertEqual(([item["content"][0]["text"] for item in rest["data"]], rest["has_more"]), (["0"], False))

    def test_schema_and_tools(self):
        schema = self.create(text={"format": {"type": "json_schema", "name": "flag", "schema": FLAG}}, max_output_tokens=60)
        self.assertIn("x", json.loads(self.text(schema)))
        tool = {"type": "function", "name": "get_weather", "parameters": WEATHER}
        fields = {"tools": [tool], "tool_choice": {"type": "function", "name": "get_weather"}, "parallel_tool_calls": False,
                  "max_output_tokens": 200}
        reply = self.create(**fields)
        call = reply["output"][0]
        self.assertEqual((call["type"], call["name"], reply["status"]), ("function_call", "get_weather", "completed"))
        self.check_arguments(json.loads(call["arguments"]))
        events = named_events(self.server.stream("/v1/responses", {"input": "Hello", "temperature": 0, **fields}))
        said = "".join(data["delta"] for name, data in events if name == "response.function_call_arguments.delta")
        self.assertEqual(said, call["arguments"])
        done = next(data for name, data in events if name == "response.function_call_arguments.done")
        self.assertEqual(done["arguments"], said)
        answer = [{"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny."}]
        self.create(previous_response_id=reply["id"], input=answer)
        self.create(input=[{"role": "user", "content": "Hello"}, call, *answer])

    def test_logprobs(self):
        wish = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        part = self.create(**wish)["output"][0]["content"][0]
        self.assertEqual([len(token["top_logprobs"]) for token in part["logprobs"]], [2] * 12)
        self.assertEqual(part["logprobs"][0]["logprob"], part["logprobs"][0]["top_logprobs"][0]["logprob"], "it is greedy")
        events = named_events(self.server.stream("/v1/responses", {"input": "Hello", "temperature": 0, "max_output_tokens": 12, **wish}))
        deltas = [data["logprobs"] for name, data in events if name == "response.output_text.delta"]
        self.assertEqual(sum(deltas, []), part["logprobs"])
        self.assertEqual(events[-1][1]["response"]["output"][0]["content"][0]["logprobs"], part["logprobs"])
        self.assertEqual(self.create(top_logprobs=2)["output"][0]["content"][0]["logprobs"], [], "not included")

    def test_refused(self):
        for fields, param in (({"input": []}, "input"), ({"input": 5}, "input"), ({"input": [{"type": "image"}]}, "input[0]"),
                              ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"), ({"background": True}, "background"),
                              ({"max_output_tokens": 0}, "max_output_tokens"), ({"text": 5}, "text"), ({"store": 1}, "store"),
                              ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"instructions": 5}, "instructions"),
                              ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"messages": HELLO}, "messages"), ({"user": 5}, "user"),
                              ({"metadata": {"a": 1}}, "metadata"), ({"metadata": "a"}, "metadata"), ({"truncation": "middle"}, "truncation")):
            with self.subTest(str(fields)):
                error = self.create(400, **fields)["error"]
                self.assertEqual(error["param"], param, error)


class Anthropic(Dialect):
    def create(self, status=200, **fields):
        return self.ask("/v1/messages", {"model": "test", "messages": HELLO, "temperature": 0, "max_tokens": 12, **fields}, status)

    def test_says_what_chat_says(self):
        reply = self.create()
        self.assertEqual(reply["content"], [{"type": "text", "text": self.chat_text(HELLO)}])
        self.assertIn(reply["stop_reason"], ("max_tokens", "end_turn"))
        self.assertEqual(reply["usage"]["output_tokens"] > 0, True)
        told = self.create(system=[{"type": "text", "text": "Be brief."}], messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}])
        self.assertEqual(told["content"][0]["text"], self.chat_text([{"role": "system", "content": "Be brief."}] + HELLO))

    def test_stream(self):
        whole = self.create()
        events = named_events(self.server.stream("/v1/messages", {"messages": HELLO, "temperature": 0, "max_tokens": 12}))
        names = [name for name, _ in events]
        self.assertEqual(names[:2], ["message_start", "content_block_start"])
        self.assertEqual(names[-3:], ["content_block_stop", "message_delta", "message_stop"])
        said = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
        self.assertEqual(said, whole["content"][0]["text"])
        delta = events[-2][1]
        self.assertEqual((delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]), (whole["stop_reason"], whole["usage"]["output_tokens"]))

    def test_stop_sequence(self):
        text = self.create()["content"][0]["text"]
        stop = text[3:6]
        reply = self.create(stop_sequences=[stop])
        self.assertEqual((reply["stop_reason"], reply["stop_sequence"]), ("stop_sequence", stop))
        self.assertEqual(reply["content"][0]["text"], text[:text.index(stop)])

    def test_tools(self):
        tool = {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER}
        fields = {"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200}
        reply = self.create(**fields)
        block = reply["content"][0]
        self.assertEqual((block["type"], block["name"], reply["stop_reason"], len(reply["content"])), ("tool_use", "get_weather", "tool_use", 1))
        self.check_arguments(block["input"])
        events = named_events(self.server.stream("/v1/messages", {"messages": HELLO, "temperature": 0, **fields}))
        said = "".join(data["delta"]["partial_json"] for name, data in events if name == "content_block_delta")
        self.assertEqual(json.loads(said), block["input"])
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "Sunny."}]}
        self.create(messages=HELLO + [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}], tools=[tool])
        named = self.create(tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=200)
        self.assertEqual(named["content"][0]["type"], "tool_use")

    def test_its_clients_find_the_request_id(self):
        reply = self.server.post("/v1/messages", {"messages": HELLO, "max_tokens": 1}, headers={"anthropic-version": "2023-06-01"})
        self.assertEqual(reply.headers["request-id"], reply.headers["x-request-id"])

    def test_count_tokens(self):
        count = self.ask("/v1/messages/count_tokens", {"model": "test", "messages": HELLO})["input_tokens"]
        usage = self.create()["usage"]
        self.assertEqual(count, usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_errors_have_its_shape(self):
        for fields, status, kind in (({"max_tokens": -1}, 400, "invalid_request_error"), ({"model": "other"}, 404, "not_found_error"),
                                     ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error"),
                                     ({"stop_sequences": [""]}, 400, "invalid_request_error"),
                                     ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error"),
                                     ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "invalid_request_error")):
            error = self.create(status, **fields)
            self.assertEqual((error["type"], error["error"]["type"]), ("error", kind), error)
        self.assertIn("stop_sequences", self.create(400, stop_sequences=[""])["error"]["message"])
        for fields in ({}, {"max_tokens": None}):
            self.assertEqual(self.server.post("/v1/messages", {"messages": HELLO, **fields}).status, 400, "max_tokens is required")
        self.ask("/v1/messages/count_tokens", {"model": "other", "messages": HELLO}, 404)
        for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/v1/messages/batches", 404), ("POST", "/messages/x/y", 404)):
            refused = self.server.request(method, path)
            self.assertEqual((refused.status, refused.json()["type"]), (status, "error"), path)


class Ollama(Dialect):
    def lines(self, path, body):
        reply = self.server.post(path, body)
        self.assertEqual(reply.status, 200, reply.text)
        self.assertEqual(reply.headers["content-type"], "application/x-ndjson")
        return [json.loads(line) for line in reply.text.splitlines()]

    def test_chat(self):
        body = {"model": "test:latest", "messages": HELLO, "options": {"temperature": 0, "num_predict": 12, "num_ctx": 4096}}
        whole = self.ask("/api/chat", {**body, "stream": False})
        self.assertEqual(whole["message"], {"role": "assistant", "content": self.chat_text(HELLO)})
        self.assertTrue(whole["done"] and whole["eval_count"] and whole["prompt_eval_count"] and whole["total_duration"])
        lines = self.lines("/api/chat", body)  # a stream unless it is told otherwise
        self.assertEqual("".join(line["message"]["content"] for line in lines), whole["message"]["content"])
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual(lines[-1]["done_reason"], whole["done_reason"])

    def test_generate(self):
        options = {"temperature": 0, "num_predict": 12}
        whole = self.ask("/api/generate", {"model": "test", "prompt": "Hello", "options": options, "stream": False})
        self.assertEqual(whole["response"], self.chat_text(HELLO))
        raw = self.lines("/api/generate", {"model": "test", "prompt": "The grass is", "raw": True, "options": options})
        plain = self.server.complete(max_tokens=12).json()["choices"][0]["text"]
        self.assertEqual("".join(line["response"] for line in raw), plain)
        self.assertEqual(self.ask("/api/generate", {"model": "test"})["done_reason"], "load")
        for keep_alive, reason in ((0, "unload"), ("0", "unload"), ("0s", "unload"), (-1, "load"), ("-1m", "load"), ("10m", "load"), (None, "load")):
            self.assertEqual(self.ask("/api/generate", {"model": "test", "keep_alive": keep_alive})["done_reason"], reason)

    def test_no_limit(self):
        for count in (0, -1, -2):  # each means that there is none
            reply = self.server.post("/api/generate", {"model": "test", "prompt": "x", "raw": True, "stream": False, "options": {
                "num_predict": count, "stop": ["e"], "temperature": 0}})
            self.assertEqual(reply.json()["done_reason"], "stop", reply.text)

    def test_durations_are_of_the_prompt_and_of_the_answer(self):
        options = {"temperature": 0, "num_predict": 60, "stop": ["no such text"]}
        whole = self.ask("/api/generate", {"model": "test", "prompt": "Hello", "options": options, "stream": False})
        self.assertGreater(whole["eval_duration"], 0, "clients divide by it")
        self.assertLessEqual(whole["prompt_eval_duration"] + whole["eval_duration"], whole["total_duration"])

    def test_logprobs(self):
        options = {"temperature": 0, "num_predict": 6}
        for path, prompt in (("/api/generate", {"prompt": "Hello"}), ("/api/generate", {"prompt": "Hello", "raw": True}),
                             ("/api/chat", {"messages": HELLO})):
            body = {"model": "test", "options": options, "logprobs": True, "top_logprobs": 2, **prompt}
            whole = self.ask(path, {**body, "stream": False})["logprobs"]
            self.assertEqual([len(token["top_logprobs"]) for token in whole], [2] * 6)
            self.assertEqual(sum((line.get("logprobs", []) for line in self.lines(path, body)), []), whole)
            self.assertNotIn("logprobs", self.ask(path, {**body, "logprobs": False, "stream": False}))

    def test_format_and_tools(self):
        body = {"model": "test", "messages": HELLO, "stream": False, "options": {"temperature": 0, "num_predict": 200}}
        self.assertIn("x", json.loads(self.ask("/api/chat", {**body, "format": FLAG})["message"]["content"]))
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
        forced = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        calls = self.ask("/api/chat", {**body, **forced})["message"]["tool_calls"]
        self.check_arguments(calls[0]["function"]["arguments"])
        lines = self.lines("/api/chat", {**body, **forced, "stream": True})
        self.assertEqual([line["message"].get("tool_calls") for line in lines if line["message"].get("tool_calls")], [calls])
        self.ask("/api/chat", {**body, "tools": [tool], "messages": HELLO + [
            {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "tool_name": "get_weather", "content": "Sunny."}]})

    def test_what_is_served(self):
        self.assertEqual(self.server.get("/api/tags").json()["models"][0]["name"], "test")
        self.assertEqual(self.server.get("/api/ps").json()["models"][0]["name"], "test")
        shown = self.ask("/api/show", {"model": "test:latest"})
        self.assertEqual(shown["details"]["family"], "bam")
        self.assertIn("tools", shown["capabilities"])
        self.assertEqual(self.server.get("/api/version").json()["version"], self.server.get("/version").json()["version"])

    def test_errors_have_its_shape(self):
        for path, body, status in (("/api/chat", {"model": "other", "messages": HELLO}, 404), ("/api/show", {"model": "other"}, 404),
                                   ("/api/chat", {"model": "test", "messages": HELLO, "options": {"temperature": -1}}, 400),
                                   ("/api/chat", {"model": "test", "messages": HELLO, "options": {"num_predict": "x"}}, 400),
                                   ("/api/chat", {"model": "test", "messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400),
                                   ("/api/chat", {"model": "other"}, 404), ("/api/generate", {"model": "other"}, 404),
                                   ("/api/generate", {"model": "test", "prompt": "x", "raw": "yes"}, 400),
                                   ("/api/generate", {"model": "test", "prompt": "x", "system": 5}, 400),
                                   ("/api/generate", {"model": "test", "prompt": "x", "messages": HELLO}, 400),
                                   ("/api/generate", {"model": "test", "prompt": "x", "suffix": "y"}, 400),
                                   ("/api/generate", {"model": "test", "prompt": "x", "think": True}, 400)):
            error = self.ask(path, body, status)
            self.assertEqual(list(error), ["error"])
            self.assertIsInstance(error["error"], str)
        for method, path, status in (("POST", "/api/pull", 404), ("GET", "/api/chat", 405), ("DELETE", "/api/delete", 404)):
            refused = self.server.request(method, path)
            self.assertEqual((refused.status, type(refused.json()["error"])), (status, str), path)


class LlamaCpp(Dialect):
    def test_completion(self):
        body = {"prompt": "The grass is", "temperature": 0, "n_predict": 12, "cache_prompt": True, "return_tokens": True, "n_probs": 2}
        whole = self.ask("/completion", body)
        plain = self.server.complete(max_tokens=12, return_token_ids=True).json()["choices"][0]
        self.assertEqual((whole["content"], whole["tokens"]), (plain["text"], plain["token_ids"]))
        self.assertEqual(whole["stop_type"], "limit" if plain["finish_reason"] == "length" else "eos")
        self.assertEqual(len(whole["completion_probabilities"]), len(whole["tokens"]))
        self.assertGreater(whole["timings"]["predicted_ms"], 0)
        self.assertEqual(len(whole["completion_probabilities"][0]["top_logprobs"]), 2)
        events = [json.loads(event[6:]) for event in self.server.stream("/completion", body).events() if event.startswith("data: ")]
        self.assertEqual("".join(event["content"] for event in events), whole["content"])
        self.assertEqual([event["stop"] for event in events], [False] * (len(events) - 1) + [True])
        self.assertEqual(sum((event["tokens"] for event in events), []), whole["tokens"])

    def test_nothing_to_predict_reads_the_prompt(self):
        prompt = "The grass is green. " * 40
        for stream in (False, True):
            if stream:
                reply = [json.loads(event[6:]) for event in self.server.stream("/completion", {"prompt": prompt, "n_predict": 0}).events()][-1]
            else:
                reply = self.ask("/completion", {"prompt": prompt, "n_predict": 0})
            self.assertEqual((reply["content"], reply["tokens_predicted"], reply["stop_type"]), ("", 0, "limit"))
        self.assertGreater(self.ask("/completion", {"prompt": prompt, "n_predict": 1})["tokens_cached"], 0)

    def test_stop_words_and_constraints(self):
        text = self.ask("/completion", {"prompt": "The grass is", "temperature": 0, "n_predict": 12})["content"]
        reply = self.ask("/completion", {"prompt": "The grass is", "temperature": 0, "n_predict": 12, "stop": [text[4:6]]})
        self.assertEqual((reply["stop_type"], reply["stopping_word"]), ("word", text[4:6]))
        self.assertIn("x", json.loads(self.ask("/completion", {"prompt": "x", "n_predict": 60, "json_schema": FLAG})["content"]))
        self.assertEqual(self.ask("/completion", {"prompt": ["The", 300, " grass"], "n_predict": 1})["tokens_predicted"], 1)
        self.assertEqual(self.ask("/completion", {"prompt": "x", "n_predict": "many"}, 400)["error"]["param"], "n_predict")

    def test_apply_template(self):
        prompt = self.ask("/apply-template", {"messages": HELLO})["prompt"]
        tokens = self.ask("/tokenize", {"messages": HELLO})["tokens"]
        self.assertIn("Hello", prompt)
        self.assertGreater(len(tokens), 1)


class Embeddings(Dialect):
    TEXTS = ["The grass is green.", "The sky is blue. " * 40, "x"]

    def embed(self, status=200, **fields):
        return self.ask("/v1/embeddings", {"input": self.TEXTS, **fields}, status)

    def vectors(self, **fields):
        return [entry["embedding"] for entry in self.embed(**fields)["data"]]

    def test_unit_vectors_that_depend_on_their_text_alone(self):
        together = self.vectors()
        self.assertEqual(len({tuple(vector) for vector in together}), 3)
        for vector in together:
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)
        self.assertEqual([self.vectors(input=text)[0] for text in self.TEXTS], together, "not on the batch")
        ids = self.ask("/tokenize", {"prompt": self.TEXTS[0]})["tokens"]
        self.assertEqual(self.vectors(input=ids), together[:1])
        usage = self.embed(input=ids)["usage"]
        self.assertEqual(usage, {"prompt_tokens": len(ids), "total_tokens": len(ids)})

    def test_pooling(self):
        last = self.vectors(pooling="last")
        self.assertNotEqual(last, self.vectors())
        self.assertEqual(last, self.vectors(pooling="last"), "with what the prefix cache has")
        ids = self.ask("/tokenize", {"prompt": self.TEXTS[0]})["tokens"]
        self.assertEqual(self.vectors(input=ids[:1], pooling="last"), self.vectors(input=ids[:1]), "one token has one row")

    def test_dimensions_and_base64(self):
        whole = self.vectors()[0]
        short = self.vectors(dimensions=8)[0]
        self.assertEqual(len(short), 8)
        scale = sum(x * x for x in whole[:8]) ** 0.5
        for x, y in zip(short, whole):
            self.assertAlmostEqual(x, y / scale, places=5)
        packed = base64.b64decode(self.vectors(encoding_format="base64")[0])
        self.assertEqual(list(struct.unpack(f"<{len(whole)}f", packed)), [struct.unpack("<f", struct.pack("<f", x))[0] for x in whole])

    def test_ollama(self):
        reply = self.ask("/api/embed", {"model": "test", "input": self.TEXTS})
        self.assertEqual(reply["embeddings"], self.vectors())
        self.assertEqual(self.ask("/api/embeddings", {"model": "test", "prompt": self.TEXTS[0]}), {"embedding": self.vectors()[0]})
        self.assertEqual(self.ask("/api/embed", {"model": "test", "input": []})["embeddings"], [], "it loads the model")
        self.assertEqual(self.ask("/api/embeddings", {"model": "test", "prompt": ""}), {"embedding": []})
        for body in ({"model": "test"}, {"model": "test", "prompt": 5}, {"model": "test", "prompt": ["a"]}):
            self.assertIn("'prompt'", self.ask("/api/embeddings", body, 400)["error"])

    def test_cancelled(self):
        """A vector is whole or not there."""
        for path, name in (("/v1/embeddings", "input"), ("/api/embed", "input")):
            body = {"model": "test", name: "x", "dimensions": 4, "request_id": "cancelled"}
            blocker = self.server.stream("/v1/completions", {"prompt": [5 + i % 300 for i in range(60_000)]})
            self.wait_for(lambda: self.server.live(), "a long prompt is read")
            replies = []
            asking = threading.Thread(target=lambda: replies.append(self.server.post(path, {**body, name: "long " * 40_000})))
            asking.start()
            self.wait_for(lambda: self.server.post("/v1/requests/cancelled/cancel", {}).status == 200, "it is cancelled")
            asking.join()
            blocker.reset()
            self.assertEqual((replies[0].status, replies[0].headers["x-should-retry"]), (503, "false"), replies[0].text)
            self.assertIn("cancelled", replies[0].text)

    def test_refused(self):
        for fields, param in (({"input": None}, "input"), ({"input": []}, "input"), ({"dimensions": 0}, "dimensions"), ({"dimensions": 10 ** 6}, "dimensions"),
                              ({"encoding_format": "int8"}, "encoding_format"), ({"pooling": "max"}, "pooling"), ({"input": 5}, "input")):
            self.assertEqual(self.embed(400, **fields)["error"]["param"], param)


class Keys(unittest.TestCase):
    def test_refusals_have_the_shape_of_the_route(self):
        with bamtest.running_server("--api-key", "right") as server:
            self.assertEqual(server.post("/v1/messages", {}).json()["error"]["type"], "authentication_error")
            self.assertEqual(server.post("/v1/messages", {"messages": HELLO, "max_tokens": 1}, headers={"X-API-Key": "right"}).status, 200)
            self.assertIsInstance(server.post("/api/chat", {}).json()["error"], str)
            self.assertEqual(server.post("/v1/responses", {}).json()["error"]["code"], "invalid_api_key")


if __name__ == "__main__":
    bamtest.main()

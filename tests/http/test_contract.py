#!/usr/bin/env python3
"""The contract of the HTTP side, sentence by sentence and in its order: 2 (endpoints, request fields, replies, streaming, errors,
health, metrics) and 3 (operations). Each check is small; the suites beside this one go deeper."""

import json
import pathlib
import re
import signal
import unittest

import bamtest

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
LONG = {"prompt": "The grass is", "max_tokens": 1500, "ignore_eos": True}

# Every endpoint: method, path, body, and a field of its reply.
ENDPOINTS = [
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, "choices"),
    ("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}, "choices"),
    ("POST", "/v1/responses", {"input": "x", "max_output_tokens": 1}, "output"),
    ("POST", "/v1/messages", {**CHAT, "max_tokens": 1}, "content"),
    ("POST", "/v1/messages/count_tokens", CHAT, "input_tokens"),
    ("POST", "/v1/embeddings", {"input": "x"}, "data"),
    ("POST", "/api/chat", {**CHAT, "stream": False, "options": {"num_predict": 1}}, "message"),
    ("POST", "/api/generate", {"prompt": "x", "stream": False, "options": {"num_predict": 1}}, "response"),
    ("POST", "/api/embed", {"input": "x"}, "embeddings"),
    ("POST", "/api/embeddings", {"prompt": "x"}, "embedding"),
    ("POST", "/api/show", {"model": "test"}, "details"),
    ("GET", "/api/tags", None, "models"),
    ("GET", "/api/ps", None, "models"),
    ("GET", "/api/version", None, "version"),
    ("POST", "/completion", {"prompt": "x", "n_predict": 1}, "content"),
    ("POST", "/apply-template", CHAT, "prompt"),
    ("POST", "/tokenize", {"prompt": "x"}, "tokens"),
    ("POST", "/detokenize", {"tokens": [5]}, "prompt"),
    ("POST", "/v1/selftest/passkey", {"length": 256, "depths": [0.5]}, None),
    ("GET", "/v1/models", None, "data"),
    ("GET", "/v1/models/test", None, "id"),
    ("GET", "/health", None, "status"),
    ("GET", "/livez", None, "status"),
    ("GET", "/readyz", None, "status"),
    ("GET", "/metrics", None, None),
    ("GET", "/version", None, "version"),
    ("GET", "/props", None, "config"),
    ("GET", "/slots", None, None),
    ("GET", "/v1/requests", None, "data"),
    ("GET", "/v1/prior", None, None),
    ("GET", "/tokenizer_info", None, None),
    ("GET", "/openapi.json", None, "paths"),
    ("GET", "/", None, None),
    # The OpenAI routes without the prefix.
    ("POST", "/completions", {"prompt": "x", "max_tokens": 1}, "choices"),
    ("POST", "/chat/completions", {**CHAT, "max_tokens": 1}, "choices"),
    ("GET", "/models", None, "data"),
    ("GET", "/models/test", None, "id"),
]

NO_NUMBER = ["1", True, [], {}]
NO_INTEGER = NO_NUMBER + [1.5, 1e300]

# Field of a completion: values that are taken, values that are refused with 400 and the field as `param`.
FIELDS = {
    "prompt": (["x", ["x", "y"], [5, 6], [[5, 6], [7]]], [5, {}, [], [[]], [-1], [1.5], [10 ** 9], [["x"]], ["x", 5], [True]]),
    "max_tokens": ([1, 2.0], NO_INTEGER + [-1, 0]),
    "max_completion_tokens": ([1], NO_INTEGER + [-1]),
    "temperature": ([0, 0.5, 2], NO_NUMBER + [-0.1, 1e9]),
    "top_p": ([0.1, 1], NO_NUMBER + [0, -1, 1.1]),
    "top_k": ([0, -1, 1, 50], NO_INTEGER + [-2]),
    "min_p": ([0, 0.5], NO_NUMBER + [-0.1, 1, 2]),
    "seed": ([0, -5, 2 ** 62], NO_INTEGER),
    "n": ([1, 2], NO_INTEGER + [0, -1, 17]),
    "best_of": ([1], NO_INTEGER + [2, 17]),
    "stop": (["x", ["x", "y"], [str(i) for i in range(16)], []], [5, {}, [5], "", [""], [str(i) for i in range(17)], "x" * 2000]),
    "stop_token_ids": ([[5], []], [5, "x", [-1], ["5"], [1.5], [10 ** 9], [1] * 300]),
    "include_stop_str_in_output": ([True, False], [1, "true", []]),
    "logit_bias": ([{"5": 1}, [[5, -1.5]], {}, {"grass": 1}, [["grass", False]]],
                   [5, "x", {"": 1}, {"5": "1"}, {"5": 101}, {"-1": 1}, [[5]], [5], {"999999999": 1}, [[5, 1]] * 1025]),
    "presence_penalty": ([-2, 2], NO_NUMBER + [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2], NO_NUMBER + [-2.1, 2.1]),
    "repetition_penalty": ([0.5, 2], NO_NUMBER + [0, -1, 1e9]),
    "repeat_penalty": ([0.5, 2], NO_NUMBER + [0, -1]),
    "ignore_eos": ([True, False], [1, "x"]),
    "min_tokens": ([0, 1], NO_INTEGER + [-1]),
    "logprobs": ([0, 1, 20], NO_INTEGER + [-1, 21]),
    "prompt_logprobs": ([0, 20], NO_INTEGER + [-1, 21]),
    "echo": ([True, False], [1, "x"]),
    "stream": ([False], [1, "x"]),
    "response_format": ([{"type": "text"}, {"type": "json_object"},
                         {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer"}}}],
                        [5, "json_object"]),
    "regex": (["[0-9]+"], [5, "(", "x" * 9000, r"(a)\1"]),
    "choice": ([["yes", "no"]], ["yes", [], [5], [""]]),
    "return_token_ids": ([True], [1]),
    "return_progress": ([True], [1]),
    "resumable": ([False], [1, "x", True]),
    "priority": ([-5, 0, 5], NO_INTEGER + [2 ** 40]),
    "cache_salt": (["pepper"], [5, "x" * 300]),
    "request_id": (["contract-1"], [5, "", "a b", "x" * 200]),
    "timeout": ([60, 0.5e2], NO_NUMBER + [0, -1]),
    "truncate_prompt_tokens": ([-1, 3], NO_INTEGER + [0, -2]),
    "add_special_tokens": ([True, False], [1]),
}

# The same of nested fields and of chat: (path, whole body, param).
REFUSED = [
    ("/v1/completions", {"prompt": "x", "stream": True, "stream_options": 5}, "stream_options"),
    ("/v1/completions", {"prompt": "x", "stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ("/v1/completions", {"prompt": "x", "stream": True, "stream_options": {"continuous_usage_stats": 1}},
     "stream_options.continuous_usage_stats"),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
    ("/v1/completions", {"prompt": "x", "response_format": {"type": "xml"}}, "response_format.type"),
    ("/v1/completions", {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {
        "schema": {"type": "string", "pattern": "x" * 70000}}}}, "response_format.json_schema"),
    ("/v1/completions", {"prompt": "x", "regex": "a", "choice": ["b"]}, "choice"),
    ("/v1/completions", {"prompt": ["x"] * 1025}, "prompt"),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
    ("/v1/completions", {}, "prompt"),
    ("/v1/chat/completions", {}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": "Hello"}, "messages"),
    ("/v1/chat/completions", {**CHAT, "logprobs": 1}, "logprobs"),
    ("/v1/chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs"),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools[0].function"),
]

VLLM_METRICS = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total", "generation_tokens_total",
                "request_success_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"]
VLLM_HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
                   "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                   "request_prompt_tokens", "request_generation_tokens"]


# What the Grafana boards that come with vLLM read (grafana.json, performance_statistics.json, query_statistics.json).
VLLM_BOARDS = {"vllm:" + name for name in (
    "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_count", "e2e_request_latency_seconds_sum", "generation_tokens_total",
    "gpu_cache_usage_perc", "inter_token_latency_seconds_bucket", "inter_token_latency_seconds_count", "inter_token_latency_seconds_sum",
    "iteration_tokens_total_count", "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting", "prompt_tokens_total",
    "request_decode_time_seconds_sum", "request_generation_tokens_bucket", "request_max_num_generation_tokens_sum",
    "request_prefill_time_seconds_sum", "request_prompt_tokens_bucket", "request_queue_time_seconds_sum", "request_success_total",
    "time_per_output_token_seconds_bucket", "time_per_output_token_seconds_count", "time_per_output_token_seconds_sum",
    "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_count", "time_to_first_token_seconds_sum")}


class Section2(bamtest.ServerTest):
    arguments = ("--max-body", "1MiB", "--ping-interval", "1s", *bamtest.UNREAD)

    def refused(self, reply, status, code=None, param=None):
        self.assertEqual(reply.status, status, reply.text)
        self.assertEqual(reply.headers["content-type"], "application/json")
        self.assertEqual(list(reply.json()), ["error"])
        error = reply.error
        self.assertEqual(list(error), ["message", "type", "param", "code"])
        self.assertTrue(error["message"] and error["type"])
        if code:
            self.assertEqual(error["code"], code, reply.text)
        if param:
            self.assertEqual(error["param"], param, reply.text)
        return error

    # --- endpoints ---
    def test_2_1_every_endpoint_answers(self):
        for method, path, body, field in ENDPOINTS:
            with self.subTest(path):
                reply = self.server.request(method, path, body)
                self.assertEqual(reply.status, 200, reply.text[:300])
                self.assertTrue(reply.headers["x-request-id"])
                if field:
                    self.assertIn(field, reply.json())

    def test_2_1_openapi_lists_every_endpoint(self):
        paths = self.server.get("/openapi.json").json()["paths"]
        for method, path, _, _ in ENDPOINTS[:32]:
            path = path.replace("/models/test", "/models/{id}")
            self.assertIn(method.lower(), paths[path], path)
        self.assertIn("post", paths["/v1/requests/{id}/cancel"])

    def test_2_1_live_requests_and_cancel(self):
        stream = self.server.stream("/v1/completions", {**LONG, "max_tokens": 100000, "request_id": "to-cancel"})
        stream.next_event()
        self.wait_for(lambda: self.server.get("/v1/requests").json()["data"])
        live = self.server.get("/v1/requests").json()["data"][0]
        self.assertEqual(live["id"], "cmpl-to-cancel")
        self.assertIn(live["state"], ("prefill", "decode"))
        for field in ("prompt_tokens", "processed_tokens", "generated_tokens", "eta_ms"):
            self.assertGreaterEqual(live[field], 0)
        self.assertEqual(self.server.post("/v1/requests/to-cancel/cancel", {}).json(), {"id": "cmpl-to-cancel", "cancelled": True})
        self.assertEqual(stream.chunks()[-1]["choices"][0]["finish_reason"], "abort")
        self.refused(self.server.post("/v1/requests/to-cancel/cancel", {}), 404, "request_not_found")

    # --- request fields ---
    def test_2_2_fields_are_taken(self):
        for field, (good, _) in FIELDS.items():
            for value in good:
                with self.subTest(field, value=value):
                    reply = self.server.post("/v1/completions", {"prompt": "The grass", "max_tokens": 1, **(
                        {"max_tokens": None} if field == "max_completion_tokens" else {}), field: value})
                    self.assertEqual(reply.status, 200, reply.text)
                    self.assertNotIn("x-ignored-fields", reply.headers)

    def test_2_2_fields_are_typed_and_range_checked(self):
        for field, (_, bad) in FIELDS.items():
            for value in bad:
                with self.subTest(field, value=str(value)[:60]):
                    body = {"prompt": "The grass", "max_tokens": 1, field: value}
                    self.refused(self.server.post("/v1/completions", body), 400, param=field)

    def test_2_2_nested_and_combined_fields(self):
        for path, body, param in REFUSED:
            with self.subTest(param, body=str(body)[:60]):
                self.refused(self.server.post(path, body), 400, param=param)
        self.assertIn("middle", self.server.complete(suffix="y").error["message"], "it says why")

    def test_2_2_numbers_that_json_does_not_know(self):
        for text in ("NaN", "Infinity", "-Infinity", "1e999", "0x10", "01"):
            body = '{"prompt": "x", "temperature": %s}' % text
            self.refused(self.server.post("/v1/completions", body.encode()), 400)

    def test_2_2_model(self):
        self.assertEqual(self.server.complete(model="test", max_tokens=1).status, 200)
        self.assertEqual(self.server.complete(model="", max_tokens=1).json()["model"], "test")
        self.refused(self.server.complete(model="other", max_tokens=1), 404, "model_not_found")
        self.refused(self.server.complete(model=5, max_tokens=1), 400, param="model")

    def test_2_2_max_tokens(self):
        self.assertEqual(self.server.complete(ignore_eos=True).json()["usage"]["completion_tokens"], 16)
        self.assertEqual(self.server.complete(max_tokens=0, echo=True).json()["choices"][0]["text"], "The grass is")

    def test_2_2_top_k_and_aliases(self):
        body = {"max_tokens": 12, "temperature": 1.5, "seed": 9, "ignore_eos": True}
        texts = {self.server.complete(**{**body, **extra}).json()["choices"][0]["text"] for extra in ({}, {"top_k": 0}, {"top_k": -1})}
        self.assertEqual(len(texts), 1, "0 and -1 are off")
        texts = {self.server.complete(**{**body, name: 1.7}).json()["choices"][0]["text"]
                 for name in ("repetition_penalty", "repeat_penalty")}
        self.assertEqual(len(texts), 1)

    def test_2_2_request_id(self):
        self.assertEqual(self.server.complete(max_tokens=1, request_id="mine").json()["id"], "cmpl-mine")
        reply = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "header-1"})
        self.assertEqual((reply.json()["id"], reply.headers["x-request-id"]), ("cmpl-header-1", "header-1"))

    def test_2_2_timeout(self):
        self.refused(self.server.complete(**{**LONG, "max_tokens": 100000, "timeout": 0.3}), 408, "timeout")

    def test_2_2_unknown_fields_are_named(self):
        reply = self.server.complete(max_tokens=1, user="me", zebra=1, chat_template="{{ 1 }}")
        self.assertEqual(reply.status, 200)
        self.assertEqual(reply.headers["x-ignored-fields"], "zebra, chat_template", "in the order of the request; 'user' is known")

    def test_2_2_constraints(self):
        self.assertIn(self.server.complete(choice=["yes", "no"]).json()["choices"][0]["text"], ("yes", "no"))
        self.assertRegex(self.server.complete(regex="[0-9]{4}").json()["choices"][0]["text"], "^[0-9]{4}$")
        text = self.server.complete(max_tokens=60, response_format={"type": "json_schema", "json_schema": {
            "name": "b", "schema": {"type": "boolean"}}}).json()["choices"][0]["text"]
        self.assertIn(json.loads(text), (True, False))

    # --- replies ---
    def test_2_3_completion(self):
        reply = self.server.complete(max_tokens=3, logprobs=2, echo=True, ignore_eos=True).json()
        self.assertEqual(set(reply), {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"})
        self.assertTrue(reply["id"].startswith("cmpl-"))
        self.assertEqual((reply["object"], reply["model"]), ("text_completion", "test"))
        choice = reply["choices"][0]
        self.assertEqual(set(choice), {"index", "text", "logprobs", "finish_reason", "stop_reason"})
        self.assertEqual(list(choice["logprobs"]), ["tokens", "token_logprobs", "top_logprobs", "text_offset"])
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0], "null first for an echoed prompt")
        self.assertIsNone(choice["logprobs"]["top_logprobs"][0])
        self.assertEqual(set(reply["usage"]), {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
                                               "completion_tokens_details"})
        self.assertIn("cached_tokens", reply["usage"]["prompt_tokens_details"])

    def test_2_3_chat(self):
        reply = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 3, "logprobs": True, "top_logprobs": 2,
                                                          "ignore_eos": True}).json()
        self.assertTrue(reply["id"].startswith("chatcmpl-"))
        self.assertEqual(reply["object"], "chat.completion")
        self.assertTrue(reply["system_fingerprint"])
        choice = reply["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(list(choice["logprobs"]["content"][0]), ["token", "logprob", "bytes", "top_logprobs"])
        self.assertEqual(len(choice["logprobs"]["content"][0]["top_logprobs"]), 2)
        self.assertIn("cached_tokens", reply["usage"]["prompt_tokens_details"])

    def test_2_3_stop_reason(self):
        whole = self.server.complete(max_tokens=20, ignore_eos=True).json()["choices"][0]["text"]
        stop = whole[4:7]
        choice = self.server.complete(max_tokens=20, ignore_eos=True, stop=stop).json()["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))
        self.assertEqual(choice["text"], whole[:whole.index(stop)])

    # --- streaming ---
    def test_2_4_chat_stream(self):
        body = {**CHAT, "max_tokens": 3, "ignore_eos": True}
        chunks = self.server.stream("/v1/chat/completions", body).chunks()  # ends with [DONE]
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertTrue(all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1]))
        self.assertEqual((chunks[-1]["choices"][0]["delta"], chunks[-1]["choices"][0]["finish_reason"]), ({}, "length"))
        self.assertTrue(all("usage" not in chunk for chunk in chunks), "only when asked")
        chunks = self.server.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).chunks()
        self.assertEqual((chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]), ([], 3))

    def test_2_4_early_errors_are_plain_http(self):
        for body, status in (({"prompt": "x", "n": 99}, 400), ({"prompt": "x", "model": "other"}, 404)):
            stream = self.server.stream("/v1/completions", body)
            self.assertEqual((stream.status, stream.headers["content-type"]), (status, "application/json"))

    def test_2_4_late_errors_are_events_and_done_follows(self):
        events = list(self.server.stream("/v1/completions", {**LONG, "max_tokens": 100000, "timeout": 0.3}).events())
        self.assertEqual(json.loads(events[-2].removeprefix("data: "))["error"]["code"], "timeout")
        self.assertEqual(events[-1], "data: [DONE]")

    def test_2_4_pings_and_no_other_lines(self):
        stream = self.server.stream("/v1/completions", {**LONG, "max_tokens": 100000})
        while stream.next_event() != ": ping":
            pass
        stream.close()
        self.server.wait_idle()
        for line in stream.raw.decode().splitlines():
            self.assertTrue(line == "" or line == ": ping" or line.startswith("data: "), line)

    def test_2_4_progress(self):
        body = {"prompt": [3 + i % 300 for i in range(3000)], "max_tokens": 1, "return_progress": True, "cache_salt": "progress"}
        progress = [chunk for chunk in self.server.stream("/v1/completions", body).chunks() if "prompt_progress" in chunk]
        self.assertTrue(progress)
        for chunk in progress:
            self.assertEqual(chunk["choices"], [])
            self.assertEqual(list(chunk["prompt_progress"]), ["total", "cache", "processed", "time_ms", "eta_ms"])
        self.assertEqual(progress[-1]["prompt_progress"]["processed"], 3000)

    def test_2_4_a_client_that_leaves_in_prefill_is_noticed_and_its_retry_continues(self):
        body = {"prompt": [3 + i * 7 % 500 for i in range(30000)], "max_tokens": 1, "return_progress": True, "cache_salt": "retry"}
        stream = self.server.stream("/v1/completions", body)
        stream.next_event()
        stream.reset()
        self.server.wait_idle()
        reply = self.server.post("/v1/completions", {**body, "return_progress": False}, timeout=300)
        self.assertGreater(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    # --- errors ---
    def test_2_5_errors(self):
        limit = self.server.get("/v1/models").json()["data"][0]["max_model_len"]
        error = self.refused(self.server.complete(max_tokens=limit), 400, "context_length_exceeded")
        self.assertIn(str(limit), error["message"], "with the numbers")
        self.refused(self.server.get("/v1/nothing"), 404)
        self.refused(self.server.get("/v1/models/other"), 404, "model_not_found")
        wrong = self.server.get("/v1/completions")
        self.refused(wrong, 405)
        self.assertIn("POST", wrong.headers["allow"])
        self.refused(self.server.post("/v1/completions", b'{"prompt": "' + b"x" * (1 << 20) + b'"}'), 413, "body_too_large")
        self.refused(self.server.post("/v1/moderations", {"input": "x"}), 501, "not_built")

    def test_2_5_json_is_bounded(self):
        for body in (b"", b"[]", b"{", b'"x"', b'{"prompt": "\xff"}', b'{"a":' * 40 + b"1" + b"}" * 40, b"[" * 100000):
            with self.subTest(body[:20]):
                self.refused(self.server.post("/v1/completions", body), 400)

    # --- health and metrics ---
    def test_2_6_health(self):
        self.assertEqual(self.server.get("/livez").json(), {"status": "ok"})
        self.assertEqual(self.server.get("/readyz").json(), {"status": "ok"})
        health = self.server.get("/health").json()
        self.assertEqual(health["status"], "ok")
        for field in ("running", "waiting", "queued_tokens", "kv_pages", "last_step_age_seconds"):
            self.assertIn(field, health)

    def test_2_7_metrics(self):
        reply = self.server.get("/metrics")
        self.assertTrue(reply.headers["content-type"].startswith("text/plain"))
        names = set(re.findall(r"^([\w:]+)[ {]", reply.text, re.MULTILINE))
        for name in VLLM_METRICS:
            self.assertIn("vllm:" + name, names)
        for name in VLLM_HISTOGRAMS:
            for part in ("_bucket", "_sum", "_count"):
                self.assertIn("vllm:" + name + part, names)
        self.assertEqual(VLLM_BOARDS - names, set())
        self.assertTrue({"bam_attention_tiles_total", "bam_kv_reach_freed_bytes_total"} <= names)
        own = [name for name in names if name.startswith("bam_")]
        self.assertGreater(len(own), 20)


class Section2Limits(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--max-queue", "1", "--max-model-len", "20000", *bamtest.UNREAD)

    def test_2_2_the_context_can_be_filled(self):
        prompt = [5] * 19900
        self.assertEqual(self.server.complete(prompt, max_tokens=100, ignore_eos=True).json()["usage"]["total_tokens"], 20000)
        self.assertEqual(self.server.complete(prompt, max_tokens=101).error["code"], "context_length_exceeded")

    def test_2_2_a_chat_ends_where_the_checkpoint_says(self):
        settings = pathlib.Path(bamtest.checkpoint()) / "generation_config.json"
        expected = json.loads(settings.read_text()).get("max_new_tokens", 4096) if settings.exists() else 4096
        reply = self.server.post("/v1/chat/completions", {**CHAT, "ignore_eos": True}).json()
        self.assertEqual(reply["usage"]["completion_tokens"], expected)

    def test_2_5_queue_full(self):
        first = self.server.stream("/v1/completions", {**LONG, "max_tokens": 15000})
        first.next_event()
        second = self.server.stream("/v1/completions", {**LONG, "max_tokens": 1})
        self.wait_for(lambda: self.server.get("/health").json()["waiting"] == 1)
        third = self.server.complete(max_tokens=1)
        self.assertEqual((third.status, third.error["type"], third.error["code"]), (429, "rate_limit_error", "queue_full"))
        self.assertRegex(third.headers["retry-after"], r"^[1-9][0-9]*$", "whole seconds, at least one")
        fourth = self.server.stream("/v1/completions", {**LONG, "max_tokens": 1})
        self.assertEqual(fourth.status, 429, "not a stream")
        first.close()
        second.chunks()


class Section3(bamtest.ServerTest):
    arguments = ("--api-key", "secret-user", "--admin-key", "secret-admin", "--log-format", "json", "--metrics-compat", "off")
    KEY = {"Authorization": "Bearer secret-user"}

    def test_3_1_deny_by_default(self):
        for method, path, body, _ in ENDPOINTS + [("POST", "/v1/requests/x/cancel", {}, None), ("GET", "/nothing", None, None),
                                                  ("POST", "/v1/requests/cancel_all", {}, None), ("POST", "/v1/kv/save", {}, None)]:
            reply = self.server.request(method, path, body)
            if path in ("/livez", "/readyz", "/health", "/"):  # the page asks for the key itself
                self.assertEqual(reply.status, 200, path)
            else:
                self.assertEqual(reply.status, 401, path)
                if not path.startswith(("/api/", "/v1/messages")):  # these have errors of another shape
                    self.assertEqual(reply.error["code"], "invalid_api_key", path)
        for key in ("secret-user2", "secret-use", "", "SECRET-USER"):
            self.assertEqual(self.server.get("/v1/models", headers={"Authorization": "Bearer " + key}).status, 401, key)
        self.assertEqual(self.server.get("/v1/models", headers=self.KEY).status, 200)

    def test_3_1_admin_key(self):
        for path in ("/v1/requests/cancel_all", "/v1/kv/save", "/v1/kv/restore"):
            self.assertEqual(self.server.post(path, {}, headers=self.KEY).status, 403, path)
        admin = {"Authorization": "Bearer secret-admin"}
        self.assertEqual(self.server.post("/v1/requests/cancel_all", {}, headers=admin).json(), {"cancelled": 0})

    def test_3_1_cors_is_off(self):
        for method in ("GET", "OPTIONS"):
            reply = self.server.request(method, "/v1/models", headers={**self.KEY, "Origin": "http://other.example"})
            self.assertFalse([name for name in reply.headers if name.startswith("access-control")])

    def test_3_2_loopback_by_default_and_no_secret_shown(self):
        props = self.server.get("/props", headers=self.KEY)
        config = props.json()["config"]
        self.assertEqual(config["host"]["value"], "127.0.0.1")
        self.assertEqual(config["ping-interval"]["value"], "10s")
        for text in (props.text, "\n".join(self.server.lines)):
            self.assertNotIn("secret-", text)

    def test_3_4_one_log_line_per_request_without_the_prompt(self):
        body = {"prompt": "a hidden prompt", "max_tokens": 3, "ignore_eos": True, "request_id": "line-1"}
        self.assertEqual(self.server.post("/v1/completions", body, headers=self.KEY).status, 200)
        self.wait_for(lambda: any('"line-1"' in line for line in self.server.lines))
        lines = [json.loads(line) for line in self.server.lines if '"line-1"' in line]
        self.assertEqual(len(lines), 1)
        for field in ("id", "prompt_tokens", "generated_tokens", "cached_tokens", "ttft_ms", "tokens_per_second", "finish", "status"):
            self.assertIn(field, lines[0])
        self.assertNotIn("hidden prompt", "\n".join(self.server.lines))

    def test_3_4_499_in_logs_only(self):
        stream = self.server.stream("/v1/completions", {**LONG, "max_tokens": 100000, "request_id": "left-1"}, headers=self.KEY)
        stream.next_event()
        stream.close()
        self.wait_for(lambda: any('"left-1"' in line and json.loads(line)["status"] == 499 for line in self.server.lines))

    def test_2_7_vllm_names_can_be_left_out(self):
        self.assertNotIn("vllm:", self.server.get("/metrics", headers=self.KEY).text)


class Section3Signals(unittest.TestCase):
    def test_3_3_drain(self):
        for stop in (signal.SIGTERM, signal.SIGINT):
            server = bamtest.Server(*bamtest.UNREAD, "--drain-timeout", "1h")
            holder = server.stream("/v1/completions", {**LONG, "max_tokens": 100000})  # until the checks are done
            stream = server.stream("/v1/completions", LONG)
            for each in (holder, stream):
                each.next_event()
            server.process.send_signal(stop)
            bamtest.wait_until(lambda: server.get("/readyz").status == 503, "draining", server)
            self.assertEqual(server.get("/readyz").json(), {"status": "draining"})
            refused = server.complete(max_tokens=1)
            self.assertEqual((refused.status, refused.error["code"]), (503, "draining"))
            self.assertEqual(stream.chunks()[-1]["choices"][0]["finish_reason"], "length", "running ones finish")
            holder.close()
            self.assertEqual(server.process.wait(bamtest.PATIENCE), 0)
            server.stop()


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Replies of /v1/completions and /v1/chat/completions, token endpoints and the endpoints that describe the server."""

import json
import math

import bamtest

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


class Completions(bamtest.ServerTest):
    def test_shape(self):
        response = self.server.complete(max_tokens=5, ignore_eos=True)
        self.assertEqual(response.status, 200)
        reply = response.json()
        self.assertEqual(list(reply), ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"])
        self.assertTrue(reply["id"].startswith("cmpl-"))
        self.assertEqual(reply["id"], "cmpl-" + response.headers["x-request-id"])
        self.assertEqual(reply["object"], "text_completion")
        self.assertEqual(reply["model"], "test")
        choice = reply["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertIsNone(choice["stop_reason"])
        self.assertIsNone(choice["logprobs"])
        usage = reply["usage"]
        self.assertEqual(usage["completion_tokens"], 5)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 5)

    def test_default_is_sixteen_tokens(self):
        self.assertEqual(self.server.complete(ignore_eos=True).json()["usage"]["completion_tokens"], 16)

    def test_prompt_forms_agree(self):
        text = "The sky is blue"
        ids = self.server.post("/tokenize", {"prompt": text}).json()["tokens"]
        texts = [self.server.complete(prompt, max_tokens=6).json()["choices"][0]["text"]
                 for prompt in (text, [text], ids, [ids])]
        self.assertEqual(len(set(texts)), 1, texts)
        both = self.server.complete([text, "The grass"], max_tokens=6).json()
        self.assertEqual(both["choices"][0]["text"], texts[0])
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1])

    def test_seed_repeats_and_differs(self):
        def sample(seed):
            return self.server.complete("x", temperature=2, seed=seed, max_tokens=12, ignore_eos=True).json()["choices"][0]["text"]
        self.assertEqual(sample(1), sample(1))
        self.assertGreater(len({sample(seed) for seed in range(6)}), 1)

    def test_second_time_is_cached(self):
        prompt = [5 + i % 200 for i in range(700)]
        self.server.complete(prompt, max_tokens=1, cache_salt="cached-test")
        usage = self.server.complete(prompt, max_tokens=1, cache_salt="cached-test").json()["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 640)
        other = self.server.complete(prompt, max_tokens=1, cache_salt="another").json()["usage"]
        self.assertEqual(other["prompt_tokens_details"]["cached_tokens"], 0, "salts do not share")

    def test_drafts_change_nothing_but_the_time(self):
        fields = {"max_tokens": 200, "temperature": 1, "seed": 4, "ignore_eos": True, "return_token_ids": True,
                  "logit_bias": {"40": 90, "41": 90, "42": 90}}
        plain = self.server.complete("a", draft={"tokens": 0}, **fields).json()
        self.assertEqual(plain["usage"]["completion_tokens_details"],
                         {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})
        made, right = (self.server.metric(f"bam_draft_tokens{kind}_total") for kind in ("", "_accepted"))
        drafted = self.server.complete("a", draft={"tokens": 8, "ngram": 2}, **fields).json()
        self.assertEqual(drafted["choices"][0]["token_ids"], plain["choices"][0]["token_ids"])
        details = drafted["usage"]["completion_tokens_details"]
        # How many guesses are worth their rows depends on the machine; that there are some is in tests/engine.
        self.assertLess(details["accepted_prediction_tokens"], 200)
        self.assertEqual(self.server.metric("bam_draft_tokens_accepted_total") - right, details["accepted_prediction_tokens"])
        self.assertEqual(self.server.metric("bam_draft_tokens_total") - made, sum(details.values()))
        self.assertEqual(self.server.complete("a", draft={"tokens": 33}).error["param"], "draft.tokens")

    def test_legacy_logprobs(self):
        reply = self.server.complete(max_tokens=4, logprobs=3, ignore_eos=True).json()
        logprobs = reply["choices"][0]["logprobs"]
        self.assertEqual(list(logprobs), ["tokens", "token_logprobs", "top_logprobs", "text_offset"])
        self.assertEqual([len(logprobs[key]) for key in logprobs], [4, 4, 4, 4])
        self.assertEqual("".join(logprobs["tokens"]), reply["choices"][0]["text"])
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertLessEqual(value, 0)
            self.assertAlmostEqual(top[token], value)
            self.assertAlmostEqual(max(top.values()), value, msg="greedy decoding takes the best token")
            self.assertIn(len(top), (3, 4))
        self.assertEqual(logprobs["text_offset"][0], 0)

    def test_echo_with_logprobs_as_scoring_clients_use_it(self):
        context, continuation = "The grass is green.", " The sky is blue."
        ids = self.server.post("/tokenize", {"prompt": context + continuation}).json()["tokens"]
        reply = self.server.complete([ids], echo=True, max_tokens=1, logprobs=1).json()
        logprobs = reply["choices"][0]["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), len(ids) + 1)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        self.assertTrue(all(value is not None and math.isfinite(value) for value in logprobs["token_logprobs"][1:]))
        # The same numbers one position at a time: the model after each prefix gives its next token this logprob.
        for position in (2, len(ids) // 2, len(ids) - 1):
            step = self.server.complete(ids[:position], max_tokens=1, logprobs=20).json()["choices"][0]["logprobs"]
            name, expected = logprobs["tokens"][position], logprobs["token_logprobs"][position]
            if name in step["top_logprobs"][0]:
                self.assertAlmostEqual(step["top_logprobs"][0][name], expected, places=3)
        whole = self.server.complete([ids], echo=True, max_tokens=0, logprobs=0).json()["choices"][0]
        self.assertEqual(len(whole["logprobs"]["tokens"]), len(ids))
        self.assertEqual(whole["text"], context + continuation)
        self.assertEqual(whole["finish_reason"], "length")
        for first, second in zip(whole["logprobs"]["token_logprobs"][1:], logprobs["token_logprobs"][1:]):
            self.assertAlmostEqual(first, second, places=4)

    def test_echo_streams_the_prompt_first(self):
        chunks = self.server.stream("/v1/completions", {"prompt": "The grass", "echo": True, "max_tokens": 3, "logprobs": 1,
                                                        "temperature": 0, "ignore_eos": True}).chunks()
        whole = self.server.complete("The grass", echo=True, max_tokens=3, logprobs=1, ignore_eos=True).json()["choices"][0]
        self.assertEqual(chunks[0]["choices"][0]["text"], "The grass")
        self.assertEqual(bamtest.text_of(chunks), whole["text"])
        tokens = [token for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]
                  for token in choice["logprobs"]["tokens"]]
        self.assertEqual(tokens, whole["logprobs"]["tokens"])

    def test_prompt_logprobs(self):
        ids = self.server.post("/tokenize", {"prompt": "The sky"}).json()["tokens"]
        reply = self.server.complete(ids, max_tokens=1, prompt_logprobs=2).json()["choices"][0]["prompt_logprobs"]
        self.assertIsNone(reply[0])
        self.assertEqual(len(reply), len(ids))
        for token, entry in zip(ids[1:], reply[1:]):
            self.assertIn(str(token), entry)
            self.assertEqual(set(entry[str(token)]), {"logprob", "rank", "decoded_token"})

    def test_return_token_ids(self):
        choice = self.server.complete("The sky", max_tokens=4, return_token_ids=True, ignore_eos=True).json()["choices"][0]
        self.assertEqual(len(choice["token_ids"]), 4)
        self.assertEqual(choice["prompt_token_ids"], self.server.post("/tokenize", {"prompt": "The sky"}).json()["tokens"])
        chunks = self.server.stream("/v1/completions", {"prompt": "The sky", "max_tokens": 4, "temperature": 0,
                                                        "return_token_ids": True, "ignore_eos": True}).chunks()
        streamed = [token for chunk in chunks for entry in chunk["choices"] for token in entry.get("token_ids", [])]
        self.assertEqual(streamed, choice["token_ids"])
        self.assertEqual(chunks[0]["choices"][0]["prompt_token_ids"], choice["prompt_token_ids"])

    def test_n_choices_differ_and_share_the_prompt(self):
        reply = self.server.complete(n=4, temperature=2, seed=3, max_tokens=12, ignore_eos=True).json()
        self.assertGreater(len({choice["text"] for choice in reply["choices"]}), 1)
        self.assertEqual(reply["usage"]["completion_tokens"], 48)
        self.assertEqual(reply["usage"]["prompt_tokens"], self.server.complete(max_tokens=1).json()["usage"]["prompt_tokens"])

    def test_logit_bias_forces_a_token(self):
        token = self.server.post("/tokenize", {"prompt": "blue", "add_special_tokens": False}).json()["tokens"][-1]
        for bias in ({str(token): 100}, [[token, 100]]):
            reply = self.server.complete(max_tokens=3, logit_bias=bias, return_token_ids=True).json()
            self.assertEqual(reply["choices"][0]["token_ids"], [token] * 3)

    def test_min_tokens_and_eos(self):
        reply = self.server.complete(max_tokens=30, min_tokens=30).json()
        self.assertEqual(reply["usage"]["completion_tokens"], 30)

    def test_unknown_fields_are_named(self):
        response = self.server.complete(max_tokens=1, zebra=1, apple={"x": 2}, user="me")
        self.assertEqual(response.headers["x-ignored-fields"], "zebra, apple", "in the order of the request")
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 1, "zebra": 1})
        self.assertEqual(stream.headers["x-ignored-fields"], "zebra")
        self.assertNotIn("x-ignored-fields", self.server.complete(max_tokens=1).headers)

    def test_truncate_prompt_tokens(self):
        reply = self.server.complete(list(range(10, 60)), max_tokens=1, truncate_prompt_tokens=7).json()
        self.assertEqual(reply["usage"]["prompt_tokens"], 7)

    def test_constraints(self):
        reply = self.server.complete("Answer:", choice=["yes", "no"], max_tokens=10).json()["choices"][0]
        self.assertIn(reply["text"], ("yes", "no"))
        self.assertEqual(reply["finish_reason"], "stop")
        reply = self.server.complete("A number:", regex="[0-9]{3}-[ab]+", max_tokens=20).json()["choices"][0]
        self.assertRegex(reply["text"], r"^[0-9]{3}-[ab]*$")
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
                  "required": ["a", "b"], "additionalProperties": False}
        reply = self.server.complete("JSON:", max_tokens=200, temperature=1, seed=1, response_format={
            "type": "json_schema", "json_schema": {"name": "t", "schema": schema}}).json()["choices"][0]
        if reply["finish_reason"] == "stop":
            value = json.loads(reply["text"])
            self.assertIsInstance(value["a"], int)
            self.assertIn(value["b"], ("x", "y"))
        error = self.server.complete(regex="(", max_tokens=1)
        self.assertEqual(error.status, 400)
        self.assertEqual(error.error["param"], "regex")


class Chat(bamtest.ServerTest):
    def test_shape_and_logprobs(self):
        response = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 5, "logprobs": True, "top_logprobs": 2,
                                                             "ignore_eos": True})
        self.assertEqual(response.status, 200, response.text)
        reply = response.json()
        self.assertTrue(reply["id"].startswith("chatcmpl-"))
        self.assertEqual(reply["object"], "chat.completion")
        message = reply["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        content = reply["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 5)
        joined = b"".join(bytes(entry["bytes"]) for entry in content).decode("utf-8", "replace")
        self.assertEqual(joined.lstrip(" "), message["content"].lstrip(" "))
        for entry in content:
            self.assertEqual(set(entry), {"token", "logprob", "bytes", "top_logprobs"})
            self.assertEqual(len(entry["top_logprobs"]), 2)

    def test_default_goes_on_to_the_end_of_the_text(self):
        reply = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 2000}).json()
        self.assertIn(reply["choices"][0]["finish_reason"], ("stop", "length"))

    def test_content_parts(self):
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        first = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 4}).json()
        second = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 4,
                                                           "messages": [{"role": "user", "content": parts}]}).json()
        self.assertEqual(first["choices"][0]["message"], second["choices"][0]["message"])

    def test_functions_and_images_are_refused_clearly(self):
        for fields, word in (({"functions": [{"name": "f"}]}, "tool"),
                             ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                              "text only")):
            response = self.server.post("/v1/chat/completions", {**CHAT, **fields})
            self.assertEqual(response.status, 400)
            self.assertIn(word, response.error["message"])

    def test_tokenize_messages_matches_the_prompt(self):
        tokens = self.server.post("/tokenize", {"messages": CHAT["messages"]}).json()["tokens"]
        reply = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "return_token_ids": True}).json()
        self.assertEqual(reply["prompt_token_ids"], tokens, "vLLM has them beside the choices of a chat")


class Tokens(bamtest.ServerTest):
    def test_round_trip(self):
        text = "The grass is green. 12345 é€😀"
        tokens = self.server.post("/tokenize", {"content": text, "add_special_tokens": False, "return_token_strs": True}).json()
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(len(tokens["token_strs"]), tokens["count"])
        reply = self.server.post("/detokenize", {"tokens": tokens["tokens"]}).json()
        self.assertEqual(reply, {"prompt": text, "content": text})
        self.assertEqual(self.server.post("/detokenize", {"tokens": []}).json()["content"], "")

    def test_errors(self):
        for body in ({}, {"prompt": 5}, {"content": None}, {"messages": []}):
            self.assertEqual(self.server.post("/tokenize", body).status, 400, body)
        for body in ({}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [1e9]}, {"tokens": [1.5]}):
            self.assertEqual(self.server.post("/detokenize", body).status, 400, body)


class Descriptions(bamtest.ServerTest):
    arguments = ("--admin-key", "secret-admin")

    def test_models(self):
        models = self.server.get("/v1/models").json()
        self.assertEqual(models["object"], "list")
        self.assertEqual(models["data"][0]["id"], "test")
        self.assertEqual(self.server.get("/models").json()["data"][0]["id"], "test")
        self.assertEqual(self.server.get("/v1/models/test").json()["id"], "test")
        missing = self.server.get("/v1/models/other")
        self.assertEqual((missing.status, missing.error["code"]), (404, "model_not_found"))

    def test_health(self):
        self.assertEqual(self.server.get("/livez").json(), {"status": "ok"})
        self.assertEqual(self.server.get("/readyz").json(), {"status": "ok"})
        self.assertEqual(self.server.get("/health").json()["status"], "ok")

    def test_props_mask_secrets(self):
        response = self.server.get("/props")
        self.assertNotIn("secret-admin", response.text)
        props = response.json()
        self.assertEqual(props["config"]["admin-key"], {"value": "***", "origin": "--admin-key"})
        self.assertGreater(props["engine"]["capacity_tokens"], 0)

    def test_metrics_in_both_vocabularies(self):
        self.server.complete(max_tokens=4, ignore_eos=True)
        text = self.server.get("/metrics").text
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                     "generation_tokens_total", "request_success_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
                     "num_preemptions_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
                     "e2e_request_latency_seconds_count", "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum",
                     "request_decode_time_seconds_sum", "request_prompt_tokens_bucket", "request_generation_tokens_bucket",
                     "iteration_tokens_total_count", "request_max_num_generation_tokens_sum", "request_params_n_sum",
                     "request_params_max_tokens_sum", "request_inference_time_seconds_sum",
                     "request_time_per_output_token_seconds_count"):
            self.assertIn("vllm:" + name, text)
        self.assertGreaterEqual(self.server.metric("bam_generation_tokens_total"), 4)
        # Counters come from the engine's published picture, which is at most a twentieth of a second old.
        self.wait_for(lambda: self.server.metric("bam_attention_tiles_total", outcome="visited") > 0)
        self.assertIn("bam_kv_reach_freed_bytes_total", text)
        self.assertGreater(self.server.metric("process_resident_memory_bytes"), 1 << 20)
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) .*|[a-zA-Z_:][\w:]*(\{([\w]+="([^"\\]|\\.)*",?)*\})? [-+0-9.eE]+(Inf)?)$')

    def test_a_stop_string_is_counted_as_a_stop(self):
        text = self.server.complete(max_tokens=12, ignore_eos=True, temperature=0).json()["choices"][0]["text"]
        before = {reason: self.server.metric("bam_requests_finished_total", reason=reason) for reason in ("stop", "abort")}
        reply = self.server.complete(max_tokens=400, ignore_eos=True, temperature=0, stop=text[-2:]).json()
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        self.wait_for(lambda: self.server.metric("bam_requests_finished_total", reason="stop") == before["stop"] + 1)
        self.assertEqual(self.server.metric("bam_requests_finished_total", reason="abort"), before["abort"])

    def test_requests_slots_and_prior(self):
        self.assertEqual(self.server.get("/v1/requests").json()["data"], [])
        slots = self.server.get("/slots").json()
        self.assertTrue(slots and all(not slot["is_processing"] for slot in slots))
        prior = self.server.get("/v1/prior").json()
        self.assertEqual(len(prior["heads"]), prior["num_layers"] * prior["num_heads"])
        self.assertIn(prior["heads"][0]["class"], ("retrieval", "uniform", "heavy_tail", "local", "other"))

    def test_attention_row_is_a_distribution(self):
        reply = self.server.post("/v1/attention", {"prompt": "The grass is green", "layer": 0, "head": 1}).json()
        self.assertEqual(reply["position"], len(reply["tokens"]) - 1)
        self.assertEqual([(head["layer"], head["head"]) for head in reply["heads"]], [(0, 1)])
        self.assertAlmostEqual(sum(reply["heads"][0]["sum"]), 1, places=3)
        for body in ({"prompt": "x", "layer": 99}, {"prompt": "x", "head": -1}, {"tokens": []}, {}, {"prompt": ["a", "b"]},
                     {"prompt": "x", "position": 50}, {"tokens": [10 ** 9]}, {"prompt": "x", "from": 9}, {"prompt": "x", "bins": 0},
                     {"prompt": "x", "spans": [[0]]}, {"prompt": "x", "spans": [[1, 0]]}, {"prompt": "x", "tokens": [1]}):
            self.assertEqual(self.server.post("/v1/attention", body).status, 400, body)

    def test_passkey_selftest(self):
        reply = self.server.post("/v1/selftest/passkey", {"length": 300, "depths": [0.2, 0.8]})
        self.assertEqual(reply.status, 200, reply.text)
        result = reply.json()
        self.assertEqual((result["trials"], len(result["results"])), (2, 2))
        self.assertEqual(result["hits"], sum(trial["hit"] for trial in result["results"]))
        self.assertEqual(result["results"][0]["prompt_tokens"], 300)
        self.assertEqual(self.server.post("/v1/selftest/passkey", {"length": 3}).status, 400)

    def test_page_version_and_tokenizer(self):
        page = self.server.get("/")
        self.assertEqual(page.status, 200)
        self.assertTrue(page.headers["content-type"].startswith("text/html"))
        self.assertIn("default-src 'none'", page.headers["content-security-policy"])
        again = self.server.get("/", headers={"If-None-Match": page.headers["etag"]})
        self.assertEqual((again.status, again.body), (304, b""))
        self.assertEqual(self.server.get("/version").json()["server"], "bam")
        self.assertGreater(self.server.get("/tokenizer_info").json()["vocab_size"], 0)

    def test_openapi_names_every_route(self):
        document = self.server.get("/openapi.json").json()
        self.assertEqual(document["openapi"], "3.2.0")
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/requests/{id}/cancel", "/health"):
            self.assertIn(path, document["paths"])


if __name__ == "__main__":
    bamtest.main()

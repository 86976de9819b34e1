"""M4, M11, H1 and the low points about several keys: nobody names, cancels, overtakes or watches another's requests."""

import json
import unittest

import attack  # noqa: F401  (finds bamtest)
import bamtest

ALICE, BOB, ADMIN = ({"Authorization": f"Bearer {name}-key"} for name in ("alice", "bob", "admin"))
LONG = {"prompt": "x", "max_tokens": 100000, "ignore_eos": True}


class Tenants(bamtest.ServerTest):
    arguments = ("--api-key", "alice-key", "--api-key", "bob-key", "--admin-key", "admin-key", "--max-num-seqs", "4",
                 "--max-unsent", "64MiB")

    def live(self, headers):
        return sorted(entry["id"] for entry in self.server.get("/v1/requests", headers=headers).json()["data"])

    def wait_live(self, headers, names):
        """The list is published with the engine's state, a moment after the first event."""
        self.wait_for(lambda: self.live(headers) == names)

    def start(self, headers, name, **fields):
        stream = self.server.stream("/v1/completions", {**LONG, "request_id": name, **fields}, headers=headers)
        self.addCleanup(stream.close)
        stream.next_event()
        return stream

    def cancel(self, headers, name):
        return self.server.post(f"/v1/requests/{name}/cancel", {}, headers=headers).status

    def tearDown(self):
        self.server.post("/v1/requests/cancel_all", {}, headers=ADMIN)
        self.wait_for(lambda: not self.live(ADMIN))

    def test_m4_a_name_cancels_what_has_it_and_nothing_else(self):
        self.start(ALICE, "victim")
        for name in ("victim-7", "victim-0", "cmpl-victim-7", "vic", "victim-"):
            self.assertEqual(self.cancel(ALICE, name), 404, name)
        self.wait_live(ALICE, ["cmpl-victim"])
        self.assertEqual(self.cancel(ALICE, "victim"), 200)

    def test_m4_prompts_of_one_request_end_together(self):
        self.start(ALICE, "many", prompt=["a", "b"])
        self.start(ALICE, "many-1")
        self.wait_live(ALICE, ["cmpl-many-1", "cmpl-many~0", "cmpl-many~1"])
        self.assertEqual(self.cancel(ALICE, "cmpl-many~1"), 200)
        self.wait_live(ALICE, ["cmpl-many-1"])

    def test_names_of_one_key_mean_nothing_to_another(self):
        self.start(ALICE, "same")
        self.start(BOB, "same")
        self.wait_live(ALICE, ["cmpl-same"])
        self.wait_live(BOB, ["cmpl-same"])
        self.assertEqual(self.cancel(BOB, "same"), 200)
        self.wait_live(BOB, [])
        self.assertEqual(self.cancel(BOB, "same"), 404)
        self.wait_live(ALICE, ["cmpl-same"])
        self.assertEqual(self.cancel(ADMIN, "same"), 200)

    def test_what_is_kept_for_one_key_is_not_there_for_another(self):
        reply = self.server.post("/v1/responses", {"input": "x", "max_output_tokens": 1}, headers=ALICE).json()["id"]
        stream = self.start(ALICE, "kept", resumable=True)
        for method, path in (("GET", f"/v1/responses/{reply}"), ("GET", f"/v1/responses/{reply}/input_items"), ("DELETE", f"/v1/responses/{reply}"),
                             ("POST", f"/v1/responses/{reply}/cancel"), ("GET", "/v1/stream/kept"), ("HEAD", "/v1/stream/kept"),
                             ("DELETE", "/v1/stream/kept"), ("POST", "/v1/requests/kept/cancel")):
            self.assertEqual(self.server.request(method, path, headers=BOB).status, 404, (method, path))
        again = self.server.post("/v1/responses", {"input": "x", "previous_response_id": reply, "max_output_tokens": 1}, headers=BOB)
        self.assertEqual((again.status, again.error["code"]), (400, "previous_response_not_found"), again.text)
        stream.next_event()
        self.assertEqual(self.server.request("HEAD", "/v1/stream/kept", headers=ALICE).status, 200)
        self.assertEqual(self.server.request("DELETE", "/v1/stream/kept", headers=ALICE).status, 200)
        self.assertEqual(self.server.request("DELETE", f"/v1/responses/{reply}", headers=ALICE).status, 200)

    def test_cached_tokens_tell_keys_nothing_about_each_other(self):
        def cached(headers):
            reply = self.server.post("/v1/completions", {"prompt": list(range(7, 607)), "max_tokens": 1}, headers=headers)
            return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual(cached(ALICE), 0)
        self.assertGreater(cached(ALICE), 500)
        self.assertEqual(cached(BOB), 0)

    def test_m11_priorities_beyond_the_limit_need_the_admin_key(self):
        for priority, headers, status in ((-100, ALICE, 200), (100, ALICE, 200), (-101, ALICE, 400), (-2 ** 31, BOB, 400),
                                          (2 ** 31 - 1, BOB, 400), (-2 ** 31, ADMIN, 200)):
            reply = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "priority": priority}, headers=headers)
            self.assertEqual(reply.status, status, (priority, reply.text))
            if status == 400:
                self.assertEqual(reply.error["param"], "priority")


class Products(bamtest.ServerTest):
    def test_h1_fields_that_multiply_are_capped_together(self):
        prompt = [5] * 12000
        for fields, param in (({"n": 16, "echo": True, "logprobs": 20}, "logprobs"),
                              ({"n": 16, "prompt_logprobs": 20}, "prompt_logprobs"),
                              ({"n": 16, "logprobs": 20, "max_tokens": 60000, "prompt": [5]}, "logprobs"),
                              ({"prompt": [prompt] * 16, "echo": True, "logprobs": 20}, "logprobs")):
            reply = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})
            self.assertEqual((reply.status, reply.error["param"]), (400, param), reply.text[:300])
            self.assertIn("2000000", reply.error["message"])
        scored = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 5})
        self.assertEqual(scored.status, 200)

    def test_h1_dialects_that_hold_their_reply_have_less(self):
        """A stream of /v1/responses repeats everything in its last events. Before: any number of tokens, at 8 KB of memory each."""
        said = [{"role": "user", "content": "x"}]
        wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
        for path, body in (("/v1/responses", {"input": "x", **wanted, "max_output_tokens": 10_000, "stream": True}),
                           ("/v1/responses", {"input": "x", **wanted, "max_output_tokens": 10_000}),
                           ("/api/chat", {"messages": said, "stream": False, "logprobs": True, "top_logprobs": 20, "options": {"num_predict": 10_000}}),
                           ("/completion", {"prompt": "x", "n_probs": 20, "n_predict": 10_000})):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 400, (path, reply.text[:300]))
            self.assertIn("200000", reply.text)
        reply = self.server.post("/v1/responses", {"input": "x", **wanted, "max_output_tokens": 9000})
        self.assertEqual(reply.status, 200, reply.text[:300])

    def peak(self):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    def test_h1_echoed_bytes_are_capped(self):
        reply = self.server.post("/v1/completions", {"prompt": ["x" * 4200] * 1024, "n": 16, "echo": True, "max_tokens": 0})
        self.assertEqual((reply.status, reply.error["param"]), (400, "echo"), reply.text[:300])
        self.assertIn(str(1024 * 16 * 4200), reply.error["message"])
        self.assertIn(str(64 << 20), reply.error["message"])

    def test_h1_the_largest_reply_is_sent_as_it_is_made(self):
        body = {"prompt": [5 + i % 200 for i in range(6000)], "n": 15, "echo": True, "logprobs": 20, "max_tokens": 1}
        self.assertEqual(self.server.post("/v1/completions", {**body, "n": 1}).status, 200)  # pages and tables are there
        before = self.peak()
        reply = self.server.post("/v1/completions", body)
        self.assertEqual(reply.status, 200, reply.text[:300])
        grown = self.peak() - before
        print(f"\n{len(json.dumps(body))} bytes asked for {len(reply.body)}; memory grew by {grown}")
        self.assertGreater(len(reply.body), 30 << 20)
        self.assertLess(grown, bamtest.megabytes(64))


if __name__ == "__main__":
    bamtest.main()

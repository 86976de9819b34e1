"""Long echoes and replies are made in pieces on a worker and sent as they are read; work for nobody ends."""

import http.client
import json
import socket
import threading

import bamtest

WORDS = "one two three four five six seven eight nine ten "


class LongReplies(bamtest.ServerTest):
    arguments = ("--max-model-len", "40000")

    def ids(self, count):
        tokens = self.server.post("/tokenize", {"prompt": WORDS * (count // 10)}).json()["tokens"]
        return (tokens * (count // len(tokens) + 1))[:count]

    def test_h2_a_fast_reader_keeps_its_stream_when_an_event_is_large(self):
        ids = self.ids(30000)
        stream = self.server.stream("/v1/completions", {"prompt": ids, "max_tokens": 3, "ignore_eos": True,
                                                        "return_token_ids": True})
        got = [token for chunk in stream.chunks() for choice in chunk["choices"] for token in choice.get("prompt_token_ids", [])]
        self.assertEqual(got, ids)
        self.assertEqual(self.server.metric("bam_http_slow_readers_total"), 0)

    def test_h3_an_echo_with_logprobs_comes_whole_and_in_pieces(self):
        ids = self.ids(10000)
        fields = {"prompt": ids, "max_tokens": 2, "ignore_eos": True, "temperature": 0, "echo": True, "logprobs": 5}
        whole = self.server.post("/v1/completions", fields).json()["choices"][0]
        text, tokens, offsets, largest = "", [], [], 0
        for chunk in self.server.stream("/v1/completions", fields).chunks():
            choice = chunk["choices"][0]
            text += choice["text"]
            if choice["logprobs"]:
                tokens += choice["logprobs"]["tokens"]
                offsets += choice["logprobs"]["text_offset"]
                largest = max(largest, len(choice["logprobs"]["tokens"]))
        self.assertEqual(text, whole["text"])
        self.assertEqual(tokens, whole["logprobs"]["tokens"])
        self.assertEqual(offsets, whole["logprobs"]["text_offset"])
        self.assertEqual(len(tokens), 10002)
        self.assertLessEqual(largest, 256)

    def test_a_long_reply_ends_and_its_connection_serves_the_next(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=bamtest.PATIENCE)
        for _ in range(2):
            body = {"prompt": self.ids(5000), "max_tokens": 1, "echo": True, "logprobs": 1}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            self.assertEqual(reply.getheader("content-type"), "application/json")
            self.assertEqual(len(json.loads(reply.read())["choices"][0]["logprobs"]["tokens"]), 5001)
        connection.close()

    def test_m5_a_passkey_self_test_can_be_cancelled(self):
        result = {}

        def call():
            result["reply"] = self.server.post("/v1/selftest/passkey", {"length": 30000, "depths": [0.5] * 20},
                                               headers={"X-Request-Id": "hidden"})

        thread = threading.Thread(target=call)
        thread.start()
        self.wait_for(lambda: self.server.live())
        self.assertTrue(self.server.post("/v1/requests/hidden/cancel", {}).json()["cancelled"])
        thread.join(bamtest.PATIENCE)
        self.assertEqual(result["reply"].status, 409)
        self.assertEqual(result["reply"].error["code"], "cancelled")
        self.server.wait_idle()

    def test_m5_a_passkey_self_test_ends_with_its_client(self):
        client = socket.create_connection(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/selftest/passkey", {"length": 30000, "depths": [0.5] * 20, "seed": 9}))
        self.wait_for(lambda: self.server.live())
        prompts = self.server.metric("bam_requests_finished_total", reason="length") + \
            self.server.metric("bam_requests_finished_total", reason="stop")
        client.close()
        self.server.wait_idle()
        after = self.server.metric("bam_requests_finished_total", reason="length") + \
            self.server.metric("bam_requests_finished_total", reason="stop")
        self.assertLess(after - prompts, 20, "the other prompts were not asked")


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Hostile input: afterwards memory and file descriptors are back, and the next request is served."""

import json
import random
import socket
import struct

import bamtest

NUMERIC = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of",
           "presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty", "min_tokens", "logprobs",
           "prompt_logprobs", "priority", "timeout", "truncate_prompt_tokens"]
HOSTILE = ["-1", "-1e308", "1e308", "1e400", "-0.0", "0.5", "99999999999999999999999", "-9223372036854775809", "NaN",
           "Infinity", "-Infinity", '"1"', '"nan"', "true", "null", "[]", "{}", "[1]", '""', "0x10", "1e", "+1", ".5"]


class Hostile(bamtest.ServerTest):
    arguments = ("--read-timeout", "3s", "--max-model-len", "4096", "--max-body", "8MiB")

    def setUp(self):
        self.server.complete(max_tokens=1)
        self.descriptors = self.server.descriptors()

    def tearDown(self):
        super().tearDown()
        self.server.wait_idle()
        self.wait_for(lambda: self.server.descriptors() <= self.descriptors + 2, "descriptors are given back")
        self.assertEqual(self.server.complete(max_tokens=1).status, 200)

    def raw(self, data, path="/v1/completions"):
        return self.server.post(path, data, headers={"Content-Type": "application/json"})

    def test_every_numeric_field_with_every_hostile_value(self):
        for name in NUMERIC:
            for value in HOSTILE:
                fields = '"max_tokens": 2, ' if name not in ("max_tokens", "max_completion_tokens") else ""
                response = self.raw(f'{{"prompt": "x", {fields}"{name}": {value}}}')
                self.assertIn(response.status, (200, 400, 408), (name, value, response.text))
                if response.status == 400:
                    self.assertTrue(response.error["message"])

    def test_every_field_with_every_type(self):
        fields = ["model", "prompt", "stop", "stop_token_ids", "logit_bias", "echo", "stream", "stream_options",
                  "response_format", "regex", "choice", "guided_json", "structured_outputs", "cache_salt", "request_id",
                  "add_special_tokens", "return_token_ids", "return_progress", "user", "suffix", "ignore_eos"]
        for name in fields:
            for value in ("5", "-1.5", '"text"', "true", "null", "[]", "[[]]", "[null]", '{"a": 1}', '["", 5]', '"\\u0000"'):
                response = self.raw(f'{{"prompt": "x", "max_tokens": 1, "{name}": {value}}}')
                self.assertIn(response.status, (200, 400, 404), (name, value, response.text))

    def test_bodies_that_are_no_requests(self):
        deep = b'{"prompt": ' + b"[" * 10000 + b"]" * 10000 + b"}"
        bodies = [b"", b"\x00", b"null", b"{", b"}", b'{"prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}', deep, b"[" * 1_000_000,
                  b'{"a":' * 5000, b'{"prompt": "' + b"\\" * 9999, b"\xef\xbb\xbf{}", b'{"prompt": "x", "prompt": 5}',
                  b"{" + b",".join(b'"k%d": 1' % i for i in range(100_000)) + b', "prompt": "x", "max_tokens": 1}']
        for body in bodies:
            response = self.raw(body)
            self.assertIn(response.status, (200, 400), body[:60])
        # Millions of small values are bounded before they become objects.
        response = self.raw(b'{"prompt": [' + b"[]," * 2_700_000 + b"[]]}")
        self.assertIn(response.status, (400, 413))

    def test_large_bodies(self):
        before = self.server.memory_bytes()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n")
                block = b"x" * 65536
                try:
                    for _ in range(800):
                        client.sendall(block)
                except OSError:
                    pass
                try:
                    self.assertIn(b" 413 ", client.recv(4096))
                except ConnectionResetError:
                    pass
        self.assertLess(self.server.memory_bytes() - before, bamtest.megabytes(64), "refused bodies are not kept")

    def test_malformed_http(self):
        random.seed(5)
        messages = [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
                    b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 70000 + b"\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
                    b"GET /%00%ff%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"GET http://other/v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n"]
        messages += [random.randbytes(random.randint(1, 400)) for _ in range(60)]
        for message in messages:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
                client.sendall(message)
                client.shutdown(socket.SHUT_WR)
                try:
                    reply = client.recv(4096)
                except ConnectionResetError:
                    continue
                self.assertNotIn(b"root:", reply)
                self.assertFalse(reply.startswith(b"HTTP/1.1 5") and reply[9:12] not in (b"501", b"505"), reply[:200])

    def test_half_sent_requests_time_out(self):
        clients = []
        for part in (b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"prompt\":"):
            for _ in range(20):
                client = socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE)
                client.sendall(part)
                clients.append(client)
        self.assertEqual(self.server.complete(max_tokens=1).status, 200, "others are served meanwhile")
        for client in clients:  # each read ends because the server closes
            try:
                while client.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            client.close()

    def test_a_byte_now_and_then_does_not_keep_a_connection(self):
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")

        def closed():
            try:
                client.sendall(b"a")
                return False
            except OSError:
                return True

        self.wait_for(closed, "the connection is closed although bytes keep coming")
        client.close()

    def test_random_json_never_fails_inside(self):
        random.seed(11)
        keys = NUMERIC + ["prompt", "stop", "logit_bias", "echo", "response_format", "messages", "regex", "choice"]

        def value(depth=0):
            kind = random.randrange(9 if depth < 3 else 6)
            if kind == 0: return random.randint(-(2 ** 70), 2 ** 70)
            if kind == 1: return random.choice([0, 1, 2, 16, 0.5, -1, 1e300])
            if kind == 2: return random.choice(["", "x", "\u0000", "😀", "a" * 300, "json_object"])
            if kind in (3, 4): return random.choice([True, False, None])
            if kind == 5: return struct.unpack("d", random.randbytes(8))[0]
            if kind == 6: return [value(depth + 1) for _ in range(random.randrange(4))]
            return {random.choice(keys): value(depth + 1) for _ in range(random.randrange(4))}

        for _ in range(300):
            body = {random.choice(keys): value() for _ in range(random.randrange(1, 5))}
            body["max_tokens"] = 2
            if random.random() < 0.7:
                body["prompt"] = "x"
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                response = self.raw(json.dumps(body), path)
                self.assertLess(response.status, 500, (path, body, response.text))


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Errors, limits, keys, CORS, methods: what a client hears when something is not right."""

import base64
import json
import socket

import bamtest


class Errors(bamtest.ServerTest):
    arguments = ("--max-body", "200KiB", "--max-model-len", "2048")

    def expect(self, response, status, code=None, param=None):
        self.assertEqual(response.status, status, response.text)
        self.assertEqual(response.headers["content-type"], "application/json")
        self.assertEqual(set(response.json()), {"error"})
        self.assertEqual(set(response.error), {"message", "type", "param", "code"})
        self.assertTrue(response.error["message"])
        if code is not None:
            self.assertEqual(response.error["code"], code)
        if param is not None:
            self.assertEqual(response.error["param"], param)

    def test_validation(self):
        self.expect(self.server.complete(max_tokens=-1), 400, param="max_tokens")
        self.expect(self.server.post("/v1/completions", {}), 400, param="prompt")
        self.expect(self.server.post("/v1/completions", b"{"), 400)
        self.expect(self.server.post("/v1/completions", b"[]"), 400)
        self.expect(self.server.post("/v1/completions", b""), 400)
        self.expect(self.server.complete(prompt=[10 ** 8]), 400, param="prompt")
        self.expect(self.server.complete(logit_bias={"99999999": 1}), 400, param="logit_bias")
        self.expect(self.server.complete(stop_token_ids=[99999999]), 400, param="stop_token_ids")
        self.expect(self.server.complete(suffix="x"), 400, param="suffix")
        self.expect(self.server.complete(best_of=3), 400, param="best_of")

    def test_context_length(self):
        response = self.server.complete(prompt=[5] * 2000, max_tokens=100)
        self.expect(response, 400, code="context_length_exceeded")
        for number in ("2048", "2100", "2000", "100"):
            self.assertIn(number, response.error["message"])
        self.assertEqual(self.server.complete(prompt=[5] * 2000, max_tokens=48, ignore_eos=True).status, 200)

    def test_unknown_model_and_route(self):
        self.expect(self.server.complete(model="nope"), 404, code="model_not_found")
        self.expect(self.server.get("/v1/nothing"), 404)
        for path in ("/v1/moderations", "/moderations", "/v1/audio/speech"):
            self.expect(self.server.post(path, {"input": "x"}), 501, code="not_built")
        self.expect(self.server.post("/v1/embeddings2", {}), 404)
        self.expect(self.server.post("/v1/requests/nothing/cancel", {}), 404, code="request_not_found")

    def test_methods(self):
        wrong = self.server.get("/v1/completions")
        self.expect(wrong, 405)
        self.assertEqual(wrong.headers["allow"], "POST, OPTIONS")
        paths = [path.replace("{id}", "x") for path in self.server.get("/openapi.json").json()["paths"]]
        for path in paths:
            allowed = self.server.request("OPTIONS", path).headers["allow"].split(", ")
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "QUERY", "PROPFIND", "BREW"):
                if method not in allowed:
                    refused = self.server.request(method, path)
                    self.assertEqual(refused.status, 405, (method, path))
                    self.assertEqual(refused.headers.get("allow", "").split(", "), allowed, (method, path))
                    self.assertIn(method, refused.text)
        head = self.server.request("HEAD", "/health")
        self.assertEqual((head.status, head.body), (200, b""))
        options = self.server.request("OPTIONS", "/v1/completions")
        self.assertEqual(options.status, 204)
        self.assertEqual(options.headers["allow"], "POST, OPTIONS")
        self.assertNotIn("access-control-allow-origin", options.headers)

    def test_body_limit(self):
        self.expect(self.server.post("/v1/completions", {"prompt": "x" * 300_000}), 413, code="body_too_large")
        # Without a length, the limit is met while reading.
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            try:
                for _ in range(40):
                    client.sendall(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
            except OSError:
                pass
            self.assertIn(b" 413 ", client.recv(4096))
        # Refused by the declared length alone.
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{")
            reply = client.recv(4096)
            self.assertIn(b" 413 ", reply)
            self.assertIn(b"body_too_large", reply)

    def test_expect_continue(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertTrue(client.recv(4096).startswith(b"HTTP/1.1 100"))
            client.sendall(body)
            self.assertTrue(client.recv(65536).startswith(b"HTTP/1.1 200"))

    def test_chunked_request_body(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n'
                           b'b\r\n{"prompt": \r\n13\r\n"x","max_tokens":1}\r\n0\r\n\r\n')
            self.assertTrue(client.recv(65536).startswith(b"HTTP/1.1 200"))

    def test_http10_streams_end_with_the_connection(self):
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            client.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head, events = b"".join(iter(lambda: client.recv(4096), b"")).split(b"\r\n\r\n", 1)
        self.assertIn(b" 200 ", head)
        self.assertNotIn(b"chunked", head)
        self.assertTrue(events.startswith(b"data: {") and events.endswith(b"\n\ndata: [DONE]\n\n"), events)

    def test_compressed_bodies_are_refused(self):
        self.expect(self.server.post("/v1/completions", b"x", headers={"Content-Encoding": "gzip"}), 415)

    def test_request_ids(self):
        self.assertEqual(len(self.server.complete(max_tokens=1).headers["x-request-id"]), 32)
        given = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "abc-1"})
        self.assertEqual((given.headers["x-request-id"], given.json()["id"]), ("abc-1", "cmpl-abc-1"))
        bad = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "a b<script>"})
        self.assertNotIn("script", bad.headers["x-request-id"])

    def test_pipelined_requests_are_answered_in_order(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            client.sendall(b"".join(bamtest.raw_post("/v1/completions", {"prompt": "x", "max_tokens": 1, "request_id": f"pipe-{i}"})
                                    for i in range(5)))
            data = b""
            while data.count(b'"usage"') < 5:
                data += client.recv(65536)
            order = [data.index(f'"cmpl-pipe-{i}"'.encode()) for i in range(5)]
            self.assertEqual(order, sorted(order))


class QueueFull(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--max-queue", "2", *bamtest.UNREAD)

    def test_429_with_retry_after(self):
        body = {"prompt": "The grass is", "max_tokens": 50000, "ignore_eos": True}
        streams = [self.server.stream("/v1/completions", body)]
        streams[0].next_event()
        self.wait_for(lambda: self.server.get("/health").json()["running"] == 1)  # the next two fill the queue
        streams += [self.server.stream("/v1/completions", body) for _ in range(2)]
        self.assertEqual([stream.status for stream in streams], [200, 200, 200])
        response = self.server.complete(max_tokens=5)
        self.assertEqual(response.status, 429, response.text)
        self.assertEqual(response.error["code"], "queue_full")
        self.assertGreaterEqual(int(response.headers["retry-after"]), 1)
        self.wait_for(lambda: len(self.server.get("/v1/requests").json()["data"]) == 3)
        live = self.server.get("/v1/requests").json()["data"]
        self.assertIn("queued", [entry["state"] for entry in live])
        for entry in live:
            self.assertEqual(self.server.post(f"/v1/requests/{entry['id']}/cancel", {}).json()["cancelled"], True)
        for stream in streams:
            self.assertEqual(stream.chunks()[-1]["choices"][0]["finish_reason"], "abort")
        self.server.wait_idle()
        self.assertEqual(self.server.complete(max_tokens=1).status, 200, "cancelled requests leave the queue")


class Keys(bamtest.ServerTest):
    arguments = ("--api-key", "alice-key", "--api-key", "bob-key", "--admin-key", "root-key", "--cors-origins", "http://ok.example")

    def get(self, path, **headers):
        return self.server.get(path, headers=headers)

    def test_deny_by_default(self):
        for path in ("/v1/models", "/metrics", "/props", "/openapi.json", "/nowhere", "/version"):
            response = self.get(path)
            self.assertEqual(response.status, 401, path)
            self.assertEqual(response.headers["www-authenticate"], "Bearer")
        self.assertEqual(self.server.complete().status, 401)
        for path in ("/livez", "/readyz", "/health", "/", "/js/main.js"):  # the page holds no secret and asks for the key itself
            self.assertEqual(self.get(path).status, 200)

    def test_health_has_details_for_those_with_a_key(self):
        self.assertEqual(self.get("/health").json(), {"status": "ok"})
        self.assertEqual(self.get("/health", Authorization="Bearer wrong").json(), {"status": "ok"})
        self.assertIn("kv_pages", self.get("/health", Authorization="Bearer alice-key").json())
        self.assertIn("kv_pages", self.get("/health", Authorization="Bearer root-key").json())

    def test_accepted_forms(self):
        basic = base64.b64encode(b"me:bob-key").decode()
        for headers in ({"Authorization": "Bearer alice-key"}, {"X-API-Key": "bob-key"}, {"Authorization": "Basic " + basic},
                        {"Authorization": "Bearer root-key"}):
            self.assertEqual(self.server.get("/v1/models", headers=headers).status, 200, headers)
        for value in ("Bearer", "Bearer ", "Bearer alice", "alice-key", "Bearer alice-key2", "Basic x"):
            self.assertEqual(self.get("/v1/models", Authorization=value).status, 401, value)
        page = self.server.get("/props", headers={"Accept": "text/html"})
        self.assertEqual(page.headers["www-authenticate"], 'Basic realm="bam"')

    def test_refused_before_the_body_is_read(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            self.assertIn(b" 401 ", client.recv(4096))

    def test_admin_routes(self):
        for path in ("/v1/requests/cancel_all", "/v1/kv/save", "/v1/kv/restore"):
            self.assertEqual(self.server.post(path, {}, headers={"Authorization": "Bearer alice-key"}).status, 403, path)
        self.assertEqual(self.server.post("/v1/requests/cancel_all", {}, headers={"Authorization": "Bearer root-key"}).json(),
                         {"cancelled": 0})

    def test_callers_see_their_own_requests_only(self):
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "request_id": "of-alice"}
        stream = self.server.stream("/v1/completions", body, headers={"Authorization": "Bearer alice-key"})
        stream.next_event()
        bob, root = {"Authorization": "Bearer bob-key"}, {"Authorization": "Bearer root-key"}
        self.assertEqual(self.server.get("/v1/requests", headers=bob).json()["data"], [])
        self.assertEqual(self.server.post("/v1/requests/of-alice/cancel", {}, headers=bob).status, 404)
        self.assertEqual(self.server.post("/v1/requests/cancel_all", {}, headers=root).json(), {"cancelled": 1})
        self.assertEqual(stream.chunks()[-1]["choices"][0]["finish_reason"], "abort")

    def test_cors(self):
        asked = "authorization,content-type,x-stainless-os"
        preflight = self.server.request("OPTIONS", "/v1/completions", headers={"Origin": "http://ok.example",
                                                                               "Access-Control-Request-Headers": asked})
        self.assertEqual(preflight.status, 204)
        self.assertEqual(preflight.headers["access-control-allow-origin"], "http://ok.example")
        self.assertEqual(preflight.headers["access-control-allow-headers"], asked)
        self.assertEqual(preflight.headers["access-control-max-age"], "86400")
        other = self.server.request("OPTIONS", "/v1/completions", headers={"Origin": "http://evil.example"})
        self.assertNotIn("access-control-allow-origin", other.headers)
        allowed = self.server.get("/v1/models", headers={"Origin": "http://ok.example", "Authorization": "Bearer bob-key"})
        self.assertEqual(allowed.headers["access-control-allow-origin"], "http://ok.example")


class SaltPerKey(bamtest.ServerTest):
    arguments = ("--api-key", "alice-key", "--api-key", "bob-key")

    def cached(self, key):
        prompt = [7 + i % 100 for i in range(600)]
        reply = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}, headers={"Authorization": "Bearer " + key})
        return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_keys_do_not_share_cached_prompts(self):
        self.assertEqual(self.cached("alice-key"), 0)
        self.assertGreater(self.cached("alice-key"), 500)
        self.assertEqual(self.cached("bob-key"), 0)


if __name__ == "__main__":
    bamtest.main()

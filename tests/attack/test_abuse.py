#!/usr/bin/env python3
"""Requests that are well formed and mean harm: slow readers, foreign pages, forged log lines, all connections taken, keys."""

import contextlib
import os
import socket
import subprocess
import unittest

import attack
import bamtest
from attack import connect, exchange, replies

ENDLESS = {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True}


class SlowReaders(bamtest.ServerTest):
    """H6: readers that take nothing are paused, cost little memory, and nobody waits for them."""

    arguments = ("--max-unsent", "64KiB", "--stall-timeout", "1h", "--kv-memory", "512MiB")

    def slow_client(self, body):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(attack.PATIENCE)
        client.connect(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/completions", body, {"Connection": "close"}))
        return client

    def test_h6_many_that_read_nothing_take_little_memory(self):
        before = attack.forget_peak(self.server.process.pid)
        clients = [self.slow_client({**ENDLESS, "stream": True, "logprobs": 20}) for _ in range(100)]
        bamtest.wait_until(lambda: [entry["state"] for entry in self.server.live()] == ["paused"] * 100, "all are paused", self.server)
        self.assertEqual(self.server.complete(max_tokens=5).status, 200)
        grown = attack.peak_bytes(self.server.process.pid) - before - self.server.kv_bytes()
        self.assertLess(grown, bamtest.megabytes(100))
        for client in clients:
            client.close()
        self.server.wait_idle()


class TakesNothing(bamtest.ServerTest):
    arguments = ("--max-unsent", "64KiB", "--stall-timeout", "1s")

    def test_h6_a_reader_that_takes_nothing_is_ended(self):
        client = SlowReaders.slow_client(self, {**ENDLESS, "stream": True, "logprobs": 20})
        bamtest.wait_until(self.server.live, "it runs", self.server)
        bamtest.wait_until(lambda: not self.server.live(), "it was ended", self.server)
        client.close()
        self.server.wait_idle()


class ForeignPages(bamtest.ServerTest):
    """Low: what a page that the user merely looks at may make a server without keys do: nothing."""

    BODY = b'{"prompt":"x","max_tokens":1}'

    def post(self, *lines):
        head = b"\r\n".join((b"POST /v1/completions HTTP/1.1", b"Content-Length: %d" % len(self.BODY), b"Connection: close", *lines))
        return replies(exchange(self.server.port, head + b"\r\n\r\n" + self.BODY))

    def test_low_dns_rebinding(self):
        for host in (b"attacker.example", b"attacker.example:8000", b"127.0.0.1.attacker.example", b"localhost.attacker.example"):
            self.assertNotEqual(self.post(b"Host: " + host), [200], host)
        for host in (b"127.0.0.1:%d" % self.server.port, b"localhost", b"[::1]:8000"):
            self.assertEqual(self.post(b"Host: " + host, b"Content-Type: application/json"), [200], host)

    def test_low_posts_of_foreign_pages(self):
        """A form or fetch() without a preflight: text/plain, with the browser's Origin."""
        for kind in (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"application/json"):
            self.assertNotEqual(self.post(b"Host: 127.0.0.1", b"Origin: http://attacker.example", b"Content-Type: " + kind), [200], kind)
        self.assertNotEqual(self.post(b"Host: 127.0.0.1", b"Origin: null", b"Content-Type: text/plain"), [200])


class Logs(bamtest.ServerTest):
    def test_low_log_lines_cannot_be_forged(self):
        before = len(self.server.lines)
        for path in (b"/v1/x%0A2026-01-01%20forged", b"/v1/x%0D%0Aforged", b"/%1b%5b31mforged", b"/v1/models/%0Aforged", b"/v1/requests/%0Aforged"):
            exchange(self.server.port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.server.complete(max_tokens=1, request_id="after-1")
        self.server.wait_line("after-1")
        for line in self.server.lines[before:]:
            self.assertFalse(line.lstrip().startswith(("forged", "2026-01-01 forged")), line)
            self.assertNotIn("\x1b[31m", line)


class AddressesInRequests(bamtest.ServerTest):
    """Addresses that clients put into requests are never asked (SSRF): no image, no schema, no proxy, no peer is fetched."""

    CHAT = "/v1/chat/completions"

    def bodies(self, url):
        said = [{"role": "user", "content": "x"}]
        for part in ({"type": "image_url", "image_url": {"url": url}}, {"type": "video_url", "video_url": {"url": url}},
                     {"type": "file", "file": {"file_url": url}}, {"type": "text", "text": url}):
            yield self.CHAT, {"messages": [{"role": "user", "content": [part]}]}
        for schema in ({"$ref": url}, {"$schema": url, "type": "object"}, {"$id": url, "properties": {"a": {"$ref": url + "#/x"}}}):
            yield self.CHAT, {"messages": said, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
            yield "/v1/completions", {"prompt": "x", "guided_json": schema}
        for part in ({"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}):
            yield "/v1/responses", {"input": [{"role": "user", "content": [part]}]}
        for tool in ({"type": "mcp", "server_label": "a", "server_url": url}, {"type": "web_search", "url": url}):
            yield "/v1/responses", {"input": "x", "tools": [tool]}
        for source in ({"type": "url", "url": url}, {"type": "file", "file_id": url}):
            yield "/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
        yield "/v1/messages", {"messages": said, "mcp_servers": [{"type": "url", "url": url, "name": "a"}]}
        yield "/api/chat", {"model": url, "messages": [{**said[0], "images": [url]}]}
        yield "/api/generate", {"model": url, "prompt": "x", "images": [url]}
        yield "/v1/completions", {"model": url, "prompt": url}
        yield "/v1/completions", {"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": int(url.split(":")[2][:-2])}}
        yield "/v1/embeddings", {"input": url}
        yield "/apply-template", {"messages": said, "chat_template": "{% include '" + url + "' %}"}
        yield "/v1/files", {"url": url}
        yield "/v1/kv/restore", {"name": url}

    def test_nothing_is_fetched_for_a_client(self):
        with socket.create_server(("127.0.0.1", 0)) as victim:
            place = b"127.0.0.1:%d" % victim.getsockname()[1]
            url = "http://" + place.decode() + "/x"
            with connect(victim.getsockname()[1]), victim.accept()[0]:
                pass  # who comes is seen
            victim.setblocking(False)
            for path, body in self.bodies(url):
                limits = {"max_tokens": 1} if path.startswith("/v1") else {}
                self.assertLess(self.server.post(path, {**limits, **body}).status, 502, (path, body))
            for line in (b"GET " + url.encode() + b" HTTP/1.1\r\nHost: " + place, b"CONNECT " + place + b" HTTP/1.1\r\nHost: " + place,
                         b"GET /v1/models HTTP/1.1\r\nHost: x\r\nReferer: " + url.encode() + b"\r\nX-Forwarded-Host: " + place):
                exchange(self.server.port, line + b"\r\nConnection: close\r\n\r\n")
            with self.assertRaises(BlockingIOError, msg="somebody came"):
                victim.accept()


class AllConnectionsTaken(bamtest.ServerTest):
    arguments = ("--max-connections", "4", "--idle-timeout", "1h")

    def test_low_probes_are_answered(self):
        held = [connect(self.server.port) for _ in range(4)]
        for client in held:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(b" 200 ", client.recv(4096))
        for path in (b"/livez", b"/readyz"):
            self.assertEqual(replies(exchange(self.server.port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), [200], path)
        for client in held:
            client.close()

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), self.server.log())


class Keys(unittest.TestCase):
    def test_low_api_keys_are_whole_and_not_empty(self):
        for key in ("", " ", "one,"):
            with self.subTest(key=key):
                result = subprocess.run([bamtest.BAM, "serve", "--port", "0", "--model", bamtest.checkpoint(), "--api-key", key],
                                        capture_output=True, text=True, timeout=attack.PATIENCE, check=False, env={"PATH": os.environ["PATH"]})
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("--api-key", result.stderr)

    def test_no_way_around_the_keys(self):
        with bamtest.running_server("--api-key", "right", "--admin-key", "root") as server:
            for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": "Bearer righ"},
                            {"Authorization": "Bearer right2"}, {"Authorization": "bearer\tright"}, {"Authorization": "right"},
                            {"X-Api-Key": ""}, {"X-Forwarded-For": "127.0.0.1"}, {"Authorization": "Bearer right\x00"}):
                for path in ("/v1/models", "/metrics", "/v1/requests", "/props"):
                    with contextlib.suppress(ValueError):
                        self.assertIn(server.get(path, headers=headers).status, (400, 401), (headers, path))
            for path in (b"//v1/models", b"/v1/./models", b"/x/../v1/models", b"/V1/models", b"/v1/models/", b"/v1%2Fmodels", b"/v1/models;x", b"/livez/../v1/models"):
                reply = exchange(server.port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                self.assertNotIn(b'"object"', reply, path)
                self.assertNotEqual(replies(reply), [200], path)


if __name__ == "__main__":
    attack.main()

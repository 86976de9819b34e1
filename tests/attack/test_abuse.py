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

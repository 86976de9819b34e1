#!/usr/bin/env python3
"""C1, C2, M7, H9: one packet that killed the server, memory without a key, framing that can be read in two ways, and what a
stream looks like in every kind of connection."""

import contextlib
import json
import re
import socket
import ssl
import tempfile
import unittest

import attack
import bamtest
from attack import Gateway, connect, exchange, read_until_closed, replies
from framing_cases import BODY, CHUNK, CHUNKED, LENGTH, PREFIX, REFUSED, SERVED

KILLER = (b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n-2\r\nXXXXXXXXXXXXXXXX")
SIZES = (b"-1", b"-2", b"-7fffffffffffffff", b"-8000000000000000", b"ffffffffffffffff", b"fffffffffffffffe", b"7fffffffffffffff",
         b"8000000000000000", b"10000000000000000", b"ffffffffffffffffffffffff", b"7ffffffffffffff0")
PATHS = (b"GET /livez", b"POST /v1/completions", b"POST /nowhere", b"BREW /", b"OPTIONS /v1/completions", b"HEAD /v1/models")
SECRET = ("--api-key", "secret-user", "--admin-key", "secret-admin")


class OneServer(bamtest.ServerTest):
    """Tests by plain TCP; Tls repeats them inside TLS."""

    arguments = (*SECRET, "--max-body", "1MiB", "--read-timeout", "1h", "--idle-timeout", "1h")
    tls = None

    def alive(self):
        return replies(exchange(self.server.port, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", self.tls)) == [200]

    def tearDown(self):
        super().tearDown()
        self.assertTrue(self.alive())

    def test_c1_one_packet(self):
        self.assertIn(replies(exchange(self.server.port, KILLER, self.tls)), ([400], [200, 400]))

    def test_c1_every_path_and_every_size(self):
        for path in PATHS:
            for size in SIZES:
                data = path + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n" + size + b"\r\n" + b"X" * 40
                with self.subTest(path=path, size=size):
                    statuses = replies(exchange(self.server.port, data, self.tls))
                    self.assertTrue(statuses and statuses[-1] in (400, 401, 404, 405, 413, 501), statuses)

    def test_c1_byte_by_byte(self):
        """The parser sees every prefix of it as an input of its own."""
        with connect(self.server.port, self.tls) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                for byte in KILLER:
                    client.sendall(bytes([byte]))
            self.assertIn(replies(read_until_closed(client)[0]), ([400], [200, 400], []))

    def flood(self, head, block):
        """Sends head and then blocks until the server has closed; returns how much memory that took the server."""
        self.assertTrue(self.alive())
        before = attack.forget_peak(self.server.process.pid)
        with connect(self.server.port, self.tls) as client:
            client.sendall(head)

            def closed():
                try:
                    client.sendall(block)
                    return False
                except (ConnectionError, ssl.SSLError):
                    return True
            attack.repeat_until(closed, "the connection is closed")
        return attack.peak_bytes(self.server.process.pid) - before

    def test_c2_memory_is_bounded_whatever_is_sent(self):
        block = b"x" * 65536
        key = b"Authorization: Bearer secret-user\r\n"
        cases = {"one chunk of 1 GiB": CHUNKED + b"40000000\r\n",
                 "one chunk of 1 GiB, with the key": CHUNKED[:-2] + key + b"\r\n40000000\r\n",
                 "a negative chunk": CHUNKED + b"-40000000\r\n",
                 "a content-length of 1 GiB": PREFIX + b"Content-Length: 1073741824\r\n\r\n",
                 "a content-length of 1 GiB, with the key": PREFIX + key + b"Content-Length: 1073741824\r\n\r\n",
                 "an endless first line": b"GET /",
                 "an endless header": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ",
                 "an endless chunk extension": CHUNKED + b"4;",
                 "an endless chunk size": CHUNKED + b"0"}
        for name, head in cases.items():
            with self.subTest(name):
                filler = b"0" * 65536 if name == "an endless chunk size" else block
                self.assertLess(self.flood(head, filler), bamtest.megabytes(24))
        lines = {"endless headers": (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X-Header: some value of it\r\n" * 2000),
                 "endless trailers": (CHUNKED + b"0\r\n", b"X-Trailer: some value of it\r\n" * 2000),
                 "endless empty lines": (b"", b"\r\n" * 30000),
                 "endless small chunks": (CHUNKED, b"1\r\nx\r\n" * 10000),
                 "pages that are not read": (b"", b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 500),
                 "refusals that are not read": (b"", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 500)}
        for name, (head, block) in lines.items():
            with self.subTest(name):
                self.assertLess(self.flood(head, block), bamtest.megabytes(24))

    def test_c2_replies_that_are_not_read_stop_the_answering(self):
        """Twenty connections that go on asking for a page of 14 KB, eight at a time, and read nothing: each keeps the replies that
        were begun, and is cut off when it sends on."""
        self.assertTrue(self.alive())
        before = attack.forget_peak(self.server.process.pid)
        clients = [connect(self.server.port, self.tls) for _ in range(20)]
        open_ones = set(clients)

        def all_closed():
            for client in list(open_ones):
                try:
                    client.sendall(b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 8)
                except (ConnectionError, ssl.SSLError):
                    open_ones.remove(client)
            return not open_ones
        bamtest.wait_until(all_closed, "all are cut off", self.server)
        self.assertLess(attack.peak_bytes(self.server.process.pid) - before, bamtest.megabytes(24))
        for client in clients:
            client.close()

    def test_pipelined_requests_are_answered_however_many(self):
        """Those that wait are taken up when earlier replies are out, also behind one that takes its time."""
        body = b'{"prompt":"%s"}' % (b"a " * 100_000)
        first = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-user\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        ask = b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n"
        last = ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for beginning in (b"", first):
            with connect(self.server.port, self.tls) as client:
                client.sendall(beginning + ask * 199 + last)
                self.assertEqual(replies(read_until_closed(client)[0]), [200] * (200 + bool(beginning)))

    def test_c2_many_at_once(self):
        """A hundred unfinished chunks of the largest body that is allowed."""
        self.assertTrue(self.alive())
        before = attack.forget_peak(self.server.process.pid)
        clients = []
        for _ in range(100):
            client = connect(self.server.port, self.tls)
            client.settimeout(0.5)
            with contextlib.suppress(OSError):
                client.sendall(CHUNKED + b"100000\r\n" + b"x" * 1_000_000)
            clients.append(client)
        self.assertTrue(self.alive())
        self.assertLess(attack.peak_bytes(self.server.process.pid) - before, bamtest.megabytes(64), "without a key nothing is kept")
        for client in clients:
            client.close()

    def test_c2_head_has_limits(self):
        for count, filler, expected in ((90, b"v", 200), (120, b"v", 431), (10, b"v" * 20_000, 431)):
            head = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + b"".join(b"X-%d: %s\r\n" % (i, filler) for i in range(count))
            with self.subTest(count=count, size=len(head)):
                self.assertIn(replies(exchange(self.server.port, head + b"\r\n", self.tls)), ([expected], [400 if expected == 431 else 200]))

    def test_c2_a_refused_connection_is_closed_whatever_it_sends(self):
        """The time-outs of this server are an hour: only the refusal closes."""
        for data in (CHUNKED + b"4\r\nabcd\r\n", PREFIX + b"Content-Length: 1000000\r\n\r\n", REFUSED["two content-lengths"], b"GET / HTTP/9\r\n\r\n"):
            with connect(self.server.port, self.tls) as client:
                client.sendall(data)
                reply = read_until_closed(client)[0]
                self.assertIn(replies(reply), ([400], [401], [505]), data)

    def test_m7_ambiguous_framing_is_refused(self):
        for name, data in REFUSED.items():
            with self.subTest(name):
                marked = data.replace(b"Content-Type: application/json\r\n", b"Content-Type: application/json\r\nAuthorization: Bearer secret-user\r\n")
                served = self.server_requests()
                reply = exchange(self.server.port, marked, self.tls)
                statuses = replies(reply)
                self.assertEqual(len(statuses), 1, reply)
                self.assertIn(statuses[0], (400, 413, 431, 501, 505), reply)
                self.assertEqual(self.server_requests(), served, "and nothing was executed")

    def test_m7_legal_framing_is_served(self):
        for name, data in SERVED.items():
            with self.subTest(name):
                marked = data.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\nAuthorization: Bearer secret-user\r\n")
                reply = exchange(self.server.port, marked, self.tls)
                self.assertEqual(replies(reply), [200], reply[:300])

    def server_requests(self):
        """How many completions were executed."""
        text = exchange(self.server.port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-user\r\nConnection: close\r\n\r\n", self.tls).decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("bam_requests_finished_total"))

    def test_m7_smuggled_requests_are_not_executed(self):
        """A second request hidden in the body of the first: seen by neither reading."""
        hidden = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-user\r\nContent-Length: " + LENGTH + b"\r\n\r\n" + BODY)
        attempts = {
            "CL.TE": PREFIX + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden)) + hidden,
            "TE.CL": PREFIX + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n%x\r\n" % len(hidden) + hidden + b"\r\n0\r\n\r\n",
            "TE.TE": PREFIX + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden,
            "CL.0": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length : %d\r\n\r\n" % len(hidden) + hidden,
            "chunk size that wraps": CHUNKED + b"fffffffffffffffe\r\n" + hidden,
            "bare line feeds": PREFIX.replace(b"\r\n", b"\n") + b"Transfer-Encoding: chunked\n\n0\n\n" + hidden}
        for name, data in attempts.items():
            with self.subTest(name):
                served = self.server_requests()
                statuses = replies(exchange(self.server.port, data, self.tls))
                self.assertEqual(len(statuses), 1, statuses)
                self.assertIn(statuses[0], (400, 401, 413))
                self.assertEqual(self.server_requests(), served)


class Tls(OneServer):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cert, key = attack.certificate(cls.folder.name)
        cls.tls = attack.client_context(cert)
        cls.server = bamtest.Server(*cls.arguments, "--tls-cert", cert, "--tls-key", key, scheme="https")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()


class BehindTheGateway(unittest.TestCase):
    """The same bytes through deploy/k8s/haproxy.cfg: whatever the two make of them, nothing smuggled is executed."""

    @classmethod
    def setUpClass(cls):
        cls.server = bamtest.Server("--max-body", "1MiB")
        cls.addClassCleanup(cls.server.kill)
        cls.gateway = Gateway(cls.server.port)
        cls.addClassCleanup(cls.gateway.__exit__)
        cls.gateway.wait_up()

    def test_m7_no_smuggled_request_gets_through(self):
        hidden = b"GET /v1/models/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        for name, data in {**REFUSED, "killer": KILLER}.items():
            with self.subTest(name):
                # After the request, the beginning of another one: whoever reads the first differently executes it.
                reply = exchange(self.gateway.port, data + hidden, finish=True)
                self.assertLessEqual(len(replies(reply)), 2, reply[:300])
                self.assertIsNone(self.server.process.poll(), self.server.log())
                if len(replies(reply)) == 2:  # HAProxy saw a whole first request: then both see the same second one
                    self.assertIn(replies(reply)[1], (400, 404), reply)
        self.assertEqual(self.server.complete(max_tokens=1).status, 200)

    def test_m7_one_reply_per_request(self):
        """A victim's requests on the same pooled connections get their own replies while an attacker tries to shift them."""
        for number, data in enumerate(list(REFUSED.values()) + [KILLER]):
            exchange(self.gateway.port, data, finish=True)
            body = json.dumps({"prompt": "The grass is", "max_tokens": 1, "request_id": f"victim-{number}"}).encode()
            reply = exchange(self.gateway.port, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                             b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self.assertEqual(replies(reply), [200], reply[:300])
            self.assertIn(b"cmpl-victim-%d" % number, reply)


class Connections(bamtest.ServerTest):
    """H9: every kind of connection gets the whole reply."""

    def ask(self, version, connection, stream):
        body = json.dumps({"prompt": "The grass is", "max_tokens": 20, "temperature": 0, "ignore_eos": True, "stream": stream}).encode()
        lines = [b"POST /v1/completions HTTP/" + version, b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        lines += [b"Connection: " + connection] if connection else []
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def test_h9_every_combination(self):
        expected = self.server.complete(max_tokens=20, ignore_eos=True).json()["choices"][0]["text"]
        for version in (b"1.0", b"1.1"):
            for connection in (None, b"close", b"keep-alive", b"Close", b"Keep-Alive", b"keep-alive, close"):
                for stream in (False, True):
                    with self.subTest(version=version, connection=connection, stream=stream):
                        self.check(version, connection, stream, expected)

    def check(self, version, connection, stream, expected):
        tokens = (connection or b"").lower().split(b", ")
        closes = b"close" in tokens or (version == b"1.0" and (stream or b"keep-alive" not in tokens))
        with connect(self.server.port) as client:
            client.sendall(self.ask(version, connection, stream))
            if not closes:
                self.assertEqual(self.text(self.read_reply(client, version), stream), expected)
                client.sendall(self.ask(version, b"close", stream))  # the connection is still good
            reply, reset = read_until_closed(client)
            self.assertFalse(reset)
            self.assertEqual(replies(reply), [200], reply[:300])
            self.assertEqual(self.text(self.split(reply, version), stream), expected)

    def split(self, reply, version):
        head, body = reply.split(b"\r\n\r\n", 1)
        chunked = re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head)
        self.assertFalse(version == b"1.0" and chunked, "HTTP/1.0 knows no chunks")
        if chunked:
            return attack.body_of(reply)
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length:
            self.assertEqual(len(body), int(length.group(1)))
        return body

    def read_reply(self, client, version):
        """One reply of a connection that stays open."""
        data = b""
        while True:
            part = client.recv(65536)
            self.assertTrue(part, f"closed, but it was to be kept: {data[-200:]}")
            data += part
            head, _, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            if length and len(body) >= int(length.group(1)):
                return self.split(data, version)
            if not length and data.endswith(b"\r\n0\r\n\r\n"):
                return self.split(data, version)

    def text(self, body, stream):
        if not stream:
            return json.loads(body)["choices"][0]["text"]
        events = body.decode().split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        return "".join(choice["text"] for event in events[:-2] if event.startswith("data: ") for choice in json.loads(event[6:])["choices"])


if __name__ == "__main__":
    attack.main()

#!/usr/bin/env python3
"""Clients that leave, stall or die: noticed at once, pages freed, the computed prefix kept, memory bounded."""

import os
import signal
import socket
import subprocess
import sys
import threading

import bamtest

# So long that it is still being read when the slowest client has looked and left.
LONG = [3 + i % 400 for i in range(100_000)]
ENDLESS = {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True}


class ClientsLeave(bamtest.ServerTest):
    arguments = ("--kv-memory", "512MiB", "--max-num-seqs", "256", "--idle-timeout", "60s")

    def live(self):
        return self.server.live()

    def leave_in_prefill(self, salt, stream, reset):
        """Sends a long prompt, waits until some of it is computed, and leaves."""
        client = socket.create_connection(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/completions", {"prompt": LONG, "max_tokens": 5, "stream": stream, "cache_salt": salt}))
        self.wait_for(lambda: any(entry["state"] == "prefill" and entry["processed_tokens"] > 1000 for entry in self.live()))
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.close()
        self.wait_for(lambda: not self.live(), "nothing runs for a client that has left")

    def test_leaving_during_prefill_frees_pages_and_keeps_the_prefix(self):
        for stream, reset in ((True, False), (True, True), (False, False), (False, True)):
            salt = f"leave-{stream}-{reset}"
            disconnects = self.server.metric("bam_http_disconnects_total")
            read = self.server.metric("bam_prompt_tokens_total")
            self.leave_in_prefill(salt, stream, reset)
            self.server.wait_idle()
            self.assertEqual(self.server.metric("bam_http_disconnects_total"), disconnects + 1, (stream, reset))
            self.assertLess(self.server.metric("bam_prompt_tokens_total") - read, len(LONG), "it ended before its prompt did")
            # A retry finds what the first try computed.
            reply = self.server.post("/v1/completions", {"prompt": LONG[:1500], "max_tokens": 1, "cache_salt": salt}).json()
            self.assertGreaterEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 960, (stream, reset))

    def test_leaving_during_decode(self):
        before = self.server.metric("bam_http_disconnects_total")
        for reset in (False, True):
            stream = self.server.stream("/v1/completions", ENDLESS)
            stream.next_event()
            stream.reset() if reset else stream.close()
            self.wait_for(lambda: not self.live())
        self.server.wait_idle()
        self.assertGreaterEqual(self.server.metric("bam_http_disconnects_total"), before + 2)

    def test_leaving_without_a_stream(self):
        client = socket.create_connection(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/completions", ENDLESS))
        self.wait_for(self.live)
        client.close()
        self.wait_for(lambda: not self.live())
        self.server.wait_idle()

    def test_killed_clients_leave_nothing_behind(self):
        script = ("import signal,socket,sys\n"
                  "s=[]\n"
                  "for i in range(8):\n"
                  "  c=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
                  "  c.sendall(sys.stdin.buffer.read() if not i else b'');s.append(c)\n"
                  "signal.pause()\n")
        descriptors = self.server.descriptors()
        clients = [subprocess.Popen([sys.executable, "-c", script, str(self.server.port)], stdin=subprocess.PIPE) for _ in range(4)]
        for client in clients:
            client.stdin.write(bamtest.raw_post("/v1/completions", {**ENDLESS, "stream": True}))
            client.stdin.close()
        self.wait_for(lambda: len(self.live()) == 4)
        for client in clients:
            client.send_signal(signal.SIGKILL)
            client.wait()
        self.wait_for(lambda: not self.live())
        self.server.wait_idle()
        self.wait_for(lambda: self.server.descriptors() <= descriptors + 2)

    def test_a_thousand_idle_connections(self):
        descriptors = self.server.descriptors()
        clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(1000)]
        self.assertEqual(self.server.complete(max_tokens=2).status, 200)
        self.wait_for(lambda: self.server.health()["connections"] >= 1000)
        for client in clients:
            client.close()
        self.wait_for(lambda: self.server.descriptors() <= descriptors + 2)

    def cpu_seconds(self):
        with open(f"/proc/{self.server.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_nothing_is_tokenized_for_clients_that_have_left(self):
        """In time of the server's own, not of the clock: sixty that left cost less than half of what sixty that wait do."""
        body = {"prompt": "The grass is green and the sky is blue. " * 25_000}
        begun = self.cpu_seconds()
        for _ in range(4):
            self.assertEqual(self.server.post("/tokenize", body).status, 200)
        one, begun = (self.cpu_seconds() - begun) / 4, self.cpu_seconds()
        request = bamtest.raw_post("/tokenize", body)
        clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(60)]
        for client in clients:
            client.sendall(request)
        for client in clients:
            client.close()
        self.wait_for(lambda: self.server.health()["connections"] <= 1)
        self.assertEqual(self.server.post("/tokenize", body).status, 200)  # behind all of them
        self.assertLess(self.cpu_seconds() - begun, 30 * one)

    def test_cancel_by_id(self):
        result = {}

        def call():
            result["reply"] = self.server.complete(max_tokens=100000, ignore_eos=True, request_id="cancel-me")

        thread = threading.Thread(target=call)
        thread.start()
        self.wait_for(self.live)
        self.assertTrue(self.server.post("/v1/requests/cancel-me/cancel", {}).json()["cancelled"])
        thread.join(bamtest.PATIENCE)
        choice = result["reply"].json()["choices"][0]
        self.assertEqual(choice["finish_reason"], "abort")
        self.server.wait_idle()

    def test_duplicate_request_id(self):
        stream = self.server.stream("/v1/completions", {**ENDLESS, "request_id": "twice"})
        stream.next_event()
        second = self.server.complete(max_tokens=1, request_id="twice")
        self.assertEqual((second.status, second.error["code"]), (400, "duplicate_request_id"))
        stream.close()
        self.wait_for(lambda: not self.live())
        statuses = []
        self.wait_for(lambda: statuses.append(self.server.complete(max_tokens=1, request_id="twice").status) or statuses[-1] == 200)
        self.assertLessEqual(set(statuses), {200, 400}, "the engine may know it a moment longer than its client")


class SlowReaders(bamtest.ServerTest):
    arguments = ("--kv-memory", "512MiB", "--max-num-seqs", "256", "--max-unsent", "64KiB")
    COUNT = 200

    def test_slow_readers_are_cut_off_and_memory_is_bounded(self):
        before = self.server.memory_bytes()
        clients = []
        for _ in range(self.COUNT):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", self.server.port))
            client.sendall(bamtest.raw_post("/v1/completions", {
                "prompt": "x", "max_tokens": 20000, "ignore_eos": True, "stream": True, "logprobs": 20, "return_token_ids": True}))
            clients.append(client)
        pages = peak = 0

        def all_cut_off():
            nonlocal pages, peak
            # A client that does read is served all the while.
            self.assertEqual(self.server.complete("y", max_tokens=1).status, 200)
            memory = self.server.memory_bytes() - before
            # How far a stream gets before it is full decides how many pages it has; those are what --kv-memory is for.
            pages = max(pages, self.server.kv_bytes())
            peak = max(peak, memory - pages)
            return self.server.metric("bam_http_slow_readers_total") >= self.COUNT

        self.wait_for(all_cut_off)
        self.assertEqual(self.server.metric("bam_http_slow_readers_total"), self.COUNT)
        for client in clients:
            client.close()
        self.server.wait_idle()
        print(f"\n{self.COUNT} slow readers: at most {peak / 2 ** 20:.1f} MiB more memory beside {pages / 2 ** 20:.1f} MiB of KV pages")
        self.assertLess(peak, bamtest.megabytes(120))


class StallTimeout(bamtest.ServerTest):
    arguments = ("--stall-timeout", "2s", "--ping-interval", "1s")

    def test_a_reader_that_takes_nothing_is_cut_off(self):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", self.server.port))
        # Enough to fill the kernel's buffers, far below the limit on unsent bytes.
        client.sendall(bamtest.raw_post("/v1/completions", {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True,
                                                            "logprobs": 20, "n": 2}))
        self.wait_for(lambda: self.server.metric("bam_http_connections") == 1)  # the one that asks
        client.close()


class IdleTimeout(bamtest.ServerTest):
    arguments = ("--idle-timeout", "2s", "--read-timeout", "2s", *bamtest.UNREAD)

    def test_idle_connections_are_closed_and_busy_ones_are_not(self):
        stream = self.server.stream("/v1/completions", ENDLESS)
        stream.next_event()
        idle = socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE)
        self.assertEqual(idle.recv(10), b"")
        # Older than the one that was closed, and without a new request all the while.
        self.assertTrue(stream.next_event().startswith("data: "))
        self.assertEqual(len(self.server.live()), 1)
        stream.close()
        self.server.wait_idle()

    def test_a_waiting_client_is_not_idle(self):
        reply = self.server.complete(max_tokens=100000, ignore_eos=True, timeout=4)
        self.assertEqual(reply.status, 408, "its own time ended it, not the idle timeout")


if __name__ == "__main__":
    bamtest.main()

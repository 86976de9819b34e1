#!/usr/bin/env python3
"""Clients that leave, stall or die: noticed at once, pages freed, the computed prefix kept, memory bounded."""

import signal
import socket
import subprocess
import sys
import threading
import time

import bamtest

LONG = [3 + i % 400 for i in range(30000)]


class ClientsLeave(bamtest.ServerTest):
    arguments = ("--kv-memory", "512MiB", "--max-num-seqs", "256", "--max-unsent", "64KiB", "--idle-timeout", "60s")

    def live(self):
        return self.server.get("/v1/requests").json()["data"]

    def start_prefill(self, salt, stream=True, reset=False):
        """Sends a long prompt, waits until some of it is computed, and leaves. Returns the seconds until it was gone."""
        client = socket.create_connection(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/completions", {"prompt": LONG, "max_tokens": 5, "stream": stream, "cache_salt": salt}))
        self.wait_for(lambda: any(entry["state"] == "prefill" and entry["processed_tokens"] > 1000 for entry in self.live()))
        left = time.time()
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.close()
        self.wait_for(lambda: not self.live())
        return time.time() - left

    def test_leaving_during_prefill_frees_pages_and_keeps_the_prefix(self):
        for stream, reset in ((True, False), (True, True), (False, False), (False, True)):
            salt = f"leave-{stream}-{reset}"
            seconds = self.start_prefill(salt, stream, reset)
            self.assertLess(seconds, 3, "a step is far shorter")
            self.server.wait_idle()
            # The retry continues where the first try stopped.
            reply = self.server.post("/v1/completions", {"prompt": LONG, "max_tokens": 1, "cache_salt": salt}, timeout=120).json()
            self.assertGreaterEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 960, (stream, reset))

    def test_leaving_during_decode(self):
        before = self.server.metric("bam_http_disconnects_total")
        for reset in (False, True):
            stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True})
            stream.next_event()
            stream.reset() if reset else stream.close()
            self.wait_for(lambda: not self.live())
        self.server.wait_idle()
        self.assertGreaterEqual(self.server.metric("bam_http_disconnects_total"), before + 2)

    def test_leaving_without_a_stream(self):
        client = socket.create_connection(("127.0.0.1", self.server.port))
        client.sendall(bamtest.raw_post("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True}))
        self.wait_for(self.live)
        client.close()
        self.wait_for(lambda: not self.live())
        self.server.wait_idle()

    def test_killed_clients_leave_nothing_behind(self):
        script = ("import socket,sys,time\n"
                  "s=[]\n"
                  "for i in range(8):\n"
                  "  c=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
                  "  c.sendall(sys.stdin.buffer.read() if not i else b'');s.append(c)\n"
                  "time.sleep(60)\n")
        descriptors = self.server.descriptors()
        clients = [subprocess.Popen([sys.executable, "-c", script, str(self.server.port)], stdin=subprocess.PIPE) for _ in range(4)]
        for client in clients:
            client.stdin.write(bamtest.raw_post("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True, "stream": True}))
            client.stdin.close()
        self.wait_for(lambda: len(self.live()) == 4)
        for client in clients:
            client.send_signal(signal.SIGKILL)
            client.wait()
        self.wait_for(lambda: not self.live())
        self.server.wait_idle()
        self.wait_for(lambda: self.server.descriptors() <= descriptors + 2)

    def test_slow_readers_are_cut_off_and_memory_is_bounded(self):
        before = self.server.memory_bytes()
        clients = []
        for _ in range(200):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", self.server.port))
            client.sendall(bamtest.raw_post("/v1/completions", {
                "prompt": "x", "max_tokens": 20000, "ignore_eos": True, "stream": True, "logprobs": 20, "return_token_ids": True}))
            clients.append(client)
        stop = time.time() + 60
        peak = 0
        while time.time() < stop and self.server.metric("bam_http_slow_readers_total") < 200:
            # A client that does read is served all the while.
            self.assertEqual(self.server.post("/v1/completions", {"prompt": "y", "max_tokens": 1}, timeout=60).status, 200)
            peak = max(peak, self.server.memory_bytes())
            time.sleep(0.2)
        self.assertEqual(self.server.metric("bam_http_slow_readers_total"), 200)
        for client in clients:
            client.close()
        self.server.wait_idle(60)
        print(f"\n200 slow readers: at most {(peak - before) / 2 ** 20:.1f} MiB more memory")
        self.assertLess(peak - before, bamtest.megabytes(160))

    def test_a_thousand_idle_connections(self):
        descriptors = self.server.descriptors()
        clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(1000)]
        self.assertEqual(self.server.complete(max_tokens=2).status, 200)
        self.assertGreaterEqual(self.server.get("/health").json()["connections"], 1000)
        for client in clients:
            client.close()
        self.wait_for(lambda: self.server.descriptors() <= descriptors + 2)

    def test_cancel_by_id(self):
        result = {}

        def call():
            result["reply"] = self.server.complete(max_tokens=100000, ignore_eos=True, request_id="cancel-me")

        thread = threading.Thread(target=call)
        thread.start()
        self.wait_for(self.live)
        time.sleep(0.1)
        self.assertTrue(self.server.post("/v1/requests/cancel-me/cancel", {}).json()["cancelled"])
        thread.join(20)
        choice = result["reply"].json()["choices"][0]
        self.assertEqual(choice["finish_reason"], "abort")
        self.server.wait_idle()

    def test_duplicate_request_id(self):
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True, "request_id": "twice"})
        stream.next_event()
        second = self.server.complete(max_tokens=1, request_id="twice")
        self.assertEqual((second.status, second.error["code"]), (400, "duplicate_request_id"))
        stream.close()
        self.wait_for(lambda: not self.live())
        self.wait_for(lambda: self.server.complete(max_tokens=1, request_id="twice").status == 200)


class StallTimeout(bamtest.ServerTest):
    arguments = ("--stall-timeout", "2s", "--ping-interval", "1s")

    def test_a_reader_that_takes_nothing_is_cut_off(self):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", self.server.port))
        # Enough to fill the kernel's buffers, far below the limit on unsent bytes.
        client.sendall(bamtest.raw_post("/v1/completions", {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True,
                                                            "logprobs": 20, "n": 2}))
        self.wait_for(lambda: self.server.metric("bam_http_connections") == 1, 120)  # the one that asks
        client.close()


class IdleTimeout(bamtest.ServerTest):
    arguments = ("--idle-timeout", "2s", "--read-timeout", "2s", "--max-unsent", "64MiB")

    def test_idle_connections_are_closed_and_busy_ones_are_not(self):
        idle = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True, "timeout": 5})
        started = time.time()
        self.assertEqual(idle.recv(10), b"")
        self.assertLess(time.time() - started, 6)
        events = list(stream.events())
        self.assertEqual(events[-1], "data: [DONE]")
        self.assertGreater(time.time() - started, 3.5, "a stream longer than the idle timeout lives on")

    def test_a_waiting_client_is_not_idle(self):
        reply = self.server.complete(max_tokens=100000, ignore_eos=True, timeout=5)
        self.assertEqual(reply.status, 408, "its own time ended it, not the idle timeout")


if __name__ == "__main__":
    bamtest.main()

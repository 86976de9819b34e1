#!/usr/bin/env python3
"""Admission: timeouts, queue limits, a true Retry-After, priorities, loading, connections, checkpoints without a template."""

import json
import pathlib
import shutil
import socket
import tempfile
import threading
import time
import unittest

import bamtest

ENDLESS = {"prompt": "The grass is", "max_tokens": 100000, "ignore_eos": True}


def copied_checkpoint(folder):
    target = pathlib.Path(folder) / "checkpoint"
    shutil.copytree(bamtest.checkpoint(), target)
    return target


class Timeouts(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--queue-timeout", "1s", "--request-timeout", "4s", "--max-unsent", "64MiB")

    def test_of_the_server_and_of_the_queue(self):
        stream = self.server.stream("/v1/completions", ENDLESS)
        stream.next_event()
        started = time.time()
        waiting = self.server.complete(max_tokens=1)
        self.assertEqual((waiting.status, waiting.error["code"]), (408, "timeout"), waiting.text)
        self.assertLess(time.time() - started, 4, "--queue-timeout ends it, not --request-timeout")
        events = list(stream.events())
        self.assertEqual(json.loads(events[-2][6:])["error"]["code"], "timeout")
        self.assertEqual(events[-1], "data: [DONE]")
        self.server.wait_idle()

    def test_a_request_may_ask_for_less_than_the_server_allows(self):
        started = time.time()
        self.assertEqual(self.server.complete(**{**ENDLESS, "timeout": 0.5}).status, 408)
        self.assertLess(time.time() - started, 3.5)
        self.server.wait_idle()


class QueuedTokens(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--max-queued-tokens", "2000", "--max-unsent", "64MiB")

    def test_prompts_of_the_queue_are_limited_in_tokens(self):
        running = self.server.stream("/v1/completions", ENDLESS)
        running.next_event()
        self.wait_for(lambda: self.server.get("/health").json()["running"] == 1)
        queued = self.server.stream("/v1/completions", {"prompt": [5] * 1500, "max_tokens": 1})
        self.wait_for(lambda: self.server.get("/health").json()["queued_tokens"] == 1500)
        refused = self.server.complete([5] * 1500, max_tokens=1)
        self.assertEqual((refused.status, refused.error["code"]), (429, "queue_full"), refused.text)
        self.assertGreaterEqual(int(refused.headers["retry-after"]), 1)
        running.close()
        self.assertEqual(queued.chunks()[-1]["choices"][0]["finish_reason"], "length")


class RetryAfter(unittest.TestCase):
    """The wait that a refused client is told is the wait until its next try is taken."""

    def tokens_per_second(self, server):
        """Of one text, measured; the cost model then knows this machine too."""
        started = time.time()
        server.complete(max_tokens=400, ignore_eos=True)
        return 400 / (time.time() - started)

    def measure(self, server, bodies, refused_body, has_room):
        """Fills the server with `bodies`, is refused, and asks again when it is told to, until it is taken. Returns the
        seconds told, the seconds until has_room(health), and the number of tries after the refusal."""
        calls = [threading.Thread(target=server.post, args=("/v1/completions", body), kwargs={"timeout": 600}) for body in bodies]
        for i, call in enumerate(calls):
            call.start()
            deadline = time.time() + 60
            while len(server.get("/v1/requests").json()["data"]) <= i and time.time() < deadline:
                time.sleep(0.01)
        refused = server.post("/v1/completions", refused_body)
        started = time.time()
        self.assertEqual((refused.status, refused.error["code"]), (429, "queue_full"), refused.text)
        told = int(refused.headers["retry-after"])
        self.assertGreaterEqual(told, 1)
        room_after, tries, next_try, reply = None, 0, started + told, refused
        while reply.status == 429:
            if room_after is None and has_room(server.get("/health").json()):
                room_after = time.time() - started
            if time.time() >= next_try:
                tries += 1
                asked = time.time() - started
                reply = server.post("/v1/completions", refused_body, timeout=600)
                if reply.status == 200 and room_after is None:
                    room_after = asked  # no picture of the engine has shown it yet
                next_try = time.time() + int(reply.headers.get("retry-after", 0))
            time.sleep(0.1)
        self.assertEqual(reply.status, 200, reply.text)
        for call in calls:
            call.join()
        return told, room_after, tries

    def check(self, name, rounds):
        for told, taken, tries in rounds:
            print(f"\nRetry-After, {name}: told {told} s, there was room after {taken:.1f} s, ratio {told / max(taken, 0.1):.2f}, "
                  f"accepted at try {tries}", end="")
        print()
        # Whole seconds, rounded up. Other programs may come and go in one of the rounds, so the middle one counts.
        told, taken, _ = sorted(rounds, key=lambda round: round[0] / max(round[1], 0.1))[len(rounds) // 2]
        self.assertLessEqual(told, 2 * taken + 1)
        self.assertLessEqual(taken, 2 * told + 1)
        self.assertLessEqual(sorted(tries for _, _, tries in rounds)[len(rounds) // 2], 2)

    def test_limit_in_requests(self):
        with bamtest.running_server("--max-num-seqs", "2", "--max-queue", "2") as server:
            tokens = int(max(200, min(20000, 2.5 * self.tokens_per_second(server))))
            body = {"prompt": "The grass is", "temperature": 0, "ignore_eos": True}
            bodies = [{**body, "max_tokens": count} for count in (tokens, 2 * tokens, 10, 10)]
            rounds = [self.measure(server, bodies, {**body, "max_tokens": 1}, lambda health: health["waiting"] < 2)
                      for _ in range(3)]
        self.check("limit in requests", rounds)

    def test_limit_in_tokens(self):
        with bamtest.running_server("--max-num-seqs", "1", "--max-queued-tokens", "4000", "--prefix-cache", "off") as server:
            tokens = int(max(100, min(10000, 1.2 * self.tokens_per_second(server))))
            body = {"temperature": 0, "ignore_eos": True}
            # Two of the three that wait must have started before 2,500 more tokens fit.
            bodies = [{**body, "prompt": [7 + i] * 1300, "max_tokens": count} for i, count in enumerate((tokens, tokens, 10, 10))]
            rounds = [self.measure(server, bodies, {**body, "prompt": [5] * 2500, "max_tokens": 1},
                                   lambda health: health["queued_tokens"] <= 1500) for _ in range(3)]
        self.check("limit in tokens", rounds)


class QueueLimits(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--max-queue", "2", "--max-queued-tokens", "300")

    def test_prompts_that_never_fit_the_queue(self):
        """Not 429: coming back later would not help."""
        for prompts, word in (([[5]] * 3, "--max-queue"), ([[5] * 200, [6] * 200], "--max-queued-tokens")):
            reply = self.server.complete(prompts, max_tokens=1)
            self.assertEqual(reply.status, 400, reply.body)
            self.assertEqual(reply.json()["error"]["param"], "prompt")
            self.assertIn(word, reply.json()["error"]["message"])
        self.assertEqual(self.server.complete([[5], [6]], max_tokens=1).status, 200)
        # The two are counted for a moment after their reply.
        self.wait_for(lambda: self.server.get("/health").json()["queued_tokens"] == 0)
        self.assertEqual(self.server.complete([5] * 400, max_tokens=1).status, 200)  # alone, a long prompt is let in

    def test_streams_of_lower_priority_wait(self):
        with bamtest.running_server("--max-num-seqs", "1", "--max-unsent", "64MiB") as server:
            first = server.stream("/v1/completions", ENDLESS)
            first.next_event()
            order = []

            def call(priority):
                # Long enough that their ends are apart even for the threads of a busy client.
                if server.complete(max_tokens=1000, ignore_eos=True, priority=priority).status == 200:
                    order.append(priority)

            threads = []
            for priority in (7, 3, 1):
                threads.append(threading.Thread(target=call, args=(priority,)))
                threads[-1].start()
                self.wait_for(lambda: server.get("/health").json()["waiting"] == len(threads))
            first.close()
            for thread in threads:
                thread.join()
            self.assertEqual(order, [1, 3, 7])


class Connections(bamtest.ServerTest):
    arguments = ("--max-connections", "8")

    def connect(self):
        """An open connection that was answered, or None if the server closed it at once."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        try:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = client.recv(1000)
        except ConnectionError:
            reply = b""
        if reply:
            self.assertTrue(reply.startswith(b"HTTP/1.1 200 "), reply)
            return client
        client.close()
        return None

    def test_exactly_as_many_as_allowed(self):
        clients = [self.connect() for _ in range(40)]
        self.assertEqual([client is not None for client in clients], [True] * 8 + [False] * 32)
        for client in clients[:8]:  # those within the limit are still served
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertTrue(client.recv(1000).startswith(b"HTTP/1.1 200 "))
        clients[3].close()
        again = []
        self.wait_for(lambda: again.append(self.connect()) or again[-1] is not None)
        self.assertIsNone(self.connect(), "the place that became free was taken")
        for client in clients[:8] + again[-1:]:
            client.close()
        self.wait_for(self.is_served)
        self.assertGreaterEqual(self.server.metric("bam_http_refused_connections_total"), 33)

    def is_served(self):
        try:
            return self.server.get("/livez").status == 200
        except OSError:
            return False


class Starting(unittest.TestCase):
    def test_answers_while_the_model_is_loading(self):
        with tempfile.TemporaryDirectory() as folder:
            # Some 80 million parameters take a while to pack.
            model = bamtest.random_checkpoint("--layers", "16", "--hidden", "512", "--heads", "8", "--dtype", "bf16", parent=folder)
            server = bamtest.Server(model=model, wait=False)
            try:
                server.port = server.wait_listening()
                ready, early = server.get("/readyz"), server.complete(max_tokens=1)
                self.assertEqual((ready.status, ready.json()), (503, {"status": "loading"}))
                self.assertEqual((early.status, early.error["code"]), (503, "loading"))
                self.assertGreaterEqual(int(early.headers["retry-after"]), 1)
                self.assertEqual(server.get("/livez").status, 200)
                server.wait_ready()
                self.assertEqual(server.get("/readyz").status, 200)
                self.assertEqual(server.complete(max_tokens=1).status, 200)
            finally:
                server.stop()

    def test_no_chat_template(self):
        with tempfile.TemporaryDirectory() as folder:
            model = copied_checkpoint(folder)
            config = json.loads((model / "tokenizer_config.json").read_text())
            config.pop("chat_template", None)
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            with bamtest.running_server(model=str(model)) as server:
                body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
                for path in ("/v1/chat/completions", "/tokenize"):
                    refused = server.post(path, body)
                    self.assertEqual((refused.status, refused.error["code"]), (400, "no_chat_template"), path)
                # A template never comes from a request.
                refused = server.post("/v1/chat/completions", {**body, "chat_template": "{{ messages[0].content }}"})
                self.assertEqual(refused.status, 400)
                self.assertEqual(server.complete(max_tokens=1).status, 200)
                self.assertFalse(server.get("/v1/models").json()["data"][0]["meta"]["chat"])

    def test_public_bind_without_a_key_is_warned_about(self):
        for arguments, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False), ((), False)):
            with bamtest.running_server(*arguments) as server:
                self.assertEqual(any("warn" in line and "key" in line for line in server.lines), warned, arguments)

    def test_key_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("# of the team\nfirst-key\n\nsecond-key  \n")
            file.flush()
            with bamtest.running_server("--api-key-file", file.name) as server:
                for key, status in (("first-key", 200), ("second-key", 200), ("# of the team", 401), ("", 401)):
                    self.assertEqual(server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, status, key)
                self.assertNotIn("first-key", "\n".join(server.lines))


if __name__ == "__main__":
    bamtest.main()

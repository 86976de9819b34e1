#!/usr/bin/env python3
"""Admission: timeouts, queue limits, a true Retry-After, priorities, loading, connections, checkpoints without a template."""

import json
import pathlib
import shutil
import socket
import tempfile
import time
import unittest

import bamtest

ENDLESS = {"prompt": "The grass is", "max_tokens": 100000, "ignore_eos": True}


def copied_checkpoint(folder):
    target = pathlib.Path(folder) / "checkpoint"
    shutil.copytree(bamtest.checkpoint(), target)
    return target


class QueueTimeout(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--queue-timeout", "1s", "--request-timeout", "1h", *bamtest.UNREAD)

    def test_ends_what_waits_and_nothing_else(self):
        stream = self.server.stream("/v1/completions", ENDLESS)
        stream.next_event()
        waiting = self.server.complete(max_tokens=1)
        self.assertEqual((waiting.status, waiting.error["code"]), (408, "timeout"), waiting.text)
        self.wait_for(lambda: len(self.server.live()) == 1, "what runs goes on")
        stream.close()
        self.server.wait_idle()

    def test_a_request_may_ask_for_less_than_the_server_allows(self):
        self.assertEqual(self.server.complete(**{**ENDLESS, "timeout": 0.5}).status, 408)
        self.server.wait_idle()


class RequestTimeout(bamtest.ServerTest):
    arguments = ("--request-timeout", "1s", *bamtest.UNREAD)

    def test_ends_what_runs(self):
        events = list(self.server.stream("/v1/completions", ENDLESS).events())
        self.assertEqual(json.loads(events[-2][6:])["error"]["code"], "timeout")
        self.assertEqual(events[-1], "data: [DONE]")
        self.server.wait_idle()

    def test_a_request_cannot_ask_for_more(self):
        self.assertEqual(self.server.complete(**{**ENDLESS, "timeout": 3600}).status, 408)
        self.server.wait_idle()


class QueuedTokens(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--max-queued-tokens", "2000", *bamtest.UNREAD)

    def test_prompts_of_the_queue_are_limited_in_tokens(self):
        running = self.server.stream("/v1/completions", ENDLESS)
        running.next_event()
        self.wait_for(lambda: self.server.health()["running"] == 1)
        queued = self.server.stream("/v1/completions", {"prompt": [5] * 1500, "max_tokens": 1})
        self.wait_for(lambda: self.server.health()["queued_tokens"] == 1500)
        refused = self.server.complete([5] * 1500, max_tokens=1)
        self.assertEqual((refused.status, refused.error["code"]), (429, "queue_full"), refused.text)
        self.assertGreaterEqual(int(refused.headers["retry-after"]), 1)
        running.close()
        self.assertEqual(queued.chunks()[-1]["choices"][0]["finish_reason"], "length")


class RetryAfter(unittest.TestCase):
    """What a refused client is told follows the work ahead of it, and a client that obeys is taken. How close the forecast
    comes is the subject of queue_forecast_test, on a clock of its own: a busy machine changes its speed while one waits."""

    BODY = {"temperature": 0, "ignore_eos": True}

    def told(self, reply):
        self.assertEqual((reply.status, reply.error["code"]), (429, "queue_full"), reply.text)
        self.assertGreaterEqual(int(reply.headers["retry-after"]), 1)
        return int(reply.headers["retry-after"])

    def fill(self, server, bodies):
        """Sends `bodies` one after the other, each once the engine knows those before it."""
        calls = []
        for body in bodies:
            before = server.metric("bam_requests_finished_total")
            calls.append(server.stream("/v1/completions", {**self.BODY, **body}))
            bamtest.wait_until(lambda: len(server.live()) == len(calls) or server.metric("bam_requests_finished_total") > before,
                               "the engine knows it", server)
        return calls

    def refused_behind(self, server, bodies, refused_body):
        """The streams of `bodies`, and what the client behind them is told; None if they had ended before it came."""
        calls = self.fill(server, bodies)
        reply = server.post("/v1/completions", {**self.BODY, **refused_body})
        return calls, None if reply.status == 200 else self.told(reply)

    def check(self, name, server, ahead, behind, refused_body):
        """`ahead(tokens)` are running requests of so many tokens, `behind` fill the queue behind them."""
        started = time.monotonic()
        server.complete(max_tokens=400, ignore_eos=True)  # the cost model gets to know this machine, too
        tokens = int(max(200, min(10_000, 400 / (time.monotonic() - started))))
        for _ in range(8):  # again if the machine changed its speed meanwhile
            calls, long_wait = self.refused_behind(server, ahead(4 * tokens) + behind, refused_body)
            for call in calls:
                call.close()
            server.wait_idle()
            calls, wait = self.refused_behind(server, ahead(tokens) + behind, refused_body)
            if long_wait is not None and wait is not None and long_wait > wait:
                break
            if wait is None:
                tokens *= 2  # so slow to ask that the work was over
            for call in calls:
                call.close()
            server.wait_idle()
        else:
            self.fail(f"never more seconds for more work: {wait}, {long_wait}")
        # The client that was refused obeys until it is taken.
        tries, told = 0, wait
        while wait:
            time.sleep(wait)
            tries += 1
            reply = server.post("/v1/completions", {**self.BODY, **refused_body})
            wait = 0 if reply.status == 200 else self.told(reply)
        for call in calls:
            self.assertEqual(call.chunks()[-1]["choices"][0]["finish_reason"], "length")
        print(f"\nRetry-After, {name}: {long_wait} s behind {4 * tokens} tokens, {told} s behind {tokens}; accepted at try {tries}")

    def test_limit_in_requests(self):
        with bamtest.running_server("--max-num-seqs", "2", "--max-queue", "2", *bamtest.UNREAD) as server:
            self.check("limit in requests", server,
                       lambda tokens: [{"prompt": "The grass is", "max_tokens": count} for count in (tokens, 2 * tokens)],
                       [{"prompt": "The grass is", "max_tokens": 10}] * 2, {"prompt": "The grass is", "max_tokens": 1})

    def test_limit_in_tokens(self):
        with bamtest.running_server("--max-num-seqs", "1", "--max-queued-tokens", "4000", "--prefix-cache", "off", *bamtest.UNREAD) as server:
            # Two of the three that wait must have started before 2,500 more tokens fit.
            self.check("limit in tokens", server,
                       lambda tokens: [{"prompt": [7] * 1300, "max_tokens": tokens}],
                       [{"prompt": [8 + i] * 1300, "max_tokens": 10} for i in range(3)], {"prompt": [5] * 2500, "max_tokens": 1})


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
        self.wait_for(lambda: self.server.health()["queued_tokens"] == 0)
        self.assertEqual(self.server.complete([5] * 400, max_tokens=1).status, 200)  # alone, a long prompt is let in

    def test_streams_of_lower_priority_wait(self):
        with bamtest.running_server("--max-num-seqs", "1", *bamtest.UNREAD) as server:
            first = server.stream("/v1/completions", ENDLESS)
            first.next_event()
            waiting = []
            for priority in (7, 3, 1):
                waiting.append(server.stream("/v1/completions", {"prompt": "x", "max_tokens": 400, "ignore_eos": True,
                                                                 "priority": priority, "request_id": f"priority-{priority}"}))
                self.wait_for(lambda: server.health()["waiting"] == len(waiting))
            first.close()
            for stream in waiting:
                self.assertEqual(stream.chunks()[-1]["choices"][0]["finish_reason"], "length")
            # The order in which the server ended them; what a busy client saw first says nothing.
            self.wait_for(lambda: sum("priority-" in line for line in server.lines) == 3)
            order = [line[line.index("priority-") + 9] for line in server.lines if "priority-" in line]
            self.assertEqual(order, ["1", "3", "7"])


class Connections(bamtest.ServerTest):
    arguments = ("--max-connections", "8")

    def connect(self):
        """An open connection that was answered, or None if the server refused it: closed at once, or with a 503 first."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=bamtest.PATIENCE)
        try:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = client.recv(1000)
        except ConnectionError:
            reply = b""
        if reply.startswith(b"HTTP/1.1 200 "):
            return client
        self.assertTrue(not reply or (reply.startswith(b"HTTP/1.1 503 ") and b"connection: close" in reply), reply)
        client.close()
        return None

    def test_probes_are_answered_when_there_are_no_places(self):
        clients = [self.connect() for _ in range(8)]
        for path in ("/livez", "/readyz") * 10:
            self.wait_for(lambda: self.server.get(path).status == 200)
        for client in clients:
            client.close()
        self.wait_for(self.is_served)

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
            return self.server.get("/v1/models").status == 200
        except OSError:
            return False


class Starting(unittest.TestCase):
    def test_answers_while_the_model_is_loading(self):
        for layers in (16, 64):  # some 80 million parameters take a while to pack; more, if this machine was too quick
            with tempfile.TemporaryDirectory() as folder:
                model = bamtest.random_checkpoint("--layers", str(layers), "--hidden", "512", "--heads", "8", "--dtype", "bf16", parent=folder)
                server = bamtest.Server("--log-level", "debug", model=model, wait=False)
                try:
                    server.port = server.wait_listening()
                    ready, early, live = server.get("/readyz"), server.complete(max_tokens=1), server.get("/livez")
                    seen = not server.is_ready()
                    server.wait_ready()
                    self.assertEqual(live.status, 200)
                    self.assertEqual(server.get("/readyz").status, 200)
                    self.assertEqual(server.complete(max_tokens=1).status, 200)
                finally:
                    server.stop()
                if seen:
                    self.assertEqual((ready.status, ready.json()), (503, {"status": "loading"}))
                    self.assertEqual((early.status, early.error["code"]), (503, "loading"))
                    self.assertGreaterEqual(int(early.headers["retry-after"]), 1)
                    return
        self.fail("never seen loading")

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

#!/usr/bin/env python3
"""Resumable streams on raw sockets: a lost connection loses nothing, and nothing is kept for ever."""

import json
import signal
import socket
import unittest

import bamtest

SHORT = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "temperature": 0, "resumable": True,
         "stream_options": {"include_usage": True}}
ENDLESS = {**SHORT, "max_tokens": 100000}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "ignore_eos": True, "temperature": 0}


def get(server, name, start=None, headers=None):
    """A GET of the stream, read event by event from its socket."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=bamtest.PATIENCE)
    lines = [f"GET /v1/stream/{name}" + (f"?from={start}" if start is not None else "") + " HTTP/1.1", "Host: test"]
    lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
    client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
    stream = bamtest.Stream.attached(client)
    assert stream.status == 200, stream.status
    return stream


def numbered(events, start=0):
    """The events but for pings; their numbers must follow each other from `start` on."""
    kept = [event for event in events if not event.startswith(": ")]
    for number, event in enumerate(kept, start):
        assert event.startswith(f"id: {number}\n"), (number, event)
    return kept


def some_events(stream, count):
    kept = []
    while len(kept) < count:
        event = stream.next_event()
        if not event.startswith(": "):
            kept.append(event)
    return kept


def text_of(events):
    chunks = [json.loads(event.split("data: ", 1)[1]) for event in events if not event.endswith("[DONE]")]
    return bamtest.text_of(chunks)


class Resume(bamtest.ServerTest):
    arguments = ("--resume-timeout", "600s", "--max-resumable", "64", "--step-target-ms", "5")

    def tearDown(self):
        super().tearDown()
        self.server.wait_idle()

    def whole(self, path, body, name, headers=None):
        """The stream that nobody disturbed: what a replay of all its events gives must be the same bytes."""
        stream = self.server.stream(path, {**body, "request_id": name}, headers)
        events = numbered(stream.events())
        self.assertEqual(numbered(get(self.server, name).events()), events)
        return stream, events

    def test_the_same_text_as_without(self):
        stream, events = self.whole("/v1/completions", SHORT, "same")
        self.assertEqual(stream.headers["x-stream-id"], "cmpl-same")
        plain = {key: value for key, value in SHORT.items() if key not in ("resumable", "stream_options")}
        self.assertEqual(text_of(events), self.server.post("/v1/completions", plain).json()["choices"][0]["text"])
        self.assertTrue(events[-1].endswith("data: [DONE]"))

    def test_cut_in_decode_twice(self):
        first = self.server.stream("/v1/completions", {**SHORT, "max_tokens": 1000, "request_id": "twice"})
        events = some_events(first, 1)  # how many tokens an event has depends on the machine
        first.reset()
        second = get(self.server, "cmpl-twice", 1)
        events += some_events(second, 2)
        second.close()
        third = get(self.server, "twice", 3)
        events += list(third.events())
        events = numbered(events)
        self.assertEqual(numbered(get(self.server, "twice", 0).events()), events, "byte for byte what was sent")
        usage = json.loads(events[-2].split("data: ", 1)[1])["usage"]
        self.assertEqual(usage["completion_tokens"], 1000)
        whole = self.server.complete(SHORT["prompt"], max_tokens=1000, ignore_eos=True).json()["choices"][0]["text"]
        self.assertEqual(text_of(events), whole)

    def test_cut_in_prefill(self):
        prompt = [5 + i % 300 for i in range(6000)]
        stream = self.server.stream("/v1/completions", {**SHORT, "prompt": prompt, "request_id": "prefill"})
        self.assertEqual(stream.headers["x-stream-id"], "cmpl-prefill", "known before the first event")
        stream.reset()
        events = numbered(get(self.server, "prefill").events())
        plain = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 60, "ignore_eos": True, "temperature": 0}).json()
        self.assertEqual(text_of(events), plain["choices"][0]["text"])

    def test_every_api(self):
        header = {"X-Resumable": "true"}
        for name, path, body in (
                ("a-chat", "/v1/chat/completions", {**CHAT, "stream": True}),
                ("a-response", "/v1/responses", {"input": "Hello", "max_output_tokens": 20, "stream": True}),
                ("a-message", "/v1/messages", {"messages": CHAT["messages"], "max_tokens": 20, "stream": True}),
                ("a-llama", "/completion", {"prompt": "x", "n_predict": 20, "stream": True})):
            stream = self.server.stream(path, body, {**header, "X-Request-Id": name})
            self.assertEqual(stream.status, 200, path)
            events = some_events(stream, 2)
            stream.reset()
            events += list(get(self.server, name, 2).events())
            self.assertEqual(numbered(get(self.server, stream.headers["x-stream-id"]).events()), numbered(events), path)

    def test_lines_of_ollama(self):
        for count in (20, 200, 2000, 20_000):  # what is computed while nobody had time to write it goes into one line
            body = {**CHAT, "options": {"num_predict": count, "temperature": 0}}
            headers = {"X-Resumable": "true", "X-Request-Id": f"lines-{count}"}
            whole = self.server.post("/api/chat", body, headers=headers).text.splitlines()
            if len(whole) > 2:
                break
        self.assertGreater(len(whole), 2)
        self.assertEqual(self.server.get(f"/v1/stream/lines-{count}?from=2").text.splitlines(), whole[2:])

    def test_a_second_reader_takes_over(self):
        first = self.server.stream("/v1/completions", {**ENDLESS, "request_id": "taken"})
        some_events(first, 3)
        second = get(self.server, "taken", 0)
        some_events(second, 3)
        with self.assertRaises((EOFError, ConnectionError)):
            for _ in first.events():
                pass
        self.assertEqual(self.server.get("/v1/stream/taken?from=x").status, 400)
        self.assertEqual(self.server.request("HEAD", "/v1/stream/taken").status, 200)
        some_events(second, 1)  # neither took it away
        self.assertTrue(self.server.request("DELETE", "/v1/stream/taken").json()["cancelled"])
        rest = list(second.events())
        self.assertTrue(rest[-1].endswith("data: [DONE]"))
        self.assertTrue(any('"finish_reason":"abort"' in event for event in rest), rest[-3:])
        self.assertEqual(self.server.get("/v1/stream/taken").error["code"], "stream_not_found")

    def test_event_source_header(self):
        _, events = self.whole("/v1/completions", SHORT, "source")
        replayed = get(self.server, "source", headers={"Last-Event-ID": "1"})
        self.assertEqual(numbered(replayed.events(), 2), events[2:])

    def test_errors(self):
        self.whole("/v1/completions", {**SHORT, "max_tokens": 2}, "few")
        for path, status, code, param in (("few?from=1000", 400, None, "from"), ("few?from=-1", 400, None, "from"),
                                          ("nobody", 404, "stream_not_found", None)):
            reply = self.server.get("/v1/stream/" + path)
            self.assertEqual((reply.status, reply.error["code"], reply.error["param"]), (status, code, param))
        self.assertEqual(self.server.request("DELETE", "/v1/stream/nobody").status, 404)
        self.assertEqual(self.server.complete(resumable=True).error["param"], "resumable")
        reply = self.server.post("/v1/messages", {**CHAT, "max_tokens": 2}, headers={"X-Resumable": "true"})
        self.assertEqual(reply.status, 400)

    def test_metrics(self):
        self.whole("/v1/completions", SHORT, "counted")
        self.assertGreaterEqual(self.server.metric("bam_resumable_streams"), 1)
        self.assertGreater(self.server.metric("bam_resumable_bytes"), 1000)
        self.assertGreaterEqual(self.server.metric("bam_streams_resumed_total"), 1)
        self.assertFalse(self.server.request("DELETE", "/v1/stream/counted").json()["cancelled"], "it was over")


class Bounds(bamtest.ServerTest):
    arguments = ("--resume-timeout", "600s", "--max-resumable", "2", "--resume-buffer", "64KiB", "--api-key", "one", "--api-key", "two")
    one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}

    def live(self):
        return self.server.get("/v1/requests", headers=self.one).json()["data"]

    def test_a_full_buffer_pauses_and_loses_nothing(self):
        body = {**SHORT, "max_tokens": 6000, "logprobs": 5, "request_id": "paused"}
        stream = self.server.stream("/v1/completions", body, self.one)
        events = some_events(stream, 1)
        stream.reset()
        self.wait_for(lambda: [request["state"] for request in self.live()] == ["paused"], "the generation waits for a reader")
        # Another key knows nothing of it.
        self.assertEqual(self.server.get("/v1/stream/paused", headers=self.two).status, 404)
        self.assertEqual(self.server.request("DELETE", "/v1/stream/paused", headers=self.two).status, 404)
        events = numbered(events + list(get(self.server, "paused", 1, self.one).events()))
        self.assertEqual(json.loads(events[-2].split("data: ", 1)[1])["usage"]["completion_tokens"], 6000)
        reply = self.server.get("/v1/stream/paused?from=0", headers=self.one)
        self.assertEqual((reply.status, reply.error["code"]), (410, "events_expired"))
        first_kept = int(reply.error["message"].split("before ")[1].split()[0])
        self.assertEqual(numbered(get(self.server, "paused", first_kept, self.one).events(), first_kept), events[first_kept:])

    def test_as_many_as_there_may_be(self):
        streams = [self.server.stream("/v1/completions", {**ENDLESS, "request_id": f"many-{i}"}, self.one) for i in range(2)]
        for stream in streams:
            some_events(stream, 1)
        reply = self.server.post("/v1/completions", {**SHORT, "stream": True}, headers=self.one)
        self.assertEqual((reply.status, reply.error["code"]), (429, "too_many_resumable_streams"))
        self.assertGreaterEqual(int(reply.headers["retry-after"]), 1)
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=self.one).status, 200)
        for i, stream in enumerate(streams):
            self.assertEqual(self.server.request("DELETE", f"/v1/stream/many-{i}", headers=self.one).status, 200)
            list(stream.events())
        # Streams that were read to their end make room.
        for i in range(5):
            list(self.server.stream("/v1/completions", {**SHORT, "request_id": f"after-{i}"}, self.one).events())


class Expiry(bamtest.ServerTest):
    arguments = ("--resume-timeout", "1s", "--resume-buffer", "64KiB")

    def test_nobody_comes_back(self):
        for count in (0, 2):
            stream = self.server.stream("/v1/completions", {**ENDLESS, "request_id": f"lost-{count}"})
            some_events(stream, count)
            stream.reset()
        self.wait_for(lambda: self.server.metric("bam_streams_expired_total") == 2)
        self.server.wait_idle()  # no request, no page in use
        self.assertEqual(self.server.get("/v1/stream/lost-2").status, 404)
        self.assertEqual(self.server.metric("bam_resumable_streams"), 0)
        self.wait_for(lambda: self.server.metric("bam_resumable_bytes") == 0)

    def test_what_was_read_is_forgotten_too(self):
        list(self.server.stream("/v1/completions", {**SHORT, "request_id": "read"}).events())
        self.wait_for(lambda: self.server.request("HEAD", "/v1/stream/read").status == 404)
        self.wait_for(lambda: self.server.metric("bam_resumable_bytes") == 0)


class Drain(unittest.TestCase):
    def test_the_rest_can_be_read_while_the_server_stops(self):
        server = bamtest.Server("--drain-timeout", "600s", "--resume-timeout", "600s")
        stream = server.stream("/v1/completions", {**SHORT, "max_tokens": 1000, "request_id": "last"})
        events = some_events(stream, 2)
        stream.reset()
        server.process.send_signal(signal.SIGTERM)
        bamtest.wait_until(lambda: server.get("/readyz").status == 503, "draining", server)
        self.assertEqual(server.post("/v1/completions", {**SHORT, "stream": True}).status, 503)
        events += list(get(server, "last", 2).events())
        self.assertTrue(numbered(events)[-1].endswith("data: [DONE]"))
        server.process.wait(bamtest.PATIENCE)  # another signal would be a second one, where the first is a while ago
        server.stop()


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Event streams on the wire: exact bytes, order of events, pings, progress, usage, choices, stop strings, UTF-8."""

import json
import re
import time

import bamtest

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


class SseBytes(bamtest.ServerTest):
    arguments = ("--ping-interval", "1s")

    def test_completion_stream_is_exactly_this(self):
        stream = self.server.stream("/v1/completions", {"prompt": "The grass is", "max_tokens": 3, "temperature": 0,
                                                        "ignore_eos": True, "request_id": "wire-1"})
        self.assertEqual(stream.status, 200)
        self.assertEqual(stream.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(stream.headers["transfer-encoding"], "chunked")
        self.assertEqual(stream.headers["cache-control"], "no-cache")
        self.assertEqual(stream.headers["x-request-id"], "wire-1")
        events = list(stream.events())
        first = json.loads(events[0][6:])
        head = ('data: {"id":"cmpl-wire-1","object":"text_completion","created":%d,"model":"test",'
                '"system_fingerprint":%s,"choices":' % (first["created"], json.dumps(first["system_fingerprint"])))
        texts = []
        for event in events[:-2]:
            found = re.fullmatch(re.escape(head) + r'\[\{"index":0,"text":("(?:[^"\\]|\\.)*"),"logprobs":null,'
                                 r'"finish_reason":null,"stop_reason":null\}\]\}', event)
            self.assertTrue(found, event)
            texts.append(json.loads(found.group(1)))
        self.assertEqual(events[-2], head + '[{"index":0,"text":"","logprobs":null,"finish_reason":"length",'
                                            '"stop_reason":null}]}')
        self.assertEqual(events[-1], "data: [DONE]")
        whole = self.server.complete(max_tokens=3, ignore_eos=True).json()["choices"][0]["text"]
        self.assertEqual("".join(texts), whole)
        for line in stream.raw.decode().split("\n"):
            self.assertFalse(line.startswith(("id:", "retry:", "event:")), line)

    def test_chat_stream_begins_with_the_role_and_ends_with_an_empty_delta(self):
        stream = self.server.stream("/v1/chat/completions", {**CHAT, "max_tokens": 4, "ignore_eos": True})
        chunks = stream.chunks()
        self.assertEqual(chunks[0]["choices"], [{"index": 0, "delta": {"role": "assistant", "content": ""},
                                                 "logprobs": None, "finish_reason": None}])
        for chunk in chunks[:-1]:
            self.assertEqual(chunk["object"], "chat.completion.chunk")
            self.assertIsNone(chunk["choices"][0]["finish_reason"])
            self.assertNotIn("usage", chunk)
        self.assertEqual(chunks[-1]["choices"][0]["delta"], {})
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        whole = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 4, "ignore_eos": True}).json()
        self.assertEqual(bamtest.text_of(chunks), whole["choices"][0]["message"]["content"])

    def test_usage_comes_last_and_only_when_asked(self):
        body = {"prompt": "The grass is", "max_tokens": 3, "ignore_eos": True, "stream_options": {"include_usage": True}}
        chunks = self.server.stream("/v1/completions", body).chunks()
        self.assertTrue(all(chunk["usage"] is None for chunk in chunks[:-1]))
        self.assertEqual(chunks[-1]["choices"], [])
        usage = chunks[-1]["usage"]
        self.assertEqual(usage["completion_tokens"], 3)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 3)
        self.assertIn("cached_tokens", usage["prompt_tokens_details"])
        body["stream_options"]["continuous_usage_stats"] = True
        counts = [chunk["usage"]["completion_tokens"] for chunk in self.server.stream("/v1/completions", body).chunks()]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 3)

    def test_choices_are_interleaved_by_index_and_complete(self):
        body = {"prompt": ["The grass", "The sky"], "n": 3, "max_tokens": 8, "seed": 5, "temperature": 1, "ignore_eos": True}
        chunks = self.server.stream("/v1/completions", body).chunks()
        whole = self.server.post("/v1/completions", body).json()
        self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(6)))
        for index in range(6):
            self.assertEqual(bamtest.text_of(chunks, index), whole["choices"][index]["text"], index)
            finishes = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]
                        if choice["index"] == index and choice["finish_reason"]]
            self.assertEqual(finishes, ["length"])

    def test_pings_come_from_a_timer_also_while_the_prompt_is_read(self):
        def pinged(index):
            prompt = [3 + (index + i * 7) % 500 for i in range(100_000)]
            events = list(self.server.stream("/v1/completions", {"prompt": prompt, "max_tokens": 2, "ignore_eos": True}).events())
            self.assertEqual(events[-1], "data: [DONE]")
            return ": ping" in events[:next(i for i, event in enumerate(events) if event.startswith("data: "))]

        for together in (1, 4, 16, 64):  # until reading them takes this machine longer than a ping's interval
            if any(bamtest.run_threads(together, pinged)):
                return
        self.fail("no ping while a prompt was read")

    def test_progress_of_the_prompt(self):
        prompt = [3 + i % 300 for i in range(6000)]
        stream = self.server.stream("/v1/completions", {"prompt": prompt, "max_tokens": 1, "return_progress": True,
                                                        "cache_salt": str(time.time())})
        progress = [chunk["prompt_progress"] for chunk in stream.chunks() if "prompt_progress" in chunk]
        self.assertGreaterEqual(len(progress), 2, "a prompt of 6000 tokens is read in several steps")
        done = [entry["processed"] for entry in progress]
        self.assertEqual(done, sorted(done))
        self.assertEqual(done[-1], 6000)
        for entry in progress:
            self.assertEqual(set(entry), {"total", "cache", "processed", "time_ms", "eta_ms"})
            self.assertEqual(entry["total"], 6000)

    def test_errors_before_the_stream_are_plain_http(self):
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": -1})
        self.assertEqual(stream.status, 400)
        self.assertEqual(stream.headers["content-type"], "application/json")

    def test_an_error_inside_a_stream_is_followed_by_done(self):
        stream = self.server.stream("/v1/completions", {"prompt": "The grass is", "max_tokens": 100000, "ignore_eos": True,
                                                        "timeout": 0.5})
        events = list(stream.events())
        self.assertEqual(events[-1], "data: [DONE]")
        error = json.loads(events[-2][6:])["error"]
        self.assertEqual(error["code"], "timeout")

    def test_keep_alive_after_a_stream(self):
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 2})
        stream.chunks()
        stream.socket.sendall(bamtest.raw_post("/v1/completions", {"prompt": "y", "max_tokens": 1, "stream": True}))
        stream.raw, stream._position, stream.ended = b"", 0, False
        status, _ = stream._read_head()
        self.assertEqual(status, 200)
        self.assertTrue(stream.chunks())


class StopStrings(bamtest.ServerTest):
    def setUp(self):
        self.whole = self.server.complete(max_tokens=40, ignore_eos=True).json()["choices"][0]["text"]

    def streamed(self, **fields):
        return self.server.stream("/v1/completions", {"prompt": "The grass is", "temperature": 0, "max_tokens": 40,
                                                      "ignore_eos": True, **fields}).chunks()

    def test_every_substring_as_stop(self):
        for start in range(2, min(24, len(self.whole) - 4), 3):
            stop = self.whole[start:start + 4]
            expected = self.whole[:self.whole.index(stop)]
            chunks = self.streamed(stop=[stop, "\x01never\x01"])
            self.assertEqual(bamtest.text_of(chunks), expected, repr(stop))
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "stop")
            self.assertEqual(chunks[-1]["choices"][0]["stop_reason"], stop)
            reply = self.server.complete(max_tokens=40, ignore_eos=True, stop=stop).json()
            self.assertEqual(reply["choices"][0]["text"], expected)
            self.assertEqual(reply["choices"][0]["stop_reason"], stop)
            self.assertLess(reply["usage"]["completion_tokens"], 40)
        self.server.wait_idle()

    def test_include_stop_str_in_output(self):
        stop = self.whole[5:9]
        reply = self.server.complete(max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=True).json()
        self.assertEqual(reply["choices"][0]["text"], self.whole[:self.whole.index(stop)] + stop)

    def test_logprobs_do_not_reveal_the_stop_string(self):
        stop = self.whole[6:12]
        chunks = self.streamed(stop=stop, logprobs=1)
        expected = self.whole[:self.whole.index(stop)]
        offsets = [offset for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]
                   for offset in choice["logprobs"]["text_offset"]]
        self.assertTrue(all(offset < len(expected) for offset in offsets), (offsets, expected))

    def test_stop_token_ids(self):
        ids = self.server.complete(max_tokens=40, ignore_eos=True, return_token_ids=True).json()["choices"][0]["token_ids"]
        target = ids[7]
        cut = ids.index(target)
        reply = self.server.complete(max_tokens=40, ignore_eos=True, return_token_ids=True, stop_token_ids=[target]).json()
        choice = reply["choices"][0]
        self.assertEqual(choice["token_ids"], ids[:cut + 1])
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["stop_reason"], target)


class Utf8(bamtest.ServerTest):
    arguments = ("--ping-interval", "1h")

    def test_no_ping_before_its_time(self):
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 200, "ignore_eos": True})
        self.assertNotIn(": ping", list(stream.events()))

    def test_every_event_is_whole_utf8(self):
        # High temperature makes byte pieces likely; decoding each event on its own must never fail.
        for seed in range(6):
            stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 60, "temperature": 3, "seed": seed,
                                                            "ignore_eos": True})
            chunks = stream.chunks()
            whole = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 60, "temperature": 3, "seed": seed,
                                                         "ignore_eos": True}).json()["choices"][0]["text"]
            self.assertEqual(bamtest.text_of(chunks), whole)


if __name__ == "__main__":
    bamtest.main()

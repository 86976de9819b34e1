"""Slow readers are waited for: nothing of their text is lost, nobody else is slowed, memory stays bounded."""

import socket
import unittest

import bamtest

# Enough events to be far more than --max-unsent and what the kernel buffers for a connection.
TOKENS = 30000
KERNEL_BUFFER = 64 * 1024


def slow_stream(server, **fields):
    """A stream whose client has a small receive buffer and has read nothing yet but the head."""
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "seed": 7, "stream": True, **fields}
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
    client.settimeout(bamtest.PATIENCE)
    client.connect(("127.0.0.1", server.port))
    client.sendall(bamtest.raw_post("/v1/completions", body))
    return bamtest.Stream.attached(client)


class SlowReaders(bamtest.ServerTest):
    arguments = ("--max-num-seqs", "1", "--max-model-len", str(TOKENS + 1000))

    def states(self):
        return [request["state"] for request in self.server.get("/v1/requests").json()["data"]]

    def wait_paused(self, count=1):
        self.wait_for(lambda: self.states().count("paused") == count)

    def test_h6_a_slow_reader_gets_the_whole_text_and_holds_nobody_up(self):
        fast = self.server.stream("/v1/completions", {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True,
                                                      "seed": 7})
        wanted = bamtest.text_of(fast.chunks())
        before = self.server.memory_bytes()
        slow = slow_stream(self.server)
        self.wait_paused()
        # The one slot is free for others while the reader sleeps.
        for _ in range(3):
            self.assertEqual(self.server.complete(max_tokens=20, ignore_eos=True).json()["usage"]["completion_tokens"], 20)
        self.assertEqual(self.states(), ["paused"])
        self.assertLess(self.server.memory_bytes() - before, bamtest.megabytes(16))
        self.assertEqual(self.server.get("/readyz").status, 200)
        self.assertEqual(bamtest.text_of(slow.chunks()), wanted)
        self.server.wait_idle()
        self.assertEqual(self.server.metric("bam_http_slow_readers_total"), 0)

    def test_h6_many_sleepers_and_one_who_reads(self):
        sleepers = [slow_stream(self.server, seed=i) for i in range(8)]
        self.wait_paused(8)
        self.assertEqual(len(bamtest.text_of(self.server.stream(
            "/v1/completions", {"prompt": "x", "max_tokens": 50, "ignore_eos": True}).chunks())) > 0, True)
        for sleeper in sleepers:
            sleeper.close()
        self.server.wait_idle()


class Stalled(bamtest.ServerTest):
    arguments = ("--stall-timeout", "2s", "--max-model-len", str(TOKENS + 1000))

    def test_h6_who_takes_nothing_is_ended_with_an_error(self):
        stream = slow_stream(self.server)
        self.wait_for(lambda: self.server.metric("bam_http_slow_readers_total") == 1)
        self.server.wait_idle()
        chunks = stream.chunks()  # asserts that [DONE] comes last
        self.assertIn("--stall-timeout", chunks[-1]["error"]["message"])

    def test_half_a_json_text_does_not_look_like_a_whole_one(self):
        before = self.server.metric("bam_http_slow_readers_total")
        stream = slow_stream(self.server, prompt=[5 + i % 200 for i in range(20000)], stream=False, echo=True, logprobs=5, max_tokens=1)
        self.assertEqual((stream.status, stream.headers["content-type"]), (200, "application/json"))
        self.wait_for(lambda: self.server.metric("bam_http_slow_readers_total") == before + 1)
        self.server.wait_idle()
        with self.assertRaises((EOFError, ConnectionResetError)):
            for _ in stream.events():
                pass
        self.assertFalse(stream.ended, "the connection broke off before the last chunk")


if __name__ == "__main__":
    bamtest.main()

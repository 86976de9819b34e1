#!/usr/bin/env python3
"""Two replicas behind a gateway, one of them killed in the middle of streams: the streams of the other go on, new requests go
to it, and nothing with a body is sent a second time."""

import json
import signal
import unittest

import bamtest
import gateways
import pypi
from gateways import request

STREAMS = 5
# No drafts: on a fast machine repeated text would be over before all streams have begun.
BODY = {"max_tokens": 12000, "ignore_eos": True, "temperature": 0, "stream": True, "draft": {"tokens": 0}}


def prompt_of(number):
    return f"{number} Once upon a time"


class KilledReplica(unittest.TestCase):
    def setUp(self):
        port = gateways.common_free_port(2)
        self.replicas = [gateways.Replica(number, port) for number in range(2)]
        for replica in self.replicas:
            self.addCleanup(replica.kill)
            replica.wait_ready()

    def begin_streams(self, gateway):
        """Streams with at least one event each, by the replica that computes them."""
        begun = []
        for number in range(STREAMS):
            stream = bamtest.Stream(gateway.port, "/v1/completions", {**BODY, "prompt": prompt_of(number)}, {"X-Session-Id": f"{number}"})
            self.assertEqual(stream.status, 200)
            begun.append((number, json.loads(stream.next_event().removeprefix("data: ")), stream))
        streams = {0: [], 1: []}
        for number, first, stream in begun:
            def owners(name=first["id"]):
                return [i for i, replica in enumerate(self.replicas) if name in {request["id"] for request in replica.live()}]
            found = bamtest.wait_until(owners, f"stream {number} runs somewhere")
            self.assertEqual(len(found), 1, f"stream {number} runs twice")
            streams[found[0]].append((number, first, stream))
        self.assertTrue(streams[0] and streams[1], "the gateway used one replica only")
        return streams

    def check(self, gateway):
        victim, survivor = self.replicas
        finished_before = survivor.metric("bam_request_prompt_tokens_count")
        streams = self.begin_streams(gateway)
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()

        for number, _, stream in streams[0]:  # an error or a cut, but no end that looks like a good one
            with self.assertRaises((EOFError, OSError, AssertionError), msg=f"stream {number}"):
                stream.chunks()
        expected = bamtest.run_threads(len(streams[1]), lambda i: survivor.complete(
            prompt_of(streams[1][i][0]), max_tokens=BODY["max_tokens"], ignore_eos=True).json()["choices"][0]["text"])
        for (number, first, stream), text in zip(streams[1], expected):
            chunks = [first, *stream.chunks()]
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            self.assertEqual(bamtest.text_of(chunks), text, f"stream {number}")
        # Its own streams and those of the comparison, and none that the other one had.
        survivor.wait_idle()
        self.assertEqual(survivor.metric("bam_request_prompt_tokens_count") - finished_before, 2 * len(streams[1]))

    def ask(self, gateway, number):
        body = json.dumps({"prompt": prompt_of(number), "max_tokens": 4})
        return request(gateway.port, "POST", "/v1/completions", body, {"X-Session-Id": f"new-{number}"})

    def test_behind_haproxy(self):
        gateway = gateways.HAProxy(self.replicas[0].port)
        self.addCleanup(gateway.close)
        for replica in self.replicas:
            gateway.add(replica)
        self.check(gateway)
        # Nobody has to wait until the gateway knows: a connection that fails goes to the next one.
        for number in range(10):
            reply = self.ask(gateway, number)
            self.assertEqual((reply.status, reply.headers.get("x-served-by")), (200, "bam-1"), reply.text)

    def test_behind_vllm_router(self):
        python = pypi.python_with("vllm-router")
        gateway = gateways.VllmRouter(python, self.replicas)
        self.addCleanup(gateway.close)
        self.check(gateway)
        # It asks /readyz every second and is not told to try twice, so the first replies may be errors of its own.
        in_a_row = 0
        for number in range(10_000):
            in_a_row = in_a_row + 1 if self.ask(gateway, number).status == 200 else 0
            if in_a_row == 10:
                return
        self.fail("the router does not leave the dead replica alone:\n" + gateway.log())


if __name__ == "__main__":
    bamtest.main()

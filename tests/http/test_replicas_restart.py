#!/usr/bin/env python3
"""A rolling restart of two groups, each one server on two ranks, behind the gateway of deploy/k8s and under load: every request
is answered with its whole text."""

import json
import unittest

import bamtest
import gateways
from stage_group import has_plugin, workers_of

PROMPTS = [f"{number} Once upon a time" for number in range(8)]
SHORT, LONG = {"max_tokens": 16}, {"max_tokens": 400}


class RollingRestart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not has_plugin("gloo"):
            gateways.skip_loudly("no libbam_gloo.so here (make cluster)")
        fields = {"ignore_eos": True}
        with bamtest.running_server() as server:
            cls.expected = {(prompt, kind["max_tokens"]): server.complete(prompt, **kind, **fields).json()["choices"][0]["text"]
                            for prompt in PROMPTS for kind in (SHORT, LONG)}

    def start(self, number):
        replica = gateways.Replica(number, self.port, "--stages", "2")
        self.addCleanup(replica.kill)
        self.gateway.add(replica)
        self.assertEqual(sorted(workers_of(replica)), [1])
        self.groups[number] = replica

    def ask(self, number, count):
        """A stream or a plain request, whose text must be whole."""
        prompt, stream = PROMPTS[count % len(PROMPTS)], number % 2 == 0
        kind = LONG if stream else SHORT
        body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **kind, "stream": stream}
        session = {"X-Session-Id": f"{number}-{count}"}
        if stream:
            reply = bamtest.Stream(self.gateway.port, "/v1/completions", body, session)
            text = bamtest.text_of(reply.chunks()) if reply.status == 200 else None
            reply.close()
        else:
            reply = gateways.request(self.gateway.port, "POST", "/v1/completions", json.dumps(body), session)
            text = json.loads(reply.text)["choices"][0]["text"] if reply.status == 200 else reply.text
        self.served[reply.headers.get("x-served-by")] = True
        good = reply.status == 200 and text == self.expected[prompt, kind["max_tokens"]]
        return None if good else f"{number}-{count}: {reply.status} {text!r}"

    def test_nothing_is_lost(self):
        self.port, self.groups, self.served = gateways.common_free_port(2), {}, {}
        self.gateway = gateways.HAProxy(self.port)
        self.addCleanup(self.gateway.close)
        for number in range(2):
            self.start(number)
        with gateways.Traffic(self.ask) as traffic:
            traffic.wait_progress()
            for number in range(2):
                self.gateway.remove(self.groups[number])
                traffic.wait_progress(1)
                self.groups[number].stop()
                self.start(number)
                traffic.wait_progress()
            # And one that is told to end without notice: its refusals go to the other group.
            self.groups[0].stop()
            traffic.wait_progress()
        print(f"\n    rolling restart: {sum(traffic.done.values())} requests, {len(traffic.failures)} failed", flush=True)
        self.assertEqual(traffic.failures, [])
        self.assertEqual(set(self.served), {"bam-0", "bam-1"})


if __name__ == "__main__":
    bamtest.main()

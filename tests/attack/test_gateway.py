#!/usr/bin/env python3
"""The gateway of deploy/ in front of replicas that die: what killed one of them does not meet the next."""

import unittest

import attack
from attack import FakeReplica, Gateway, answer, die, exchange, replies

POST = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\nX-Session-Id: %s\r\nConnection: close\r\n\r\n"
        b'{"prompt": "x"}')
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CHUNKED_GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"


class NoReplay(unittest.TestCase):
    def replicas(self, *behaviours):
        servers = [FakeReplica(behaviour) for behaviour in behaviours]
        for server in servers:
            self.addCleanup(server.close)
        return servers

    def test_m7_a_request_that_kills_a_replica_is_not_sent_to_the_next(self):
        replicas = self.replicas(die, die, die)
        with Gateway(*(replica.port for replica in replicas)) as gateway:
            gateway.wait_up()
            for number in range(12):
                self.assertEqual(replies(exchange(gateway.port, POST % b"%d" % number)), [502], gateway.log())
                self.assertEqual(sum(len(replica.seen) for replica in replicas), number + 1, "sent once")

    def test_m7_nor_is_a_get_with_a_body(self):
        replicas = self.replicas(die, die)
        with Gateway(*(replica.port for replica in replicas)) as gateway:
            gateway.wait_up()
            self.assertEqual(replies(exchange(gateway.port, CHUNKED_GET)), [502])
            self.assertEqual(sum(len(replica.seen) for replica in replicas), 1, "sent once")

    def test_a_question_without_a_body_is_asked_again(self):
        dying, healthy = self.replicas(die, answer(body=b"models"))
        with Gateway(dying.port, healthy.port) as gateway:
            gateway.wait_up()
            for _ in range(6):
                self.assertEqual(replies(exchange(gateway.port, GET)), [200], gateway.log())
        self.assertEqual(len(healthy.seen), 6)
        self.assertGreater(len(dying.seen), 0, "round robin asked it first, at least once")

    def test_a_replica_that_has_not_begun_is_passed_over(self):
        """503 says that nothing was computed: loading, or draining."""
        draining, healthy = self.replicas(answer(503), answer(body=b"served"))
        with Gateway(draining.port, healthy.port) as gateway:
            gateway.wait_up()
            for number in range(12):
                self.assertEqual(replies(exchange(gateway.port, POST % b"%d" % number)), [200], gateway.log())
        self.assertEqual(len(healthy.seen), 12)
        self.assertGreater(len(draining.seen), 0)


if __name__ == "__main__":
    attack.main()

#!/usr/bin/env python3
"""A machine on which the server may write nothing, such as a container with a read-only root."""

import unittest

import bamtest


class NoTemporaryFolder(bamtest.ServerTest):
    environment = {"TMPDIR": "/proc/self"}

    def test_it_serves(self):
        reply = self.server.complete(max_tokens=4)
        self.assertEqual(reply.status, 200, reply.text)

    def test_large_bodies_stay_in_memory(self):
        reply = self.server.post("/tokenize", {"prompt": "The grass is green. " * 200_000})
        self.assertEqual(reply.status, 200)
        self.assertGreater(reply.json()["count"], 200_000)


class NoSuchFolder(unittest.TestCase):
    def test_it_starts_and_stops(self):
        server = bamtest.Server(environment={"TMPDIR": "/nowhere/at/all"})
        self.assertEqual(server.complete(max_tokens=1).status, 200)
        server.stop()


if __name__ == "__main__":
    bamtest.main()

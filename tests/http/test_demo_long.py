#!/usr/bin/env python3
"""The bundled checkpoint at 128K, 500K and a million tokens. Minutes, and 4 GiB of KV cache."""

import re
import time
import unittest

import bamtest
import demo_prompts

LENGTHS = (131072, 512000, 1048576)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def available_gib():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"MemAvailable: +(\d+) kB", file.read()).group(1)) / 2 ** 20


@unittest.skipIf(available_gib() < 6, "SKIPPED: a million tokens need 6 GiB of free memory")
class DemoLong(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = bamtest.Server("--kv-memory", "4GiB", model=demo_prompts.MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_finds_every_key(self):
        for length in LENGTHS:
            for depth in DEPTHS:
                with self.subTest(length=length, depth=depth):
                    prompt, key = demo_prompts.passkey_ids(self.server, length, depth)
                    started = time.time()
                    reply = self.server.complete(prompt, max_tokens=6, timeout=1800).json()
                    print(f"\n{len(prompt)} tokens, depth {depth}: {time.time() - started:.1f} s")
                    self.assertEqual(reply["usage"]["prompt_tokens"], len(prompt))
                    self.assertLess(length - len(prompt), 64)
                    self.assertEqual(reply["choices"][0]["text"].strip(), key)
                    self.assertLess(self.server.memory_bytes(), 6 * 2 ** 30)


if __name__ == "__main__":
    bamtest.main()

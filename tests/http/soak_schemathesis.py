#!/usr/bin/env python3
"""schemathesis against /openapi.json: at least 2,000 generated requests."""

import unittest

import bamtest
import test_schemathesis


class Schemathesis(unittest.TestCase):
    def test_two_thousand_generated_requests(self):
        # The self test answers each request with generations of its own, which takes minutes; the short run has it.
        test_schemathesis.generate_requests(self, 320, 2000, "--exclude-path", "/v1/selftest/passkey")


if __name__ == "__main__":
    bamtest.main()

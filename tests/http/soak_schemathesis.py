#!/usr/bin/env python3
"""schemathesis against /openapi.json: at least 3,000 generated requests, or BAM_SCHEMATHESIS_CASES."""

import os
import unittest

import bamtest
import test_schemathesis


class Schemathesis(unittest.TestCase):
    def test_thousands_of_generated_requests(self):
        cases = int(os.environ.get("BAM_SCHEMATHESIS_CASES", "3000"))
        # The self test answers each request with generations of its own, which takes minutes; the short run has it.
        test_schemathesis.generate_requests(self, max(1, cases // 7), cases, "--exclude-path", "/v1/selftest/passkey",
                                            timeout=3600)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""500,000 tokens through four stages: the tokens, logits and pages of one process."""

import os
import unittest

import bamtest
import demo_prompts
import stage_group

LENGTH = 500_000


@unittest.skipUnless(stage_group.has_plugin("gloo"), "SKIPPED: no libbam_gloo.so here (make cluster)")
@unittest.skipUnless(os.path.exists(demo_prompts.MODEL), "SKIPPED: no checkpoints/demo")
class LongStages(unittest.TestCase):
    def test_tokens_logits_and_pages(self):
        self.assertEqual(stage_group.passkey_of("1", LENGTH, "4GiB"), stage_group.passkey_of("4", LENGTH, "4GiB"))


if __name__ == "__main__":
    bamtest.main()

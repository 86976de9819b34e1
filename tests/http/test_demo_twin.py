#!/usr/bin/env python3
"""The demo model and its twin, trained by the same command without the penalty that makes lower layers local: both find keys in 32K."""

import hashlib
import pathlib
import re
import unittest

import bamtest
import demo_prompts

FOLDERS = {"demo": pathlib.Path(demo_prompts.MODEL), "demo-twin": pathlib.Path(demo_prompts.TWIN)}
LENGTH, DEPTHS = 32768, (0.1, 0.5, 0.9)
LAST_LAYER = 3


class DemoAndTwin(unittest.TestCase):
    def test_both_find_the_key_in_32k_tokens_and_only_one_is_local(self):
        for name, folder in FOLDERS.items():
            with bamtest.running_server(model=str(folder)) as server:
                for depth in DEPTHS:
                    with self.subTest(name=name, depth=depth):
                        prompt, key = demo_prompts.passkey_ids(server, LENGTH, depth)
                        reply = server.complete(prompt, max_tokens=6, timeout=1200).json()
                        self.assertEqual(reply["usage"]["prompt_tokens"], len(prompt))
                        self.assertLess(LENGTH - len(prompt), 64)
                        self.assertEqual(reply["choices"][0]["text"].strip(), key)
                below = [head["reach"] for head in server.get("/v1/prior").json()["heads"] if head["layer"] < LAST_LAYER]
                self.assertEqual(None in below, name == "demo-twin", below)

    def test_they_differ_in_their_weights_only(self):
        for file in ("config.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json"):
            self.assertEqual(*((folder / file).read_bytes() for folder in FOLDERS.values()), file)

    def test_readmes_name_the_weights_and_the_command(self):
        for name, folder in FOLDERS.items():
            with self.subTest(name=name):
                weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
                made_by = re.search(r"^\| made by \|(.*)$", (folder / "README.md").read_text(), re.M).group(1)
                self.assertIn(f"`{weights}`", made_by)
                self.assertIn(f"--out checkpoints/{name}", made_by)
                self.assertEqual("--no-locality-penalty" in made_by, name == "demo-twin")


if __name__ == "__main__":
    bamtest.main()

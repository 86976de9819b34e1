#!/usr/bin/env python3
"""Many streams at once: all complete, no token lost or doubled, memory bounded."""

import json
import re
import subprocess
import time

import bamtest


class Load(bamtest.ServerTest):
    arguments = ("--kv-memory", "512MiB", "--max-num-seqs", "256")

    def test_256_streams(self):
        self.server.complete(max_tokens=4)
        before, tokens = self.server.memory_bytes(), 24

        def body(i):
            return {"prompt": [5 + i % 50, 9, 11 + i], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

        def run(i):
            stream = self.server.stream("/v1/completions", {**body(i), "return_token_ids": True, "stream_options": {"include_usage": True}})
            chunks = stream.chunks()
            stream.close()
            return chunks

        started = time.time()
        results = bamtest.run_threads(256, run)
        seconds = time.time() - started
        for i, chunks in enumerate(results):
            ids = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", [])]
            self.assertEqual(len(ids), tokens, i)
            self.assertEqual(chunks[-1]["usage"]["completion_tokens"], tokens)
            self.assertEqual(sum(bool(choice["finish_reason"]) for chunk in chunks for choice in chunk["choices"]), 1)
            results[i] = ids
        print(f"\n256 streams x {tokens} tokens in {seconds:.1f} s: {256 * tokens / seconds:.0f} tok/s, "
              f"{(self.server.memory_bytes() - before) / 2 ** 20:.1f} MiB more memory")
        # What ran beside a request never changes it.
        for i in range(0, 256, 37):
            alone = self.server.post("/v1/completions", {**body(i), "return_token_ids": True}).json()
            self.assertEqual(results[i], alone["choices"][0]["token_ids"], i)
        self.assertLess(self.server.memory_bytes() - before, bamtest.megabytes(200))
        self.server.wait_idle()

    def test_many_short_requests(self):
        def run(i):
            return [self.server.complete(max_tokens=1, prompt=f"{i} {k}").status for k in range(10)]

        started = time.time()
        results = bamtest.run_threads(16, run)
        print(f"\n160 one-token requests: {160 / (time.time() - started):.0f} requests/s")
        self.assertEqual({status for statuses in results for status in statuses}, {200})

    def test_a_stream_is_what_the_engine_writes(self):
        """One stream against the same engine called directly by `bam generate`: every token, none twice. Times are printed."""
        count = 300
        direct = subprocess.run([bamtest.BAM, "generate", "--model", bamtest.checkpoint(), "-p", "The grass is", "-n", str(count),
                                 "--temperature", "0", "--ignore-eos", "--kv-memory", "256MiB"], capture_output=True, text=True, check=True)
        direct_ms = float(re.search(r"generated \d+ in ([\d.]+) ms", direct.stderr).group(1)) / (count - 1)
        times, parts = [], []
        stream = self.server.stream("/v1/completions", {"prompt": "The grass is", "max_tokens": count, "temperature": 0, "ignore_eos": True})
        for event in stream.events():
            times.append(time.time())
            parts += [choice["text"] for choice in json.loads(event[6:])["choices"]] if event.startswith("data: {") else []
        http_ms = (times[-1] - times[0]) * 1000 / (count - 1)
        print(f"\nper token: {direct_ms:.3f} ms direct, {http_ms:.3f} ms over HTTP, {http_ms - direct_ms:+.3f} ms")
        self.assertIn("".join(parts).strip(), direct.stdout)

    def test_large_prompts_do_not_hold_up_streams(self):
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 60, "ignore_eos": True})
        stream.next_event()
        big = "The grass is green. " * 20000

        def tokenize(_):
            return self.server.post("/tokenize", {"prompt": big}).json()["count"]

        counts = bamtest.run_threads(2, tokenize)
        self.assertEqual(counts[0], counts[1])
        self.assertTrue(stream.chunks())


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Replicas that share computed prompts by content: a folder, a Redis server, a bucket; and places that are damaged, slow or gone."""

import contextlib
import pathlib
import signal
import tempfile
import threading
import time
import unittest

import bamtest
import stores

PROMPT = [3 + (i * 7919 + i // 64) % 400 for i in range(6000)]
STORED = 5 * 1024  # of it, in whole steps
QUESTION = PROMPT + [10, 20, 30]
ANSWER = {"max_tokens": 48, "ignore_eos": True, "temperature": 0.8, "seed": 11, "logprobs": 2}
# Nobody gives up because the machine is slow.
PATIENT = ("--kv-store-min-tokens", "1024", "--kv-store-timeout", "300s")


def content(reply):
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def cached(reply):
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


class Replicas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with bamtest.running_server() as server:
            cls.expected = content(server.complete(QUESTION, **ANSWER))

    def replica(self, place, *arguments, environment=None):
        return bamtest.running_server("--kv-store", place, *PATIENT, *arguments, environment=environment)

    def write(self, place, environment=None):
        """One replica computes the prompt; it has written it when it has ended."""
        with self.replica(place, environment=environment) as server:
            self.assertEqual(server.complete(PROMPT, max_tokens=1).status, 200)
        self.assertNotIn("left alone", server.log())

    def check_found(self, place, environment=None):
        with self.replica(place, environment=environment) as server:
            reply = server.complete(QUESTION, **ANSWER)
            self.assertEqual(content(reply), self.expected)
            self.assertEqual(cached(reply), STORED, server.log())
            self.assertEqual(server.metric("bam_kv_store_hits_total"), 1)
            self.assertEqual(server.metric("bam_kv_store_restored_tokens_total"), STORED)
            self.assertEqual(cached(server.complete(QUESTION, cache_salt="somebody else", **ANSWER)), 0)
            self.assertEqual(server.metric("bam_kv_store_misses_total"), 1)

    def check_computed(self, server):
        """The same text without the store."""
        reply = server.complete(QUESTION, **ANSWER)
        self.assertEqual((reply.status, content(reply), cached(reply)), (200, self.expected, 0), server.log())

    @contextlib.contextmanager
    def folder(self):
        with tempfile.TemporaryDirectory() as folder:
            yield folder

    def test_a_folder(self):
        with self.folder() as place:
            self.write(place)
            self.check_found("file:" + place)
            # Groups of ranks find what one process wrote.
            if (pathlib.Path(bamtest.BAM).parent / "libbam_gloo.so").exists():
                with self.replica(place, "--stages", "2") as server:
                    reply = server.complete(QUESTION, **ANSWER)
                    self.assertEqual((content(reply), cached(reply)), (self.expected, STORED))

    def test_redis(self):
        redis = stores.Redis()
        self.addCleanup(redis.close)
        self.write(redis.place, redis.environment)
        self.check_found(redis.place, redis.environment)
        with self.replica(redis.place) as server:  # without the password
            self.check_computed(server)
            self.assertGreaterEqual(server.metric("bam_kv_store_errors_total"), 1)

    def test_s3(self):
        s3 = stores.S3()
        self.addCleanup(s3.close)
        self.write(s3.place, s3.environment)
        self.check_found(s3.place, s3.environment)
        with self.replica(s3.place, environment={**s3.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}) as server:
            self.check_computed(server)
            server.wait_line("403")

    def test_damaged_objects(self):
        with self.folder() as place:
            self.write(place)
            files = [file for file in pathlib.Path(place).rglob("*") if file.is_file()]
            self.assertGreater(len(files), 5)
            for number, file in enumerate(files):
                data = file.read_bytes()
                file.write_bytes(data[:len(data) // 2] if number % 2 else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            with self.replica(place) as server:
                self.check_computed(server)
                self.assertGreaterEqual(server.metric("bam_kv_store_refused_objects_total"), 1)

    def test_a_server_that_hangs_and_dies(self):
        redis = stores.Redis()
        self.addCleanup(redis.close)
        self.write(redis.place, redis.environment)
        with self.replica(redis.place, "--kv-store-timeout", "500ms", environment=redis.environment) as server:
            redis.process.send_signal(signal.SIGSTOP)
            self.check_computed(server)
            self.assertGreaterEqual(server.metric("bam_kv_store_timeouts_total") + server.metric("bam_kv_store_errors_total"), 1)
            redis.process.send_signal(signal.SIGCONT)
            redis.kill()
            self.assertEqual(server.complete(QUESTION, cache_salt="b", **ANSWER).status, 200)
            self.assertEqual(server.get("/readyz").status, 200)
        with self.replica(redis.place, environment=redis.environment) as server:
            self.check_computed(server)

    def test_what_the_server_says_of_it(self):
        with self.folder() as place, self.replica(place) as server:
            config = server.get("/props").json()["config"]
            self.assertEqual((config["kv-store"]["value"], config["kv-store-min-tokens"]["value"]), (place, "1024"))

    def test_a_stream_goes_on_while_much_is_restored(self):
        """Prints the longest gap between two tokens; how long it is depends on the machine."""
        options = ("--kv-dtype", "f32", "--kv-memory", "1GiB", "--page-size", "64")
        prompt = [3 + (i * 7919 + i // 64) % 400 for i in range(82_000)]
        with self.folder() as place:
            with self.replica(place, *options) as server:
                self.assertEqual(server.complete(prompt, max_tokens=1).status, 200)
            with self.replica(place, *options) as server:
                stream = server.stream("/v1/completions", {"prompt": "Once", "max_tokens": 100_000, "ignore_eos": True})
                gaps, restored = {"before": 0.0, "beside": 0.0}, threading.Event()

                def restore():
                    reply = server.complete(prompt + [5], max_tokens=1)
                    restored.set()
                    return reply
                last, phase, worker, replies = time.monotonic(), "before", None, []
                for count, event in enumerate(stream.events()):
                    if not event.startswith("data: "):
                        continue
                    now = time.monotonic()
                    if count > 20:
                        gaps[phase] = max(gaps[phase], now - last)
                    last = now
                    if count == 200:
                        phase = "beside"
                        worker = threading.Thread(target=lambda: replies.append(restore()))
                        worker.start()
                    if restored.is_set():
                        break
                stream.close()
                worker.join()
                self.assertGreater(cached(replies[0]), 80_000)
                read = server.metric("bam_kv_store_read_bytes_total")
                print(f"\n    {read / 2**20:.0f} MiB restored: longest gap of a stream "
                      f"{1e3 * gaps['before']:.1f} ms before, {1e3 * gaps['beside']:.1f} ms beside it", flush=True)


if __name__ == "__main__":
    bamtest.main()

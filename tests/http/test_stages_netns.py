#!/usr/bin/env python3
"""One server on several machines, which are network namespaces: the quick start of docs/cluster.md, and links that go down."""

import json
import re
import shlex
import signal
import subprocess
import threading
import time
import unittest
import urllib.request

import bamtest
import namespaces
import stage_group

DOCUMENT = (bamtest.ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
DEADLINE = 3
MISSING = namespaces.missing()


class Supervised:
    """A worker that is started again whenever it ends, as systemd would."""

    def __init__(self, command):
        self.command, self.lines, self._over = command, [], threading.Event()
        self.process = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._over.is_set():
            with subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, errors="replace") as self.process:
                self.lines.extend(self.process.stderr)
            self._over.wait(0.2)

    def stop(self):
        self._over.set()
        while self._thread.is_alive():
            if self.process:
                self.process.kill()
            self._thread.join(0.1)


@unittest.skipIf(MISSING, MISSING)
@unittest.skipUnless(stage_group.has_plugin("gloo"), "SKIPPED: no libbam_gloo.so here (make cluster)")
class Namespaces(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = stage_group.Expected()
        cls.machines = namespaces.Machines(4)
        cls.binary = bamtest.BAM
        cls.programs = [cls.machines.program(rank) for rank in range(4)]
        bamtest.BAM = cls.programs[0]

    @classmethod
    def tearDownClass(cls):
        bamtest.BAM = cls.binary
        cls.machines.close()

    def setUp(self):
        self.workers = {}
        self.addCleanup(lambda: [worker.stop() for worker in self.workers.values()])

    def test_quick_start_as_written(self):
        block = next(block for block in re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL) if "bam worker" in block and "redis:" in block)
        lines = [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("bam ")]
        self.assertEqual([line[1] for line in lines], ["serve", "worker"])
        serve, worker = ([word.replace("/models/mine", bamtest.checkpoint()) for word in line[1:]] for line in lines)
        stages = int(serve[serve.index("--stages") + 1])
        self.assertEqual(worker[-2:], ["--stage-rank", "1"])
        for rank in range(1, stages):
            self.workers[rank] = Supervised([self.programs[rank], *worker[:-1], str(rank)])
        with subprocess.Popen([self.programs[0], *serve], stderr=subprocess.DEVNULL) as server:
            try:
                def answers():
                    try:
                        with urllib.request.urlopen("http://127.0.0.1:8000/readyz", timeout=bamtest.PATIENCE) as reply:
                            return reply.status == 200
                    except OSError:
                        return False
                bamtest.wait_until(answers, "the server is ready")
                body = json.dumps({"prompt": stage_group.PROMPTS[0], **stage_group.ANSWER}).encode()
                request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=bamtest.PATIENCE) as reply:
                    self.assertEqual(stage_group.content_of(reply.read()), self.expected.answers[0])
            finally:
                server.send_signal(signal.SIGTERM)
                self.assertEqual(server.wait(bamtest.PATIENCE), 0)

    def start(self, stages, wait=True):
        place = ("--stages", str(stages), "--rendezvous", f"redis:10.0.0.1/{self.id()}-{time.monotonic_ns()}", "--stage-deadline", f"{DEADLINE}s")
        for rank in range(1, stages):
            if rank in self.workers:
                self.workers[rank].stop()
            self.workers[rank] = Supervised([self.programs[rank], "worker", *place, "--stage-rank", str(rank), "--kv-memory", "128MiB", "--model", bamtest.checkpoint()])
        return bamtest.Server(*place, "--drain-timeout", "250s", wait=wait)

    def lose_link(self, rank, phase):
        with self.subTest(rank=rank, phase=phase):
            server = self.start(3, wait=phase != "start")
            try:
                if phase == "start":
                    number = max(rank, 1)
                    bamtest.wait_until(lambda: any("rank" in line for line in self.workers[number].lines), "the worker is there", server)
                else:
                    streams = stage_group.Streams(server, phase)
                with stage_group.Canary() as canary:
                    watch = stage_group.Watch(server)
                    self.machines.cut(rank)
                    if phase != "start":
                        took = watch.seconds_until(r"rank \d is lost")
                        self.assertLessEqual(took, DEADLINE + 1 + 4 * canary.worst)
                        if phase != "draining":
                            bamtest.wait_until(lambda: server.get("/readyz").status == 503, "a server without its layers is not ready", server)
                self.machines.mend(rank)
                if phase == "start":
                    server.wait_ready()
                    self.expected.ask_all(server)
                else:
                    streams.check(self.expected)
                if phase == "draining":
                    self.assertEqual(server.process.wait(bamtest.PATIENCE), 0, server.log())
                else:
                    stage_group.check_pages(server)
                    server.stop()
            finally:
                self.machines.mend(rank)
                server.kill()

    def test_link_down_at_start(self):
        for rank in (0, 1, 2):
            self.lose_link(rank, "start")

    def test_link_down_in_prefill(self):
        for rank in (0, 1, 2):
            self.lose_link(rank, "prefill")

    def test_link_down_in_decode(self):
        for rank in (0, 1, 2):
            self.lose_link(rank, "decode")

    def test_link_down_while_draining(self):
        for rank in (0, 1, 2):
            self.lose_link(rank, "draining")


if __name__ == "__main__":
    bamtest.main()

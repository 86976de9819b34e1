#!/usr/bin/env python3
"""H7, M2, M10 and the start-up points of the low list: starting, stopping, and files that are not what they should be."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import attack
import bamtest

ROUNDS = 200
ENDLESS = {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True}


def run(*arguments):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
    return subprocess.run([bamtest.BAM, *arguments], capture_output=True, text=True, timeout=attack.PATIENCE, check=False, env=clean)


class BusyCores:
    """Other programs that want every core, twice over."""

    def __enter__(self):
        script = "import os\nparent=os.getppid()\nwhile os.getppid()==parent: sum(range(100000))"
        self.processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2 * (os.cpu_count() or 1))]
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class StartAndStop(unittest.TestCase):
    def stop_when(self, number):
        """One server, ended at one of its states; returns what is wrong about its end, or None."""
        state = ("at once", "listening", "ready", "answering", "streaming", "client stays")[number % 6]
        server = bamtest.Server("--threads", "1", "--drain-timeout", "1h", "--kv-memory", "64MiB", "--log-level", "debug",
                                wait=False)
        client = None
        if state != "at once":
            server.wait_listening()
        if state not in ("at once", "listening"):
            server.wait_ready()
        if state == "answering":
            server.complete(max_tokens=1)
        if state == "streaming":
            client = server.stream("/v1/completions", ENDLESS)
            client.next_event()
        if state == "client stays":
            client = attack.connect(server.port)
        process = server.process
        process.send_signal(signal.SIGTERM if number % 2 else signal.SIGINT)
        if state == "streaming":
            server.wait_line("draining|stopp")
            client.close()
        code = process.wait(bamtest.PATIENCE)
        server._reader.join()
        # Before its handlers are installed, a signal ends a process as it ends any other.
        allowed = (0, -signal.SIGTERM, -signal.SIGINT) if state == "at once" else (0,)
        bad = code not in allowed or any("terminate called" in line for line in server.lines)
        process.stderr.close()
        return f"{state}: exit code {code}\n{server.log()}" if bad else None

    def test_h7_two_hundred_times_under_load(self):
        bamtest.checkpoint()
        with BusyCores(), concurrent.futures.ThreadPoolExecutor(4) as pool:
            problems = [problem for problem in pool.map(self.stop_when, range(ROUNDS)) if problem]
        self.assertEqual(problems, [])

    def test_m2_sigterm_while_the_model_loads(self):
        with tempfile.TemporaryDirectory() as folder:
            model = bamtest.random_checkpoint("--layers", "16", "--hidden", "512", "--heads", "8", "--dtype", "bf16", parent=folder)
            for stop in (signal.SIGTERM, signal.SIGINT):
                server = bamtest.Server("--log-level", "debug", model=model, wait=False)
                server.wait_listening()
                server.process.send_signal(stop)
                self.assertEqual(server.process.wait(bamtest.PATIENCE), 0, server.log())
                server.stop()


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def one_line(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("bam")]
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertNotIn("terminate called", result.stderr)

    def test_m10_wrong_tls_files(self):
        cert, key = attack.certificate(self.folder)
        other = self.folder / "other"
        other.mkdir()
        other_cert, other_key = attack.certificate(other)
        garbage, empty, missing = self.folder / "garbage.pem", self.folder / "empty.pem", self.folder / "missing.pem"
        garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n")
        empty.touch()
        cases = [(missing, key, "missing.pem"), (cert, missing, "missing.pem"), (garbage, key, "garbage.pem"), (cert, garbage, "garbage.pem"),
                 (empty, key, "empty.pem"), (cert, empty, "empty.pem"), (cert, other_key, "key.pem"), (key, key, "key.pem"), (self.folder, key, "")]
        for first, second, word in cases:
            with self.subTest(cert=str(first), key=str(second)):
                self.one_line(run("serve", "--port", "0", "--model", bamtest.checkpoint(), "--tls-cert", str(first), "--tls-key", str(second)), 2, word)

    def test_low_nothing_is_left_in_the_temporary_folder(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        server = bamtest.Server(environment={"TMPDIR": str(temporary)})
        server.complete("x" * 300_000, max_tokens=1)
        with contextlib.suppress(OSError):
            server.post("/v1/completions", b"x" * (64 << 20))
        inside = list(temporary.rglob("*"))
        server.stop()
        self.assertEqual(inside + list(temporary.rglob("*")), [])


if __name__ == "__main__":
    attack.main()

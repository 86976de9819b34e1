#!/usr/bin/env python3
"""M6, M8 and the low points about resources: threads, memory and files that the system takes away, and what a byte of a
request may cost."""

import json
import os
import pathlib
import resource
import subprocess
import tempfile
import threading
import unittest

import attack
import bamtest


def lines_of(stderr):
    return [line for line in stderr.splitlines() if line.startswith("bam")]


class NoThreads(unittest.TestCase):
    def test_low_each_thread_of_the_start_refused_in_turn(self):
        """A server that lacks a thread says so in one line; the others are joined, nothing hangs and nothing aborts."""
        faults = attack.Faults()
        self.addCleanup(faults.close)
        refused = 0
        for number in range(1, 100):
            faults.write(thread=number, threads=0)
            server = bamtest.Server("--threads", "3", "--kv-memory", "64MiB", environment=faults.environment(), wait=False)
            server._ready.wait(bamtest.PATIENCE)
            if server.port is not None:
                self.assertLess(faults.read("threads"), number)
                server.stop()
                break
            code = server.stop(expected=None)
            said = [line for line in server.lines if line.startswith("bam serve:")]
            self.assertEqual((code, len(said)), (1, 1), f"thread {number}: exit code {code}\n{server.log()}")
            self.assertIn("cannot start a thread", said[0])
            refused += 1
        self.assertGreaterEqual(refused, 7, "workers, model, signals, event loops, kernels, engine")


class TakenPort(unittest.TestCase):
    def test_low_somebody_takes_the_port_while_the_server_starts(self):
        """After it was seen to be free and before the event loops have it: one line, and no destructor trips over a running thread."""
        faults = attack.Faults()
        self.addCleanup(faults.close)
        faults.write(binds=1)
        server = bamtest.Server("--kv-memory", "64MiB", environment=faults.environment(), wait=False)
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 1, server.log())
        server._ready.wait(bamtest.PATIENCE)
        self.assertGreater(faults.read("bound"), 1)
        said = lines_of(server.log())
        self.assertEqual(len(said), 1, server.log())
        self.assertIn("cannot listen on", said[0])


class LittleMemory(unittest.TestCase):
    def serve(self, megabytes):
        """The end of a server that may have so much address space; None: it started."""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        command = [bamtest.BAM, "serve", "--port", "0", "--model", bamtest.checkpoint(), "--kv-memory", "64MiB", "--threads", "2"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "ready after" in line:
                process.terminate()
        code = process.wait(bamtest.PATIENCE)
        process.stderr.close()
        return code, "".join(lines)

    def test_low_too_little_memory_for_the_start(self):
        if bamtest.is_sanitized():
            self.skipTest("SKIPPED: sanitizers need terabytes of addresses")
        failed = 0
        for megabytes in (60, 80, 100, 120, 150, 180, 220, 270, 350, 500, 900, 2000):
            code, stderr = self.serve(megabytes)
            if "loading shared libraries" in stderr or code == 127:
                continue  # not even the program fits
            if code == 0:
                break
            failed += 1
            self.assertEqual(code, 1, f"{megabytes} MiB: exit code {code}\n{stderr}")
            self.assertEqual(len(lines_of(stderr)), 1, f"{megabytes} MiB:\n{stderr}")
        else:
            self.fail("it never started")
        self.assertGreater(failed, 0)


class NoMemory(bamtest.ServerTest):
    """Allocations fail at random while clients ask: each gets its text, an error or a closed connection, and later ones
    are served as if nothing had been."""

    @classmethod
    def setUpClass(cls):
        cls.faults = attack.Faults()
        cls.addClassCleanup(cls.faults.close)
        cls.environment = cls.faults.environment()
        super().setUpClass()

    REQUESTS = (("/v1/completions", {"prompt": "Once", "max_tokens": 20, "ignore_eos": True, "temperature": 0}),
                ("/v1/completions", {"prompt": "Once", "max_tokens": 20, "ignore_eos": True, "temperature": 0, "stream": True}),
                ("/v1/completions", {"prompt": [5] * 5000, "max_tokens": 3, "echo": True, "logprobs": 3, "temperature": 0}),
                ("/tokenize", {"prompt": "a b c " * 5000}), ("/v1/models", None), ("/metrics", None), ("/v1/requests", None))

    def ask(self, counts, lock):
        for _ in range(6):
            for path, body in self.REQUESTS:
                try:
                    reply = self.server.get(path) if body is None else self.server.post(path, body)
                    outcome = str(reply.status)
                    if reply.status not in (200, 503):
                        self.assertIn(reply.status, (500,), reply.text)
                except (OSError, bamtest.http.client.HTTPException):
                    outcome = "closed"
                with lock:
                    counts[outcome] = counts.get(outcome, 0) + 1

    def test_low_allocations_that_fail(self):
        bodies = [self.server.post(*self.REQUESTS[0]).json()["choices"][0]["text"] for _ in range(2)]
        # What is large fails first when memory runs out.
        for smallest, every in ((65536, 2), (4096, 5)):
            counts, lock = {}, threading.Lock()
            before = self.faults.read("failed")
            self.faults.write(smallest=smallest, every=every)
            clients = [threading.Thread(target=self.ask, args=(counts, lock)) for _ in range(4)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            self.faults.write(every=0)
            failed = self.faults.read("failed") - before
            closed = self.server.metric("bam_http_failed_connections_total")
            print(f"\nallocations of {smallest} bytes and more: {failed} failed; {counts}; closed by an exception: {closed:.0f}")
            self.assertGreater(failed, 0)
            self.assertIsNone(self.server.process.poll(), self.server.log())
            self.server.wait_idle()
            self.assertEqual(self.server.post(*self.REQUESTS[0]).json()["choices"][0]["text"], bodies[0])


class HungDisk(unittest.TestCase):
    """M3: a disk that does not answer holds up whoever asks for a snapshot, and nobody else."""

    def test_m3_a_disk_that_hangs(self):
        faults = attack.Faults()
        self.addCleanup(faults.close)
        admin = {"Authorization": "Bearer root"}
        prompt = [3 + i % 300 for i in range(400)]
        with tempfile.TemporaryDirectory() as folder, \
                bamtest.running_server("--kv-dir", folder, "--admin-key", "root", "--max-unsent", "64MiB", environment=faults.environment()) as server:
            server.complete(prompt, max_tokens=1)
            self.assertEqual(server.post("/v1/kv/save", {"name": "first", "tokens": prompt}, headers=admin).status, 200)
            stream = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True})
            stream.next_event()
            faults.write(hang=1)
            self.addCleanup(lambda: faults.write(hang=0))
            statuses = []
            waiting = [threading.Thread(target=lambda path=path, body=body: statuses.append(server.post(path, body, headers=admin).status))
                       for path, body in (("/v1/kv/save", {"name": "second", "tokens": prompt}), ("/v1/kv/restore", {"name": "first"}))]
            for thread in waiting:
                thread.start()
            bamtest.wait_until(lambda: faults.read("hung") >= 1, "somebody waits for the disk", server)
            for _ in range(100):  # the steps of the engine go on
                self.assertTrue(stream.next_event().startswith("data: "))
            self.assertEqual(server.complete(max_tokens=5).status, 200)
            self.assertEqual(server.post("/tokenize", {"prompt": "x"}).status, 200)
            self.assertEqual(server.get("/readyz").status, 200)
            self.assertEqual(statuses, [])
            faults.write(hang=0)
            for thread in waiting:
                thread.join()
            self.assertEqual(statuses, [200, 200])
            stream.close()


class Files(unittest.TestCase):
    def test_m8_a_checkpoint_that_is_cut_short_while_it_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            model = bamtest.random_checkpoint("--layers", "8", "--hidden", "512", "--heads", "8", "--dtype", "bf16", parent=folder)
            weights = pathlib.Path(model) / "model.safetensors"
            whole = weights.read_bytes()
            header = 8 + int.from_bytes(whole[:8], "little")
            cut = 0
            for _ in range(20):
                weights.write_bytes(whole)
                server = bamtest.Server("--threads", "1", "--log-level", "debug", model=model, wait=False)
                # As soon as the file is mapped, all but its header goes away.
                maps = pathlib.Path(f"/proc/{server.process.pid}/maps")
                attack.repeat_until(lambda: server.is_ready() or server.process.poll() is not None or str(weights) in maps.read_text(),
                                    "the file is mapped")
                os.truncate(weights, header + 4096)
                server._ready.wait(bamtest.PATIENCE)
                if server.port is not None:  # it was faster
                    server.stop()
                    continue
                code = server.stop(expected=None)
                self.assertEqual(code, 1, server.log())
                said = [line for line in server.lines if line.startswith("bam")]
                self.assertEqual(len(said), 1, server.log())
                self.assertIn("model.safetensors", said[0])
                cut += "cut short" in said[0]
                if cut:
                    return
            self.skipTest("every time the file was read before it could be cut")


class Bodies(unittest.TestCase):
    """M6: what a byte of a request's body costs while it is parsed, prepared, and refused or computed. Before: 160 bytes."""

    SIZE = 8 << 20
    BYTES_PER_BYTE = 24

    def bodies(self):
        filler = {"prompt": "x", "max_tokens": 1}
        yield "/v1/completions", {"prompt": "a " * (self.SIZE // 2), "max_tokens": 1}
        yield "/v1/completions", {"prompt": [5] * (self.SIZE // 3), "max_tokens": 1}
        yield "/v1/completions", {"prompt": ["a"] * (self.SIZE // 5), "max_tokens": 1}
        yield "/v1/completions", {"prompt": [[5]] * (self.SIZE // 5), "max_tokens": 1}
        yield "/v1/completions", {**filler, "stop": ["a"] * (self.SIZE // 5)}
        yield "/v1/completions", {**filler, "logit_bias": {str(i): 1 for i in range(self.SIZE // 14)}}
        yield "/v1/completions", {**filler, "unknown": [[]] * (self.SIZE // 4)}
        yield "/v1/completions", {**filler, "unknown": [{}] * (self.SIZE // 4)}
        yield "/v1/completions", {**filler, "unknown": {str(i): 0 for i in range(self.SIZE // 13)}}
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * (self.SIZE // 36), "max_tokens": 1}
        yield "/tokenize", {"prompt": "a " * (self.SIZE // 2)}
        yield "/detokenize", {"tokens": [5] * (self.SIZE // 3)}

    def test_m6_a_byte_of_a_body_costs_little(self):
        worst = 0
        for path, fields in self.bodies():
            body = json.dumps(fields)
            with bamtest.running_server("--max-body", "16MiB") as server:  # what one body leaves in the heap serves the next
                server.complete(max_tokens=1)
                before = attack.forget_peak(server.process.pid)
                status = server.request("POST", path, body, headers={"Content-Type": "application/json"}).status
                server.wait_idle()
                per_byte = (attack.peak_bytes(server.process.pid) - before - server.kv_bytes()) / len(body)
            print(f"\n{path} {body[:36]}…: {status}, {per_byte:.1f} bytes of memory for each of {len(body)}", end="")
            worst = max(worst, per_byte)
        print()
        self.assertLess(worst, self.BYTES_PER_BYTE * (10 if bamtest.is_sanitized() else 1))


if __name__ == "__main__":
    attack.main()

#!/usr/bin/env python3
"""The process: command line, exit codes, signals, drain, TLS, logs, snapshots."""

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

import bamtest


def run(*arguments, environment=None, stdin=None, timeout=bamtest.PATIENCE):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
    return subprocess.run([bamtest.BAM, *arguments], capture_output=True, text=True, timeout=timeout, check=False,
                          env={**clean, **(environment or {})}, input=stdin)


class CommandLine(unittest.TestCase):
    def expect_line(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("bam")]
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertNotIn("terminate called", result.stderr)

    def test_help(self):
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("help").returncode, 0)
        self.assertIn("serve", run("--help").stdout)
        for command in ("serve", "generate", "inspect"):
            result = run(command, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("Examples:", result.stdout)
            self.assertEqual(run("help", command).stdout, result.stdout)
        self.expect_line(run("fly"), 2, "fly")
        self.assertRegex(run("version").stdout, r"^bam \d")

    def test_bad_flags_values_and_files(self):
        self.expect_line(run("serve", "--wings", "2"), 2, "--wings")
        self.expect_line(run("serve", "--port", "70000"), 2, "--port", "70000")
        self.expect_line(run("serve", "--kv-dtype", "f8"), 2, "--kv-dtype", "f8")
        self.expect_line(run("serve", environment={"BAM_KV_MEMORY": "much"}), 2, "BAM_KV_MEMORY")
        self.expect_line(run("serve", "--config", "missing.json"), 2, "missing.json")
        self.expect_line(run("serve", "--tls-cert", "only.pem"), 2, "--tls-key")
        self.expect_line(run("serve", "--host", "no.such.host.invalid"), 2, "--host")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"prot": 1}')
            file.flush()
            self.expect_line(run("serve", "--config", file.name), 2, "prot")

    def test_checkpoints_that_cannot_be_served(self):
        self.expect_line(run("serve", "--port", "0", "--model", "nowhere"), 1, "nowhere")
        with tempfile.TemporaryDirectory() as folder:
            self.expect_line(run("serve", "--port", "0", "--model", folder), 1, "config.json")
            path = pathlib.Path(folder)
            for name in os.listdir(bamtest.checkpoint()):
                (path / name).write_bytes((pathlib.Path(bamtest.checkpoint()) / name).read_bytes())
            weights = (path / "model.safetensors").read_bytes()
            (path / "model.safetensors").write_bytes(weights[:len(weights) // 2])
            self.expect_line(run("serve", "--port", "0", "--model", folder), 1, "model.safetensors")
            self.expect_line(run("generate", "--model", folder, "-p", "x"), 1, "model.safetensors")
            self.expect_line(run("inspect", "--model", folder), 1, "model.safetensors")
            # One name in the header changed: a tensor is missing.
            (path / "model.safetensors").write_bytes(weights.replace(b"layers.0.attention.wq", b"layers.0.attention.wx", 1))
            self.expect_line(run("serve", "--port", "0", "--model", folder), 1, "layers.0.attention.wq.weight", "missing")
            (path / "model.safetensors").write_bytes(weights)
            config = json.loads((path / "config.json").read_text())
            renamed = {"position_embedding" if key == "position_encoding" else key: value for key, value in config.items()}
            (path / "config.json").write_text(json.dumps(renamed))
            self.expect_line(run("serve", "--port", "0", "--model", folder), 1, "config.json", "position_encoding")
            (path / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))
            self.expect_line(run("serve", "--port", "0", "--model", folder), 1, "config.json", "hidden_size")

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.expect_line(run("serve", "--model", bamtest.checkpoint(), "--port", str(taken.getsockname()[1])), 1, "in use")

    def test_configuration_layers(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"max-queue": 11, "max-num-seqs": 12, "page_size": 128}, file)
            file.flush()
            server = bamtest.Server("--config", file.name, "--max-num-seqs", "14", environment={"BAM_MAX_QUEUE": "13"})
            try:
                config = server.get("/props").json()["config"]
                self.assertEqual(config["max-queue"], {"value": "13", "origin": "BAM_MAX_QUEUE"})
                self.assertEqual(config["max-num-seqs"], {"value": "14", "origin": "--max-num-seqs"})
                self.assertEqual(config["page-size"]["value"], "128")
                self.assertFalse(any("config: " in line for line in server.lines), "only /props and the debug level tell")
            finally:
                server.stop()

    def test_generate_and_inspect(self):
        result = run("generate", "--model", bamtest.checkpoint(), "-p", "The grass is", "-n", "8", "--temperature", "0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("tok/s", result.stderr)
        again = run("generate", "--model", bamtest.checkpoint(), "-n", "8", "--temperature", "0", "-q", stdin="The grass is")
        self.assertEqual(again.stdout, result.stdout)
        self.assertEqual(again.stderr, "")
        report = json.loads(run("inspect", "--model", bamtest.checkpoint(), "--json", "--at", "4096").stdout)
        self.assertEqual(len(report["prior"]), report["layers"] * report["heads"])
        self.assertEqual([entry["dtype"] for entry in report["kv"]], ["f32", "f16", "bf16", "int8", "fp8", "int4"])
        sizes = [entry["bytes_per_token"] for entry in report["kv"]]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertIn("reach@", run("inspect", "--model", bamtest.checkpoint()).stdout)
        report = json.loads(run("inspect", "--model", bamtest.checkpoint(), "--json", "--stages", "2").stdout)
        stages = report["stages"]["split"]
        self.assertEqual([stage["first_layer"] for stage in stages], [0, stages[0]["layers"]])
        self.assertEqual(sum(stage["layers"] for stage in stages), report["layers"])
        self.assertAlmostEqual(report["stages"]["prompt_speedup"], 1 / max(stage["time_share"] for stage in stages))
        four_bits = json.loads(run("inspect", "--model", bamtest.checkpoint(), "--json", "--stages", "2", "--dtype", "int4").stdout)
        held = [sum(stage["weight_bytes"] for stage in each["stages"]["split"]) for each in (report, four_bits)]
        self.assertGreater(held[1], four_bits["parameters"] / 2, "scales and factors count, and the head keeps eight bits")
        self.assertLess(held[1], held[0])
        self.assertIn("stages need as many layers", run("inspect", "--model", bamtest.checkpoint(), "--stages", "99").stderr)
        report = json.loads(run("inspect", "--model", bamtest.checkpoint(), "--json", "--measure", "4096").stdout)
        self.assertTrue(report["measured"]["right"], report["measured"])
        self.assertIn(report["measured"]["key"], report["measured"]["answer"])
        self.assertLessEqual(report["measured"]["first_token_seconds"], report["measured"]["seconds"])
        heads = [head["class"] for head in report["prior"]]
        self.assertEqual(set(report["measured"]["classes"]), set(heads))
        rows = 4096 * (4096 // 64 + 1) // 2  # about so many (row, tile) pairs per head; the last layer reads fewer rows
        for name, counts in report["measured"]["classes"].items():
            self.assertLessEqual(counts["tiles_visited"] + counts["tiles_skipped"], 1.05 * rows * heads.count(name))
            self.assertGreater(counts["tiles_visited"], 0)


class Signals(unittest.TestCase):
    ENDLESS = {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True}

    def test_sigterm_under_load(self):
        server = bamtest.Server("--drain-timeout", "1h", *bamtest.UNREAD)
        holder = server.stream("/v1/completions", self.ENDLESS)  # the drain lasts until its client leaves
        streams = [server.stream("/v1/completions", {"prompt": "x", "max_tokens": 200, "ignore_eos": True}) for _ in range(8)]
        for stream in (holder, *streams):
            stream.next_event()
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("draining")
        refused = server.complete(max_tokens=1)
        self.assertEqual((refused.status, refused.error["code"]), (503, "draining"))
        self.assertGreaterEqual(int(refused.headers["retry-after"]), 1)
        self.assertEqual(server.get("/readyz").status, 503)
        self.assertEqual(server.get("/livez").status, 200)
        for stream in streams:
            chunks = stream.chunks()
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length", "running streams finish")
        holder.close()
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 0)

    def test_idle_server_does_not_wait_for_idle_connections(self):
        server = bamtest.Server("--drain-timeout", "1h", "--idle-timeout", "1h")
        keep = socket.create_connection(("127.0.0.1", server.port))
        keep.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        keep.recv(1000)
        self.assertEqual(server.stop(), 0)
        keep.close()

    def test_who_is_asking_when_the_server_ends_is_told(self):
        """A gateway could not ask another replica if the connection just ended: the request may have been executed."""
        server = bamtest.Server("--drain-timeout", "1h")
        asking = socket.create_connection(("127.0.0.1", server.port))
        asking.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        bamtest.wait_until(lambda: server.metric("bam_http_connections") >= 2, "its connection is known", server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("draining")
        asking.sendall(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        reply = asking.makefile("rb").read()
        self.assertTrue(reply.startswith(b"HTTP/1.1 503 "), reply)
        self.assertIn(b'"draining"', reply)
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 0)

    def test_drain_timeout_ends_what_still_runs(self):
        server = bamtest.Server("--drain-timeout", "1s", *bamtest.UNREAD)
        stream = server.stream("/v1/completions", self.ENDLESS)
        stream.next_event()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(stream.chunks()[-1]["choices"][0]["finish_reason"], "abort")
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 1)

    def test_second_signal_aborts(self):
        server = bamtest.Server("--drain-timeout", "1h", *bamtest.UNREAD)
        stream = server.stream("/v1/completions", self.ENDLESS)
        stream.next_event()
        # Supervisors signal the process and its group: two at once are one.
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        server.wait_line("draining")
        stream.next_event()
        self.assertIsNone(server.process.poll())
        with contextlib.suppress(EOFError, OSError):  # reads on, so that there is work to drain until the end
            while server.process.poll() is None:
                server.process.send_signal(signal.SIGINT)
                for _ in range(100):
                    stream.next_event()
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 130)


class StoppedThread:
    """Holds one thread of a child process by ptrace while the others run on, as a device or a file that hangs would."""

    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, thread):
        self.thread = thread
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long

    def call(self, request):
        if self.libc.ptrace(request, self.thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def __enter__(self):
        try:
            self.call(self.SEIZE)
        except PermissionError as error:
            raise unittest.SkipTest("SKIPPED: this machine does not let a process trace its children") from error
        self.call(self.INTERRUPT)
        os.waitpid(self.thread, self.WALL)
        return self

    def __exit__(self, *_):
        self.call(self.DETACH)


def busiest_thread(pid):
    """The thread of a process that computes most: watched until one is far ahead of the others."""
    def times():
        result = {}
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="ascii") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            result[int(thread)] = int(fields[11]) + int(fields[12])
        return result
    before = times()

    def leader():
        spent = sorted(((ticks - before.get(thread, 0), thread) for thread, ticks in times().items()), reverse=True)
        return spent[0][1] if spent[0][0] >= 30 and spent[0][0] >= 2 * spent[1][0] else None
    return bamtest.wait_until(leader, "one thread computes")


class Stalled(bamtest.ServerTest):
    arguments = ("--threads", "1", *bamtest.UNREAD)

    def test_an_engine_that_hangs_is_not_ready_until_it_goes_on(self):
        stream = self.server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True})
        stream.next_event()
        self.assertEqual(self.server.get("/readyz").status, 200)
        # With one compute thread, the engine's own is the one that computes.
        with StoppedThread(busiest_thread(self.server.process.pid)):
            held = time.time()
            self.wait_for(lambda: self.server.get("/readyz").status == 503)
            self.assertGreater(time.time() - held, 5, "a slow step is no stall")
            self.assertEqual(self.server.get("/readyz").json(), {"status": "stalled"})
            health = self.server.get("/health")
            self.assertEqual((health.status, health.json()["status"]), (503, "stalled"))
            self.assertGreater(health.json()["last_step_age_seconds"], 5)
            self.assertEqual(self.server.get("/livez").status, 200, "the process lives")
        self.wait_for(lambda: self.server.get("/readyz").status == 200)
        stream.next_event()
        stream.close()
        self.server.wait_idle()
        self.assertEqual(self.server.get("/readyz").json(), {"status": "ok"}, "nothing to do is no stall either")


class Tls(unittest.TestCase):
    def test_https(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = folder + "/cert.pem", folder + "/key.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
            server = bamtest.Server("--tls-cert", cert, "--tls-key", key)
            try:
                self.assertTrue(any("https://" in line for line in server.lines))
                context = ssl.create_default_context(cafile=cert)
                for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                    context.minimum_version = context.maximum_version = version
                    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=bamtest.PATIENCE)
                    body = json.dumps({"prompt": "x", "max_tokens": 1500, "stream": True, "ignore_eos": True})
                    connection.request("POST", "/v1/completions", body)
                    response = connection.getresponse()
                    self.assertEqual(response.status, 200)
                    self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
                    connection.request("GET", "/livez")
                    self.assertEqual(connection.getresponse().read(), b'{"status":"ok"}')
                    connection.close()
                with socket.create_connection(("127.0.0.1", server.port), timeout=bamtest.PATIENCE) as plain:
                    plain.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                    try:
                        self.assertNotIn(b"200 OK", plain.recv(1000))
                    except ConnectionResetError:
                        pass
            finally:
                server.stop()


class Logs(unittest.TestCase):
    def test_json_lines(self):
        server = bamtest.Server("--log-format", "json", wait=False)
        server.wait_line("ready after")
        server.wait_ready()
        server.complete("a very secret prompt", max_tokens=4, ignore_eos=True, request_id="logged")
        server.complete(max_tokens=-1)
        server.stop()
        lines = [json.loads(line) for line in server.lines]
        entry = next(line for line in lines if line.get("id") == "logged")
        self.assertEqual((entry["status"], entry["generated_tokens"], entry["finish"]), (200, 4, "length"))
        for key in ("prompt_tokens", "cached_tokens", "ttft_ms", "tokens_per_second", "total_ms", "peer"):
            self.assertIn(key, entry)
        self.assertTrue(any(line.get("status") == 400 for line in lines))
        self.assertNotIn("secret prompt", "\n".join(server.lines), "prompts are not logged unless asked")

    def test_prompts_on_demand_and_499(self):
        server = bamtest.Server("--log-prompts", "on")
        server.complete("a visible prompt", max_tokens=1)
        stream = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "ignore_eos": True, "request_id": "gone"})
        stream.next_event()
        stream.close()
        bamtest.wait_until(lambda: any("gone" in line and " 499 " in line for line in server.lines), "499 in the log", server)
        server.stop()
        self.assertTrue(any("a visible prompt" in line for line in server.lines))


class Snapshots(unittest.TestCase):
    def test_save_and_restore_over_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--kv-dir", folder, "--admin-key", "root")
            admin = {"Authorization": "Bearer root"}
            prompt = [3 + i % 300 for i in range(1000)]
            server = bamtest.Server(*arguments)
            first = server.complete(prompt, max_tokens=8, ignore_eos=True).json()
            saved = server.post("/v1/kv/save", {"name": "doc", "tokens": prompt}, headers=admin)
            self.assertEqual(saved.status, 200, saved.text)
            for name in ("../evil", "", "a/b", "x" * 200):
                self.assertEqual(server.post("/v1/kv/save", {"name": name, "tokens": prompt}, headers=admin).status, 400, name)
            server.stop()
            server = bamtest.Server(*arguments)
            try:
                self.assertEqual(server.post("/v1/kv/restore", {"name": "missing"}, headers=admin).status, 400)
                restored = server.post("/v1/kv/restore", {"name": "doc"}, headers=admin)
                self.assertEqual(restored.status, 200, restored.text)
                second = server.complete(prompt, max_tokens=8, ignore_eos=True).json()
                self.assertEqual(second["choices"][0]["text"], first["choices"][0]["text"])
                self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 960 - 64)
            finally:
                server.stop()

    def test_a_fifo_in_the_folder_is_refused_and_nothing_stops(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "pipe.bamkv"))
            server = bamtest.Server("--kv-dir", folder, "--admin-key", "root")
            try:
                reply = server.post("/v1/kv/restore", {"name": "pipe"}, headers={"Authorization": "Bearer root"})
                self.assertEqual(reply.status, 400, reply.text)
                self.assertIn("regular file", reply.text)
                self.assertEqual(server.complete(max_tokens=2).status, 200)
            finally:
                server.stop()

    def test_a_folder_that_goes_away_is_the_servers_fault(self):
        with tempfile.TemporaryDirectory() as outer:
            folder = os.path.join(outer, "kv")
            os.mkdir(folder)
            server = bamtest.Server("--kv-dir", folder, "--admin-key", "root")
            try:
                prompt = [3 + i % 300 for i in range(200)]
                server.complete(prompt, max_tokens=1)
                os.rmdir(folder)
                reply = server.post("/v1/kv/save", {"name": "doc", "tokens": prompt}, headers={"Authorization": "Bearer root"})
                self.assertEqual(reply.status, 500, reply.text)
            finally:
                server.stop()

    def test_a_folder_that_is_missing_is_refused_at_start(self):
        server = bamtest.Server("--kv-dir", "/nonexistent/kv", wait=False)
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 2)
        server.stop(expected=2)
        self.assertIn("--kv-dir", server.log())


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""Batches: `bam batch` without a server, /v1/files and /v1/batches with the official client, both over a restart."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import bamtest
import pypi


def line(custom_id, url="/v1/completions", method="POST", **body):
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body})


def completion(index, tokens=8):
    return line(f"c{index}", prompt=f"The grass is {index}", max_tokens=tokens, temperature=0, ignore_eos=True)


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.input, self.output = pathlib.Path(self.folder.name) / "in.jsonl", pathlib.Path(self.folder.name) / "out.jsonl"

    def command(self):
        return [bamtest.BAM, "batch", "--model", bamtest.checkpoint(), "--kv-memory", "64MiB", str(self.input), str(self.output)]

    def run_batch(self, code):
        result = subprocess.run(self.command(), capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        return {entry["custom_id"]: entry["response"] for entry in map(json.loads, self.output.read_text().splitlines())}

    def test_all_endpoints_and_what_is_wrong(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
        self.input.write_text("\n".join([
            completion(0), line("chat", "/v1/chat/completions", **chat), line("vector", "/v1/embeddings", input="x"),
            line("response", "/v1/responses", input="Hello", max_output_tokens=4), "", line("bad", prompt="x", temperature=-1),
            line("where", "/v1/models"), line("stream", prompt="x", stream=True), "{", line("long", prompt="x " * 3000, max_tokens=1, echo=True)]))
        replies = self.run_batch(1)
        self.assertEqual({key: reply["status_code"] for key, reply in replies.items()},
                         {"c0": 200, "chat": 200, "vector": 200, "response": 200, "bad": 400, "where": 400, "stream": 400, "": 400, "long": 200})
        self.assertEqual(replies["bad"]["body"]["error"]["param"], "temperature")
        self.assertEqual(replies["response"]["body"]["object"], "response")
        with bamtest.running_server() as server:
            served = server.complete("The grass is 0", max_tokens=8, ignore_eos=True).json()
            self.assertEqual(replies["c0"]["body"]["choices"], served["choices"], "the same bits as over HTTP")

    def test_goes_on_after_it_was_killed(self):
        self.input.write_text("\n".join(completion(i, 64) for i in range(400)))
        process = subprocess.Popen(self.command(), stderr=subprocess.PIPE)
        bamtest.wait_until(lambda: self.output.exists() and self.output.read_text().count("\n") >= 5, "some results")
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        before = self.output.read_text()
        if before.count("\n") == 400:
            self.skipTest("SKIPPED: it was done before it could be killed")
        self.output.write_text(before + '{"custom_id": "c39')  # as a process leaves it that dies while it writes
        replies = self.run_batch(0)
        self.assertEqual(len(replies), 400)
        self.assertTrue(self.output.read_text().startswith(before), "what was there is not done again")
        self.assertEqual(self.output.read_text().count("\n"), 400)

    def test_a_custom_id_belongs_to_one_line(self):
        self.input.write_text("\n".join([completion(0), completion(1), completion(0)]))
        result = subprocess.run(self.command(), capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        entries = [json.loads(entry) for entry in self.output.read_text().splitlines()]
        self.assertEqual(sorted((entry["custom_id"], entry["response"]["status_code"]) for entry in entries), [("c0", 200), ("c0", 400), ("c1", 200)])
        refused = next(entry["response"] for entry in entries if entry["response"]["status_code"] == 400)
        self.assertEqual(refused["body"]["error"]["code"], "duplicate_custom_id")

    def test_started_again_it_says_nothing_twice(self):
        self.input.write_text("\n".join([completion(0), "{", line("bad", prompt="x", temperature=-1)]))
        first = self.run_batch(1)
        self.assertEqual(set(first), {"c0", "", "bad"})
        self.assertEqual(self.run_batch(0), first)
        self.assertEqual(self.output.read_text().count("\n"), 3)

    def test_usage(self):
        result = subprocess.run(self.command(), capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("in.jsonl", result.stderr)


class Server(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def serve(self, *arguments):
        return bamtest.Server("--batch-dir", self.folder.name, *arguments)

    def upload(self, server, lines, quote='"'):
        boundary = "----x"
        purpose, name, filename = (f"name={quote}{value}{quote}" for value in ("purpose", "file", "in.jsonl"))
        body = (f"--{boundary}\r\nContent-Disposition: form-data; {purpose}\r\n\r\nbatch\r\n--{boundary}\r\n"
                f"Content-Disposition: form-data; {name}; file{filename}\r\nContent-Type: application/octet-stream\r\n\r\n"
                + "\n".join(lines) + f"\r\n--{boundary}--\r\n").encode()
        reply = server.post("/v1/files", body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json()

    def begin(self, server, lines, endpoint="/v1/completions", window="24h"):
        file = self.upload(server, lines)
        reply = server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": window})
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json()

    def wait(self, server, batch):
        def ended():
            now = server.get(f"/v1/batches/{batch['id']}").json()
            return now if now["status"] in ("completed", "cancelled", "failed", "expired") else None
        return bamtest.wait_until(ended, "the batch ends", server)

    def results(self, server, file_id):
        text = server.get(f"/v1/files/{file_id}/content").text
        return {entry["custom_id"]: entry["response"] for entry in map(json.loads, text.splitlines())}

    def test_a_file_with_a_bad_line_fails_as_a_whole(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}]}
        lines = ["{", "", completion(0), completion(0), line("chat", "/v1/chat/completions", **chat), line("", prompt="x"), line("get", method="GET"),
                 line("where", "/v1/models"), line("stream", prompt="x", stream=True), "[]", json.dumps({"custom_id": "b", "url": "/v1/completions"})]
        server = self.serve()
        try:
            failed = self.begin(server, lines)
            self.assertEqual((failed["status"], failed["request_counts"]), ("failed", {"total": 10, "completed": 0, "failed": 0}))
            self.assertTrue(failed["failed_at"] and failed["in_progress_at"] is None)
            self.assertEqual([(error["line"], error["code"], error["param"]) for error in failed["errors"]["data"]], [
                (1, "invalid_json_line", None), (4, "duplicate_custom_id", "custom_id"), (5, "invalid_url", "url"),
                (6, "missing_required_parameter", "custom_id"), (7, "invalid_method", "method"), (8, "invalid_url", "url"),
                (9, "invalid_value", "body.stream"), (10, "invalid_json_line", None), (11, "missing_required_parameter", "body")])
            empty = self.begin(server, ["", " "])
            self.assertEqual((empty["status"], empty["errors"]["data"][0]["code"]), ("failed", "empty_file"))
            many = self.begin(server, ["{"] * 500)
            self.assertEqual((len(many["errors"]["data"]), many["request_counts"]["total"]), (100, 500), "the list is bounded")
            self.assertEqual(server.post(f"/v1/batches/{failed['id']}/cancel", {}).json()["status"], "failed", "there is nothing to cancel")
            self.assertEqual(self.wait(server, self.begin(server, [completion(0)]))["status"], "completed", "others are not held up")
        finally:
            server.stop()

    def test_a_batch_whose_time_is_over(self):
        server = self.serve()
        try:
            for window in ("24", "h", "0h", "-1h", "1y", "9999999d"):
                reply = server.post("/v1/batches", {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": window})
                self.assertEqual((reply.status, reply.error["param"]), (400, "completion_window"), window)
            count = 60
            lines = [completion("short", 1)] + [completion(i, 100_000) for i in range(count)]
            begun = self.begin(server, lines, window="2s")
            self.assertEqual(begun["expires_at"], begun["created_at"] + 2)
            waiting = self.begin(server, [completion("waiting", 100_000)], window="1s")
            done = self.wait(server, begun)
            counts = done["request_counts"]
            self.assertEqual((done["status"], counts["total"], counts["completed"] + counts["failed"]), ("expired", count + 1, count + 1))
            self.assertGreaterEqual(done["expired_at"], done["expires_at"])
            answered = self.results(server, done["output_file_id"]) if done["output_file_id"] else {}
            errors = [json.loads(entry) for entry in server.get(f"/v1/files/{done['error_file_id']}/content").text.splitlines()]
            self.assertEqual(len(answered), counts["completed"])
            self.assertEqual({(entry["error"]["code"], entry["response"]) for entry in errors}, {("batch_expired", None)})
            self.assertEqual(sorted([*answered, *(entry["custom_id"] for entry in errors)]), sorted(json.loads(entry)["custom_id"] for entry in lines))
            self.assertEqual(self.wait(server, waiting)["status"], "expired")
            server.wait_idle()
        finally:
            server.stop()

    def test_lists_in_pages(self):
        server = self.serve()
        try:
            ids = [self.begin(server, [completion(i, 1)])["id"] for i in range(3)]
            self.wait(server, {"id": ids[-1]})
            first = server.get("/v1/batches?limit=2").json()
            self.assertEqual(([batch["id"] for batch in first["data"]], first["has_more"], first["last_id"]), ([ids[2], ids[1]], True, ids[1]))
            rest = server.get(f"/v1/batches?limit=2&after={first['last_id']}").json()
            self.assertEqual(([batch["id"] for batch in rest["data"]], rest["has_more"]), ([ids[0]], False))
            inputs = server.get("/v1/files?purpose=batch&order=asc").json()["data"]
            self.assertEqual([file["purpose"] for file in inputs], ["batch"] * 3)
            self.assertEqual([file["id"] for file in inputs], sorted(file["id"] for file in inputs))
            self.assertEqual(len(server.get("/v1/files?purpose=batch_output").json()["data"]), 3)
            for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("limit=100000", "limit"), ("order=up", "order"),
                                 ("after=batch_x", "after")):
                self.assertEqual(server.get("/v1/batches?" + query).error["param"], param)
        finally:
            server.stop()

    def test_batch_of_completions(self):
        server = self.serve()
        try:
            lines = [completion(i) for i in range(20)] + [line("bad", prompt="x", n=99)]
            done = self.wait(server, self.begin(server, lines))
            self.assertEqual((done["status"], done["request_counts"]), ("completed", {"total": 21, "completed": 20, "failed": 1}))
            results = self.results(server, done["output_file_id"])
            single = server.complete("The grass is 7", max_tokens=8, ignore_eos=True).json()
            self.assertEqual(results["c7"]["body"]["choices"], single["choices"])
            self.assertEqual(self.results(server, done["error_file_id"])["bad"]["status_code"], 400)
            self.assertEqual(server.get("/v1/batches").json()["data"][0]["id"], done["id"])
            self.assertEqual(len(server.get("/v1/files").json()["data"]), 3)
            self.assertTrue(server.request("DELETE", f"/v1/files/{done['output_file_id']}").json()["deleted"])
            self.assertEqual(server.get(f"/v1/files/{done['output_file_id']}").status, 404)
            for body, param in (({"input_file_id": "file-x", "endpoint": "/v1/completions"}, "input_file_id"),
                                ({"input_file_id": "file-x", "endpoint": "/v1/models"}, "endpoint")):
                self.assertEqual(server.post("/v1/batches", body).error["param"], param)
            self.assertEqual(server.post("/v1/files", b"x").status, 400)
            plain = self.upload(server, ["x"], quote="")  # as .NET sends it
            self.assertEqual((plain["filename"], plain["purpose"], plain["bytes"]), ("in.jsonl", "batch", 1))
        finally:
            server.stop()

    def test_goes_on_after_restarts(self):
        server = self.serve("--drain-timeout", "1s")
        batch = self.begin(server, [completion(i, 96) for i in range(300)])
        bamtest.wait_until(lambda: server.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"] >= 3, "some results", server)
        server.kill()
        server = self.serve("--drain-timeout", "1s")
        counted = server.get(f"/v1/batches/{batch['id']}").json()
        self.assertIn(counted["status"], ("in_progress", "completed"))
        server.stop(expected=None)
        server = self.serve()
        try:
            done = self.wait(server, batch)
            self.assertEqual(done["request_counts"], {"total": 300, "completed": 300, "failed": 0})
            results = self.results(server, done["output_file_id"])
            self.assertEqual(len(results), 300)
            self.assertEqual({reply["body"]["choices"][0]["finish_reason"] for reply in results.values()}, {"length"}, "none was cut off")
        finally:
            server.stop()

    def test_responses_that_a_restart_cuts_off_are_done_again(self):
        server = self.serve("--drain-timeout", "1s")
        lines = [line(f"c{i}", "/v1/responses", input="Hello", max_output_tokens=3000, ignore_eos=True) for i in range(40)]
        batch = self.begin(server, lines, "/v1/responses")
        self.wait_for_work(server)
        server.stop(expected=None)
        server = self.serve()
        try:
            self.assertEqual(server.post(f"/v1/batches/{batch['id']}/cancel", {}).status, 200)
            done = self.wait(server, batch)
            results = self.results(server, done["output_file_id"]) if done["output_file_id"] else {}
            self.assertEqual({reply["body"]["status"] for reply in results.values()} - {"incomplete"}, set(), "max_output_tokens, nothing else")
        finally:
            server.stop()

    def wait_for_work(self, server):
        bamtest.wait_until(lambda: server.health()["running"] > 0, "lines in the engine", server)

    def test_a_batch_that_cannot_be_done_stays_failed(self):
        server = self.serve()
        file = self.upload(server, [completion(0)])
        blocker = self.begin(server, [completion(i, 100_000) for i in range(200)])
        batch = server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/completions"}).json()
        server.request("DELETE", f"/v1/files/{file['id']}")
        server.post(f"/v1/batches/{blocker['id']}/cancel", {})
        failed = self.wait(server, batch)
        self.assertEqual((failed["status"], failed["errors"]["data"][0]["code"]), ("failed", "server_error"))
        server.stop()
        server = self.serve()
        try:
            self.assertEqual(server.get(f"/v1/batches/{batch['id']}").json(), failed)
        finally:
            server.stop()

    def test_cancel(self):
        server = self.serve()
        try:
            batch = self.begin(server, [completion(i, 4000) for i in range(2000)])
            self.assertIn(server.post(f"/v1/batches/{batch['id']}/cancel", {}).json()["status"], ("cancelling", "cancelled"))
            done = self.wait(server, batch)
            self.assertEqual(done["status"], "cancelled")
            self.assertLess(done["request_counts"]["completed"], 2000)
        finally:
            server.stop()

    def test_needs_a_folder(self):
        with bamtest.running_server() as server:
            self.assertEqual(server.get("/v1/files").status, 501)
            self.assertIn("--batch-dir", server.post("/v1/batches", {}).error["message"])

    def test_official_client(self):
        python = pypi.python_with("openai<4")
        server = self.serve()
        script = """
import io, sys, time, json, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"model": "test", "prompt": "x", "max_tokens": 4}}) for i in range(5)]
file = client.files.create(file=("in.jsonl", "\\n".join(lines).encode()), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"why": "test"})
while (batch := client.batches.retrieve(batch.id)).status not in ("completed", "failed"):
    time.sleep(0.05)
assert batch.status == "completed" and batch.request_counts.completed == 5, batch
text = client.files.content(batch.output_file_id).text
assert sorted(json.loads(line)["custom_id"] for line in text.splitlines()) == list("01234"), text
assert batch.id in [b.id for b in client.batches.list()]
client.files.delete(file.id)
"""
        try:
            result = subprocess.run([python, "-c", script, f"http://127.0.0.1:{server.port}/v1"], capture_output=True, text=True, timeout=bamtest.PATIENCE,
                                    check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr + server.log())
        finally:
            server.stop()


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""M3, H7 and C2 for files and batches: a full disk, pipes in place of files, and what the server keeps of a batch."""

import json
import os
import pathlib
import tempfile
import unittest

import attack
import bamtest

TASK = {"endpoint": "/v1/completions", "completion_window": "24h"}


def upload(server, content):
    """The reply to an upload of `content` as a file of requests."""
    body = (b"--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n" + content + b"\r\n--edge--\r\n")
    return server.request("POST", "/v1/files", body, headers={"Content-Type": "multipart/form-data; boundary=edge"})


def lines(count, **fields):
    body = {"prompt": "x", "max_tokens": 1, "temperature": 0, **fields}
    return "\n".join(json.dumps({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": body}) for i in range(count)).encode()


class FullDisk(unittest.TestCase):
    def setUp(self):
        self.disk = attack.SmallDisk(1)
        self.addCleanup(self.disk.close)
        if not self.disk.mounted:
            self.skipTest("SKIPPED: mounting a tmpfs needs root")

    def files(self):
        return sorted(file.name for file in pathlib.Path(self.disk.folder).rglob("*") if file.is_file())

    def status(self, server, name):
        return server.get("/v1/batches/" + name).json()["status"]

    def test_m3_a_batch_whose_results_do_not_fit_fails_and_the_server_stops_well(self):
        """Echoes of 600 choices of 2 KB for a disk of 1 MB. Before: shutting down used a runner that was gone, and after a restart
        the batch was done again from the start, and again after the next."""
        with bamtest.running_server("--batch-dir", self.disk.folder) as server:
            sent = upload(server, lines(150, prompt="a " * 1000, n=4, echo=True))
            self.assertEqual(sent.status, 200, sent.text)
            name = server.post("/v1/batches", {**TASK, "input_file_id": sent.json()["id"]}).json()["id"]
            bamtest.wait_until(lambda: self.status(server, name) == "failed", "the batch has failed", server)
            self.assertEqual([file for file in self.files() if file.endswith((".out", ".err", ".part"))], [], "its results make room")
            small = upload(server, lines(3))
            self.assertEqual(small.status, 200, small.text)
            second = server.post("/v1/batches", {**TASK, "input_file_id": small.json()["id"]}).json()["id"]
            bamtest.wait_until(lambda: self.status(server, second) == "completed", "the next one is done", server)
        with bamtest.running_server("--batch-dir", self.disk.folder) as server:
            self.assertEqual(self.status(server, name), "failed")

    def test_m3_an_upload_that_does_not_fit_leaves_nothing(self):
        with bamtest.running_server("--batch-dir", self.disk.folder) as server:
            for _ in range(3):
                reply = upload(server, lines(20000))
                self.assertEqual(reply.status, 500, reply.text)
                self.assertEqual(self.files(), [])
            self.assertEqual(upload(server, lines(3)).status, 200)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_m3_pipes_in_place_of_files(self):
        """Before: the start waited for somebody to write into the pipe, and so did the thread that runs batches."""
        (self.folder / "files").mkdir()
        pipe = self.folder / "files" / "file-1.json"
        os.mkfifo(pipe)
        server = bamtest.Server("--batch-dir", str(self.folder), wait=False)
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 1, server.log())
        server.stop(expected=None)
        self.assertIn("file-1.json is not a regular file", server.log())
        pipe.unlink()
        with bamtest.running_server("--batch-dir", str(self.folder)) as server:
            name = upload(server, lines(3)).json()["id"]
            content = self.folder / "files" / f"{name}.jsonl"
            content.unlink()
            os.mkfifo(content)
            self.assertEqual(server.get(f"/v1/files/{name}/content").status, 500)
            self.assertEqual(server.post("/v1/batches", {**TASK, "input_file_id": name}).status, 500)

    def test_c2_what_is_kept_of_a_batch_is_bounded(self):
        """Metadata is kept in memory as long as the batch is listed. Before: as much as a body can hold, for each of 10,000."""
        with bamtest.running_server("--batch-dir", str(self.folder)) as server:
            name = upload(server, lines(1)).json()["id"]
            for metadata, status in (({"k": "v" * 16_000}, 200), ({"k": "v" * 17_000}, 400), ({f"k{i}": "" for i in range(5000)}, 400),
                                     ({"k": [[]] * 10_000}, 400)):
                reply = server.post("/v1/batches", {**TASK, "input_file_id": name, "metadata": metadata})
                self.assertEqual(reply.status, status, reply.text[:300])
                if status == 400:
                    self.assertEqual(reply.error["param"], "metadata")

    def test_files_of_one_key_mean_nothing_to_another(self):
        with bamtest.running_server("--batch-dir", str(self.folder), "--api-key", "alice-key", "--api-key", "bob-key") as server:
            alice, bob = ({"Authorization": f"Bearer {name}-key"} for name in ("alice", "bob"))
            body = (b"--e\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--e\r\nContent-Disposition: form-data; "
                    b"name=file; filename=../../x\r\n\r\n" + lines(1) + b"\r\n--e--\r\n")
            sent = server.request("POST", "/v1/files", body, headers={**alice, "Content-Type": "multipart/form-data; boundary=e"})
            self.assertEqual(sent.status, 200, sent.text)
            name = sent.json()["id"]
            batch = server.post("/v1/batches", {**TASK, "input_file_id": name}, headers=alice).json()["id"]
            for method, path in (("GET", f"/v1/files/{name}"), ("GET", f"/v1/files/{name}/content"), ("DELETE", f"/v1/files/{name}"),
                                 ("GET", f"/v1/batches/{batch}"), ("POST", f"/v1/batches/{batch}/cancel")):
                self.assertEqual(server.request(method, path, b"{}" if method == "POST" else None, headers=bob).status, 404, path)
            self.assertEqual(server.post("/v1/batches", {**TASK, "input_file_id": name}, headers=bob).status, 400)
            for path in ("/v1/files", "/v1/batches"):
                self.assertEqual(server.get(path, headers=bob).json()["data"], [])
            for odd in ("..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", f"..%2Ffiles%2F{name}", f"{name}%00", f"{name}.jsonl", name.upper()):
                for path in (f"/v1/files/{odd}", f"/v1/files/{odd}/content", f"/v1/batches/{odd}"):
                    self.assertIn(server.get(path, headers=alice).status, (400, 404, 501), path)
                self.assertEqual(server.post("/v1/batches", {**TASK, "input_file_id": odd}, headers=alice).status, 400)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["batches", "files"])


if __name__ == "__main__":
    attack.main()

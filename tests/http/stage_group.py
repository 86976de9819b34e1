"""What the tests of one server on several processes share: its streams, its workers, its pages."""

import hashlib
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import time

import bamtest
import demo_prompts

PROMPTS = ["The grass is", "Once upon a time", [5 + i % 300 for i in range(3000)]]
LONG = [3 + i % 400 for i in range(60_000)]
ANSWER = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.8, "seed": 11, "logprobs": 2}
ENDLESS = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def has_plugin(name):
    return (pathlib.Path(bamtest.BAM).parent / f"libbam_{name}.so").exists()


def workers_of(server):
    """rank -> pid of the processes that the server started."""
    found = {}
    for line in subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(server.process.pid)], capture_output=True, text=True, check=False).stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        for word in command.split():
            if word.startswith("--stage-rank="):
                found[int(word.partition("=")[2])] = int(pid)
    return found


def content_of(body):
    choice = json.loads(body)["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def content(reply):
    return content_of(reply.body)


def data_of(stream, first=None):
    """What the `data:` events say, to the end; comments left out."""
    event = first or stream.next_event()
    while event is not None:
        if event.startswith("data: "):
            yield event.removeprefix("data: ")
        event = stream.next_event()


def streamed(stream, first=None):
    """The text of a stream, which must end well."""
    texts, finish = [], None
    for event in data_of(stream, first):
        if event == "[DONE]":
            break
        data = json.loads(event)
        assert "error" not in data, data
        for choice in data["choices"]:
            texts.append(choice["text"])
            finish = choice["finish_reason"] or finish
    assert finish == "length", finish
    return "".join(texts)


class Expected:
    """What one process says."""

    def __init__(self):
        with bamtest.running_server() as server:
            self.answers = [content(server.complete(prompt, **ANSWER)) for prompt in PROMPTS]
            self.long = content(server.complete(LONG, max_tokens=16))
            self.endless = content(server.complete(**ENDLESS))[0]

    def ask_all(self, server):
        """All prompts at once, so that steps are mixed."""
        replies = bamtest.run_threads(len(PROMPTS), lambda i: content(server.complete(PROMPTS[i], **ANSWER)))
        assert replies == self.answers, replies


class Streams:
    """One text that is being written and one long prompt that is being read."""

    def __init__(self, server, phase):
        self.server = server
        self.endless = server.stream("/v1/completions", ENDLESS)
        self.first = self.endless.next_event()
        self.long = None
        if phase == "decode":
            return
        self.long = server.stream("/v1/completions", {"prompt": LONG, "max_tokens": 16, "temperature": 0})
        bamtest.wait_until(lambda: any(entry["state"] == "prefill" and entry["processed_tokens"] > 500 for entry in server.live()),
                           "the long prompt is being read", server)
        if phase == "draining":
            server.process.terminate()
            server.wait_line("draining")

    def check(self, expected):
        assert streamed(self.endless, self.first) == expected.endless
        if self.long:
            assert streamed(self.long) == expected.long[0]


def check_pages(server):
    """When nothing runs, every page of every stage is free or cached."""
    server.wait_idle()
    for number, stage in enumerate(server.get("/props").json()["stages"]):
        pages = stage["kv_pages"]
        assert pages["used"] == 0 and pages["free"] + pages["cached"] == pages["total"], (number, pages)


def passkey_of(stages, length, memory="512MiB"):
    """Tokens, log-probabilities (which are the logits' bits) and a hash of all pages of one long prompt whose key must be found."""
    with tempfile.TemporaryDirectory() as folder:
        with bamtest.running_server("--stages", stages, "--kv-dir", folder, "--admin-key", "ADMIN", "--kv-memory", memory, model=demo_prompts.MODEL) as server:
            prompt, key = demo_prompts.passkey_text(server, length, 0.4)
            found = content(server.complete(prompt, max_tokens=8, logprobs=20))
            assert key in found[0], (key, found[0])
            saved = server.post("/v1/kv/save", {"name": "passkey", "prompt": prompt}, headers={"Authorization": "Bearer ADMIN"})
            assert saved.status == 200, saved.text
        files = list(pathlib.Path(folder).iterdir())
        assert len(files) == 1, files
        with files[0].open("rb") as file:
            return found, files[0].stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


class Canary:
    """How late this machine wakes a thread up: what a timer may be late without being wrong."""

    def __enter__(self):
        self.worst = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self):
        nap = 0.05
        while not self._stop.is_set():
            start = time.monotonic()
            time.sleep(nap)
            self.worst = max(self.worst, time.monotonic() - start - nap)

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Watch:
    """How long it takes from now until the server's log says something new that matches."""

    def __init__(self, server):
        self.server, self.seen, self.start = server, len(server.lines), time.monotonic()

    def seconds_until(self, pattern):
        def said():
            return any(re.search(pattern, line) for line in list(self.server.lines)[self.seen:])
        bamtest.wait_until(said, f"a new line with {pattern}", self.server)
        return time.monotonic() - self.start

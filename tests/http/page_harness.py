"""What the page's tests share: a real server, a request that goes on until somebody ends it, and a test case that looks at
the console and at the network after every test."""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import bamtest
from webdriver import Browser, free_port, missing_program

OPTIONS = argparse.Namespace(bam="")  # the program under test, set by main()


class Server:
    """A bam process that serves the demo model. Use as a context manager."""

    def __init__(self, *flags: str, port: int = 0, key: str = ""):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = key
        self._log = tempfile.TemporaryFile()
        command = [OPTIONS.bam, "serve", "--model", "demo", "--port", str(self.port), "--kv-memory", "512MiB", *flags]
        if key:
            command += ["--api-key", key]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + bamtest.PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/readyz", timeout=5).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self._log.seek(0)
                    raise RuntimeError(f"the server did not start:\n{self._log.read().decode()}") from None
                time.sleep(0.1)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def request(self, path: str, body: dict | None = None):
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=bamtest.PATIENCE) as reply:
            return json.load(reply)


class LongRequest(threading.Thread):
    """A streamed completion that goes on until somebody ends it."""

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self.server = server
        self.id = None
        self.finish_reason = None
        self.started = threading.Event()
        self.start()

    def run(self):
        body = {"prompt": "Once upon a time", "max_tokens": 100000, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=bamtest.PATIENCE)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            for line in connection.getresponse():
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                self.id = chunk.get("id", self.id)
                self.started.set()
                for choice in chunk.get("choices", []):
                    self.finish_reason = choice.get("finish_reason") or self.finish_reason
        finally:
            connection.close()
            self.started.set()


class PageTest(unittest.TestCase):
    """A fresh browser per class; every test ends with a look at the console and at what was requested."""

    server_flags: tuple[str, ...] = ()
    api_key = ""
    expected_console = ()  # parts of messages that the test provokes on purpose

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.server_flags, key=cls.api_key)
        cls.addClassCleanup(cls.server.stop)
        cls.page = Browser()
        cls.addClassCleanup(cls.page.close)

    def setUp(self):
        self.page.resize(1280, 900)
        self.page.prefer_colors("light")

    def tearDown(self):
        errors = [m for m in self.page.console_errors() if not any(part in m for part in self.expected_console)]
        self.assertEqual(errors, [], "the console must stay clean")
        # Chromium's own pages (chrome:, about:) and inline data never leave the machine.
        outside = [u for u in self.page.requested_urls()
                   if not u.startswith((self.server.url + "/", "data:", "chrome:", "about:", "blob:"))]
        self.assertEqual(outside, [], "the page must not ask anybody else")

    def open(self, view: str = "playground"):
        # As in a browser that has never been here.
        self.page.open(f"{self.server.url}/")
        self.page.script("localStorage.clear()")
        self.visit(view)

    def visit(self, view: str = "playground"):
        """Opens the page with what the browser remembers of it."""
        self.page.open("about:blank")
        self.page.open(f"{self.server.url}/#{view}")
        panel = f"#view-{view.split('/')[0]}"
        self.page.wait(f"{panel} open", lambda: self.page.visible(panel))
        self.page.wait("the server known", lambda: "demo" in self.page.text("#model-line")
                       or not self.page.visible("#model-line"))

    def wait_text(self, css: str, part: str, timeout_s: float = bamtest.PATIENCE):
        self.page.wait(f"“{part}” in {css} (it says “{self.page.text(css)}”)", lambda: part in self.page.text(css), timeout_s)

    def sampling(self, **values):
        """Sets fields of the sampling form, opening their group as a person would have to."""
        for name, value in values.items():
            self.page.script(
                "const c = document.querySelector(`.sampling [name=${arguments[0]}]`); c.closest('details').open = true;"
                "if (c.type === 'checkbox') c.checked = arguments[1]; else c.value = arguments[1];"
                "c.dispatchEvent(new Event('input', {bubbles: true}))", name, value)

    def generate(self, prompt: str):
        self.page.type("#prompt", prompt)
        self.page.click(".pane .primary")
        self.wait_text(".pane .stats", "first token after", 60)


def main(description: str) -> int:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--bam", required=True, help="the program under test")
    options, rest = parser.parse_known_args()
    OPTIONS.bam = os.path.abspath(options.bam)
    missing = missing_program()
    if missing:
        print(f"SKIPPED: the page was NOT tested, because {missing} is not installed (scripts/setup.sh --browser installs it).")
        return 77
    program = unittest.main(module="__main__", argv=[sys.argv[0], *rest], exit=False, verbosity=2)
    return 0 if program.result.wasSuccessful() else 1

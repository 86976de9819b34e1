#!/usr/bin/env python3
"""A page on another origin uses the API in headless Chromium, with the headers that SDKs add; one that is not allowed cannot.

Needs Debian's chromium and chromium-driver; without them it says so and is skipped (exit code 77)."""

import http.server
import json
import threading
import unittest

import bamtest
import webdriver

# What the official client sends from a browser.
HEADERS = {"content-type": "application/json", "authorization": "Bearer page-key", "x-stainless-lang": "js",
           "x-stainless-package-version": "6.0.0", "x-stainless-os": "Unknown", "x-stainless-arch": "unknown",
           "x-stainless-runtime": "browser:chrome", "x-stainless-retry-count": "0", "x-stainless-timeout": "600"}
PAGE = """<!doctype html><title>another origin</title><script>
async function ask(url, headers, body) {
  try {
    const reply = await fetch(url, {method: "POST", headers, body});
    window.seen = {status: reply.status, id: reply.headers.get("x-request-id"), text: await reply.text()};
  } catch (error) {
    window.seen = {failed: String(error)};
  }
}
</script>"""


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_):
        pass


class AnotherOrigin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if missing := webdriver.missing_program():
            raise unittest.SkipTest(f"SKIPPED: {missing}")
        cls.sites = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) for _ in range(2)]
        for site in cls.sites:
            threading.Thread(target=site.serve_forever, daemon=True).start()
        cls.allowed, cls.other = (f"http://127.0.0.1:{site.server_port}" for site in cls.sites)
        cls.server = bamtest.Server("--cors-origins", cls.allowed, "--api-key", "page-key")
        cls.browser = webdriver.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.stop()
        for site in cls.sites:
            site.shutdown()
            site.server_close()

    def ask(self, origin, **body):
        self.browser.open(origin)
        url = f"http://127.0.0.1:{self.server.port}/v1/chat/completions"
        body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0, **body})
        self.browser.script("window.seen = null; ask(...arguments)", url, HEADERS, body)
        self.browser.wait("the reply", lambda: self.browser.script("return window.seen"), bamtest.PATIENCE)
        return self.browser.script("return window.seen")

    def test_an_allowed_page_reads_replies_and_streams(self):
        seen = self.ask(self.allowed)
        self.assertEqual(seen.get("status"), 200, seen)
        self.assertTrue(seen["id"], "the page may read our headers")
        whole = json.loads(seen["text"])["choices"][0]["message"]["content"]
        stream = self.ask(self.allowed, stream=True)["text"].split("\n\n")
        self.assertEqual(stream[-2], "data: [DONE]")
        chunks = [json.loads(event[6:]) for event in stream[:-2] if event.startswith("data: ")]
        self.assertEqual(bamtest.text_of(chunks), whole)

    def test_an_error_can_be_read_too(self):
        seen = self.ask(self.allowed, temperature=-1)
        self.assertEqual(seen.get("status"), 400, seen)
        self.assertEqual(json.loads(seen["text"])["error"]["param"], "temperature")

    def test_another_page_gets_nothing(self):
        self.assertIn("Failed to fetch", self.ask(self.other)["failed"])


if __name__ == "__main__":
    bamtest.main()

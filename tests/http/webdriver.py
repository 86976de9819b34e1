"""A small WebDriver client for headless Chromium: the standard library and Debian's chromium-driver, nothing else."""

import base64
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "ArrowLeft": "\ue012", "ArrowUp": "\ue013",
        "ArrowRight": "\ue014", "ArrowDown": "\ue015", "Home": "\ue011", "End": "\ue010", "Control": "\ue009",
        "Shift": "\ue008", "Backspace": "\ue003", "Space": " "}


PATIENCE = 300  # seconds, as in bamtest: bounds every wait and measures nothing


class WebDriverError(Exception):
    pass


def missing_program() -> str | None:
    """What must be installed for a browser session, or None."""
    if not shutil.which("chromedriver"):
        return "chromedriver (Debian package chromium-driver)"
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        return "chromium"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Browser:
    """One headless Chromium with its own driver process and profile. Use as a context manager."""

    def __init__(self, width: int = 1280, height: int = 900):
        self._profile = tempfile.TemporaryDirectory(prefix="bam-browser-", ignore_cleanup_errors=True)
        self._url = f"http://127.0.0.1:{free_port()}"
        self._driver = subprocess.Popen(["chromedriver", f"--port={self._url.rsplit(':', 1)[1]}"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "HOME": self._profile.name})
        try:
            self._wait_for_driver()
            options = {"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                                "--force-color-profile=srgb", "--hide-scrollbars", f"--window-size={width},{height}",
                                f"--user-data-dir={self._profile.name}/profile"]}
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
        except BaseException:
            self.close()
            raise
        self._session = f"/session/{session['sessionId']}"

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if hasattr(self, "_session"):
            try:
                self._call("DELETE", self._session)
            except (WebDriverError, OSError):
                pass
            del self._session
        self._driver.terminate()
        self._driver.wait(PATIENCE)
        self._profile.cleanup()

    # ---- protocol

    def _wait_for_driver(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._call("GET", "/status")
                return
            except OSError:
                if time.monotonic() > deadline or self._driver.poll() is not None:
                    raise WebDriverError("chromedriver did not start") from None
                time.sleep(0.1)

    def _call(self, method: str, path: str, body: dict | None = None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self._url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise WebDriverError(f"{value['error']}: {value['message'].splitlines()[0]}") from None

    def command(self, method: str, path: str, body: dict | None = None):
        return self._call(method, self._session + path, body)

    def devtools(self, name: str, **params):
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": params})

    # ---- pages and elements

    def open(self, url: str):
        self.command("POST", "/url", {"url": url})

    def script(self, text: str, *args):
        return self.command("POST", "/execute/sync", {"script": text, "args": list(args)})

    def find(self, css: str) -> str:
        return self.command("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def count(self, css: str) -> int:
        return self.script("return document.querySelectorAll(arguments[0]).length", css)

    def text(self, css: str) -> str:
        return self.script("return document.querySelector(arguments[0])?.innerText ?? ''", css)

    def attribute(self, css: str, name: str) -> str | None:
        return self.script("return document.querySelector(arguments[0])?.getAttribute(arguments[1])", css, name)

    def visible(self, css: str) -> bool:
        return self.script("return document.querySelector(arguments[0])?.checkVisibility() ?? false", css)

    def click(self, css: str):
        """As a person does: fails when the element is covered or not displayed."""
        self.command("POST", f"/element/{self.find(css)}/click")

    def type(self, css: str, text: str):
        """Replaces what is in a field."""
        element = self.find(css)
        self.command("POST", f"/element/{element}/clear")
        if text:
            self.command("POST", f"/element/{element}/value", {"text": text})

    def choose(self, css: str, value: str):
        """Selects an option of a <select>."""
        self.script("const s = document.querySelector(arguments[0]); s.value = arguments[1];"
                    "s.dispatchEvent(new Event('change', {bubbles: true}))", css, value)

    def press(self, *names: str):
        """Presses keys one after the other on whatever has the focus; "Control+Enter" is a chord."""
        actions = []
        for name in names:
            chord = [KEYS.get(part, part) for part in (name.split("+") if len(name) > 1 else [name])]
            actions += [{"type": "keyDown", "value": key} for key in chord]
            actions += [{"type": "keyUp", "value": key} for key in reversed(chord)]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def hover(self, css: str):
        origin = {ELEMENT: self.find(css)}
        self.command("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                     "actions": [{"type": "pointerMove", "duration": 0, "origin": origin, "x": 0, "y": 0}]}]})

    def wait(self, what: str, condition, timeout_s: float = PATIENCE):
        """Polls a callable until it is true; `what` is the failure's text."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise WebDriverError(f"after {timeout_s} s still not: {what}")
            time.sleep(0.05)

    def resize(self, width: int, height: int, mobile: bool = False):
        """A viewport of exactly this size; windows have a minimum width that phones do not."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=2 if mobile else 1, mobile=mobile)

    def prefer_colors(self, scheme: str):
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: pathlib.Path, full_page: bool = False):
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=full_page)
        path.write_bytes(base64.b64decode(shot["data"]))

    # ---- logs; each entry is handed out once

    def console_errors(self) -> list[str]:
        entries = self.command("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requested_urls(self) -> list[str]:
        urls = []
        for entry in self.command("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        return urls

"""What the black-box tests share: a real `bam serve` process, and clients that speak to it over plain sockets."""

import argparse
import atexit
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BAM = os.environ.get("BAM_BINARY", str(ROOT / "build" / "bam"))
# After so many seconds something hangs. It bounds every wait and measures nothing: no test may need a fast machine.
PATIENCE = 300
# For servers whose clients let their streams lie for a while: nothing pauses and nobody is cut off meanwhile.
UNREAD = ("--max-unsent", "64MiB", "--stall-timeout", "1h")
_checkpoint = None


def main():
    """Runs the tests of the calling file: --bam PATH, then unittest's own arguments."""
    global BAM
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--bam", default=BAM)
    known, rest = parser.parse_known_args()
    BAM = os.path.abspath(known.bam)
    # A shell's background jobs ignore Ctrl-C, and so would every server that is started from here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    result = unittest.main(argv=[sys.argv[0], *rest], module="__main__", verbosity=2, warnings="ignore", exit=False).result
    sys.exit(exit_code(result))


def exit_code(result):
    """0: passed, 1: failed, 77: nothing could run, which CTest shows as skipped."""
    if not result.wasSuccessful():
        return 1
    return 77 if result.skipped and result.testsRun <= len(result.skipped) else 0


def checkpoint():
    """The bundled model, or a random one of the same kind where there is none."""
    global _checkpoint
    demo = ROOT / "checkpoints" / "demo"
    if (demo / "model.safetensors").exists():
        return str(demo)
    if _checkpoint is None:
        _checkpoint = random_checkpoint()
    return _checkpoint


def wait_until(condition, what="it", server=None, timeout=PATIENCE):
    """Polls until condition() is true and returns its value. A server that dies meanwhile ends the wait."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        log = "\n" + server.log() if server else ""
        if server and server.process.poll() is not None and not condition():
            raise AssertionError(f"the server ended with {server.process.returncode} before: {what}{log}")
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen: {what}{log}")
        time.sleep(0.02)
    return value


def is_sanitized():
    program = pathlib.Path(BAM).read_bytes()
    return b"__asan_init" in program or b"__tsan_init" in program


def megabytes(count):
    """A limit on growth in bytes; wider for builds with sanitizers, which keep freed memory for a while."""
    return count * 2 ** 20 * (10 if is_sanitized() else 1)


def numpy_python():
    """An interpreter that has numpy: this one, else Debian's; None: there is none."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def random_checkpoint(*arguments, parent=None):
    """A new checkpoint; `parent` is a folder that somebody removes."""
    python = numpy_python()
    if python is None:
        raise unittest.SkipTest("SKIPPED: numpy is missing (apt-get install python3-numpy)")
    folder = (parent or tempfile.mkdtemp(prefix="bam-test-")) + "/random"
    subprocess.run([python, str(ROOT / "tools" / "make_random_checkpoint.py"), *arguments, folder], check=True,
                   stdout=subprocess.DEVNULL)
    return folder


class Server:
    """One `bam serve` on a free port. Its log is kept for messages of failing tests."""

    host = "127.0.0.1"

    def __init__(self, *arguments, model=None, environment=None, wait=True, scheme="http"):
        command = [BAM, "serve", "--port", "0", "--model", model or checkpoint(), "--served-model-name", "test",
                   "--kv-memory", "256MiB", *arguments]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                        errors="replace", env={**clean, **(environment or {})})
        atexit.register(self.kill)  # a failed test leaves no server behind
        self.lines = []
        self.scheme = scheme
        self.port = None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if wait:
            self.wait_ready()

    def _read_log(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"ready after .*://[^ ]*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self._ready.set()
        self._ready.set()

    def wait_ready(self, timeout=PATIENCE):
        if not self._ready.wait(timeout) or self.port is None:
            self.process.kill()
            raise AssertionError("the server did not start:\n" + self.log())
        return self

    def is_ready(self):
        return self._ready.is_set()

    def wait_line(self, pattern):
        """The first line of the log that matches."""
        def found():
            return next((match for line in list(self.lines) if (match := re.search(pattern, line))), None)
        return wait_until(found, f"a line with {pattern}", self)

    def wait_listening(self):
        """The port, as soon as the server answers; the model may still be loading."""
        return int(self.wait_line(r"bound to .*://[^ ]*:(\d+)").group(1))

    def log(self):
        if self.process.poll() is not None:
            self._reader.join(5)  # what it said last may still be in the pipe
        return "\n".join(self.lines[-60:])

    def memory_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def kv_bytes(self):
        """Memory of the pages that hold something. Free ones that held something before are taken first, so a new server has
        touched no more than the most that this ever was."""
        pages = self.health()["kv_pages"]
        return (pages["total"] - pages["free"]) / pages["total"] * self.get("/props").json()["engine"]["kv_memory_bytes"]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metric(self, name, **labels):
        """Sum of the samples of a metric whose labels include the given ones."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            if line.startswith("#") or re.match(r"[\w:]+", line).group() != name:
                continue
            if all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def health(self):
        return self.get("/health").json()

    def live(self):
        """The requests that are in the engine."""
        return self.get("/v1/requests").json()["data"]

    def wait_idle(self):
        """Until no request is left in the engine and no KV page is in use."""
        def idle():
            health = self.health()
            return health if health["running"] == 0 and health["waiting"] == 0 and health["kv_pages"]["used"] == 0 else None
        return wait_until(idle, "no request and no page in use", self)

    def request(self, method, path, body=None, headers=None, timeout=PATIENCE):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            headers = dict(headers or {})
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, headers)
            return Response(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def complete(self, prompt="The grass is", **fields):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})

    def stream(self, path, body, headers=None, timeout=PATIENCE):
        return Stream(self.port, path, {"stream": True, **body}, headers, timeout)

    def stop(self, expected=0, timeout=PATIENCE):
        """SIGTERM and the exit code that must follow."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self._reader.join(5)
        self.process.stderr.close()
        if expected is not None and code != expected:
            raise AssertionError(f"exit code {code}, expected {expected}\n{self.log()}")
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running_server(*arguments, **options):
    server = Server(*arguments, **options)
    try:
        yield server
    except BaseException:
        server.kill()
        raise
    server.stop()


class Response:
    def __init__(self, response):
        self.status = response.status
        self.headers = {key.lower(): value for key, value in response.getheaders()}
        self.body = response.read()

    @property
    def text(self):
        return self.body.decode("utf-8")

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]


class Stream:
    """A POST whose reply is read event by event from the raw socket."""

    def __init__(self, port, path, body, headers=None, timeout=PATIENCE):
        client = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        client.sendall(raw_post(path, body, headers))
        self._attach(client)

    @classmethod
    def attached(cls, client):
        """The reply to a request that was sent on the socket already."""
        stream = cls.__new__(cls)
        stream._attach(client)
        return stream

    def _attach(self, client):
        self.socket = client
        self._buffer = b""
        self.status, self.headers = self._read_head()
        self.raw = b""          # the decoded body so far
        self._position = 0
        self.ended = False

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise EOFError("connection closed")
        self._buffer += data

    def _read_head(self):
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        headers = dict((name.lower(), value) for name, value in (line.split(": ", 1) for line in lines[1:]))
        return int(lines[0].split()[1]), headers

    def _read_chunk(self):
        while b"\r\n" not in self._buffer:
            self._more()
        size, self._buffer = self._buffer.split(b"\r\n", 1)
        size = int(size, 16)
        while len(self._buffer) < size + 2:
            self._more()
        assert self._buffer[size:size + 2] == b"\r\n"
        self.raw += self._buffer[:size]
        self._buffer = self._buffer[size + 2:]
        self.ended = size == 0

    def next_event(self):
        """The next event's text without its blank line, or None at the end of the body."""
        while True:
            end = self.raw.find(b"\n\n", self._position)
            if end >= 0:
                event = self.raw[self._position:end].decode("utf-8")
                self._position = end + 2
                return event
            if self.ended:
                assert self._position == len(self.raw), "bytes after the last event"
                return None
            self._read_chunk()

    def events(self):
        while (event := self.next_event()) is not None:
            yield event

    def chunks(self):
        """JSON objects of the data events up to [DONE], which must come last."""
        objects, done = [], False
        for event in self.events():
            if event.startswith(": "):
                continue
            assert event.startswith("data: "), event
            assert not done, f"an event after [DONE]: {event}"
            if event == "data: [DONE]":
                done = True
            else:
                objects.append(json.loads(event[6:]))
        assert done, "no [DONE]"
        return objects

    socket = None  # until it is connected

    def close(self):
        if self.socket:
            self.socket.close()

    __del__ = close

    def reset(self):
        """Closes with a TCP reset, as a killed process does when data is waiting."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()


def raw_post(path, body, headers=None):
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", f"Content-Length: {len(payload)}"]
    lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def text_of(chunks, index=0):
    """The text that the chunks of one choice add up to."""
    parts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                parts.append(choice["text"] if "text" in choice else choice["delta"].get("content", ""))
    return "".join(parts)


def run_threads(count, function):
    """function(i) on `count` threads; returns the results and raises the first failure."""
    results, failures = [None] * count, []

    def call(i):
        try:
            results[i] = function(i)
        except BaseException as failure:  # pylint: disable=broad-except
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class ServerTest(unittest.TestCase):
    """Tests of one class share a server; after each of them it must be idle and healthy."""

    arguments = ()
    environment = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments, environment=cls.environment)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server died:\n" + self.server.log())

    def wait_for(self, condition, what="the awaited state"):
        return wait_until(condition, what, self.server)

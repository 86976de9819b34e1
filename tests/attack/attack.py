"""What the attack tests share: bytes on the wire, TLS, memory of a process, and the gateway of deploy/ before servers.

Everything stays on the loopback interface and inside the servers that the tests start themselves."""

import atexit
import contextlib
import mmap
import os
import pathlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "http"))

import bamtest  # noqa: E402  pylint: disable=wrong-import-position

PATIENCE = bamtest.PATIENCE


def connect(port, tls=None):
    """A connection to the loopback interface; tls: a context of client_context()."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    return tls.wrap_socket(client, server_hostname="127.0.0.1") if tls else client


def read_until_closed(client):
    """Everything that comes until the other side closes, and whether it did so by a reset."""
    data = b""
    while True:
        try:
            part = client.recv(65536)
        except (ConnectionError, ssl.SSLError):
            return data, True
        if not part:
            return data, False
        data += part


def exchange(port, data, tls=None, finish=False):
    """Sends raw bytes on a new connection and returns all that comes until the server closes it. finish: says after the
    bytes that no more will come (without it, a server that waits for more keeps the connection)."""
    with connect(port, tls) as client:
        with contextlib.suppress(OSError):  # it may have closed already
            client.sendall(data)
            if finish:
                client.shutdown(socket.SHUT_WR)
        return read_until_closed(client)[0]


def replies(data):
    """The status codes of the replies in raw bytes, in their order."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d\d\d) ", data)]


def body_of(reply):
    """The body of one raw reply, out of its chunks."""
    head, body = reply.split(b"\r\n\r\n", 1)
    if not re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return body
    parts = b""
    while True:
        size, body = body.split(b"\r\n", 1)
        if int(size, 16) == 0:
            assert body == b"\r\n", body
            return parts
        parts, body = parts + body[:int(size, 16)], body[int(size, 16) + 2:]


def repeat_until(condition, what):
    """Without a pause, as an attacker would."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen: {what}")


def certificate(folder):
    """A certificate for 127.0.0.1 that signs itself: paths of it and its key."""
    cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def client_context(cert):
    return ssl.create_default_context(cafile=cert)


def peak_bytes(pid):
    """The largest resident memory that a process ever had (or since forget_peak())."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def forget_peak(pid):
    with contextlib.suppress(OSError):
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    return peak_bytes(pid)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Faults:
    """Memory, threads and ports that the system refuses to a server started with environment() (tests/attack/faults.cpp)."""

    FIELDS = ("every", "smallest", "failed", "thread", "threads", "hang", "hung", "binds", "bound")

    def __init__(self):
        self.library = pathlib.Path(bamtest.BAM).parent / "bam_faults.so"
        if not self.library.exists():
            raise unittest.SkipTest("SKIPPED: a build with sanitizers has no bam_faults.so")
        self.file = tempfile.NamedTemporaryFile(prefix="bam-faults-")
        self.file.truncate(8 * len(self.FIELDS))
        self.numbers = mmap.mmap(self.file.fileno(), 0)

    def environment(self):
        return {"LD_PRELOAD": str(self.library), "BAM_FAULTS": self.file.name}

    def read(self, field):
        return struct.unpack_from("Q", self.numbers, 8 * self.FIELDS.index(field))[0]

    def write(self, **fields):
        for field, value in fields.items():
            struct.pack_into("Q", self.numbers, 8 * self.FIELDS.index(field), value)

    def close(self):
        self.numbers.close()
        self.file.close()


class SmallDisk:
    """A tmpfs of a few megabytes, so that files fill it; an ordinary folder where mounting is not allowed."""

    def __init__(self, megabytes=6):
        self.folder = tempfile.mkdtemp(prefix="bam-small-disk-")
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "bam-small-disk", self.folder]
        self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0

    def close(self):
        if self.mounted:
            subprocess.run(["umount", self.folder], check=True)
        shutil.rmtree(self.folder)


class Gateway:
    """deploy/k8s/haproxy.cfg before servers on this machine. Only the servers' addresses are replaced: names that a cluster
    resolves become ports, and places without a server are left out."""

    def __init__(self, *ports):
        haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
        if haproxy is None:
            raise unittest.SkipTest("SKIPPED: haproxy is missing (apt-get install haproxy)")
        text = (ROOT / "deploy" / "k8s" / "haproxy.cfg").read_text(encoding="utf-8")
        lines = []
        for line in text.splitlines():
            if found := re.match(r'    server bam-(\d) "bam-\1\.\$\{BAM_REPLICAS\}:\$\{BAM_REPLICA_PORT\}"', line):
                number = int(found.group(1))
                if number >= len(ports):
                    continue
                line = re.sub(r'".*?"', f"127.0.0.1:{ports[number]}", line)
            lines.append(line.replace(" resolvers cluster init-addr none resolve-prefer ipv4", ""))
        assert sum("127.0.0.1:" in line for line in lines) == 2 * len(ports), "the servers of deploy/k8s/haproxy.cfg look different"
        self.folder = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.folder.name) / "haproxy.cfg"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.port, self.health_port, self.count = free_port(), free_port(), len(ports)
        environment = {"PATH": os.environ["PATH"], "GATEWAY_PORT": str(self.port), "METRICS_PORT": str(self.health_port)}
        self.process = subprocess.Popen([haproxy, "-db", "-f", str(config)], env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        atexit.register(self.process.kill)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()

    def servers_up(self):
        try:
            text = exchange(self.health_port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
        except OSError:
            return -1
        return sum(bool(re.match(r'haproxy_server_status\{proxy="replicas",.*state="UP"\} 1$', line)) for line in text.splitlines())

    def wait_up(self, count=None):
        count = self.count if count is None else count
        bamtest.wait_until(lambda: self.servers_up() == count, f"{count} servers are up in the gateway", self)
        return self

    def log(self):
        return "".join(self.lines[-30:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        self.process.stdout.close()
        self.folder.cleanup()


class FakeReplica:
    """Counts the requests that reach it. /readyz is answered; `behave(head, body, connection)` does the rest."""

    def __init__(self, behave):
        self.behave, self.seen = behave, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    part = connection.recv(65536)
                    if not part:
                        return
                    data += part
                head, data = data.split(b"\r\n\r\n", 1)
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                while length and len(data) < int(length.group(1)):
                    data += connection.recv(65536)
                body, data = data[:int(length.group(1)) if length else 0], data[int(length.group(1)) if length else 0:]
                if head.startswith(b"GET /readyz"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    continue
                self.seen.append(head + b"\r\n\r\n" + body)
                if not self.behave(head, body, connection):
                    return

    def close(self):
        self.listener.close()


def answer(status=200, body=b"{}", headers=b""):
    """A behaviour that replies and keeps the connection."""
    def behave(_head, _body, connection):
        connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), headers) + body)
        return True
    return behave


def die(_head, _body, _connection):
    """A replica that the request kills: the connection ends without a byte."""
    return False


def main():
    bamtest.main()

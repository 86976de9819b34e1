"""Gateways before several real servers: HAProxy with the configuration of deploy/k8s, unchanged, and vllm-router from PyPI.

Stands in for the cluster: a small DNS server that gives and takes the replicas' names as Kubernetes does.
"""

import atexit
import collections
import http.client
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import bamtest

DOMAIN = "bam-replicas.test"
DNS_ADDRESS = "127.77.0.53"


def skip_loudly(message):
    print("\n" + "*" * 100 + "\nSKIPPED: " + message + "\n" + "*" * 100, file=sys.stderr, flush=True)
    raise unittest.SkipTest("SKIPPED: " + message)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replica_address(number):
    return f"127.77.0.{10 + number}"


def common_free_port(count):
    """A port that is free on the addresses of `count` replicas."""
    while True:
        port = free_port()
        sockets = []
        try:
            for number in range(count):
                sockets.append(socket.create_server((replica_address(number), port)))
            return port
        except OSError:
            continue
        finally:
            for listener in sockets:
                listener.close()


class Names(threading.Thread):
    """Answers A queries from a table; names that are not in it do not exist."""

    def __init__(self):
        super().__init__(daemon=True)
        self.table = {}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((DNS_ADDRESS, 53))

    def run(self):
        while True:
            try:
                query, client = self.socket.recvfrom(4096)
            except OSError:
                return
            self.socket.sendto(self.answer(query), client)

    def answer(self, query):
        labels, position = [], 12
        while query[position]:
            labels.append(query[position + 1:position + 1 + query[position]].decode())
            position += 1 + query[position]
        kind = struct.unpack(">H", query[position + 1:position + 3])[0]
        question = query[12:position + 5]
        address = self.table.get(".".join(labels))
        records = b""
        if address and kind == 1:
            records = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + socket.inet_aton(address)
        flags = 0x8180 if address else 0x8183
        return query[:2] + struct.pack(">HHHHH", flags, 1, 1 if records else 0, 0, 0) + question + records


class Replica(bamtest.Server):
    """`bam serve` on an address of its own."""

    def __init__(self, number, port, *arguments):
        self.name, self.host = f"bam-{number}", replica_address(number)
        super().__init__("--host", self.host, "--port", str(port), "--drain-timeout", "300s", *arguments, wait=False)


class Process:
    """A program whose log is kept for messages of failing tests."""

    def __init__(self, command, environment=None):
        self.log_file = tempfile.TemporaryFile(mode="w+")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(command, stdout=self.log_file, stderr=subprocess.STDOUT, env=environment)
        atexit.register(self.kill)

    def log(self):
        self.log_file.seek(0)
        return self.log_file.read()[-4000:]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class HAProxy(Process):
    """deploy/k8s/haproxy.cfg, unchanged, on a free port, for replicas that all have `replica_port`. It asks our DNS server:
    in a mount namespace, where /etc/resolv.conf is another file."""

    def __init__(self, replica_port):
        program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        if not program:
            skip_loudly("no haproxy here (apt-get install haproxy)")
        try:
            self.names = Names()
        except OSError as error:
            skip_loudly(f"no DNS server for the gateway: {error}")
        self.names.start()
        self.folder = tempfile.TemporaryDirectory()
        resolv = pathlib.Path(self.folder.name) / "resolv.conf"
        resolv.write_text(f"nameserver {DNS_ADDRESS}\n", encoding="ascii")
        self.port, self.health_port = free_port(), free_port()
        environment = {**os.environ, "BAM_REPLICAS": DOMAIN, "BAM_REPLICA_PORT": str(replica_port), "GATEWAY_PORT": str(self.port),
                       "METRICS_PORT": str(self.health_port)}
        script = 'mount --bind "$1" /etc/resolv.conf && exec "$2" -db -f "$3"'
        super().__init__(["unshare", "--mount", "sh", "-c", script, "sh", str(resolv), program,
                          str(bamtest.ROOT / "deploy" / "k8s" / "haproxy.cfg")], environment)
        bamtest.wait_until(lambda: self.process.poll() is not None or request(self.health_port, "GET", "/gateway/live").status == 200,
                           "the gateway answers")
        if self.process.poll() is not None:
            log = self.log()
            self.close()
            skip_loudly(f"haproxy does not start in a namespace of its own: {log}")

    def add(self, replica):
        replica.wait_ready()
        self.names.table[f"{replica.name}.{DOMAIN}"] = replica.host
        self.wait_state(replica, True)

    def remove(self, replica):
        """As a pod that is about to end: out of DNS, until the gateway sends nothing new there."""
        del self.names.table[f"{replica.name}.{DOMAIN}"]
        self.wait_state(replica, False)

    def up(self):
        text = request(self.health_port, "GET", "/metrics").text
        return {line.split('server="')[1].split('"')[0] for line in text.splitlines()
                if line.startswith("haproxy_server_status{") and 'proxy="replicas"' in line and 'state="UP"' in line and line.endswith(" 1")}

    def wait_state(self, replica, up):
        bamtest.wait_until(lambda: (replica.name in self.up()) == up, f"{replica.name} is {'up' if up else 'down'} in the gateway")

    def close(self):
        self.kill()
        self.names.socket.close()
        self.folder.cleanup()


class VllmRouter(Process):
    """The router of the vLLM project, which knows replicas by their addresses and asks /readyz."""

    def __init__(self, python, replicas):
        self.port = free_port()
        workers = [f"http://{replica.host}:{replica.port}" for replica in replicas]
        # It must not send a request again that may have been computed, so it sends none again.
        super().__init__([str(pathlib.Path(python).parent / "vllm-router"), "--port", str(self.port), "--policy", "round_robin",
                          "--worker-urls", *workers, "--worker-startup-check-interval", "1", "--health-check-endpoint", "/readyz",
                          "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--disable-retries",
                          "--prometheus-port", str(free_port())])
        bamtest.wait_until(lambda: self.process.poll() is not None or request(self.port, "GET", "/v1/models").status == 200,
                           "the router answers")
        assert self.process.poll() is None, self.log()

    close = Process.kill


class Reply:
    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text


def request(port, method, path, body=None, headers=None):
    """One request on a connection of its own; status 0: nobody answered, or not to the end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=bamtest.PATIENCE)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Reply(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, {}, repr(error))
    finally:
        connection.close()


class Traffic:
    """Requests without a pause, each with `ask(number, count)`, which returns what is wrong with the reply or None."""

    def __init__(self, ask, threads=4):
        self.ask, self.stop, self.failures, self.done = ask, threading.Event(), [], collections.Counter()
        self.threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(bamtest.PATIENCE)
            if thread.is_alive():
                self.failures.append("a request hangs")

    def wait_progress(self, count=2):
        """Until every thread has had so many replies more."""
        before = dict(self.done)
        bamtest.wait_until(lambda: all(self.done[number] >= before.get(number, 0) + count for number in range(len(self.threads))), "traffic")

    def _run(self, number):
        while not self.stop.is_set():
            try:
                problem = self.ask(number, self.done[number])
            except Exception as error:  # pylint: disable=broad-except
                problem = repr(error)
            if problem:
                self.failures.append(problem)
            self.done[number] += 1
            time.sleep(0.01)

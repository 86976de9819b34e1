#!/usr/bin/env python3
"""deploy/k8s/haproxy.cfg, unchanged, before real replicas: affinity, scaling, and restarts that lose no request.

Stands in for the cluster: a small DNS server that gives and takes the replicas' names as Kubernetes does.
"""

import collections
import os
import pathlib
import socket
import tempfile
import threading
import time
import unittest

import containers
from containers import ROOT, Bam, Container, podman, request, wait_for
from bamtest import Stream  # pylint: disable=wrong-import-order
from gateways import DNS_ADDRESS, DOMAIN, Names, common_free_port, replica_address  # pylint: disable=wrong-import-order

TOOLS = os.environ.get("BAM_TOOLS_IMAGE", "")
PRE_STOP_S = 6  # 15 in the manifest


class Replica:
    """One pod of the StatefulSet: a fixed name, and an address that is known while the pod is ready."""

    def __init__(self, number, names, port):
        self.name, self.address = f"bam-{number}", replica_address(number)
        self.names, self.port, self.bam = names, port, None

    def start(self):
        self.bam = Bam(environment={"BAM_HOST": self.address, "BAM_PORT": str(self.port), "BAM_DRAIN_TIMEOUT": "60s"})
        wait_for(self.ready, f"{self.name} is ready", 60, self.bam.logs)
        self.names.table[f"{self.name}.{DOMAIN}"] = self.address

    def ready(self):
        try:
            with socket.create_connection((self.address, self.port), timeout=2) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return b" 200 " in connection.recv(64)
        except OSError:
            return False

    def end(self, notice=True):
        """As the kubelet ends a pod: out of DNS, preStop, SIGTERM, exit code."""
        if notice:
            del self.names.table[f"{self.name}.{DOMAIN}"]
            time.sleep(PRE_STOP_S)
        self.bam.signal("TERM")
        code = self.bam.wait_exit(90)
        log = self.bam.logs()
        self.bam.__exit__()
        self.bam = None
        self.names.table.pop(f"{self.name}.{DOMAIN}", None)
        if code != 0:
            raise AssertionError(f"{self.name}: exit code {code}\n{log}")

    def kill(self):
        if self.bam:
            self.bam.__exit__()


class Gateway(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.chmod(cls.folder.name, 0o755)
        resolv = pathlib.Path(cls.folder.name) / "resolv.conf"
        resolv.write_text(f"nameserver {DNS_ADDRESS}\n", encoding="ascii")
        cls.names, cls.replicas, cls.haproxy = Names(), [], None
        cls.addClassCleanup(cls.clean_up)
        cls.names.start()
        port = common_free_port(3)
        cls.replicas = [Replica(number, cls.names, port) for number in range(3)]
        for replica in cls.replicas[:2]:
            replica.start()
        cls.port, cls.health_port = containers.free_port(), containers.free_port()
        environment = {"BAM_REPLICAS": DOMAIN, "BAM_REPLICA_PORT": port, "GATEWAY_PORT": cls.port, "METRICS_PORT": cls.health_port}
        options = [*containers.HARDENED, "--user", "99:99", "-v", f"{ROOT}/deploy/k8s/haproxy.cfg:/etc/haproxy.cfg:ro",
                   "-v", f"{resolv}:/etc/resolv.conf:ro"]
        options += [part for key, value in environment.items() for part in ("-e", f"{key}={value}")]
        cls.haproxy = Container(TOOLS, "haproxy", "-f", "/etc/haproxy.cfg", options=options)
        cls.wait_servers(2)

    @classmethod
    def clean_up(cls):
        if cls.haproxy:
            cls.haproxy.__exit__()
        for replica in cls.replicas:
            replica.kill()
        cls.names.socket.close()
        cls.folder.cleanup()

    @classmethod
    def up(cls):
        text = request(cls.health_port, "GET", "/metrics").body
        return {line.split('server="')[1].split('"')[0] for line in text.splitlines()
                if line.startswith("haproxy_server_status{") and 'proxy="replicas"' in line and 'state="UP"' in line and line.endswith(" 1")}

    @classmethod
    def wait_servers(cls, count):
        wait_for(lambda: len(cls.up()) == count, f"{count} replicas in the gateway", 30, cls.haproxy.logs)

    def complete(self, prompt="Once", session=None, **fields):
        headers = {"X-Session-Id": session} if session else {}
        return request(self.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2, **fields}, headers)

    def owner(self, **arguments):
        reply = self.complete(**arguments)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.headers["x-served-by"]

    def test_1_the_configuration_has_no_warnings(self):
        result = podman("exec", self.haproxy.id, "haproxy", "-c", "-f", "/etc/haproxy.cfg")
        self.assertNotIn("WARNING", result.stdout + result.stderr)
        self.assertEqual(request(self.health_port, "GET", "/gateway/ready").status, 200)
        self.assertEqual(request(self.health_port, "GET", "/gateway/live").status, 200)

    def test_2_a_session_returns_to_its_replica_and_finds_its_prefix(self):
        document = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 4
        owners = collections.Counter()
        for number in range(24):
            session, prompt = f"session-{number}", f"{number} {document}"
            first = self.complete(prompt, session)
            again = self.complete(prompt + " The pass key is 7. What", session)
            self.assertEqual((first.status, again.status), (200, 200), first.body + again.body)
            self.assertEqual(first.headers["x-served-by"], again.headers["x-served-by"])
            self.assertGreater(again.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 64)
            owners[first.headers["x-served-by"]] += 1
        print(f"\n    24 sessions: {dict(owners)}", flush=True)
        self.assertEqual(len(owners), 2)
        self.assertGreaterEqual(min(owners.values()), 4)

    def test_3_without_a_session_the_beginning_of_the_document_decides(self):
        owners = set()
        for number in range(12):
            document = f"Document {number}. " + "The grass is green. The sky is blue. " * 30
            mine = {self.owner(prompt=document + f"Question {question}?") for question in range(3)}
            self.assertEqual(len(mine), 1)
            owners |= mine
        self.assertEqual(len(owners), 2)

    def test_4_a_new_replica_takes_only_its_share(self):
        sessions = [f"share-{number}" for number in range(48)]
        before = {session: self.owner(session=session) for session in sessions}
        self.replicas[2].start()
        self.wait_servers(3)
        after = {session: self.owner(session=session) for session in sessions}
        moved = {session for session in sessions if before[session] != after[session]}
        print(f"\n    a third replica: {len(moved)} of {len(sessions)} sessions moved", flush=True)
        self.assertEqual({after[session] for session in moved}, {"bam-2"})
        self.assertLess(len(moved), len(sessions) * 0.6)
        self.replicas[2].end()
        self.wait_servers(2)
        self.assertEqual({session: self.owner(session=session) for session in sessions}, before)

    def test_5_a_rolling_restart_loses_no_request(self):
        with Traffic(self.port) as traffic:
            for replica in self.replicas[:2]:
                traffic.wait_progress()
                replica.end()
                replica.start()
                self.wait_servers(2)
            traffic.wait_progress()
        print(f"\n    rolling restart: {traffic.summary()}", flush=True)
        self.assertEqual(traffic.failures, [])

    def test_6_neither_does_one_that_comes_without_notice(self):
        with Traffic(self.port) as traffic:
            traffic.wait_progress()
            self.replicas[0].end(notice=False)
            traffic.wait_progress()
            self.replicas[0].start()
            self.wait_servers(2)
        print(f"\n    SIGTERM without notice: {traffic.summary()}", flush=True)
        self.assertEqual(traffic.failures, [])


class Traffic:
    """Short requests and long streams without a pause; remembers everything that was not a whole, good reply."""

    def __init__(self, port):
        self.port, self.stop, self.failures, self.done = port, threading.Event(), [], collections.Counter()
        self.threads = [threading.Thread(target=loop, args=(number,), daemon=True)
                        for number in range(3) for loop in (self._short, self._stream)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(120)
            if thread.is_alive():
                self.failures.append("a request hangs")

    def summary(self):
        return f"{self.done['short']} requests, {self.done['stream']} streams, {len(self.failures)} failed"

    def wait_progress(self):
        """Until every kind of traffic has moved on."""
        before = dict(self.done)
        wait_for(lambda: all(self.done[kind] >= before.get(kind, 0) + 3 for kind in ("short", "stream")), "traffic", 60)

    def _short(self, number):
        count = 0
        while not self.stop.is_set():
            count += 1
            reply = request(self.port, "POST", "/v1/completions", {"prompt": f"{number} {count}", "max_tokens": 4},
                            {"X-Session-Id": f"short-{number}-{count}"})
            if reply.status != 200 or not reply.json()["choices"]:
                self.failures.append(f"{reply.status}: {reply.body[:200]}")
            self.done["short"] += 1
            time.sleep(0.03)

    def _stream(self, number):
        count = 0
        while not self.stop.is_set():
            count += 1
            body = {"prompt": f"{number} {count} Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
            try:
                stream = Stream(self.port, "/v1/completions", body, {"X-Session-Id": f"stream-{number}-{count}"})
                if stream.status != 200 or stream.chunks()[-1]["choices"][0]["finish_reason"] != "length":
                    self.failures.append(f"stream: {stream.status} {stream.raw[-200:]}")
                stream.close()
            except (OSError, EOFError, AssertionError, ValueError) as error:
                self.failures.append(f"stream: {error!r}")
            self.done["stream"] += 1


if __name__ == "__main__":
    containers.main()

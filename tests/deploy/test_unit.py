#!/usr/bin/env python3
"""deploy/systemd/ under a real systemd, installed as docs/deploy.md says: hardening, keys, state, drain, restarts."""

import os
import re
import tempfile
import threading
import unittest

import containers
from containers import ROOT, Container, free_port, podman, request, wait_for
from bamtest import Stream  # pylint: disable=wrong-import-order

SYSTEMD = ROOT / "deploy" / "systemd"
KEY = {"Authorization": "Bearer unit-key"}
ADMIN = {"Authorization": "Bearer unit-admin"}
# What systemd itself needs to confine its units.
RIGHTS = ["--systemd=always", "--cap-add", "ALL", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
          "--security-opt", "unmask=ALL"]


class Unit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.port = free_port()
        cls.machine = Container(os.environ["BAM_SYSTEMD_IMAGE"], options=RIGHTS)
        cls.addClassCleanup(cls.machine.__exit__)
        wait_for(lambda: cls.run_in("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"),
                 "systemd is up", 60, cls.machine.logs)
        settings = (SYSTEMD / "bam.env").read_text(encoding="utf-8")
        for name, value in {"BAM_MODEL": "demo", "BAM_PORT": cls.port, "BAM_KV_MEMORY": "128MiB"}.items():
            settings, count = re.subn(rf"^{name}=.*$", f"{name}={value}", settings, flags=re.MULTILINE)
            assert count == 1, name
        cls.settings = settings + "BAM_ADMIN_KEY=unit-admin\n"
        cls.install((SYSTEMD / "bam.service").read_text(encoding="utf-8"), "/etc/systemd/system/bam.service", "644")
        cls.install(cls.settings, "/etc/bam/bam.env", "644")
        cls.install("unit-key\n", "/etc/bam/api-keys", "600")
        cls.run_in("systemctl", "enable", "--now", "bam")

    def setUp(self):
        self.run_in("systemctl", "reset-failed", "bam", check=False)
        self.run_in("systemctl", "start", "bam")
        self.wait_ready()

    @classmethod
    def run_in(cls, *command, check=True):
        return podman("exec", cls.machine.id, *command, check=check, timeout=180)

    @classmethod
    def install(cls, text, path, mode):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            podman("cp", file.name, f"{cls.machine.id}:/run/installed")
        cls.run_in("install", "-D", "-o", "root", "-g", "root", "-m", mode, "/run/installed", path)

    def journal(self):
        return self.run_in("journalctl", "--no-pager", "-n", "30", "-u", "bam").stdout

    def wait_ready(self):
        wait_for(lambda: request(self.port, "GET", "/readyz").status == 200, "ready", 60, self.journal)

    def show(self, name):
        return self.run_in("systemctl", "show", "--value", "-p", name, "bam").stdout.strip()

    def complete(self, headers):
        return request(self.port, "POST", "/v1/completions", {"prompt": "The grass is", "max_tokens": 8, "temperature": 0}, headers)

    def test_confined(self):
        status = self.run_in("cat", f"/proc/{self.show('MainPID')}/status").stdout
        user = int(re.search(r"Uid:\t(\d+)", status)[1])
        self.assertTrue(61184 <= user <= 65519, f"{user} is not a dynamic user")
        for line in (r"CapPrm:\t0+\n", r"CapEff:\t0+\n", r"CapBnd:\t0+\n", r"NoNewPrivs:\t1\n", r"Seccomp:\t2\n"):
            self.assertRegex(status, line)

    def test_serves_with_the_key_of_the_credential(self):
        self.assertEqual(self.complete({}).status, 401)
        reply = self.complete(KEY)
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(reply.json()["usage"]["completion_tokens"], 8)

    def test_snapshots_survive_a_restart(self):
        body = {"name": "grass", "prompt": "The grass is green. The sky is blue. The sun is yellow. " * 10}
        self.assertEqual(request(self.port, "POST", "/v1/completions", {"prompt": body["prompt"], "max_tokens": 2}, KEY).status, 200)
        saved = request(self.port, "POST", "/v1/kv/save", body, ADMIN)
        self.assertEqual(saved.status, 200, saved.body)
        self.run_in("systemctl", "restart", "bam")
        self.wait_ready()
        restored = request(self.port, "POST", "/v1/kv/restore", {"name": "grass"}, ADMIN)
        self.assertEqual(restored.status, 200, restored.body)

    def test_stop_drains(self):
        body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        stream, chunks = Stream(self.port, "/v1/completions", body, KEY), []
        stream.next_event()
        stop = threading.Thread(target=self.run_in, args=("systemctl", "stop", "bam"))
        stop.start()
        chunks.extend(stream.chunks())
        stop.join(120)
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        self.assertEqual((self.show("ActiveState"), self.show("Result"), self.show("ExecMainStatus")), ("inactive", "success", "0"))

    def test_a_crash_is_restarted_but_a_wrong_setting_is_not(self):
        before = self.show("MainPID")
        self.run_in("systemctl", "kill", "--signal=KILL", "bam")
        wait_for(lambda: self.show("MainPID") not in ("0", before), "a restart", 30, self.journal)
        self.wait_ready()
        try:
            self.install(self.settings + "BAM_KV_DTYPE=int3\n", "/etc/bam/bam.env", "644")
            self.run_in("systemctl", "restart", "bam", check=False)
            wait_for(lambda: self.show("ActiveState") == "failed", "failed", 30, self.journal)
            self.assertEqual((self.show("ExecMainStatus"), self.show("NRestarts")), ("2", "0"), self.journal())
        finally:
            self.install(self.settings, "/etc/bam/bam.env", "644")


if __name__ == "__main__":
    containers.main()

#!/usr/bin/env python3
"""The CPU image: what is in it, and the server inside, as an unprivileged user with a read-only root."""

import json
import os
import pathlib
import re
import shutil
import tempfile
import threading
import unittest

import containers
from containers import ROOT, Bam, podman, wait_for
from bamtest import Stream  # pylint: disable=wrong-import-order

IMAGE = os.environ.get("BAM_IMAGE", "")
# Without the base image, which users share with their other images.
MAX_MEGABYTES_OVER_BASE = 60


def run_in_image(script):
    """Output of a shell command in the image, as root so that everything can be read."""
    return podman("run", "--rm", "--user", "0", "--network", "none", *containers.LIMITS, "--entrypoint", "/bin/sh", IMAGE, "-c",
                  script).stdout


class Contents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.image = json.loads(podman("image", "inspect", IMAGE).stdout)[0]
        cls.dockerfile = (ROOT / "docker" / "Dockerfile.cpu").read_text(encoding="utf-8")

    def test_configuration(self):
        config = self.image["Config"]
        self.assertEqual(config["User"], "10001:10001")
        self.assertEqual(config["StopSignal"], "15" if config["StopSignal"].isdigit() else "SIGTERM")
        self.assertEqual(config["Entrypoint"], ["bam"])
        self.assertEqual(config["Cmd"], ["serve"])
        self.assertEqual(list(config["ExposedPorts"]), ["8000/tcp"])
        self.assertEqual(list(config["Volumes"]), ["/models"])
        self.assertEqual(self.image.get("Healthcheck", config.get("Healthcheck"))["Test"], ["CMD", "bam", "probe"])

    def test_size(self):
        tag = re.search(r"^ARG DEBIAN=(.*)$", self.dockerfile, re.MULTILINE)[1]
        base = json.loads(podman("image", "inspect", f"docker.io/library/debian:{tag}").stdout)[0]
        self.assertLess((self.image["Size"] - base["Size"]) / 1e6, MAX_MEGABYTES_OVER_BASE)

    def test_every_library_is_there_and_no_package_too_many(self):
        libraries = run_in_image("ldd /usr/local/bin/bam")
        self.assertNotIn("not found", libraries)
        owners = run_in_image("for f in $(ldd /usr/local/bin/bam | sed -n 's/.*=> \\([^ ]*\\).*/\\1/p'); do "
                              "dpkg -S \"$(readlink -f $f)\" 2>/dev/null || dpkg -S \"$(readlink -f $f | sed 's,^/usr,,')\"; done")
        linked = {line.split(":")[0] for line in owners.splitlines()}
        wanted = set(re.search(r"--no-install-recommends ([^&]*?)\\?\n\s*&&", self.dockerfile, re.DOTALL)[1].replace("\\", "").split())
        self.assertGreater(len(wanted), 5)
        self.assertEqual(wanted - linked, set(), "installed but not linked")

    def test_nothing_of_the_build_is_left(self):
        found = run_in_image("for x in gcc g++ cc cmake ninja git curl wget python3 perl5; do command -v $x; done; "
                             "ls -d /src /opt/cache /opt/bam 2>/dev/null; find / -xdev -name '*.a' -o -xdev -name '*.o'; true")
        self.assertEqual(found, "")

    def test_programs_cannot_gain_rights_from_our_files(self):
        self.assertEqual(run_in_image("find /usr/local /models /snapshots -xdev -perm /6000"), "")
        self.assertEqual(run_in_image("find /usr/local -xdev -not -user root"), "")

    def test_stripped(self):
        self.assertLess(int(run_in_image("stat -c %s /usr/local/bin/bam")), 16_000_000)


class Serving(unittest.TestCase):
    """One container as docs/deploy.md starts it in production."""

    @classmethod
    def setUpClass(cls):
        cls.bam = Bam()
        cls.addClassCleanup(cls.bam.__exit__)
        cls.pid = cls.bam.wait_ready().state()["Pid"]

    def test_not_root_no_capabilities_read_only(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        self.assertRegex(status, r"Uid:\t10001\t10001\t10001\t10001")
        self.assertRegex(status, r"CapEff:\t0+\n")
        self.assertRegex(status, r"NoNewPrivs:\t1")
        mounts = pathlib.Path(f"/proc/{self.pid}/mounts").read_text(encoding="ascii").splitlines()
        root = next(line.split() for line in mounts if line.split()[1] == "/")
        self.assertIn("ro", root[3].split(","))

    def test_the_demo_model_answers(self):
        reply = self.bam.complete(max_tokens=16)
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(reply.json()["model"], "demo")
        self.assertEqual(reply.json()["usage"]["completion_tokens"], 16)
        self.assertGreater(len(reply.json()["choices"][0]["text"].strip()), 10)
        print(f"\n    completion: {reply.json()['choices'][0]['text']!r}", flush=True)

    def test_health_check_of_the_image(self):
        self.assertEqual(podman("healthcheck", "run", self.bam.id).returncode, 0)

    def test_probe_says_why_not(self):
        result = podman("exec", self.bam.id, "bam", "probe", f"http://127.0.0.1:{containers.free_port()}/readyz", check=False)
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("connect", result.stdout.lower())
        result = podman("exec", self.bam.id, "bam", "probe", f"http://127.0.0.1:{self.bam.port}/nowhere", check=False)
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("404", result.stdout)


class Lifecycle(unittest.TestCase):
    def test_drain(self):
        """SIGTERM in the middle of a stream: not ready, new requests 503, the stream ends whole, exit code 0."""
        with Bam(environment={"BAM_STEP_TARGET_MS": "5"}) as bam:
            bam.wait_ready()
            stream = Stream(bam.port, "/v1/completions", {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True})
            self.assertEqual(stream.status, 200)
            stream.next_event()
            chunks = []
            reader = threading.Thread(target=lambda: chunks.extend(stream.chunks()))
            bam.signal("TERM")
            reader.start()
            wait_for(lambda: bam.request("GET", "/readyz").status == 503, "not ready", 10, bam.logs)
            self.assertEqual(podman("exec", bam.id, "bam", "probe", check=False).returncode, 1)
            refused = bam.complete()
            self.assertEqual(refused.status, 503, refused.body)
            self.assertIn("retry-after", refused.headers)
            self.assertEqual(bam.request("GET", "/livez").status, 200)
            reader.join(120)
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            self.assertEqual(bam.wait_exit(), 0, bam.logs())
            self.assertIn("stopped", bam.logs())

    def test_a_checkpoint_from_the_volume_with_a_key(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            shutil.copytree(ROOT / "checkpoints" / "demo", f"{folder}/mine")
            with Bam("serve", "--model", "mine", "--api-key", "secret", options=["-v", f"{folder}:/models:ro"]) as bam:
                bam.wait_ready()
                self.assertEqual(bam.complete().status, 401)
                reply = bam.request("GET", "/v1/models", headers={"Authorization": "Bearer secret"})
                self.assertEqual([model["id"] for model in reply.json()["data"]], ["mine"])
                # The health check needs no key.
                self.assertEqual(podman("healthcheck", "run", bam.id).returncode, 0)

    def test_snapshots_on_a_volume_outlive_the_container(self):
        admin = {"Authorization": "Bearer admin"}
        prompt = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 8
        with tempfile.TemporaryDirectory() as folder:
            os.chown(folder, 10001, 10001)
            options = ["-v", f"{folder}:/snapshots"]
            environment = {"BAM_KV_DIR": "/snapshots", "BAM_ADMIN_KEY": "admin"}
            with Bam(environment=environment, options=options) as bam:
                bam.wait_ready()
                text = bam.complete(prompt, max_tokens=8).json()["choices"][0]["text"]
                saved = bam.request("POST", "/v1/kv/save", {"name": "grass", "prompt": prompt}, headers=admin)
                self.assertEqual(saved.status, 200, saved.body)
            with Bam(environment=environment, options=options) as bam:
                bam.wait_ready()
                restored = bam.request("POST", "/v1/kv/restore", {"name": "grass"}, headers=admin)
                self.assertEqual(restored.status, 200, restored.body)
                reply = bam.complete(prompt, max_tokens=8).json()
                self.assertGreater(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 64)
                self.assertEqual(reply["choices"][0]["text"], text)

    def test_a_bad_setting_ends_the_container_with_one_line(self):
        with Bam(environment={"BAM_KV_DTYPE": "int3"}) as bam:
            self.assertEqual(bam.wait_exit(), 2)
            self.assertEqual(len(bam.logs().strip().splitlines()), 1, bam.logs())
            self.assertIn("BAM_KV_DTYPE", bam.logs())


if __name__ == "__main__":
    containers.main()

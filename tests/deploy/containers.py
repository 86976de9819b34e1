"""What the deployment tests share: containers through podman, on the network of the machine, and a plain HTTP client."""

import http.client
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "http"))

# Debian 12's podman asks for more than some machines allow.
LIMITS = ["--ulimit", "nofile=16384:16384", "--ulimit", "nproc=4096:4096"]
# What docs/deploy.md recommends for production.
HARDENED = ["--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]


def main():
    if "BAM_PODMAN" not in os.environ:
        sys.exit("run this through docker/test.sh, which builds the images")
    unittest.main(module="__main__", verbosity=2)


def podman(*arguments, check=True, timeout=120):
    result = subprocess.run([*shlex.split(os.environ["BAM_PODMAN"]), *arguments], capture_output=True, text=True,
                            timeout=timeout, check=False)
    if check and result.returncode != 0:
        raise AssertionError(f"podman {' '.join(arguments)}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what, timeout=60, log=lambda: ""):
    deadline = time.time() + timeout
    while time.time() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"{what}: did not happen within {timeout} s\n{log()}")


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def request(port, method, path, body=None, headers=None, timeout=60):
    """One request on a connection of its own; status 0: nobody answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode())
    except OSError as error:
        return Reply(0, {}, str(error))
    finally:
        connection.close()


class Container:
    """A container that is stopped and removed at the end of a `with` block."""

    def __init__(self, image, *command, options=()):
        self.id = podman("run", "-d", "--network", "host", *LIMITS, *options, image, *command).stdout.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        podman("rm", "-f", "-t", "0", self.id, check=False)

    def logs(self):
        result = podman("logs", self.id, check=False)
        return result.stdout + result.stderr

    def state(self):
        return json.loads(podman("inspect", self.id).stdout)[0]["State"]

    def signal(self, name):
        podman("kill", "--signal", name, self.id)

    def wait_exit(self, timeout=60):
        """The exit code, once the container has ended by itself."""
        wait_for(lambda: self.state()["Status"] in ("exited", "stopped"), "exit", timeout, self.logs)
        return self.state()["ExitCode"]


class Bam(Container):
    """`bam serve` from the image under test, locked down, on a free port."""

    def __init__(self, *command, environment=None, options=()):
        self.port = free_port()
        settings = {"BAM_HOST": "127.0.0.1", "BAM_PORT": str(self.port), "BAM_KV_MEMORY": "128MiB", **(environment or {})}
        flags = [part for key, value in settings.items() for part in ("-e", f"{key}={value}")]
        super().__init__(os.environ["BAM_IMAGE"], *command, options=[*HARDENED, *flags, *options])

    def request(self, method, path, body=None, **options):
        return request(self.port, method, path, body, **options)

    def wait_ready(self):
        wait_for(lambda: self.request("GET", "/readyz").status == 200, "ready", 60, self.logs)
        return self

    def complete(self, prompt="The grass is", **fields):
        return self.request("POST", "/v1/completions", {"prompt": prompt, "temperature": 0, **fields})


class Prometheus(Container):
    """Debian's Prometheus with the configuration prometheus.yml of a folder, which it sees as /etc/prometheus."""

    def __init__(self, folder, options=()):
        self.port = free_port()
        super().__init__(os.environ["BAM_TOOLS_IMAGE"], "prometheus", "--config.file=/etc/prometheus/prometheus.yml",
                         "--storage.tsdb.path=/prometheus", f"--web.listen-address=127.0.0.1:{self.port}",
                         options=["-v", f"{folder}:/etc/prometheus:ro", *options])

    def wait_ready(self):
        wait_for(lambda: request(self.port, "GET", "/-/ready").status == 200, "Prometheus is ready", 60, self.logs)
        return self

    def api(self, path, **parameters):
        """The `data` of a reply of its HTTP interface."""
        query = "?" + urllib.parse.urlencode(parameters, doseq=True) if parameters else ""
        reply = request(self.port, "GET", f"/api/v1/{path}{query}")
        if reply.status != 200:
            raise AssertionError(f"{path} {parameters}: {reply.status} {reply.body}")
        return reply.json()["data"]

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def check_config(self):
        return podman("exec", self.id, "promtool", "check", "config", "/etc/prometheus/prometheus.yml")

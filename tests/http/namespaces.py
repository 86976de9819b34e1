"""Several machines on one: network namespaces on a bridge, each with an address, a name and a link that can be cut. Needs root."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile

import bamtest

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def missing():
    """Why there can be no namespaces here; None: there can."""
    if os.geteuid() != 0:
        return "SKIPPED: network namespaces need root"
    for program in ("ip", "unshare", "hostname", "redis-server"):
        if shutil.which(program) is None:
            return f"SKIPPED: {program} is not installed"
    probe = f"bam-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        return "SKIPPED: this machine allows no network namespaces"
    run("ip", "netns", "del", probe)
    return None


class Machines:
    """rank0, rank1, … with addresses 10.0.0.1, 10.0.0.2, … This process moves into the first one."""

    def __init__(self, count):
        self.tag = f"bam{os.getpid()}"
        self.names = [f"{self.tag}-{rank}" for rank in range(count)]
        self.bridge = f"{self.tag}-br"
        self.folder = tempfile.TemporaryDirectory()
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        run("ip", "netns", "add", self.bridge)
        run("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "br0", "up")
        hosts = "127.0.0.1 localhost\n" + "".join(f"10.0.0.{rank + 1} rank{rank}\n" for rank in range(count))
        for rank, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{rank}", "netns", self.bridge)
            run("ip", "-n", name, "addr", "add", f"10.0.0.{rank + 1}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", link, "up")
            run("ip", "-n", self.bridge, "link", "set", f"port{rank}", "master", "br0", "up")
            etc = pathlib.Path("/etc/netns", name)
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(hosts, encoding="ascii")
        self._enter(f"/run/netns/{self.names[0]}")
        self.redis = subprocess.Popen(self.command(0, "redis-server", "--bind", "10.0.0.1", "127.0.0.1", "--protected-mode", "no", "--save", "", "--appendonly", "no",
                                                   "--dir", self.folder.name), stdout=subprocess.DEVNULL)

    @staticmethod
    def _enter(path):
        descriptor = path if isinstance(path, int) else os.open(path, os.O_RDONLY)
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)

    def command(self, rank, *words):
        """A command line that runs there, under that machine's name."""
        return ["ip", "netns", "exec", self.names[rank], "unshare", "--uts", "sh", "-c", f'hostname rank{rank} && exec "$@"', "sh", *words]

    def program(self, rank):
        """`bam` as a file that runs there: pid and signals are those of the program itself."""
        path = pathlib.Path(self.folder.name, f"bam-{rank}")
        quoted = " ".join(f"'{word}'" for word in self.command(rank, bamtest.BAM))
        path.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def cut(self, rank):
        run("ip", "-n", self.bridge, "link", "set", f"port{rank}", "down")

    def mend(self, rank):
        run("ip", "-n", self.bridge, "link", "set", f"port{rank}", "up")

    def close(self):
        self.redis.kill()
        self.redis.wait()
        self._enter(self._own)
        for name in (*self.names, self.bridge):
            subprocess.run(["ip", "netns", "del", name], check=False)
            shutil.rmtree(pathlib.Path("/etc/netns", name), ignore_errors=True)
        self.folder.cleanup()

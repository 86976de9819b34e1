"""A minimal Debian 12 in a folder: what a machine has on which nobody has installed anything."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest


def stop(process):
    """Ctrl-C in the terminal: everybody there hears it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()


class Debian:
    """Skips the test where there can be none. Use as a context manager."""

    def __init__(self, *packages):
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise unittest.SkipTest("SKIPPED: needs root and debootstrap (apt-get install debootstrap)")
        self._packages = packages
        self._holder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self._holder.name) / "debian"
        self.processes = []

    def __enter__(self):
        more = ["--include=" + ",".join(self._packages)] if self._packages else []
        made = subprocess.run(["debootstrap", "--variant=minbase", *more, "bookworm", str(self.root)], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self._holder.cleanup()
            raise unittest.SkipTest("SKIPPED: debootstrap could not make a Debian 12: " + made.stdout[-300:])
        self._mounted = subprocess.run(["mount", "-t", "proc", "proc", str(self.root / "proc")], check=False).returncode == 0
        return self

    def __exit__(self, *_):
        for process in self.processes:
            stop(process)
        if self._mounted:
            subprocess.run(["umount", str(self.root / "proc")], check=False)
        self._holder.cleanup()

    def start(self, script, **options):
        """A shell script in it, as Popen."""
        self.processes.append(subprocess.Popen(["chroot", str(self.root), "/bin/bash", "-ec", script], text=True, start_new_session=True, **options,
                                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}))
        return self.processes[-1]

    def run(self, script, stdin=""):
        """Its output; a failure is the test's."""
        process = self.start(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, errors = process.communicate(stdin)
        assert process.returncode == 0, f"{script}\n{out[-3000:]}{errors[-3000:]}"
        return out

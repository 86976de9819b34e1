#!/usr/bin/env python3
"""README's quick start as a stranger walks it: a clean Debian 12 with git, make and curl, a fresh clone, every command in the order in which
it is written, `make install` and `make deb`; nothing is left behind in the clone. Prints how long each part took, by the clock and, for a
machine that does other things beside, in CPU seconds."""

import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

import bamtest
from debian import Debian, stop
from test_readme import blocks, SHORTER

CLONE = "/srv/bam"
# Each is a test run of its own, of minutes to hours.
TESTED_ELSEWHERE = ("make test", "make asan", "make tsan", "make bench", "make lint")
HOURS = 2 * 3600


def commands():
    return [line.split("#")[0].strip() for block in blocks("README.md", "sh") for line in block.splitlines() if line.split("#")[0].strip()]


def cpu_seconds(session):
    """What the living processes of a session and their children that have ended have taken."""
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class FirstMinute(unittest.TestCase):
    def served(self, debian, command):
        """Starts what serves; its process and its address."""
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        log = pathlib.Path(holder.name) / "log"
        start = time.monotonic()
        with log.open("w") as out:
            process = debian.start(f"cd {CLONE} && {command}", stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        ready = None
        while ready is None:
            self.assertIsNone(process.poll(), log.read_text()[-3000:])
            self.assertLess(time.monotonic() - start, HOURS)
            time.sleep(0.2)
            ready = re.search(r"ready after .* on http://127\.0\.0\.1:(\d+)", log.read_text())
        print(f"{command}: {time.monotonic() - start:.0f} s, {cpu_seconds(process.pid):.0f} CPU seconds\n" + "".join(f"  {line}\n" for line in log.read_text().splitlines() if " done in " in line))
        self.assertNotIn("warning", log.read_text().lower())
        return process, ready.group(1)

    def test_every_command_of_the_readme(self):
        with Debian("ca-certificates", "git", "make", "curl") as debian:
            subprocess.run(["git", "clone", "--quiet", str(bamtest.ROOT), str(debian.root) + CLONE], check=True)
            lines = commands()
            self.assertEqual(lines[0], "make serve")
            _, port = self.served(debian, 'make serve ARGS="--port 0"')
            ran = 1
            for line in lines[1:]:
                if line in TESTED_ELSEWHERE:
                    continue
                for pattern, shorter in SHORTER:
                    line = re.sub(pattern, shorter, line)
                ran += 1
                if line.startswith("build/bam serve"):
                    stop(self.served(debian, line.replace("--port 8000", "--port 0"))[0])
                    continue
                line = re.sub(r"(127\.0\.0\.1|localhost):8000", f"127.0.0.1:{port}", line)
                self.assertTrue(debian.run(f"cd {CLONE} && {line}", stdin="Hello\n").strip(), line)
            self.assertGreater(ran, 8)
            debian.run(f"cd {CLONE} && make install DESTDIR=/srv/installed PREFIX=/usr && make deb && ls build/bam-server_*.deb")
            self.assertIn("generated 2", debian.run("cd / && /srv/installed/usr/bin/bam generate Hello -n 2 --ignore-eos 2>&1"))
            self.assertEqual(debian.run(f"cd {CLONE} && git status --porcelain"), "", "a command has changed the clone")


if __name__ == "__main__":
    bamtest.main()

"""A program on a terminal of its own: what a person types, sees and presses."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import fcntl
import time

import bamtest

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """`bam …` on a pseudo terminal."""

    def __init__(self, *arguments, environment=None, cwd=None, columns=100):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
        clean.update({"TERM": "xterm", "LC_ALL": "C.UTF-8", **(environment or {})})
        self.fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # pty.fork() would run Python in a child of a process with threads, which can wait for ever on a lock of theirs.
        self.process = subprocess.Popen(["setsid", "--ctty", bamtest.BAM, *arguments], stdin=inner, stdout=inner, stderr=inner, cwd=cwd, env=clean)
        os.close(inner)
        self.pid = self.process.pid
        self.raw = ""
        self.seen = 0  # how much of the text earlier waits have passed
        self.status = None

    @property
    def text(self):
        """Everything that was written, without cursor movements."""
        return CONTROL.sub("", self.raw)

    def _read(self, timeout):
        if not select.select([self.fd], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self, pattern):
        """Reads on until something new matches; returns the match."""
        deadline = time.monotonic() + bamtest.PATIENCE
        while True:
            found = re.compile(pattern).search(self.text, self.seen)
            if found:
                self.seen = found.end()
                return found
            if not self._read(0.5) or time.monotonic() > deadline:
                raise AssertionError(f"never seen: {pattern!r} in\n{self.text[-3000:]}")

    def type(self, text):
        os.write(self.fd, text.encode())

    def press(self, key):
        """"C" is Ctrl-C."""
        os.write(self.fd, bytes([ord(key) - 64]))

    def wait_exit(self):
        """The exit code; negative: the signal."""
        deadline = time.monotonic() + bamtest.PATIENCE
        while self._read(0.2):
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not end:\n{self.text[-3000:]}")
        self._reap()
        return self.status

    def _reap(self):
        if self.status is None:
            self.status = self.process.wait()
            os.close(self.fd)

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

#!/usr/bin/env python3
"""docs/terminal.md shows what the program shows: every session is played again on a terminal and compared in shape, that is
without numbers and names of this machine. BAM_WRITE_TERMINAL=1 writes the sessions anew."""

import os
import pathlib
import re
import tempfile
import unittest

import bamtest
from terminal_sessions import Recorder, SESSIONS, Screen

FILE = bamtest.ROOT / "docs" / "terminal.md"
BLOCKS = re.compile(r"(<!-- session: (\w+) -->\n)((?:```text\n[\s\S]*?```\n\n?)+)")
MACHINE = ((r"avx\w+|neon\w*|portable|scalar|x86_64|aarch64", "ISA"), (r"commit \S+ of \S+, \w+", "COMMIT"),
           (r"[━─]+", "BAR"), (r"\d+ (min|h) \d+ (s|min)", "#"), (r"\d[\d,.:–-]*( ?(µs|ms|s|min|h|KiB|MiB|GiB|TiB|k|K|M|%)(?![a-z]))*", "#"), (r"(?<!\S)–(?!\S)", "#"), (r" +", " "))


def shape(text):
    for pattern, word in MACHINE:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.strip().splitlines()]


def written(parts):
    return "\n".join(f"```text\n{part}\n```\n" for part in parts)


class Sessions(unittest.TestCase):
    def setUp(self):
        if not (bamtest.ROOT / "checkpoints" / "demo" / "model.safetensors").exists():
            self.skipTest("SKIPPED: the sessions are of the bundled model")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.recorder = Recorder(pathlib.Path(holder.name))
        self.addCleanup(self.recorder.close)

    def play(self, name):
        text = FILE.read_text(encoding="utf-8")
        found = [match for match in BLOCKS.finditer(text) if match.group(2) == name]
        self.assertEqual(len(found), 1, f"docs/terminal.md has one place for the session {name}")
        now = written(SESSIONS[name](self.recorder))
        if os.environ.get("BAM_WRITE_TERMINAL"):
            FILE.write_text(text[:found[0].start(3)] + now + "\n" + text[found[0].end(3):], encoding="utf-8")
        else:
            self.assertEqual(shape(found[0].group(3)), shape(now), "BAM_WRITE_TERMINAL=1 tests/http/test_terminal_sessions.py writes it anew")

    def test_every_session_is_in_the_document(self):
        self.assertEqual([match.group(2) for match in BLOCKS.finditer(FILE.read_text(encoding="utf-8"))], list(SESSIONS))


for session in SESSIONS:
    setattr(Sessions, f"test_{session}", lambda self, name=session: self.play(name))


class Screens(unittest.TestCase):
    def test_movements_are_followed(self):
        self.assertEqual(Screen("abc\rX\x1b[K\r\ntwo").text(), "X\ntwo")
        self.assertEqual(Screen("one\r\ntwo\r\x1b[A1\x1b[C\b\bONE").text(), "ONE\ntwo")
        self.assertEqual(Screen("x" * 101, columns=100).text(), "x" * 100 + "\nx")
        self.assertEqual(Screen("a\x1b[32mb\x1b[0m").text(), "ab")


if __name__ == "__main__":
    bamtest.main()

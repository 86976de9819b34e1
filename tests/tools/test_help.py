#!/usr/bin/env python3
"""`--help` of every Python program tells what it is for, asks nobody and leaves nothing behind."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tooltest import REPO

# Imported by Python before the program: whoever wants to leave the machine is stopped.
SITE = """
import socket
def refuse(*_):
    raise SystemExit("the network was asked")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""


class Help(unittest.TestCase):
    def test_every_program(self):
        programs = [path for folder in ("tools", "tools/train_demo", "bench", "bench/cluster", "bench/peers")
                    for path in sorted((REPO / folder).glob("*.py")) if '__name__ == "__main__"' in path.read_text()]
        self.assertGreater(len(programs), 12)
        for program in programs:
            with self.subTest(program.name), tempfile.TemporaryDirectory() as holder:
                site, work = pathlib.Path(holder) / "site", pathlib.Path(holder) / "work"
                site.mkdir()
                work.mkdir()
                (site / "sitecustomize.py").write_text(SITE)
                ran = subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=False, cwd=work,
                                     env={**os.environ, "PYTHONPATH": str(site), "HOME": str(work), "XDG_CACHE_HOME": str(work),
                                          "PYTHONDONTWRITEBYTECODE": "1"})
                if "No module named" in ran.stderr:
                    continue  # torch or numpy are not everywhere
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertTrue(ran.stdout.startswith("usage: "), ran.stdout[:200])
                self.assertGreater(len(ran.stdout.split("\n\n")), 2, f"{program.name} says what it is for")
                self.assertEqual([path.name for path in work.iterdir()], [])


if __name__ == "__main__":
    unittest.main()

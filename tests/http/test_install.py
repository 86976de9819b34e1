#!/usr/bin/env python3
"""What `make install` puts into a folder: everything is there, and the installed program works from it."""

import gzip
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import bamtest

BUILD = pathlib.Path(bamtest.BAM).parent


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        bam = pathlib.Path(bamtest.BAM)
        if not (bam.parent / "cmake_install.cmake").exists():
            raise unittest.SkipTest(f"SKIPPED: {bam} is not in a build folder")
        cls.holder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.holder.name) / "root"
        subprocess.run(["cmake", "--install", str(bam.parent), "--prefix", "/usr"], check=True, capture_output=True,
                       env={**os.environ, "DESTDIR": str(cls.root)})

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def test_everything_is_where_debian_expects_it(self):
        for name in ("bin/bam", "share/bam/checkpoints/demo/config.json", "share/man/man1/bam.1.gz", "share/man/man1/bam-serve.1.gz",
                     "share/man/man1/bam-chat.1.gz", "share/bash-completion/completions/bam", "share/zsh/vendor-completions/_bam",
                     "share/fish/vendor_completions.d/bam.fish", "lib/systemd/system/bam.service", "share/doc/bam-server/README.md",
                     "share/doc/bam-server/copyright", "share/doc/bam-server/docs/api.md"):
            self.assertTrue((self.root / "usr" / name).is_file(), name)
        self.assertTrue((self.root / "etc/bam/bam.env").is_file())
        self.assertIn("ExecStart=/usr/bin/bam serve", (self.root / "usr/lib/systemd/system/bam.service").read_text())
        self.assertIn("BAM_MODEL=demo", (self.root / "etc/bam/bam.env").read_text())
        page = gzip.decompress((self.root / "usr/share/man/man1/bam-serve.1.gz").read_bytes()).decode()
        self.assertIn("kv\\-memory", page)

    def test_manual_pages_are_good_roff(self):
        if shutil.which("groff") is None:
            self.skipTest("SKIPPED: groff is not installed")
        for page in sorted((self.root / "usr/share/man/man1").glob("*.gz")):
            result = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", "-K", "utf8"], input=gzip.decompress(page.read_bytes()),
                                    capture_output=True, check=False)
            self.assertEqual(result.stderr.decode(), "", page.name)

    def test_the_installed_program_finds_its_demo_model(self):
        bam = str(self.root / "usr/bin/bam")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
        result = subprocess.run([bam, "generate", "Hello", "-n", "2", "--kv-memory", "64MiB"], capture_output=True, text=True,
                                env=clean, cwd="/", check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        kept = bamtest.BAM
        try:
            bamtest.BAM = bam
            server = bamtest.Server(model="demo")
            self.assertEqual(server.complete(max_tokens=1).status, 200)
            server.stop()
        finally:
            bamtest.BAM = kept

    def test_a_changed_setting_stays(self):
        settings = self.root / "etc/bam/bam.env"
        self.addCleanup(settings.write_text, settings.read_text())
        settings.write_text("BAM_MODEL=mine\n")
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", "/usr"], check=True, capture_output=True,
                       env={**os.environ, "DESTDIR": str(self.root)})
        self.assertEqual(settings.read_text(), "BAM_MODEL=mine\n")


if __name__ == "__main__":
    bamtest.main()

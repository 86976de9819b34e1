#!/usr/bin/env python3
"""`make deb` on a clean Debian 12: installed with apt in a fresh chroot, served without systemd, purged without a trace."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import bamtest

SERVE = """
bam serve --port 0 --kv-memory 64MiB 2>/tmp/log & pid=$!
until grep -q 'ready after' /tmp/log; do kill -0 $pid || { cat /tmp/log; exit 1; }; sleep 0.2; done
url=$(sed -n 's#.*ready after .* on \\(http://[^ ]*\\)$#\\1#p' /tmp/log)
bam probe "$url/readyz"
echo 'Hello there' | bam chat "$url" -n 4 --no-history
kill $pid; wait $pid
"""


class Package(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise unittest.SkipTest("SKIPPED: needs root and debootstrap (apt-get install debootstrap)")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name) / "debian"
        build = subprocess.run([str(bamtest.ROOT / "scripts/deb.sh")], capture_output=True, text=True, check=False)
        self.assertEqual(build.returncode, 0, build.stderr)
        self.package = pathlib.Path(build.stdout.strip().splitlines()[-1])

    def inside(self, script, check=True):
        result = subprocess.run(["chroot", str(self.root), "/bin/sh", "-ec", script], capture_output=True, text=True, check=False,
                                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"})
        if check:
            self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        return result

    def files(self):
        return {str(path.relative_to(self.root)) for folder in ("usr", "etc", "lib") for path in (self.root / folder).rglob("*")
                if path.is_file() and "bam" in path.name.lower()}

    def test_install_serve_purge(self):
        self.assertLess(self.package.stat().st_size, 12 * 2 ** 20)
        needs = subprocess.run(["dpkg-deb", "--field", str(self.package), "Depends"], capture_output=True, text=True, check=True).stdout
        self.assertIn("libcurl4", needs)
        self.assertNotRegex(needs, "openmpi|gloo|cuda", "a plugin is a package of its own")
        made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(self.root)], capture_output=True, text=True,
                              check=False)
        if made.returncode != 0:
            raise unittest.SkipTest("SKIPPED: debootstrap could not make a Debian 12: " + made.stdout[-300:])
        mounted = subprocess.run(["mount", "-t", "proc", "proc", str(self.root / "proc")], check=False).returncode == 0
        try:
            before = self.files()
            shutil.copy(self.package, self.root / "tmp/bam.deb")
            apt = self.inside("apt-get update -q && apt-get install -y -q --no-install-recommends /tmp/bam.deb")
            said = re.search(r"(\d+) newly installed[\s\S]*?After this operation, (.*) of additional", apt.stdout)
            print(f"{self.package.name}: {self.package.stat().st_size / 1e6:.1f} MB; {said[1]} packages, {said[2]} on a minimal Debian 12")
            print(self.inside("bam --version && bam help serve >/dev/null && test -s /etc/bam/api-keys").stdout.strip())
            self.assertEqual((self.root / "etc/bam/api-keys").stat().st_mode & 0o777, 0o600)
            served = self.inside(SERVE)
            print(served.stdout.strip())
            self.assertIn("/readyz: 200", served.stdout)
            self.inside("apt-get purge -y -q bam-server")
            self.assertEqual(self.files(), before)
            self.assertFalse((self.root / "etc/bam").exists())
        finally:
            if mounted:
                subprocess.run(["umount", str(self.root / "proc")], check=False)


if __name__ == "__main__":
    bamtest.main()

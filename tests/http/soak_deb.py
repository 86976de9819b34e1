#!/usr/bin/env python3
"""`make deb` on a clean Debian 12: installed with apt in a fresh chroot, served without systemd, purged without a trace."""

import pathlib
import re
import shutil
import subprocess
import unittest

import bamtest
from debian import Debian

SERVE = """
bam serve demo --port 0 --kv-memory 64MiB 2>/tmp/log & pid=$!
until grep -q 'ready after' /tmp/log; do kill -0 $pid || { cat /tmp/log; exit 1; }; sleep 0.2; done
url=$(sed -n 's#.*ready after .* on \\(http://[^ ]*\\)$#\\1#p' /tmp/log)
bam probe "$url/readyz"
echo 'Hello there' | bam chat "$url" -n 4 --no-history
kill $pid; wait $pid
"""
LINTIAN_KNOWN = ("bogus-mail-host", "bogus-mail-host-in-debian-changelog")  # whoever publishes a package has an address


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build = subprocess.run([str(bamtest.ROOT / "scripts/deb.sh")], capture_output=True, text=True, check=False)
        if build.returncode != 0:
            raise AssertionError(build.stderr)
        cls.package = pathlib.Path(build.stdout.strip().splitlines()[-1])

    def test_it_is_small_and_needs_no_plugin(self):
        self.assertLess(self.package.stat().st_size, 12 * 2 ** 20)
        needs = subprocess.run(["dpkg-deb", "--field", str(self.package), "Depends"], capture_output=True, text=True, check=True).stdout
        self.assertIn("libcurl4", needs)
        self.assertNotRegex(needs, "openmpi|gloo|cuda", "a plugin is a package of its own")

    def test_lintian_has_nothing_to_say(self):
        if shutil.which("lintian") is None:
            self.skipTest("SKIPPED: lintian is not installed")
        said = subprocess.run(["lintian", "--allow-root", "--suppress-tags", ",".join(LINTIAN_KNOWN), str(self.package)],
                              capture_output=True, text=True, check=False)
        self.assertEqual(said.stdout.strip(), "", said.stderr)

    def test_install_serve_purge(self):
        with Debian() as debian:
            def files():
                """Whatever is named after the program, or lies in a folder that is."""
                tops = [top for top in debian.root.iterdir() if top.name not in ("dev", "proc", "sys", "tmp") and not top.is_symlink()]
                return {name for top in tops for path in top.rglob("*") if "bam" in (name := str(path.relative_to(debian.root)))
                        and not name.startswith(("var/cache/apt", "var/log/"))}

            before = files()
            shutil.copy(self.package, debian.root / "tmp/bam.deb")
            apt = debian.run("apt-get update -q && apt-get install -y -q --no-install-recommends /tmp/bam.deb")
            said = re.search(r"(\d+) newly installed[\s\S]*?After this operation, (.*) of additional", apt)
            print(f"{self.package.name}: {self.package.stat().st_size / 1e6:.1f} MB; {said[1]} packages, {said[2]} on a minimal Debian 12")
            self.assertTrue(files() - before)
            print(debian.run("bam --version && bam help serve >/dev/null && test -s /etc/bam/api-keys").strip())
            self.assertEqual((debian.root / "etc/bam/api-keys").stat().st_mode & 0o777, 0o600)
            served = debian.run(SERVE)
            print(served.strip())
            self.assertIn("/readyz: 200", served)
            debian.run("apt-get purge -y -q bam-server")
            self.assertEqual(files(), before)


if __name__ == "__main__":
    bamtest.main()

"""A cached virtual environment with packages from PyPI, for tests that use other people's clients."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import unittest


def python_with(*packages, bare=()):
    """The interpreter of an environment that has `packages`, and `bare` ones without what these ask for; skips the test, loudly, where
    there is no PyPI."""
    cache = pathlib.Path(os.environ.get("BAM_CACHE_DIR") or pathlib.Path.home() / ".cache" / "bam")
    wanted = [*sorted(packages), *(f"{package} alone" for package in sorted(bare))]
    name = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:10]
    folder = cache / f"venv-http-{name}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    steps = [[sys.executable, "-m", "venv", str(folder)], [*install, *packages]]
    if bare:
        steps.append([*install, "--no-deps", *bare])
    for step in steps:
        result = subprocess.run(step, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            reason = (result.stderr or result.stdout).strip().splitlines()[-1:]
            message = f"SKIPPED: no {' '.join(wanted)} from PyPI: {reason}"
            print("\n" + "*" * 100 + "\n" + message + "\n" + "*" * 100, file=sys.stderr, flush=True)
            raise unittest.SkipTest(message)
    (folder / "complete").touch()
    return str(python)

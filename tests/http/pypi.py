"""A cached virtual environment with packages from PyPI, for tests that use other people's clients."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import unittest


def python_with(*packages):
    """The interpreter of an environment that has `packages`; skips the test, loudly, where there is no PyPI."""
    cache = pathlib.Path(os.environ.get("BAM_CACHE_DIR") or pathlib.Path.home() / ".cache" / "bam")
    name = hashlib.sha256(" ".join(sorted(packages)).encode()).hexdigest()[:10]
    folder = cache / f"venv-http-{name}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    steps = ([sys.executable, "-m", "venv", str(folder)],
             [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20",
              *packages])
    for step in steps:
        result = subprocess.run(step, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            reason = (result.stderr or result.stdout).strip().splitlines()[-1:]
            message = f"SKIPPED: no {' '.join(packages)} from PyPI: {reason}"
            print("\n" + "*" * 100 + "\n" + message + "\n" + "*" * 100, file=sys.stderr, flush=True)
            raise unittest.SkipTest(message)
    (folder / "complete").touch()
    return str(python)

"""What the repository checks share: which files to look at, and how to report."""

import subprocess
import sys
from pathlib import Path

CODE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
SCRIPT_SUFFIXES = {".py", ".sh", ".js"}
SKIPPED_FOLDERS = {".git", ".cache", ".venv", "__pycache__", "node_modules"}


def repo_files(root: Path) -> list[Path]:
    """Paths relative to root of every tracked or to-be-tracked file, sorted.

    Without git (an unpacked archive, a container) every file outside build folders and caches counts.
    """
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True, check=False) if (root / ".git").exists() else None
    if listing and listing.returncode == 0:
        names = [Path(name) for name in listing.stdout.decode().split("\0") if name]
    else:
        names = [p.relative_to(root) for p in root.rglob("*") if not _skipped(p.relative_to(root))]
    return sorted(name for name in names if (root / name).is_file())


def _skipped(path: Path) -> bool:
    return (any(part in SKIPPED_FOLDERS for part in path.parts)
            or path.parts[0] == "build" or path.parts[0].startswith("build-"))


def read_text(path: Path) -> str | None:
    """The file's text, or None for a binary file."""
    data = path.read_bytes()
    if b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", errors="replace")


def root_from_arguments() -> Path:
    return Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()


def finish(what: str, looked_at: int, problems: list[str]) -> None:
    """Prints the result and ends the program: 0 if there are no problems. A check that saw nothing has failed."""
    for problem in problems:
        print(problem)
    if looked_at == 0:
        problems = ["nothing was checked"]
    print(f"{what}: {looked_at} checked, {len(problems)} problem(s)")
    sys.exit(1 if problems else 0)

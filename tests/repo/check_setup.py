#!/usr/bin/env python3
"""Tests the shell functions of scripts/ without network, root or installing anything."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from repo_files import finish, root_from_arguments

ROOT = root_from_arguments()
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def bash(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess:
    """Runs a script that has the functions of scripts/ and a cache inside `folder`."""
    prelude = f"set -euo pipefail; REPO_ROOT='{ROOT}'; for f in common packages drogon; do . '{ROOT}'/scripts/$f.sh; done\n"
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "BAM_CACHE_DIR": str(folder / "cache"), "LC_ALL": "C.UTF-8", **env}
    return subprocess.run(["bash", "-c", prelude + script], env=clean, capture_output=True, text=True, check=False)


def setup(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "BAM_CACHE_DIR": str(folder / "cache")}
    return subprocess.run([ROOT / "scripts/setup.sh", *arguments], env=env, capture_output=True, text=True, check=False)


def fake_drogon(prefix: Path, version: str, edited: bool = True) -> Path:
    package = prefix / "lib/cmake/Drogon"
    package.mkdir(parents=True)
    (package / "DrogonConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
    if edited:
        (prefix / "include/trantor/net").mkdir(parents=True)
        (prefix / "include/trantor/net/EventLoop.h").write_text("static Hook &exceptionHook();\n")
    return prefix


@check
def versions_are_compared_as_versions(folder: Path) -> None:
    for a, b, expected in [("1.9.13", "1.9.2", 0), ("1.9.2", "1.9.2", 0), ("1.9.0", "1.9.2", 1), ("1.10.0", "1.9.2", 0),
                           ("1.9.13+ds-2", "1.9.2", 0), ("1.8.7+ds-1", "1.9.2", 1), ("0", "1.9.2", 1)]:
        assert bash(f"version_ge '{a}' '{b}'", folder).returncode == expected, (a, b)


@check
def a_named_prefix_wins_if_it_is_new_enough(folder: Path) -> None:
    old, new = fake_drogon(folder / "old", "1.9.1"), fake_drogon(folder / "new", "1.9.2")
    result = bash("find_drogon", folder, CMAKE_PREFIX_PATH=f"{old};{folder / 'absent'};{new}")
    assert result.stdout.strip() == str(new), result
    assert bash("find_drogon || true", folder, CMAKE_PREFIX_PATH=str(old)).stdout.strip() != str(old)


@check
def a_drogon_without_our_changes_is_not_used(folder: Path) -> None:
    plain = fake_drogon(folder / "plain", "1.9.13", edited=False)
    assert bash("find_drogon || true", folder, CMAKE_PREFIX_PATH=str(plain)).stdout.strip() != str(plain)


@check
def other_sources_than_the_known_ones_are_not_edited(folder: Path) -> None:
    source = folder / "trantor/trantor/net/EventLoop.h"
    source.parent.mkdir(parents=True)
    source.write_text("#pragma once\nclass EventLoop;\n")
    result = subprocess.run(["python3", ROOT / "scripts/drogon/edit.py", folder], capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "EventLoop.h: /" in result.stderr and "HttpServer.cc is missing" in result.stderr, result


@check
def the_newest_cached_build_is_used(folder: Path) -> None:
    key = bash("drogon_key", folder).stdout.strip()
    for version in ("1.9.2", "1.9.13", "1.9.9"):
        fake_drogon(folder / "cache" / f"drogon-{version}-{key}", version)
    fake_drogon(folder / "cache" / "drogon-1.9.99-other-machine", "1.9.99")
    result = setup(folder, "--print-prefix")
    assert result.returncode == 0 and result.stdout.strip().endswith(f"drogon-1.9.13-{key}"), result


@check
def the_archive_is_read_from_both_formats_of_sources(folder: Path) -> None:
    codename = bash('. /etc/os-release; echo "$VERSION_CODENAME"', folder).stdout.strip()
    one_line = (f"deb [arch=amd64] http://a.example/debian-security {codename}-security main\n"
                f"deb http://a.example/debian {codename}-updates main\n"
                f"deb [arch=amd64] http://b.example/debian/ {codename} main contrib\n")
    deb822 = f"Types: deb deb-src\nURIs: http://c.example/debian\nSuites: {codename} {codename}-updates\nComponents: main\n"
    for name, text, expected in [("sources.list", one_line, "http://b.example/debian/"),
                                 ("parts/debian.sources", deb822, "http://c.example/debian/")]:
        etc = folder / name.replace("/", "-")
        (etc / "parts").mkdir(parents=True)
        (etc / name).write_text(text)
        (etc / "apt.conf").write_text(f'Dir::Etc::sourcelist "{etc}/sources.list";\nDir::Etc::sourceparts "{etc}/parts";\n')
        result = bash("debian_archive_uri", folder, APT_CONFIG=str(etc / "apt.conf"))
        assert result.stdout.strip() == expected, (name, result)


@check
def a_pinned_source_version_is_preferred(folder: Path) -> None:
    listing = "private_apt() { printf 'Version: %s\\n' 1.9.13+ds-2 1.9.130+ds-1 1.10.1-1; }; "
    assert bash(listing + "source_version x drogon 1.9.13", folder).stdout.strip() == "1.9.13+ds-2"
    assert bash(listing + "source_version x drogon 1.9.14", folder).stdout.strip() == "1.10.1-1"
    assert bash("private_apt() { :; }; source_version x drogon 1.9.14", folder).stdout.strip() == ""


@check
def a_failed_step_shows_the_end_of_its_log(folder: Path) -> None:
    result = bash(f"run_step '{folder}/x.log' 'a step' sh -c 'echo the reason; exit 7'", folder)
    assert result.returncode == 1, result
    for part in ("FAILED", "status 7", "the reason", f"{folder}/x.log"):
        assert part in result.stderr, (part, result.stderr)


@check
def a_failed_build_leaves_no_prefix_and_no_lock(folder: Path) -> None:
    script = ("install_packages() { :; }; fetch_debian_sources() { return 1; }; fetch_git_sources() { return 1; }; find_drogon() { return 1; }; "
              "packaged_drogon_version() { :; }; mkdir -p \"$BAM_CACHE_DIR\"; if ensure_drogon \"$BAM_CACHE_DIR/log\"; then echo built; fi; "
              "flock -n \"$BAM_CACHE_DIR/drogon.lock\" echo free")
    result = bash(script, folder)
    assert result.stdout.strip() == "free", result
    assert not list((folder / "cache").glob("drogon-*")), list((folder / "cache").iterdir())


@check
def two_set_ups_at_once_build_once(folder: Path) -> None:
    script = ("find_drogon() { [[ -e $BAM_CACHE_DIR/built ]] && echo x; }; packaged_drogon_version() { :; }; "
              "build_drogon() { echo build >>\"$BAM_CACHE_DIR/builds\"; sleep 0.5; touch \"$BAM_CACHE_DIR/built\"; }; "
              "ensure_drogon log & ensure_drogon log; wait $!; cat \"$BAM_CACHE_DIR/builds\"")
    result = bash(script, folder)
    assert result.returncode == 0 and result.stdout == "build\n", result


@check
def bad_options_are_refused_and_lists_printed(folder: Path) -> None:
    result = setup(folder, "--frobnicate")
    assert result.returncode == 2 and "--frobnicate" in result.stderr, result
    build, everything = setup(folder, "--list").stdout.split(), setup(folder, "--list", "--all").stdout.split()
    assert "libsentencepiece-dev" in build and "clang-tidy" not in build, build
    assert set(build) < set(everything) and "clang-tidy" in everything, everything


def main() -> None:
    problems = []
    for function in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                function(Path(folder))
            except AssertionError as error:
                problems.append(f"{function.__name__}: {error}")
    finish("set-up functions", len(CHECKS), problems)


if __name__ == "__main__":
    sys.exit(main())

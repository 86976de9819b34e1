#!/usr/bin/env python3
"""What is compiled does not name the folder that it is compiled in: check_paths.py SOURCE BUILD. Otherwise a second clone would find nothing in
the compiler cache, and an installed program would tell where it was built."""

import json
import pathlib
import shlex
import subprocess
import sys

# A source with checks, whose messages name their file.
WITH_CHECKS = "server/grammar/recursion.cpp"


def main():
    source, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    commands = json.loads((build / "compile_commands.json").read_text())
    for command in commands:
        file = pathlib.Path(command["file"])
        if file == source / WITH_CHECKS or ("bam_server_grammar.dir/Unity" in str(file) and WITH_CHECKS in file.read_text()):
            break
    else:
        return f"{build} compiles no {WITH_CHECKS}"
    words = shlex.split(command["command"])
    words = words[1:] if "ccache" in words[0] else words
    words[words.index("-o"):words.index("-o") + 2] = ["-E", "-P"]
    text = subprocess.run(words, cwd=command["directory"], capture_output=True, text=True, check=True).stdout
    if WITH_CHECKS not in text:
        return f"no check of {WITH_CHECKS} names it any more: take another file here"
    return f"{source} is in what is compiled" if str(source) in text else None


if __name__ == "__main__":
    sys.exit(main())

"""Asks the program for the log-probabilities of a prompt."""
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import urllib.request
from typing import Iterator

from bamlib.failure import Failure, UsageFailure


def find_program(given: str | None) -> str:
    """--bam, else the one that this checkout has built, else the installed one."""
    built = pathlib.Path(__file__).resolve().parents[2] / "build" / "bam"
    program = given or (str(built) if built.exists() else shutil.which("bam"))
    if program is None or not pathlib.Path(program).exists():
        raise UsageFailure(f"--verify needs the program: {program or 'build/bam'} does not exist (make build, or --bam PATH)")
    return program


@contextlib.contextmanager
def served(program: str, checkpoint: pathlib.Path) -> Iterator[str]:
    """The address of a server of this checkpoint, in exact float32."""
    command = [program, "serve", str(checkpoint), "--port", "0", "--dtype", "f32", "--kv-dtype", "f32", "--kv-memory", "256MiB",
               "--device", "cpu", "--max-num-seqs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        log = []
        for line in process.stderr:
            log.append(line.rstrip())
            if found := re.search(r"ready after .* on (http://\S+)$", log[-1]):
                yield found[1]
                return
        raise Failure(f"{program} does not serve {checkpoint}: {log[-1] if log else 'it said nothing'}")
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def served_logprobs(url: str, ids: list[int]) -> list[float]:
    """log p of ids[i] given ids[:i], for i >= 1."""
    reply = post(url + "/v1/completions", {"prompt": ids, "echo": True, "max_tokens": 1, "logprobs": 0, "temperature": 0})
    return reply["choices"][0]["logprobs"]["token_logprobs"][1:len(ids)]

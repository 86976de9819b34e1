#!/usr/bin/env python3
"""Chaos: random clients on a server with little memory and a small disk, which is killed, stopped, frozen and restarted.

Every request must get the undisturbed server's text or fail clearly; a connection may be lost only when its server was
killed. Afterwards nothing is left: no pages, no descriptors, no growing memory, no files.

    soak_chaos.py [--bam PATH] [--minutes 60] [--seed N]"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import sys
import threading
import time

import attack
import bamtest
from framing_cases import REFUSED

ADMIN = {"Authorization": "Bearer root"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
          "additionalProperties": False}


class Problem(Exception):
    """Something that must not happen."""


def cases(rng):
    """Requests whose texts are the same on every server and in any company."""
    bodies = []
    for number in range(24):
        prompt = [3 + rng.randrange(400) for _ in range((3, 40, 300, 1500)[number // 6])]
        body = {"prompt": prompt, "max_tokens": rng.choice((1, 8, 60, 200)), "ignore_eos": True}
        body.update({"temperature": 0} if number % 2 else {"temperature": 1.2, "seed": number, "top_p": 0.9})
        bodies.append(body)
    return bodies


class Supervisor:
    """Owns the server and does to it what machines do to servers."""

    def __init__(self, rng, disk):
        self.rng, self.port, self.disk = rng, attack.free_port(), disk
        self.kills = 0  # odd while there is no server; a connection may be lost if this changed while it was open
        self.changing = threading.Lock()
        self.events = collections.Counter()
        self.server = None
        self.start()

    def start(self):
        self.server = bamtest.Server("--kv-memory", "48MiB", "--max-num-seqs", "12", "--max-queue", "24", "--kv-dir", self.disk.folder,
                                     "--admin-key", "root", "--stall-timeout", "4s", "--read-timeout", "4s", "--max-body", "2MiB",
                                     "--max-model-len", "20000", "--drain-timeout", "20s", "--port", str(self.port))

    def disturb(self):
        kind = self.rng.choice(("kill", "term", "freeze", "freeze"))
        self.events[kind] += 1
        if kind == "freeze":
            self.server.process.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.5, 4))
            self.server.process.send_signal(signal.SIGCONT)
            return
        with self.changing:
            self.kills += 1
            if kind == "kill":
                self.server.process.kill()
            else:
                self.server.process.send_signal(signal.SIGTERM)
            code = self.server.process.wait(bamtest.PATIENCE)
            if kind == "term" and code not in (0, 1):
                raise Problem(f"SIGTERM: exit code {code}\n{self.server.log()}")
            self.start()
            self.kills += 1

    def check_alive(self):
        with self.changing:
            if self.server.process.poll() is not None:
                raise Problem(f"the server ended by itself with {self.server.process.returncode}\n{self.server.log()}")


class Client(threading.Thread):
    """One of the clients: what it does next is random, what it accepts is not."""

    ACTIONS = (("whole", 5), ("stream", 6), ("long", 1), ("cancel", 2), ("leave", 3), ("slow", 1), ("snapshot", 2), ("constraint", 2),
               ("bad_json", 2), ("bad_http", 2), ("tokens", 1))

    def __init__(self, number, seed, chaos):
        super().__init__(daemon=True)
        self.rng, self.chaos, self.number, self.count = random.Random(seed * 1000 + number), chaos, number, 0

    def run(self):
        names, weights = zip(*self.ACTIONS)
        while not self.chaos.over.is_set():
            action = self.rng.choices(names, weights)[0]
            self.count += 1
            kills = self.chaos.supervisor.kills
            try:
                outcome = getattr(self, "do_" + action)()
            except (OSError, EOFError) as error:
                # Connections end when their server does; a time-out is a hang whoever caused it.
                if isinstance(error, TimeoutError) or (self.chaos.supervisor.kills == kills and kills % 2 == 0):
                    outcome = self.chaos.problem(f"{action}: connection lost without a cause: {error!r}")
                else:
                    outcome = "lost with its server"
                    time.sleep(0.2)
            except Exception as error:  # pylint: disable=broad-except
                outcome = self.chaos.problem(f"{action}: {error!r}")
            self.chaos.outcomes[action, outcome] += 1

    # --- what every reply must look like ---
    def post(self, path, body, headers=None):
        return self.chaos.supervisor.server.request("POST", path, body, headers)

    def refused(self, reply):
        """A clear refusal, or a Problem."""
        if reply.status not in (400, 404, 408, 413, 429, 503) or not reply.json()["error"]["message"]:
            raise Problem(f"{reply.status}: {reply.body[:300]}")
        if reply.status in (429, 503) and "retry-after" not in reply.headers and reply.status == 429:
            raise Problem("429 without Retry-After")
        if reply.status in (429, 503):
            time.sleep(self.rng.uniform(0, 0.5))
        return f"refused {reply.status}"

    def check_text(self, index, text):
        if text != self.chaos.expected[index]:
            raise Problem(f"case {index}: another text than the undisturbed server's")
        return "right"

    def read_stream(self, stream, index=None):
        if stream.status != 200:
            body = b""
            with contextlib.suppress(OSError, EOFError):
                while not stream.ended:
                    body = stream._buffer
                    if body.endswith(b"}"):
                        break
                    stream._more()
            if stream.status not in (400, 408, 413, 429, 503):
                raise Problem(f"stream {stream.status}: {body[:200]}")
            time.sleep(self.rng.uniform(0, 0.3))
            return f"refused {stream.status}"
        chunks = stream.chunks()
        if "error" in chunks[-1]:
            return "failed: " + str(chunks[-1]["error"].get("code"))
        finish = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", []) if choice["finish_reason"]]
        if finish == ["abort"]:
            return "aborted"
        if finish not in (["length"], ["stop"]):
            raise Problem(f"finish reasons {finish}")
        return self.check_text(index, bamtest.text_of(chunks)) if index is not None else "right"

    def open_stream(self, body):
        return bamtest.Stream(self.chaos.supervisor.port, "/v1/completions", {"stream": True, **body})

    def pick(self):
        index = self.rng.randrange(len(self.chaos.bodies))
        return index, self.chaos.bodies[index]

    # --- the actions ---
    def do_whole(self):
        index, body = self.pick()
        reply = self.post("/v1/completions", body)
        if reply.status != 200:
            return self.refused(reply)
        choice = reply.json()["choices"][0]
        return "aborted" if choice["finish_reason"] == "abort" else self.check_text(index, choice["text"])

    def do_stream(self):
        index, body = self.pick()
        with contextlib.closing(self.open_stream(body)) as stream:
            return self.read_stream(stream, index)

    def do_long(self):
        prompt = [3 + self.rng.randrange(400) for _ in range(self.rng.randrange(4000, 15000))]
        with contextlib.closing(self.open_stream({"prompt": prompt, "max_tokens": 3, "ignore_eos": True})) as stream:
            return self.read_stream(stream)

    def do_cancel(self):
        name = f"cancel-{self.number}-{self.count}"
        with contextlib.closing(self.open_stream({"prompt": "x", "max_tokens": 5000, "ignore_eos": True, "request_id": name})) as stream:
            if stream.status == 200:
                stream.next_event()
                self.post(f"/v1/requests/{name}/cancel", {}, ADMIN)
            return self.read_stream(stream)

    def do_leave(self):
        body = {"prompt": [5 + self.rng.randrange(300) for _ in range(self.rng.choice((2, 3000)))], "max_tokens": 5000, "ignore_eos": True}
        client = attack.connect(self.chaos.supervisor.port)
        data = bamtest.raw_post("/v1/completions", {**body, "stream": self.rng.random() < 0.7})
        client.sendall(data[:self.rng.randrange(len(data))] if self.rng.random() < 0.3 else data)
        time.sleep(self.rng.uniform(0, 0.5))
        if self.rng.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.close()
        return "left"

    def do_slow(self):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(bamtest.PATIENCE)
        with client:
            client.connect(("127.0.0.1", self.chaos.supervisor.port))
            client.sendall(bamtest.raw_post("/v1/completions", {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True, "logprobs": 5}, {"Connection": "close"}))
            time.sleep(self.rng.uniform(0, 6))
            data, reset = attack.read_until_closed(client)
        if attack.replies(data)[:1] not in ([200], []):
            return f"refused {attack.replies(data)[0]}"
        return "cut off" if reset or not data.endswith(b"0\r\n\r\n") else "read to the end"

    def do_snapshot(self):
        body = self.chaos.long_case(self.rng)
        name = f"doc-{self.rng.randrange(8)}"
        if self.rng.random() < 0.5:
            self.post("/v1/completions", {**body, "max_tokens": 1})
            reply = self.post("/v1/kv/save", {"name": name, "tokens": body["prompt"]}, ADMIN)
        else:
            reply = self.post("/v1/kv/restore", {"name": name}, ADMIN)
        if reply.status not in (200, 400, 404, 409, 429, 500, 503, 507) or (reply.status != 200 and not reply.json()["error"]["message"]):
            raise Problem(f"snapshot {reply.status}: {reply.body[:300]}")
        return "done" if reply.status == 200 else f"refused {reply.status}: {reply.json()['error']['message'][:60]}"

    def do_constraint(self):
        if self.rng.random() < 0.5:
            reply = self.post("/v1/completions", {"prompt": "Number:", "regex": "[0-9]{3}-[ab]{2}", "max_tokens": 30, "seed": self.count})
            check = lambda text: re.fullmatch("[0-9]{3}-[ab]{2}", text)  # noqa: E731
        else:
            reply = self.post("/v1/completions", {"prompt": "JSON:", "max_tokens": 60, "seed": self.count, "response_format": {
                "type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}}})
            check = lambda text: set(json.loads(text)) == {"a", "b"}  # noqa: E731
        if reply.status != 200:
            return self.refused(reply)
        choice = reply.json()["choices"][0]
        if choice["finish_reason"] == "stop" and not check(choice["text"]):
            raise Problem(f"not what the constraint allows: {choice['text']!r}")
        return choice["finish_reason"]

    def do_bad_json(self):
        body = self.rng.choice((b"", b"{", b"[" * 5000, b'{"prompt": 5, "max_tokens": -1}', b'{"prompt": "x", "n": 1e9}', self.rng.randbytes(200),
                                b'{"prompt": "x", "regex": "((((a*)*)*)*)*b"}', b'{"prompt": [99999999], "max_tokens": 1}'))
        reply = self.post("/v1/completions", body, {"Content-Type": "application/json"})
        return "served" if reply.status == 200 else self.refused(reply)

    def do_bad_http(self):
        data = self.rng.choice([*REFUSED.values(), self.rng.randbytes(300)])
        statuses = attack.replies(attack.exchange(self.chaos.supervisor.port, data, finish=True))
        if any(status == 200 for status in statuses):
            raise Problem(f"{data[:200]} was executed: {statuses}")
        return "refused"

    def do_tokens(self):
        reply = self.post("/tokenize", {"prompt": "The grass is green. " * self.rng.randrange(1, 2000)})
        return "right" if reply.status == 200 and reply.json()["count"] else self.refused(reply)


class Chaos:
    def __init__(self, minutes, seed):
        self.minutes, self.seed, rng = minutes, seed, random.Random(seed)
        self.over, self.outcomes, self.problems = threading.Event(), collections.Counter(), []
        self.bodies = cases(rng)
        with bamtest.running_server() as calm:
            self.expected = [calm.post("/v1/completions", body).json()["choices"][0]["text"] for body in self.bodies]
        self.disk = attack.SmallDisk()
        if not self.disk.mounted:
            print("NO FULL DISK: mounting a tmpfs needs root", flush=True)
        self.supervisor = Supervisor(rng, self.disk)
        self.rng = rng

    def long_case(self, rng):
        """A request whose prompt fills pages."""
        return rng.choice([body for body in self.bodies if len(body["prompt"]) > 1000])

    def problem(self, text):
        self.problems.append(text)
        print(f"PROBLEM {text}", flush=True)
        return "PROBLEM"

    def attempt(self, function):
        try:
            function()
        except (Problem, AssertionError) as error:
            self.problem(str(error))

    def storm(self, minutes, disturbed):
        self.over.clear()
        clients = [Client(number + (100 if disturbed else 0), self.seed, self) for number in range(10)]
        for client in clients:
            client.start()
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            self.over.wait(min(self.rng.uniform(3, 25), max(0, end - time.monotonic())))
            self.attempt(self.supervisor.check_alive)
            if disturbed and time.monotonic() < end:
                self.attempt(self.supervisor.disturb)
        self.over.set()
        for client in clients:
            client.join(bamtest.PATIENCE)
            if client.is_alive():
                self.problem("a client hangs")

    def quiet_state(self):
        """What must not grow: descriptors and memory of the idle server."""
        server = self.supervisor.server
        health = server.wait_idle()
        pages = health["kv_pages"]
        if pages["free"] + pages["cached"] + pages["used"] != pages["total"]:
            self.problem(f"pages do not add up: {pages}")
        bamtest.wait_until(lambda: server.health()["connections"] <= 1, "all connections are closed", server)
        return server.descriptors(), server.memory_bytes()

    def run(self):
        print(f"chaos: seed {self.seed}, {self.minutes} minutes", flush=True)
        self.storm(self.minutes * 0.8, True)
        # The same storm twice without restarts: what the second one adds is a leak.
        self.storm(self.minutes * 0.1, False)
        self.attempt(lambda: setattr(self, "before", self.quiet_state()))
        self.storm(self.minutes * 0.1, False)
        self.attempt(lambda: setattr(self, "after", self.quiet_state()))
        if self.after[0] > self.before[0] + 2:
            self.problem(f"descriptors: {self.before[0]} -> {self.after[0]}")
        if self.after[1] > self.before[1] + bamtest.megabytes(48):
            self.problem(f"memory: {self.before[1] >> 20} -> {self.after[1] >> 20} MiB")
        for index, body in enumerate(self.bodies):
            text = self.supervisor.server.post("/v1/completions", body).json()["choices"][0]["text"]
            if text != self.expected[index]:
                self.problem(f"case {index}: another text after the storm")
        left = [file.name for file in pathlib.Path(self.disk.folder).iterdir() if file.suffix != ".bamkv"]
        if left:
            self.problem(f"files left behind: {left}")
        self.attempt(self.supervisor.server.stop)
        self.disk.close()
        self.report()
        return 1 if self.problems else 0

    def report(self):
        print(f"\nchaos: seed {self.seed}, {self.minutes} minutes, {sum(self.outcomes.values())} requests; server: {dict(self.supervisor.events)}")
        for (action, outcome), count in sorted(self.outcomes.items()):
            print(f"  {action:12} {outcome:28} {count:7}")
        print(f"  descriptors {self.before[0]} -> {self.after[0]}, memory {self.before[1] >> 20} -> {self.after[1] >> 20} MiB, "
              f"problems: {len(self.problems)}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bam", default=bamtest.BAM)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    bamtest.BAM = os.path.abspath(options.bam)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    return Chaos(options.minutes, seed).run()


if __name__ == "__main__":
    sys.exit(main())

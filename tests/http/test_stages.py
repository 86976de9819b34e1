#!/usr/bin/env python3
"""One server, several processes: the texts of one process, also when ranks are killed, stopped or come back."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import unittest

import bamtest

PROMPTS = ["The grass is", "Once upon a time", [5 + i % 300 for i in range(3000)]]
LONG = [3 + i % 400 for i in range(60_000)]
ANSWER = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.8, "seed": 11, "logprobs": 2}


def has_gloo():
    return (pathlib.Path(bamtest.BAM).parent / "libbam_gloo.so").exists()


def workers_of(server):
    """rank -> pid of the processes that the server started."""
    found = {}
    for line in subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(server.process.pid)], capture_output=True, text=True, check=False).stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        for word in command.split():
            if word.startswith("--stage-rank="):
                found[int(word.partition("=")[2])] = int(pid)
    return found


def content(reply):
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def data_of(stream, first=None):
    """What the `data:` events say, to the end; comments left out."""
    event = first or stream.next_event()
    while event is not None:
        if event.startswith("data: "):
            yield event.removeprefix("data: ")
        event = stream.next_event()


def streamed(stream, first=None):
    """The text of a stream, which must end well."""
    texts, finish = [], None
    for event in data_of(stream, first):
        if event == "[DONE]":
            break
        data = json.loads(event)
        assert "error" not in data, data
        for choice in data["choices"]:
            texts.append(choice["text"])
            finish = choice["finish_reason"] or finish
    assert finish == "length", finish
    return "".join(texts)


@unittest.skipUnless(has_gloo(), "SKIPPED: no libbam_gloo.so here (make cluster)")
class Stages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with bamtest.running_server() as server:
            cls.expected = [content(server.complete(prompt, **ANSWER)) for prompt in PROMPTS]
            cls.long = content(server.complete(LONG, max_tokens=16))
            cls.endless = content(server.complete("x", max_tokens=3000, ignore_eos=True))[0]

    def ask_all(self, server):
        """All prompts at once, so that steps are mixed."""
        replies = [None] * len(PROMPTS)

        def ask(i):
            replies[i] = content(server.complete(PROMPTS[i], **ANSWER))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(replies, self.expected)

    def test_texts_are_those_of_one_process(self):
        for stages in ("2", "4"):
            with bamtest.running_server("--stages", stages) as server:
                self.assertEqual(sorted(workers_of(server)), list(range(1, int(stages))))
                self.ask_all(server)
                self.assertEqual(content(server.complete(LONG, max_tokens=16)), self.long)
                self.ask_all(server)  # from the prefix cache
                pids = workers_of(server).values()
            bamtest.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "workers end with the server")

    def test_every_stage_is_shown(self):
        layers = json.loads(pathlib.Path(bamtest.checkpoint(), "config.json").read_text())["num_hidden_layers"]
        for count in (1, 3):
            with bamtest.running_server("--stages", str(count)) as server:
                self.ask_all(server)
                server.wait_idle()
                stages = server.get("/props").json()["stages"]
                self.assertEqual(len(stages), count)
                self.assertEqual(sum(stage["layers"] for stage in stages), layers)
                self.assertEqual([stage["first_layer"] for stage in stages], [sum(s["layers"] for s in stages[:i]) for i in range(count)])
                metrics = server.get("/metrics").text

                def value(name, **labels):
                    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines()
                               if line.startswith(name + "{") and all(f'{key}="{text}"' in line for key, text in labels.items()))
                for number, stage in enumerate(stages):
                    of_stage = {"stage": number}
                    self.assertEqual(value("bam_stage_layers", **of_stage, first_layer=stage["first_layer"]), stage["layers"])
                    self.assertEqual(value("bam_stage_steps_total", **of_stage), stage["steps"])
                    self.assertEqual(stage["steps"], stages[0]["steps"])
                    self.assertGreater(value("bam_stage_busy_seconds_total", **of_stage), 0)
                    self.assertEqual(value("bam_stage_kv_pages", **of_stage), stage["kv_pages"]["total"])
                    self.assertEqual(value("bam_stage_kv_pages", **of_stage, state="used"), 0)
                    self.assertIn("cpu", stage["device"].lower())
                self.assertEqual(value("bam_kv_pages"), sum(stage["kv_pages"]["total"] for stage in stages))
                self.assertEqual(value("bam_group_losses_total"), 0)

    def lose(self, how, rank, stages="3"):
        """Streams go on through the loss of a rank and are what they would have been."""
        with bamtest.running_server("--stages", stages, "--stage-deadline", "3s") as server:
            streams = [server.stream("/v1/completions", {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}),
                       server.stream("/v1/completions", {"prompt": LONG, "max_tokens": 16, "temperature": 0})]
            first = streams[0].next_event()
            bamtest.wait_until(lambda: any(entry["state"] == "prefill" and entry["processed_tokens"] > 500 for entry in server.live()), "the long prompt is being read", server)
            victim = workers_of(server)[rank]
            os.kill(victim, how)
            if how == signal.SIGSTOP:
                server.wait_line(rf"rank {rank} is lost")
                os.kill(victim, signal.SIGKILL)
            self.assertEqual(streamed(streams[0], first), self.endless)
            self.assertEqual(streamed(streams[1]), self.long[0])
            self.assertNotEqual(workers_of(server)[rank], victim)
            self.ask_all(server)
            server.wait_idle()
            self.assertEqual(server.get("/readyz").status, 200)
            self.assertRegex(server.get("/metrics").text, r'bam_group_losses_total\{.*\} 1\n')

    def test_a_killed_rank_costs_nothing_but_time(self):
        self.lose(signal.SIGKILL, 1)
        self.lose(signal.SIGKILL, 2)

    def test_a_stopped_rank_is_noticed(self):
        self.lose(signal.SIGSTOP, 2)

    def test_without_replay_every_request_hears_of_it_once(self):
        server = bamtest.Server("--stages", "2", "--replay-limit", "0")
        stream = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True})
        stream.next_event()
        os.kill(workers_of(server)[1], signal.SIGKILL)
        events = list(data_of(stream))
        errors = [json.loads(event) for event in events if event != "[DONE]" and "error" in json.loads(event)]
        self.assertEqual(len(errors), 1, events[-3:])
        self.assertIn("rank 1", errors[0]["error"]["message"])
        self.assertEqual(events[-1], "[DONE]")
        self.assertNotIn(server.process.wait(bamtest.PATIENCE), (0, -signal.SIGABRT, -signal.SIGSEGV))

    def test_a_worker_with_another_model_is_refused_by_name(self):
        other = bamtest.random_checkpoint(parent=tempfile.mkdtemp(prefix="bam-test-"))
        with tempfile.TemporaryDirectory() as folder:
            place = ("--stages", "2", "--rendezvous", "file:" + folder, "--stage-address", "127.0.0.1", "--group-timeout", "60s")
            server = bamtest.Server(*place, wait=False)
            worker = subprocess.run([bamtest.BAM, "worker", *place, "--stage-rank", "1", "--kv-memory", "64MiB", "--model", other],
                                    capture_output=True, text=True, timeout=bamtest.PATIENCE, check=False)
            self.assertEqual(worker.returncode, 2, worker.stderr)
            self.assertRegex(worker.stderr, r"rank 1.*rank 0|rank 0.*rank 1")
            server.process.wait(bamtest.PATIENCE)
            self.assertRegex(server.log(), r"rank 1")

    def test_a_worker_may_leave_and_return(self):
        with tempfile.TemporaryDirectory() as folder:
            place = ("--stages", "2", "--rendezvous", "file:" + folder, "--stage-address", "127.0.0.1")

            def worker():
                return subprocess.Popen([bamtest.BAM, "worker", *place, "--stage-rank", "1", "--kv-memory", "128MiB", "--model", bamtest.checkpoint()],
                                        stderr=subprocess.DEVNULL)
            process = worker()
            try:
                with bamtest.running_server(*place) as server:
                    self.ask_all(server)
                    stream = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "temperature": 0})
                    first = stream.next_event()
                    process.terminate()
                    self.assertEqual(process.wait(bamtest.PATIENCE), 0)
                    bamtest.wait_until(lambda: server.get("/readyz").status == 503, "a server without its layers is not ready", server)
                    process = worker()
                    self.assertEqual(streamed(stream, first), self.endless)
                    self.ask_all(server)
                self.assertEqual(process.wait(bamtest.PATIENCE), 0, "a worker ends with rank 0")
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""One server, several processes: the texts of one process, also when ranks are killed, stopped or come back."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import bamtest
import demo_prompts
import stage_group
from stage_group import LONG, content, data_of, streamed, workers_of

PHASES = "start", "prefill", "decode", "draining"


@unittest.skipUnless(stage_group.has_plugin("gloo"), "SKIPPED: no libbam_gloo.so here (make cluster)")
class Stages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = stage_group.Expected()

    def test_texts_are_those_of_one_process(self):
        for stages in ("2", "4"):
            with bamtest.running_server("--stages", stages) as server:
                self.assertEqual(sorted(workers_of(server)), list(range(1, int(stages))))
                self.expected.ask_all(server)
                self.assertEqual(content(server.complete(LONG, max_tokens=16)), self.expected.long)
                self.expected.ask_all(server)  # from the prefix cache
                pids = workers_of(server).values()
            bamtest.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "workers end with the server")

    def test_every_stage_is_shown(self):
        layers = json.loads(pathlib.Path(bamtest.checkpoint(), "config.json").read_text())["num_hidden_layers"]
        for count in (1, 3):
            with bamtest.running_server("--stages", str(count)) as server:
                self.expected.ask_all(server)
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

    def lose(self, how, rank, phase, stages="3"):
        """Streams go on through the loss of a rank and are what they would have been."""
        with self.subTest(how=how.name, rank=rank, phase=phase):
            with bamtest.running_server("--stages", stages, "--stage-deadline", "3s", "--drain-timeout", "250s", wait=phase != "start") as server:
                if phase == "start":  # it has said that it is there, and the group is about to form
                    bamtest.wait_until(lambda: workers_of(server).get(rank), "the worker runs", server)
                else:
                    streams = stage_group.Streams(server, phase)
                victim = workers_of(server)[rank]
                watch = stage_group.Watch(server)
                os.kill(victim, how)
                if how == signal.SIGSTOP and phase != "start":
                    watch.seconds_until(rf"rank {rank} is lost")
                if how == signal.SIGSTOP:
                    os.kill(victim, signal.SIGKILL)
                if phase == "start":
                    server.wait_ready()
                    self.expected.ask_all(server)
                else:
                    streams.check(self.expected)
                if phase == "draining":
                    self.assertEqual(server.process.wait(bamtest.PATIENCE), 0, server.log())
                else:
                    self.assertNotEqual(workers_of(server)[rank], victim)
                    stage_group.check_pages(server)
                    self.assertEqual(server.get("/readyz").status, 200)
                if phase in ("prefill", "decode"):
                    self.assertEqual(server.metric("bam_group_losses_total"), 1)

    def test_a_killed_rank_costs_nothing_but_time(self):
        for phase in PHASES:
            for rank in (1, 2):
                self.lose(signal.SIGKILL, rank, phase)

    def test_a_stopped_rank_is_noticed(self):
        for phase in PHASES:
            for rank in (1, 2):
                self.lose(signal.SIGSTOP, rank, phase)

    def test_grammars_and_choices(self):
        body = {"prompt": "Here is a list:", "max_tokens": 60, "temperature": 0.9, "seed": 5}
        asked = [{**body, "n": 3, "presence_penalty": 0.8, "frequency_penalty": 0.3},
                 {**body, "guided_regex": "[a-c]{3}-[0-9]{4}( [x-z]+)?", "logprobs": 1},
                 {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                     "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["red", "blue"]}}, "required": ["a", "b"]}}}, "n": 2}]

        def answers(server):
            replies = bamtest.run_threads(len(asked), lambda i: server.post("/v1/completions", asked[i]))
            self.assertEqual([reply.status for reply in replies], [200] * len(asked), [reply.text for reply in replies])
            return [[(choice["text"], choice["logprobs"], choice["finish_reason"]) for choice in reply.json()["choices"]] for reply in replies]
        for kv in ("f16", "int8"):
            with bamtest.running_server("--kv-dtype", kv) as server:
                expected = answers(server)
            with bamtest.running_server("--kv-dtype", kv, "--stages", "3") as server:
                self.assertEqual(answers(server), expected)

    def test_one_file_of_settings_for_all_ranks(self):
        """configs/stages-4.json, but for where the ranks meet and how much memory a test has."""
        config = str(bamtest.ROOT / "configs" / "stages-4.json")
        small = ("--config", config, "--kv-memory", "64MiB", "--max-model-len", "auto")
        prompt = stage_group.PROMPTS[2]
        with bamtest.running_server("--dtype", "int8", "--kv-dtype", "int8") as server:
            expected = content(server.complete(prompt, **stage_group.ANSWER))
        with tempfile.TemporaryDirectory() as folder:
            place = (*small, "--rendezvous", "file:" + folder, "--stage-address", "127.0.0.1")
            workers = [subprocess.Popen([bamtest.BAM, "worker", *place, "--stage-rank", rank, "--model", bamtest.checkpoint()], stderr=subprocess.PIPE, text=True)
                       for rank in ("1", "2", "3")]
            try:
                with bamtest.running_server(*place) as server:
                    self.assertEqual(content(server.complete(prompt, **stage_group.ANSWER)), expected)
                    self.assertEqual(len(server.get("/props").json()["stages"]), 4)
                for worker in workers:
                    self.assertEqual(worker.wait(bamtest.PATIENCE), 0)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.communicate()

    def test_logits_and_pages_of_a_long_passkey(self):
        """Also as soak_stages.py, with 500,000 tokens."""
        if not os.path.exists(demo_prompts.MODEL):
            self.skipTest("SKIPPED: no checkpoints/demo")
        self.assertEqual(stage_group.passkey_of("1", 65_536), stage_group.passkey_of("4", 65_536))

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

    def test_workers_end_when_rank_0_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            place = ("--stages", "3", "--rendezvous", "file:" + folder, "--stage-address", "127.0.0.1", "--group-timeout", f"{100 * bamtest.PATIENCE}s")
            workers = [subprocess.Popen([bamtest.BAM, "worker", *place, "--stage-rank", rank, "--kv-memory", "128MiB", "--model", bamtest.checkpoint()],
                                        stderr=subprocess.PIPE, text=True) for rank in ("1", "2")]
            try:
                server = bamtest.Server(*place)
                self.expected.ask_all(server)
                server.kill()
                for worker in workers:
                    said = worker.communicate(timeout=bamtest.PATIENCE)[1]
                    self.assertEqual(worker.returncode, 75, said)
                    self.assertIn("rank 0 is lost", said)
            finally:
                for worker in workers:
                    worker.kill()

    def test_a_worker_may_leave_and_return(self):
        with tempfile.TemporaryDirectory() as folder:
            place = ("--stages", "2", "--rendezvous", "file:" + folder, "--stage-address", "127.0.0.1")

            def worker():
                return subprocess.Popen([bamtest.BAM, "worker", *place, "--stage-rank", "1", "--kv-memory", "128MiB", "--model", bamtest.checkpoint()],
                                        stderr=subprocess.DEVNULL)
            process = worker()
            try:
                with bamtest.running_server(*place) as server:
                    self.expected.ask_all(server)
                    stream = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "temperature": 0})
                    first = stream.next_event()
                    process.terminate()
                    self.assertEqual(process.wait(bamtest.PATIENCE), 0)
                    bamtest.wait_until(lambda: server.get("/readyz").status == 503, "a server without its layers is not ready", server)
                    process = worker()
                    self.assertEqual(streamed(stream, first), self.expected.endless)
                    self.expected.ask_all(server)
                self.assertEqual(process.wait(bamtest.PATIENCE), 0, "a worker ends with rank 0")
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    bamtest.main()

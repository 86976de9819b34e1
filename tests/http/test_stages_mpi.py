#!/usr/bin/env python3
"""One server as an MPI job, started as docs/cluster.md says: the texts of one process, and an end when a rank is lost."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import bamtest
import stage_group

DOCUMENT = (bamtest.ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
# Root, two cores and no other network than the loopback interface are what a test machine has.
SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "self,tcp"}


def children(pid):
    """(pid, command line) of each."""
    lines = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout.splitlines()
    return [(int(number), command) for number, _, command in (line.strip().partition(" ") for line in lines)]


@unittest.skipUnless(shutil.which("mpirun"), "SKIPPED: no mpirun here (make cluster)")
@unittest.skipUnless(stage_group.has_plugin("mpi"), "SKIPPED: no libbam_mpi.so here (make cluster)")
class MpiJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = stage_group.Expected()
        cls.folder = tempfile.TemporaryDirectory()
        block = next(block for block in re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL) if "mpirun" in block)
        written = " ".join(block.replace("\\\n", " ").split())
        pattern = r"mpirun -np 1 bam serve --model /models/mine (--stages 4 --transport mpi) : -np 3 bam worker --model /models/mine \1"
        assert re.fullmatch(pattern, written), written
        # The job as a file that is started as the program is: the server's further flags go to the first rank.
        command = written.replace("bam worker", f"{bamtest.BAM} worker --kv-memory 128MiB").replace("bam serve", f'{bamtest.BAM} "$@"')
        script = pathlib.Path(cls.folder.name, "job")
        script.write_text("#!/bin/sh\nexec " + command.replace("/models/mine", bamtest.checkpoint()) + "\n", encoding="utf-8")
        script.chmod(0o755)
        cls.program, bamtest.BAM = bamtest.BAM, str(script)

    @classmethod
    def tearDownClass(cls):
        bamtest.BAM = cls.program
        cls.folder.cleanup()

    def start(self, *flags):
        server = bamtest.Server(*flags, environment=SETTINGS)
        ranks = children(server.process.pid)
        workers = [pid for pid, command in ranks if " worker " in command]
        first = next(pid for pid, command in ranks if " serve " in command)
        return server, first, workers

    def test_texts_are_those_of_one_process(self):
        server, first, _ = self.start("--stage-deadline", f"{bamtest.PATIENCE}s")  # a lost rank would end the job
        self.assertEqual(len(server.get("/props").json()["stages"]), 4)
        self.expected.ask_all(server)
        self.assertEqual(stage_group.content(server.complete(stage_group.LONG, max_tokens=16)), self.expected.long)
        stage_group.check_pages(server)
        os.kill(first, signal.SIGTERM)
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 0, server.log())

    def test_a_lost_rank_ends_the_job(self):
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how=how.name):
                server, _, workers = self.start("--stage-deadline", "3s")
                stream = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True})
                stream.next_event()
                os.kill(workers[0], how)
                if how == signal.SIGSTOP:
                    server.wait_line(r"rank \d is lost")
                    os.kill(workers[0], signal.SIGKILL)
                self.assertNotEqual(server.process.wait(bamtest.PATIENCE), 0)


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""The commands of README.md and of docs/evaluate.md, as written, in a copy of the sources: they run, print what is shown, and leave nothing
behind in the clone. Lengths are cut short; what `make` does is tested elsewhere."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import bamtest
import pypi

FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SHORTER = ((r"--lengths [\dk,]+", "--lengths 512,1k"), (r"--depths \d+", "--depths 2"), (r"--length 10k", "--length 1k"))


def blocks(document, *languages):
    return [text for language, text in FENCE.findall((bamtest.ROOT / document).read_text(encoding="utf-8")) if language in languages]


def tracked_files():
    listed = subprocess.run(["git", "-C", str(bamtest.ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise unittest.SkipTest("SKIPPED: not a git checkout")
    return [name for name in listed.stdout.split("\0") if name]


class Walk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.clone = pathlib.Path(holder.name) / "bam"
        for name in tracked_files():
            if (bamtest.ROOT / name).is_file():
                (cls.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(bamtest.ROOT / name, cls.clone / name)
        (cls.clone / "build").mkdir()
        shutil.copy2(bamtest.BAM, cls.clone / "build" / "bam")
        cls.server = bamtest.Server("--kv-memory", "1GiB")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.before = self.files()

    def tearDown(self):
        self.assertEqual(self.files(), self.before, "a command has changed the clone")

    def files(self):
        """Everything outside build/, where commands may leave what they make."""
        return {str(path.relative_to(self.clone)): path.stat().st_mtime_ns for path in self.clone.rglob("*")
                if path.is_file() and path.relative_to(self.clone).parts[0] != "build" and "__pycache__" not in path.parts}

    def run_line(self, line, stdin="Hello\n", cwd=None):
        for pattern, shorter in SHORTER:
            line = re.sub(pattern, shorter, line)
        line = re.sub(r"(127\.0\.0\.1|localhost):8000", f"127.0.0.1:{self.server.port}", line)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
        environment = {**clean, "PATH": f"{self.clone / 'build'}:{os.environ['PATH']}", "XDG_STATE_HOME": str(self.clone / "build"),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, input=stdin, cwd=cwd or self.clone, env=environment,
                             check=False, timeout=bamtest.PATIENCE)
        self.assertEqual(ran.returncode, 0, f"{line}\n{ran.stdout[-1000:]}{ran.stderr[-1000:]}")
        return ran.stdout

    def serve(self, line):
        """A command that serves: until it is ready."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
        words = line.replace("--port 8000", "").split()
        process = subprocess.Popen([*words, "--port", "0", "--kv-memory", "256MiB"], stderr=subprocess.PIPE, text=True, cwd=self.clone, env=clean)
        try:
            said = ""
            while "ready after" not in said:
                said = process.stderr.readline()
                self.assertNotEqual(said, "", line)
        finally:
            process.terminate()
            process.communicate()

    def test_readme(self):
        shown = {}
        for block in blocks("README.md", "sh"):
            for line in block.splitlines():
                command = line.split("#")[0].strip()
                if not command or command.startswith("make "):
                    continue
                if command.startswith("build/bam serve"):
                    self.serve(command)
                else:
                    shown[command] = self.run_line(command)
                    self.assertTrue(shown[command].strip(), command)
        self.assertGreater(len(shown), 6)
        tables = "\n".join(blocks("README.md", ""))
        passkey = next(text for command, text in shown.items() if "bam passkey" in command)
        header = next(line for line in tables.splitlines() if line.startswith("length "))
        self.assertIn(header.split(), [line.split() for line in passkey.splitlines()])
        inspect = next(text for command, text in shown.items() if "bam inspect" in command)
        for line in tables.splitlines():
            if re.match(r"layer|\s+\d+\s+\d ", line):
                self.assertIn(line.split(), [each.split() for each in inspect.splitlines()])

    def test_readme_python(self):
        python = pypi.python_with("openai<4")
        for block in blocks("README.md", "python"):
            script = self.clone / "build" / "example.py"
            script.write_text(block.replace("127.0.0.1:8000", f"127.0.0.1:{self.server.port}").replace('"demo"', '"test"'), encoding="utf-8")
            self.assertTrue(subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout.strip())

    def test_evaluation(self):
        """Every `bam …` of the table of figures and every line of the shell blocks that needs no file of somebody else's."""
        text = (self.clone / "docs" / "evaluate.md").read_text(encoding="utf-8")
        work = self.clone / "build" / "work"
        work.mkdir()
        (work / "book.txt").write_text("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 200)
        commands = [command for row in text.splitlines() if row.startswith("| ") for command in re.findall(r"`(bam [^`]*)`", row)]
        commands = [c.replace("DIR", str(self.clone / "checkpoints" / "demo")) for c in commands if c not in ("bam passkey", "bam bench")]
        self.assertGreaterEqual(len(commands), 5)
        url = f" --url http://127.0.0.1:{self.server.port}"
        for command in commands:
            if " report " in command:  # draws the files that it names from runs of its own
                for name in re.findall(r"\b([ab])\.jsonl", command):
                    self.run_line(f"bam passkey --lengths 512 --depths 2 --label {name} --out {name}.jsonl" + url, cwd=work)
                for name in re.findall(r"\b([ab])\.json\b", command):
                    self.run_line(f"bam eval perplexity book.txt --length 1k --label {name} --out {name}.json" + url, cwd=work)
                self.run_line(command, cwd=work)
            elif " --help" in command or command.startswith("bam inspect"):
                self.assertTrue(self.run_line(command, cwd=work))
            else:
                self.assertTrue(self.run_line(command + url, cwd=work))
        for block in blocks("docs/evaluate.md", "sh"):
            for line in block.splitlines():
                if line.startswith("build/bam serve"):
                    self.serve(line)
                elif line.startswith("build/bam"):
                    self.run_line(line)
        for name in ("mine.html", "perplexity.html", "all.html"):
            self.assertIn("<svg", (work / name).read_text(encoding="utf-8"), name)
        self.assertTrue(list((work / "pictures").glob("*.svg")))


if __name__ == "__main__":
    bamtest.main()

#!/usr/bin/env python3
"""`bam chat`, `bam generate` and `bam passkey` on a real terminal, and what the command line forgives."""

import http.server
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest

import bamtest
from terminal import Terminal

LONG = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
# The answer to "Once upon a time" is under way. What is typed before the editor is ready is echoed twice.
WRITING = r"upon a time\s+(Once upon a time\s+)?(?!Once)[^\n]{20}"
MEMORY = ("--kv-memory", "256MiB")


def run(*arguments, environment=None, stdin=""):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BAM_")}
    return subprocess.run([bamtest.BAM, *arguments], capture_output=True, text=True, input=stdin, timeout=bamtest.PATIENCE,
                          env={**clean, **(environment or {})}, check=False)


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def terminal(self, *arguments, **options):
        environment = {"XDG_STATE_HOME": str(self.folder / "state"), **options.pop("environment", {})}
        terminal = Terminal(*arguments, environment=environment, cwd=self.folder, **options)
        self.addCleanup(terminal.close)
        return terminal


class Chat(WithFolder):
    def chat(self, *arguments, **options):
        terminal = self.terminal("chat", *arguments, **options)
        terminal.wait(r">>> ")
        return terminal

    def local(self, *arguments):
        return self.chat(bamtest.checkpoint(), *MEMORY, "--temperature", "0", *arguments)

    def test_a_conversation_in_this_process(self):
        chat = self.local("-n", "12")
        self.assertIn("parameters", chat.text)
        chat.type("Hello there\n")
        chat.wait(r"Hello there\s+\S[^\n]*\n+>>> ")
        chat.type("/stats\n")
        chat.wait(r"prompt [\d,]+ tokens.* \| generated \d+.* \| (stop|length)")
        for command, said in (("/set max_tokens 3", "max_tokens: 3"), ("/seed 7", "seed: 7"), ("/system Be brief.", "system message: Be brief."),
                              ("/set", r"max_tokens +3\s+temperature +0\s+top_p +\(the model's own\)")):
            chat.type(command + "\n")
            chat.wait(rf"\n{said}" if command != "/set" else said)
            chat.wait(r">>> ")
        chat.type("And you?\n")
        chat.wait(r"And you\?")
        chat.wait(r">>> ")
        chat.type("/save talk.json\n")
        chat.wait(r"saved talk.json")
        talk = json.loads((self.folder / "talk.json").read_text())
        self.assertEqual([m["role"] for m in talk["messages"]], ["system", "user", "assistant", "user", "assistant"])
        self.assertEqual(talk["messages"][1]["content"], "Hello there")
        chat.type("/reset\n")
        chat.wait("a new conversation")
        chat.type("/save empty.md\n")
        chat.wait(r"saved empty.md")
        self.assertNotIn("Hello", (self.folder / "empty.md").read_text())
        chat.type("/sysstem\n")
        chat.wait(r"did you mean /system\?")
        chat.press("D")
        self.assertEqual(chat.wait_exit(), 0)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        chat = self.local("-n", "200000", "--completion", "--ignore-eos")
        chat.type("Once upon a time\n")
        chat.wait(WRITING)
        chat.press("C")
        chat.wait(r"\(stopped\)")
        chat.wait(r">>> ")
        chat.type("/stats\n")
        chat.wait(r"generated [\d,]+ in .* \| interrupted")
        chat.type("half a line")
        chat.wait("half a line")
        chat.press("C")  # drops the line
        chat.wait(r"\^C")
        chat.wait(r">>> ")
        chat.type("/save text.txt\n")
        chat.wait("saved text.txt")
        self.assertTrue((self.folder / "text.txt").read_text().startswith("Once upon a time"))
        chat.type("/quit\n")
        self.assertEqual(chat.wait_exit(), 0)

    def test_editing_history_and_completion(self):
        chat = self.local("-n", "2")
        chat.type("/sta\t\n")
        chat.wait("no answer yet")
        chat.type("Hallo\x1b[D\x1b[D\x1b[D\x1b[D\x7fJe\n")  # left, left, left, left, backspace
        chat.wait(r">>> ")
        chat.type("/save edited.json\n")
        chat.wait("saved")
        talk = json.loads((self.folder / "edited.json").read_text())
        self.assertEqual(talk["messages"][0]["content"], "Jeallo")
        chat.press("D")
        self.assertEqual(chat.wait_exit(), 0)
        history = self.folder / "state" / "bam" / "history"
        self.assertEqual(history.stat().st_mode & 0o777, 0o600)
        chat = self.local("-n", "2")
        chat.type("\x1b[A\x1b[A")  # up, up: over /save to the line of the last session
        chat.wait("Jeallo")
        chat.press("C")
        chat.wait(r">>> ")
        chat.press("D")
        self.assertEqual(chat.wait_exit(), 0)

    def test_several_lines_and_a_file(self):
        (self.folder / "notes.txt").write_text("The pass key is 4711.", encoding="utf-8")
        chat = self.local("-n", "2")
        chat.type("/file nowhere.txt\n")
        chat.wait("cannot read nowhere.txt")
        chat.type("/file notes.txt\n")
        chat.wait("in front of your next message")
        chat.type('"""first\nsecond"""\n')
        chat.wait(r">>> ")
        chat.type("/save talk.json\n")
        chat.wait("saved")
        talk = json.loads((self.folder / "talk.json").read_text())
        self.assertEqual(talk["messages"][0]["content"], "The pass key is 4711.\n\nfirst\nsecond")

    def test_a_base_model_gets_texts_to_continue(self):
        model = bamtest.random_checkpoint(parent=str(self.folder))
        for file in pathlib.Path(model).glob("tokenizer_config.json"):
            config = json.loads(file.read_text())
            config.pop("chat_template", None)
            file.write_text(json.dumps(config))
        chat = self.chat(model, *MEMORY, "-n", "4")
        self.assertIn("goes on with it", chat.text)
        chat.type("/mode chat\n")
        chat.wait("no chat template")
        chat.type("A text\n")
        chat.wait(r">>> ")
        chat.type("/stats\n")
        chat.wait(r"generated \d+")

    def test_a_long_prompt_shows_how_far_it_is(self):
        (self.folder / "book.txt").write_text(LONG * 20000, encoding="utf-8")
        chat = self.local("-n", "2", "--attention", "dense", "--file", "book.txt", "--completion", "--kv-memory", "2GiB")
        chat.type("\n")
        chat.wait(r"reading [\d,]+ of [\d,]+ tokens .* \d+ %.*, about .* left")
        chat.press("C")
        chat.wait(r"\(stopped\)")

    def test_a_server_of_ours(self):
        server = bamtest.Server()
        self.addCleanup(server.stop)
        chat = self.chat(f"127.0.0.1:{server.port}", "--temperature", "0", "-n", "12", "--ignore-eos")
        self.assertIn(f"test on http://127.0.0.1:{server.port}", chat.text)
        chat.type("Hello there\n")
        chat.wait(r"Hello there\s+\S[^\n]*\n+>>> ")
        chat.type("/save talk.json\n")
        chat.wait("saved")
        talk = json.loads((self.folder / "talk.json").read_text())
        reply = server.post("/v1/chat/completions", {"messages": talk["messages"][:1], "max_tokens": 12, "temperature": 0,
                                                      "ignore_eos": True})
        self.assertEqual(talk["messages"][1]["content"], reply.json()["choices"][0]["message"]["content"])
        chat.type("/mode completion\n/set max_tokens 200000\nOnce upon a time\n")
        chat.wait(WRITING)
        chat.press("C")
        chat.wait(r"\(stopped\)")
        bamtest.wait_until(lambda: server.get("/health").json()["running"] == 0, "the server noticed", server)
        chat.type("/stats\n")
        chat.wait("interrupted")
        server.stop()
        chat.type("Are you there?\n")
        chat.wait(r"error: ")
        chat.wait(r">>> ")
        chat.press("D")
        self.assertEqual(chat.wait_exit(), 0)

    def test_lines_from_a_pipe(self):
        result = run("chat", bamtest.checkpoint(), *MEMORY, "--temperature", "0", "-n", "8", "--no-history",
                     stdin="Hello there\n/stats\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?s)^\S.*\nprompt \d+ tokens")
        self.assertNotIn(">>>", result.stdout)
        result = run("chat", "http://127.0.0.1:9", stdin="x\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no server at", result.stderr)


class Generate(WithFolder):
    def test_progress_and_ctrl_c(self):
        (self.folder / "book.txt").write_text(LONG * 20000, encoding="utf-8")
        terminal = self.terminal("generate", "--model", bamtest.checkpoint(), "--kv-memory", "2GiB", "--attention", "dense",
                                 "-f", "book.txt", "-n", "4")
        terminal.wait(r"reading [\d,]+ of [\d,]+ tokens .* \d+ %.*, about .* left")
        terminal.press("C")
        self.assertEqual(terminal.wait_exit(), 130)
        self.assertRegex(terminal.text, r"\nprompt [\d,]+ tokens \| generated 0 \| interrupted\n$")

    def test_ctrl_c_in_the_answer_ends_with_a_newline_and_the_statistics(self):
        terminal = self.terminal("generate", "--model", bamtest.checkpoint(), *MEMORY, "-n", "200000", "--ignore-eos", "--seed", "1", "Once upon a time")
        terminal.wait(r"context \d+ \| [^\n]*\n[\s\S]{20}")  # the text is under way
        terminal.press("C")
        self.assertEqual(terminal.wait_exit(), 130)
        self.assertRegex(terminal.text, r"\nprompt \d+ tokens in .* \| generated [\d,]+ in .* tok/s\) \| interrupted\n$")

    def test_no_rate_of_one_token(self):
        result = run("generate", "--model", bamtest.checkpoint(), *MEMORY, "-n", "1", "Hello")
        self.assertRegex(result.stderr, r"generated 1 \| (length|stop)\n$")


class Passkey(WithFolder):
    def test_a_long_prompt_shows_how_far_it_is(self):
        server = bamtest.Server("--attention", "dense", "--kv-memory", "2GiB")
        self.addCleanup(server.stop)
        terminal = self.terminal("passkey", "--url", f"http://127.0.0.1:{server.port}", "--lengths", "256k", "--depths", "1")
        terminal.wait(r"reading [\d,]+ of [\d,]+ tokens, \d+ %, about .* to its answer")
        terminal.press("C")
        self.assertEqual(terminal.wait_exit(), 1)
        self.assertIn("interrupted", terminal.text)


class CommandLine(WithFolder):
    def expect(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_the_model_and_the_prompt_need_no_flag(self):
        by_flag = run("generate", "-p", "The grass is", "--model", bamtest.checkpoint(), *MEMORY, "-n", "6", "--temperature", "0")
        by_place = run("generate", "The grass is", "--model", bamtest.checkpoint(), *MEMORY, "-n", "6", "--temperature", "0")
        self.assertEqual(by_place.returncode, 0, by_place.stderr)
        self.assertEqual(by_place.stdout, by_flag.stdout)
        self.assertEqual(run("inspect", bamtest.checkpoint(), *MEMORY).stdout,
                         run("inspect", "--model", bamtest.checkpoint(), *MEMORY).stdout)
        self.expect(run("inspect", "demo", "--model", "demo"), 2, "given twice")

    def test_did_you_mean(self):
        self.expect(run("serve", "--prot", "1"), 2, "there is no flag --prot; did you mean --port?")
        self.expect(run("chatt"), 2, "did you mean `bam chat`?")
        self.expect(run("run"), 2, "did you mean `bam chat`?")
        self.expect(run("help", "serv"), 2, "did you mean `bam serve`?")
        self.expect(run("eval", "perplexty", "x"), 2, "perplexity")
        self.expect(run("demo"), 2, "did you mean `bam chat demo`?")
        self.expect(run("http://127.0.0.1:9"), 2, "did you mean `bam chat http://127.0.0.1:9`?")
        self.expect(run("eval", "perplexity", "x", "--csv", "y"), 2, "there is no flag --csv; it belongs to `bam eval task`")
        self.expect(run("passkey", "report", "x", "--lengths", "1k"), 2, "there is no flag --lengths; it belongs to `bam passkey`")
        self.expect(run("generate", "hi", "--url", "x"), 2, "`bam chat URL` talks to a server")
        self.expect(run("--versoin"), 2, "did you mean `bam --version`?")
        for more in ("help", "--help", "version"):
            self.assertEqual(run("help", more).stdout, run("help").stdout)
        result = run("inspect", bamtest.checkpoint(), environment={"BAM_KV_MEMROY": "1GiB"})
        self.assertEqual(result.returncode, 0)
        self.expect(result, 0, "BAM_KV_MEMROY is not a setting; did you mean BAM_KV_MEMORY?")

    def test_mistakes_are_told_in_plain_words(self):
        for arguments, sentence in (
                (("generate", "hi", "-n", "x"), "--max-tokens: 'x' is not a whole number of at least 1 (see"),
                (("serve", "--port", "70000"), "--port: '70000' is not a whole number from 0 to 65535"),
                (("serve", "--max-queue", "x"), "--max-queue: 'x' is not a whole number of at least 1"),
                (("generate", "hi", "--top-p", "2"), "--top-p: '2' is not a number from 0 to 1 (see"),
                (("generate", "hi", "--seed", "abc"), "--seed: 'abc' is not a number (see"),
                (("serve", "--port"), "--port: its value is missing (see"),
                (("inspect", "demo", "--at"), "--at: its value is missing (see"),
                (("completion", "ksh"), "SHELL: 'ksh' is not bash, zsh or fish (see"),
                (("eval",), "what shall it do? task, perplexity or report (see"),
                (("eval", "nothing"), "unexpected argument 'nothing'; there are task, perplexity, report (see"),
                (("eval", "perplexity"), "FILE is missing (see"),
                (("passkey", "http://127.0.0.1:8000"), "a server's address goes to --url (see"),
                (("generate", "-f", "/tmp"), "cannot read /tmp: it is a folder"),
                (("generate", "-f", "/nowhere"), "cannot read /nowhere: No such file or directory"),
                (("chat", "ftp://x"), "ftp://x begins with neither http:// nor https://"),
                (("inspect", "demo", "--look", ""), "--look: the text is empty"),
                (("inspect", "demo", "--look", "x", "--layer", "9"), "there is no layer 9: the model has 4"),
                (("inspect", "demo", "--look", "x", "--head", "9"), "there is no head 9: the model has 5 in every layer")):
            self.expect(run(*arguments), 2, sentence)
        self.expect(run("chat", "--model", ""), 1, "--model: its value is empty")

    def test_a_page_is_no_model_server(self):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as page:
            page.RequestHandlerClass.log_message = lambda *_: None
            threading.Thread(target=page.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{page.server_port}"
            for command in (("chat", url), ("passkey", "--url", url), ("bench", "--url", url)):
                self.expect(run(*command), 1, f"{url} is no OpenAI-compatible server: {url}/v1/models answers HTTP 404")
            page.shutdown()

    def test_a_prompt_that_no_context_holds(self):
        server = bamtest.Server(*MEMORY)
        self.addCleanup(server.stop)
        self.expect(run("passkey", "--url", f"http://127.0.0.1:{server.port}", "--lengths", "512,900m"), 2,
                    "--lengths: 900M does not fit into the context of test")

    def test_files_that_cannot_be_used(self):
        empty = self.folder / "empty.txt"
        empty.write_text("")
        server = bamtest.Server(*MEMORY)
        self.addCleanup(server.stop)
        url = ("--url", f"http://127.0.0.1:{server.port}")
        self.expect(run("eval", "perplexity", str(empty), *url), 2, "has 0 tokens")
        self.expect(run("eval", "perplexity", str(self.folder), *url), 2, f"cannot read {self.folder}")
        with open("/dev/full", "w") as full:
            result = subprocess.run([bamtest.BAM, "inspect", bamtest.checkpoint()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.expect(result, 1, "standard output could not be written")

    def test_a_pytorch_checkpoint_is_sent_to_the_converter(self):
        (self.folder / "model.pt").write_bytes(b"PK")
        self.expect(run("inspect", str(self.folder)), 1, "tools/convert.py")
        self.expect(run("generate", "--model", str(self.folder / "model.pt"), "x"), 1, "tools/convert.py")

    def test_more_kv_memory_than_the_machine_has(self):
        self.expect(run("generate", "--model", bamtest.checkpoint(), "--kv-memory", "100TiB", "x"), 2, "--kv-memory", "100 TiB")
        server = bamtest.Server("--kv-memory", "100TiB", wait=False)
        self.assertEqual(server.process.wait(bamtest.PATIENCE), 2)

    def test_version(self):
        for word in ("--version", "version"):
            self.assertRegex(run(word).stdout, r"^bam \d+\.\d+\.\d+ \(commit \S+ of \S+, (GCC|Clang) [\d.]+, \w+\)\n$")

    def test_a_server_starts_in_four_lines_with_the_url_last(self):
        server = bamtest.Server()
        self.addCleanup(server.stop)
        lines = list(server.lines)
        self.assertEqual(len(lines), 4, lines)
        self.assertRegex(lines[-1], rf"ready after .* on http://127\.0\.0\.1:{server.port}$")
        self.assertFalse(any(re.search("listening|CUDA|cuda", line) for line in lines), lines)

    def test_manual_pages_and_completions(self):
        self.assertEqual(run("man", "--out", str(self.folder)).returncode, 0)
        pages = sorted(page.name for page in self.folder.glob("*.1"))
        self.assertIn("bam.1", pages)
        self.assertIn("bam-serve.1", pages)
        self.assertIn("kv\\-memory", (self.folder / "bam-serve.1").read_text())
        script = self.folder / "bam.bash"
        script.write_text(run("completion", "bash").stdout)
        for line, word in (("bam ser", "serve"), ("bam serve --kv-m", "--kv-memory"), ("bam serve --kv-dtype i", "int8"),
                           ("bam completion f", "fish")):
            words = line.split(" ")
            answer = subprocess.run(["bash", "-c", f'source "{script}"; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _bam; '
                                     'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=False)
            self.assertIn(word, answer.stdout.split(), (line, answer.stderr))
        for shell in ("zsh", "fish"):
            self.assertIn("kv-memory", run("completion", shell).stdout)


if __name__ == "__main__":
    bamtest.main()

"""The sessions of docs/terminal.md: each types what a person types and returns what the screen showed."""

import re

import bamtest
from terminal import Terminal

SENTENCES = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
PROMPT = r">>> "
WIDTH = 120
READING = r"reading [\d,]+ of [\d,]+ tokens [^\r\x1b]* [1-9]\d %[^\r\x1b]*left"


class Screen:
    """What a terminal shows after these bytes: the few movements that the program and its line editor make."""

    def __init__(self, raw, columns=WIDTH):
        self.columns = columns
        self.lines, self.row, self.column = [""], 0, 0
        for piece in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|([\s\S])", raw):
            if piece.group(2):
                self._control(piece.group(2), piece.group(1))
            elif piece.group(3):
                self._put(piece.group(3))

    def _control(self, name, argument):
        count = int(argument) if argument.isdigit() else 1
        if name == "A":
            self.row = max(0, self.row - count)
        elif name == "C":
            self.column += count
        elif name == "D":
            self.column = max(0, self.column - count)
        elif name in "KJ":
            self.lines[self.row] = self.lines[self.row][:self.column]
            if name == "J":
                del self.lines[self.row + 1:]

    def _put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character == "\n" or self.column >= self.columns:
            self.row += 1
            self.lines += [""] * (self.row + 1 - len(self.lines))
            self.column = 0 if character != "\n" else self.column
            if character != "\n":
                self._put(character)
        elif character >= " ":
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[:self.column] + character + line[self.column + 1:]
            self.column += 1

    def text(self):
        return "\n".join(line.rstrip() for line in self.lines).strip("\n")


class Recorder:
    """Runs commands in one folder and writes down what a person would see."""

    def __init__(self, folder):
        self.folder, self.terminals, self.servers = folder, [], []

    def close(self):
        for each in self.terminals:
            each.close()
        for server in self.servers:
            server.stop()

    def server(self):
        self.servers.append(bamtest.Server("--kv-memory", "2GiB"))
        return f"http://127.0.0.1:{self.servers[-1].port}"

    def begin(self, *arguments, **environment):
        terminal = Terminal(*arguments, environment={"XDG_STATE_HOME": str(self.folder / "state"), **environment}, cwd=self.folder, columns=WIDTH)
        self.terminals.append(terminal)
        return terminal

    def run(self, *arguments, **environment):
        terminal = self.begin(*arguments, **environment)
        terminal.wait_exit()
        return Screen(terminal.raw).text()


def conversation(terminal):
    """What is typed before the line editor listens is echoed twice: once is enough."""
    lines = Screen(terminal.raw).text().split("\n")
    return [line for before, line in zip([""] + lines, lines) if before != ">>> " + line]


def block(command, shown):
    return f"$ {command}\n{shown}"


def serve(recorder):
    server = recorder.begin("serve", "demo", "--port", "0")
    port = server.wait(r"on http://127\.0\.0\.1:(\d+)").group(1)
    server.press("C")
    server.wait_exit()
    return [block("bam serve demo", Screen(server.raw).text().replace(f":{port}", ":8000"))]


def chat(recorder):
    (recorder.folder / "notes.txt").write_text("The pass key is 48213. Remember it. 48213 is the pass key.", encoding="utf-8")
    talk = recorder.begin("chat", "--temperature", "0", "-n", "40")
    for line in ("What do you know?", "/stats", "/seed 7", "/system Be brief.", "/file notes.txt", "What is the pass key? The pass key is", "/set", "/stats on",
                 "/again", "/sysstem", "/save talk.json", "/reset"):
        talk.wait(PROMPT)
        talk.type(line + "\n")
    talk.wait(PROMPT)
    talk.press("D")
    talk.wait_exit()
    return [block("bam chat --temperature 0 -n 40", "\n".join(conversation(talk)))]


def stopped_chat(recorder):
    text = recorder.begin("chat", "--completion", "-n", "200000", "--temperature", "0", "--ignore-eos")
    text.wait(PROMPT)
    text.type("In the beginning\n")
    text.wait(r"In the beginning\s+(?!In)[^\n]{80}")
    text.press("C")
    text.wait(r"\(stopped\)\s+>>> ")
    text.type("/stats\n")
    text.wait(r"interrupted\s+>>> ")
    text.press("D")
    text.wait_exit()
    lines = conversation(text)
    answer = next(i for i, line in enumerate(lines) if line.startswith(">>> In the")) + 1
    stop = lines.index("(stopped)")
    return [block("bam chat --completion -n 200000 --temperature 0 --ignore-eos",
                  "\n".join([*lines[:answer], lines[answer][:60] + " …", *lines[stop:]]))]


def generate(recorder):
    (recorder.folder / "book.txt").write_text(SENTENCES * 6000, encoding="utf-8")
    reading = recorder.begin("generate", "-f", "book.txt", "-n", "20")
    reading.wait(READING)
    seen = Screen(reading.raw).text()
    reading.press("C")
    reading.wait_exit()
    return [block('bam generate "The king said" -n 16 --temperature 0', recorder.run("generate", "The king said", "-n", "16", "--temperature", "0")),
            block("bam generate -f book.txt -n 20", seen),
            "^C\n" + Screen(reading.raw).text().split("\n")[-1]]


def passkey(recorder):
    url = recorder.server()
    test = recorder.begin("passkey", "--url", url, "--lengths", "1k,128k", "--depths", "2")
    test.wait(r"reading [\d,]+ of 131,072 tokens, [1-9]\d* %, about .* to its answer[\s\S]*? left")
    seen = Screen(test.raw).text()
    test.wait_exit()
    command = f"bam passkey --url {url} --lengths 1k,128k --depths 2"
    return [each.replace(url, "http://127.0.0.1:8000").replace("on test (", "on demo (").replace("test: ", "demo: ") for each in (block(command, seen), Screen(test.raw).text())]


def inspect(recorder):
    shown = recorder.run("inspect", "demo").split("\n")
    table = next(i for i, line in enumerate(shown) if line.startswith("layer head"))
    shown[0] = "checkpoint   checkpoints/demo"
    return [block("bam inspect demo", "\n".join([*shown[:table + 3], "…", *shown[-5:]]))]


def mistakes(recorder):
    (recorder.folder / "authors").mkdir()
    (recorder.folder / "authors" / "model.pt").write_bytes(b"PK")
    said = []
    for arguments in (["serv"], ["serve", "--prot", "9000"], ["serve", "--port", "abc"], ["generate", "hi", "-n", "many"],
                      ["inspect", "authors"], ["inspect", "Demo"], ["generate", "hi", "--kv-memory", "100TiB"], ["passkey", "http://127.0.0.1:9"],
                      ["chat", "http://127.0.0.1:9"], ["eval"]):
        said.append(block("bam " + " ".join(arguments), recorder.run(*arguments)))
    said.append(block("BAM_KV_MEMROY=1GiB bam inspect demo", recorder.run("inspect", "demo", BAM_KV_MEMROY="1GiB").split("\n")[0] + "\n…"))
    said.append(block("bam --version", recorder.run("--version")))
    return ["\n".join(said)]


SESSIONS = {each.__name__: each for each in (serve, chat, stopped_chat, generate, passkey, inspect, mistakes)}

"""A small OpenAI-compatible server with known timings, for testing clients. Standard library only.

Its model is a regular expression: it looks for pass keys and magic numbers in the prompt. Its tokenizer gives every
word, digit and punctuation mark one id. What it really did, and when, is kept in `log` for comparison.
"""
import asyncio
import json
import re
import time


class FakeServer:
    def __init__(self, first_token_ms=100.0, token_ms=20.0, tokenize="vllm", accept_ids=True, stream_pieces=1,
                 fail_every=0, fail_status=429, hang_every=0, cut_every=0, forget_usage=False, wrong_every=0,
                 byte_level=False, meta=None, ms_per_prompt_token=0.0):
        self.first_token_ms = first_token_ms
        self.token_ms = token_ms
        self.tokenize = tokenize            # "vllm", "llama" or None
        self.accept_ids = accept_ids
        self.stream_pieces = stream_pieces  # TCP writes per event
        self.fail_every = fail_every        # every n-th completion answers fail_status
        self.fail_status = fail_status
        self.hang_every = hang_every        # … never answers
        self.cut_every = cut_every          # … closes the connection in the middle of the stream
        self.wrong_every = wrong_every      # … answers with wrong digits
        self.forget_usage = forget_usage
        self.byte_level = byte_level        # spaces belong to the following word, as in byte-level BPE
        self.ms_per_prompt_token = ms_per_prompt_token
        self.meta = meta
        self.words, self.ids = [], {}
        self.log = []
        self.completions = 0
        self.open = 0
        self.max_open = 0
        self.port = 0

    # --- tokenizer -------------------------------------------------------------------------------------------------
    def encode(self, text):
        pattern = r" ?[A-Za-z]+| ?[^A-Za-z\s]|\s" if self.byte_level else r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]"
        out = []
        for word in re.findall(pattern, text):
            if word not in self.ids:
                self.ids[word] = len(self.words)
                self.words.append(word)
            out.append(self.ids[word])
        return out

    def decode(self, ids):
        return ("" if self.byte_level else " ").join(self.words[i] for i in ids)

    def answer(self, text):
        squeezed = re.sub(r"(?<=\d) (?=\d)", "", text)
        found = re.search(r"The pass key is (\d+)", squeezed)
        if found:
            return [" "] + list(found.group(1))
        asked = re.search(r"for ([a-z0-9][a-z0-9 ,-]*?) mentioned in the text \?", squeezed)
        if asked:
            values = []
            for key in re.split(r" , and | , | and ", asked.group(1)):
                values += re.findall(r"special magic \w+ for %s is : ([0-9a-f -]+?) \." % re.escape(key), squeezed)
            return [c for v in values for c in " " + v.replace(" ", "")]
        return []

    # --- HTTP ------------------------------------------------------------------------------------------------------
    async def start(self, host="127.0.0.1", port=0):
        self.server = await asyncio.start_server(self.connection, host, port, limit=1 << 26, backlog=4096)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def stop(self):
        self.server.close()

    async def connection(self, reader, writer):
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                received = time.monotonic()
                method, path, _ = head.split("\r\n")[0].split(" ")
                length = re.search(r"content-length: *(\d+)", head, re.I)
                body = await reader.readexactly(int(length.group(1))) if length else b""
                if not await self.handle(method, path, body, writer, received):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    def plain(self, writer, status, payload, kind="application/json"):
        data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return True

    async def handle(self, method, path, body, writer, received):
        if path == "/v1/models":
            return self.plain(writer, 200, {"object": "list", "data": [{"id": "fake-model", **({"meta": self.meta} if self.meta else {})}]})
        if path == "/version":
            return self.plain(writer, 200, {"version": "1.2.3"})
        if path == "/metrics":
            return self.plain(writer, 200, "# HELP x\nprocess_resident_memory_bytes 123456789\n", "text/plain")
        if path == "/tokenize" and self.tokenize:
            request = json.loads(body)
            if self.tokenize == "llama":
                return self.plain(writer, 200, {"tokens": self.encode(request.get("content", ""))})
            if "prompt" not in request:
                return self.plain(writer, 400, {"error": {"message": "prompt is missing"}})
            ids = self.encode(request["prompt"])
            return self.plain(writer, 200, {"count": len(ids), "tokens": ids})
        if path in ("/v1/completions", "/v1/chat/completions"):
            return await self.complete(path, json.loads(body), writer, received)
        return self.plain(writer, 404, {"error": {"message": "no such route"}})

    async def complete(self, path, request, writer, received):
        chat = path.endswith("chat/completions")
        prompt = request["messages"][-1]["content"] if chat else request["prompt"]
        if isinstance(prompt, list) and not self.accept_ids:
            return self.plain(writer, 400, {"error": {"message": "prompt must be a string"}})
        ids = prompt if isinstance(prompt, list) else self.encode(prompt)
        text = self.decode(ids)
        if request.get("echo") or request.get("prompt_logprobs") is not None:
            return self.score(ids, request, writer)
        count = request.get("max_tokens", 16)
        pieces = self.answer(text)
        stream = request.get("stream", False)
        if stream:
            self.completions += 1
        n = self.completions if stream else 0
        if self.wrong_every and n and n % self.wrong_every == 0:
            pieces = [" ", "0", "0", "0", "0", "0"]
        pieces = (pieces + [" word"] * count)[:count]
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(pieces),
                 "total_tokens": len(ids) + len(pieces), "prompt_tokens_details": {"cached_tokens": 0}}
        if self.fail_every and n and n % self.fail_every == 0:
            return self.plain(writer, self.fail_status, {"error": {"message": "queue full", "type": "overloaded"}})
        if self.hang_every and n and n % self.hang_every == 0:
            await asyncio.sleep(3600)
        if not stream:
            message = {"message": {"content": "".join(pieces)}} if chat else {"text": "".join(pieces)}
            return self.plain(writer, 200, {"choices": [{**message, "finish_reason": "length"}], "usage": usage})
        cut = self.cut_every and n % self.cut_every == 0
        await self.stream(writer, chat, pieces, usage, received, request, cut, len(ids))
        return not cut

    async def stream(self, writer, chat, pieces, usage, received, request, cut, prompt_tokens):
        entry = {"received": received, "sent": [], "prompt_tokens": prompt_tokens, "output_tokens": len(pieces)}
        self.log.append(entry)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        due = received + (self.first_token_ms + self.ms_per_prompt_token * prompt_tokens) / 1e3
        if chat:
            await self.event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for i, piece in enumerate(pieces):
            await asyncio.sleep(max(0, due - time.monotonic()))
            due += self.token_ms / 1e3
            if cut and i == len(pieces) // 2:
                return
            last = i + 1 == len(pieces)
            choice = {"index": 0, "finish_reason": "length" if last else None}
            choice.update({"delta": {"content": piece}} if chat else {"text": piece})
            entry["sent"].append(time.monotonic())
            await self.event(writer, {"choices": [choice]})
        if request.get("stream_options", {}).get("include_usage") and not self.forget_usage:
            await self.event(writer, {"choices": [], "usage": usage})
        await self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def event(self, writer, payload):
        data = payload if isinstance(payload, str) else json.dumps(payload)
        raw = f": ping\n\ndata: {data}\n\n".encode()
        step = max(1, -(-len(raw) // self.stream_pieces))
        for at in range(0, len(raw), step):
            part = raw[at:at + step]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()

    def score(self, ids, request, writer):
        # Each token costs 0.5 nats in the first 100 positions and 0.25 after them: a perplexity one can compute.
        values = [None] + [-0.5 if i < 100 else -0.25 for i in range(1, len(ids))]
        usage = {"prompt_tokens": len(ids), "completion_tokens": 0}
        if request.get("prompt_logprobs") is not None:
            listed = [None] + [{str(ids[i]): {"logprob": values[i]}} for i in range(1, len(ids))]
            return self.plain(writer, 200, {"choices": [{"text": "", "prompt_logprobs": listed}], "usage": usage})
        choice = {"text": "", "logprobs": {"tokens": [self.words[i] for i in ids], "token_logprobs": values}}
        return self.plain(writer, 200, {"choices": [choice], "usage": usage})

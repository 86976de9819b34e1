"""bam bench, passkey and eval against a fake server whose timings and answers are known."""
import argparse
import asyncio
import json
import os
import re
import resource
import signal
import statistics
import sys
import tempfile
import traceback

from fake_openai_server import FakeServer

TOLERANCE = 0.02
ATTEMPTS = 6


class Failed(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failed(message)


def close(name, measured, truth, tolerance=TOLERANCE):
    check(abs(measured - truth) <= tolerance * abs(truth),
          f"{name}: measured {measured:.3f}, the truth is {truth:.3f} (off by {abs(measured / truth - 1):.1%})")


async def until(condition, process, timeout=300):
    """Waits for something that `process` brings about."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not condition():
        check(process.returncode is None, f"it ended early with {process.returncode}")
        check(asyncio.get_running_loop().time() < deadline, "it did not happen in time")
        await asyncio.sleep(0.02)


class Bam:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    async def start(self, *args):
        return await asyncio.create_subprocess_exec(self.binary, *map(str, args), stdout=asyncio.subprocess.PIPE,
                                                    stderr=asyncio.subprocess.PIPE, cwd=self.folder)

    async def run(self, *args, code=0, timeout=300):
        process = await self.start(*args)
        out, err = await asyncio.wait_for(process.communicate(), timeout)
        out, err = out.decode(), err.decode()
        check(process.returncode == code, f"exit code {process.returncode}, expected {code}\n{args}\n{out}\n{err}")
        return out, err

    async def bench(self, server, *args, code=0):
        out, err = await self.run("bench", "--url", server.url, "--out", self.path("bench.json"), *args, code=code)
        with open(self.path("bench.json")) as file:
            return json.load(file), err


def truth_of(log, entries=None):
    entries = entries if entries is not None else [e for e in log if len(e["sent"]) > 1]
    return {
        "ttft": statistics.median((e["sent"][0] - e["received"]) * 1e3 for e in entries),
        "e2e": statistics.median((e["sent"][-1] - e["received"]) * 1e3 for e in entries),
        "tpot": statistics.median((e["sent"][-1] - e["sent"][0]) * 1e3 / (len(e["sent"]) - 1) for e in entries),
        "itl": statistics.median((b - a) * 1e3 for e in entries for a, b in zip(e["sent"], e["sent"][1:])),
    }


async def test_latencies_match_the_truth(bam):
    # Seconds, not milliseconds: two per cent must be far more than what a busy machine delays a wake-up.
    server = await FakeServer(first_token_ms=3000, token_ms=250, stream_pieces=3).start()
    result, _ = await bam.bench(server, "--concurrency", 8, "-n", 16, "--input-len", 64, "--output-len", 9)
    log = [e for e in server.log if e["output_tokens"] == 9]  # not the one-token check before the load
    check(len(log) == 16, f"the server saw {len(log)} requests")
    truth = truth_of(log)
    for key in ("ttft", "e2e", "tpot", "itl"):
        close(f"median {key} (server log)", result[f"{key}_ms"]["p50"], truth[key])
    close("median TTFT (nominal)", result["ttft_ms"]["p50"], 3000)
    close("median TPOT (nominal)", result["tpot_ms"]["p50"], 250)
    close("median E2E (nominal)", result["e2e_ms"]["p50"], 3000 + 250 * 8)
    check(result["itl_ms"]["count"] == 128, "inter-token gaps")
    check(result["output_tokens"] == 144 and result["input_tokens"] == 16 * 64, "token counts")
    span = max(e["sent"][-1] for e in log) - min(e["received"] for e in log)
    close("output tokens/s", result["output_throughput"], 144 / span)
    close("requests/s", result["request_throughput"], 16 / span)
    check(sum(result["tokens"][k] for k in result["tokens"] if k != "events") == 0, f"token checks: {result['tokens']}")
    check(result["client"]["max_in_flight"] == 8 and result["failed"] == 0, "closed loop of eight")
    await server.stop()


async def test_open_loop_shows_what_a_slow_server_hides(bam):
    # Ten requests per second at a server that, one at a time, answers fewer than four.
    server = await FakeServer(first_token_ms=250, token_ms=10).start()
    result, _ = await bam.bench(server, "--request-rate", 10, "--burstiness", 1000, "--concurrency", 1, "-n", 10,
                                "--input-len", 8, "--output-len", 3)
    # The last one was due at 0.9 s and left at 9 * 0.27 s or later.
    check(result["ttft_from_schedule_ms"]["max"] > 1500, f"from schedule: {result['ttft_from_schedule_ms']}")
    check(result["ttft_from_schedule_ms"]["p50"] > 2 * result["ttft_ms"]["p50"], "waiting is hidden")
    check(result["send_lag_ms"]["max"] > 1200 and result["client"]["max_in_flight"] == 1, "send lag")
    # Without a limit nothing waits: requests leave on time whatever is unanswered.
    result, _ = await bam.bench(server, "--request-rate", 10, "--burstiness", 1000, "-n", 20, "--input-len", 8,
                                "--output-len", 3, "--label", "unlimited")
    check(result["client"]["max_in_flight"] >= 2, "requests overlap")
    check(result["send_lag_ms"]["p50"] < 100, f"send lag {result['send_lag_ms']}")
    starts = [e["received"] for e in server.log if e["output_tokens"] == 3][-20:]
    close("arrival rate", 19 / (starts[-1] - starts[0]), 10, 0.1)
    await server.stop()


async def test_failures_are_counted_and_shown(bam):
    server = await FakeServer(first_token_ms=20, token_ms=2, fail_every=5).start()
    result, err = await bam.bench(server, "--concurrency", 4, "-n", 20, "--input-len", 8, "--output-len", 4)
    check(result["failed"] == 4 and result["completed"] == 16, f"failed {result['failed']}")
    check(result["errors"]["by_kind"] == {"http_429": 4}, str(result["errors"]))
    check("queue full" in err, err)
    await bam.run("bench", "--url", server.url, "-n", 10, "--input-len", 8, "--output-len", 4, "--max-failures", 0, code=1)
    await server.stop()

    server = await FakeServer(first_token_ms=20, token_ms=2, hang_every=4, cut_every=3).start()
    result, _ = await bam.bench(server, "--concurrency", 12, "-n", 12, "--input-len", 8, "--output-len", 6, "--timeout", 8)
    kinds = result["errors"]["by_kind"]
    check(kinds.get("timeout", 0) == 3 and kinds.get("stream", 0) in (3, 4), str(kinds))
    check(result["failed"] == sum(kinds.values()), str(result["failed"]))
    await server.stop()


async def test_servers_without_usage_and_chat(bam):
    server = await FakeServer(first_token_ms=50, token_ms=5, forget_usage=True).start()
    result, err = await bam.bench(server, "-n", 4, "--concurrency", 2, "--input-len", 16, "--output-len", 6)
    check(result["output_tokens"] == 24 and result["tokens"]["requests_without_usage"] == 4, str(result["tokens"]))
    check("without usage" in err, err)
    await server.stop()
    server = await FakeServer(first_token_ms=2000, token_ms=10, stream_pieces=7).start()
    result, err = await bam.bench(server, "--endpoint", "chat", "-n", 6, "--concurrency", 6, "--input-len", 40, "--output-len", 5)
    # The role chunk arrives at once and is not a token.
    close("chat TTFT", result["ttft_ms"]["p50"], truth_of([e for e in server.log if e["output_tokens"] == 5])["ttft"], 0.05)
    check("approximate length" in err, err)
    prompts = [e["prompt_tokens"] for e in server.log if e["output_tokens"] == 5]
    check(all(abs(p - 40) <= 12 for p in prompts), f"text prompts of about 40 tokens: {prompts}")
    await server.stop()


async def test_many_connections_at_once(bam):
    server = await FakeServer(first_token_ms=1500, token_ms=1).start()
    count = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)
    server.first_token_ms = 20000  # nothing is answered before everything has arrived
    result, _ = await bam.bench(server, "--request-rate", "inf", "-n", count, "--input-len", 4, "--output-len", 2)
    check(result["completed"] == count, f"completed {result['completed']}: {result['errors']}")
    check(result["client"]["max_in_flight"] == count and server.max_open >= count, f"{server.max_open} connections open")
    await server.stop()


async def test_probe_and_compare(bam):
    server = await FakeServer(first_token_ms=1000, token_ms=20).start()
    result, _ = await bam.bench(server, "--concurrency", 2, "-n", 6, "--input-len", 32, "--output-len", 20, "--probe", 150,
                                "--report", bam.path("bench.html"), "--goodput", "ttft:3000", "tpot:1", "--detail",
                                "--label", "first")
    probe = result["probe"]
    check(probe["ttft_ms"]["count"] >= 8 and probe["errors"] == 0, str(probe))
    close("probe TTFT", probe["ttft_ms"]["p50"], 1000, 0.1)
    close("probe TTFT before the load", probe["idle_ttft_ms"]["p50"], 1000, 0.1)
    check(result["goodput"]["good_requests"] == 0 and len(result["requests"]) == 6, "goodput and detail")
    os.rename(bam.path("bench.json"), bam.path("a.json"))
    await bam.bench(server, "--concurrency", 2, "-n", 4, "--input-len", 32, "--output-len", 5, "--label", "second")
    out, _ = await bam.run("bench", "--compare", bam.path("a.json"), bam.path("bench.json"))
    check("first" in out and "second" in out and "change" in out and "TTFT p99" in out, out)
    await bam.run("bench", "report", bam.path("a.json"), bam.path("bench.json"), "--report", bam.path("both.html"), "--svg",
                  bam.path("svg"), "--markdown", bam.path("both.md"))
    check("<svg" in open(bam.path("both.html")).read(), "no chart in the page")
    check("svg/throughput.svg" in open(bam.path("both.md")).read(), "no picture in the Markdown")
    check(os.path.exists(bam.path("svg/distribution-ttft.svg")), "no SVG file")
    await server.stop()


async def test_dataset(bam):
    server = await FakeServer(first_token_ms=5, token_ms=1).start()
    with open(bam.path("data.json"), "w") as file:
        json.dump([{"conversations": [{"from": "human", "value": f"Question number {i} of many"},
                                      {"from": "gpt", "value": "one two three"}]} for i in range(5)], file)
    result, _ = await bam.bench(server, "--dataset", bam.path("data.json"), "-n", 5, "--concurrency", 1)
    check(result["output_tokens"] == 15 and result["input_tokens"] == 25, f"{result['input_tokens']}, {result['output_tokens']}")
    await server.stop()


async def test_passkey_accuracy_and_exact_lengths(bam):
    server = await FakeServer(first_token_ms=5, token_ms=1, wrong_every=4).start()
    args = ["passkey", "--url", server.url, "--lengths", "300,1k,3001", "--depths", 4, "--out", bam.path("r.jsonl")]
    out, _ = await bam.run(*args, "--report", bam.path("r.html"), "--require-accuracy", 0.75)
    check("accuracy 75 %" in out, out)
    check(sorted({e["prompt_tokens"] for e in server.log}) == [300, 1024, 3001], "prompts do not have the asked lengths")
    lines = [json.loads(line) for line in open(bam.path("r.jsonl"))]
    check(lines[0]["type"] == "header" and len(lines) == 13, f"{len(lines)} lines")
    check(sum(line["score"] for line in lines[1:]) == 9, "nine of twelve are right")
    check(lines[1]["server_rss_bytes"] == 123456789, "server memory")
    # Everything is answered: a second run sends nothing, and only changes the verdict.
    before = server.completions
    await bam.run(*args, "--require-accuracy", 0.9, code=1)
    check(server.completions == before, "answered cells were asked again")
    _, err = await bam.run(*args, "--seed", 5, code=2)
    check("seed" in err, err)
    await bam.run("passkey", "report", bam.path("r.jsonl"), "--report", bam.path("again.html"))
    await server.stop()


async def test_reports_tell_runs_apart_and_mark_the_training_length(bam):
    server = await FakeServer(meta={"training_context": 512}).start()
    for name in ("first", "second"):
        await bam.run("passkey", "--url", server.url, "--lengths", "300,1k,3001", "--depths", 1, "--out", bam.path(f"{name}.jsonl"))
    out, _ = await bam.run("passkey", "report", bam.path("first.jsonl"), bam.path("second.jsonl"), "--report", bam.path("r.html"))
    page = open(bam.path("r.html")).read()
    for label in ("fake-model (first)", "fake-model (second)"):
        check(label in out and label in page, f"{label} is missing")
    charts = re.findall(r"<figure id=\"([a-z-]+-by-length)\">(.*?)</figure>", page, re.DOTALL)
    check(len(charts) == 4, f"charts: {[name for name, _ in charts]}")
    for name, chart in charts:
        check("prompt length (tokens), logarithmic<" in chart and ">trained at 512<" in chart, f"{name}: {chart[:300]}")
    other = await FakeServer(meta={"training_context": 1024}).start()
    await bam.run("passkey", "--url", other.url, "--lengths", "300,1k", "--depths", 1, "--out", bam.path("other.jsonl"))
    await bam.run("passkey", "report", bam.path("first.jsonl"), bam.path("other.jsonl"), "--report", bam.path("both.html"))
    check("trained at" not in open(bam.path("both.html")).read(), "no mark where models were trained at different lengths")
    await other.stop()
    await server.stop()


async def test_passkey_resumes_after_a_kill(bam):
    server = await FakeServer(first_token_ms=60, token_ms=1).start()
    args = ["passkey", "--url", server.url, "--depths", 10, "--out", bam.path("k.jsonl"), "--lengths"]
    process = await bam.start(*args, "300,400")
    await until(lambda: server.completions >= 5, process)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    answered = sum(1 for _ in open(bam.path("k.jsonl"))) - 1
    check(0 < answered < 20, f"{answered} answers before the kill")
    server.completions = 0
    out, err = await bam.run(*args, "300,400")
    check(server.completions == 20 - answered, f"{server.completions} asked, {answered} were known")
    check("accuracy 100 %" in out and f"{answered} answers already" in err, out + err)
    # Ctrl-C ends cleanly and says how to go on.
    process = await bam.start(*args, "300,400,500")
    await until(lambda: server.completions >= 23 - answered, process)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    check(process.returncode == 1 and b"continues" in err, f"{process.returncode} {err}")
    await server.stop()


async def test_passkey_speaks_to_other_servers(bam):
    for options, note in [({"tokenize": "llama"}, None), ({"byte_level": True}, None),
                          ({"tokenize": None}, "approximate length"), ({"accept_ids": False}, "approximate length")]:
        server = await FakeServer(first_token_ms=5, token_ms=1, **options).start()
        out, err = await bam.run("passkey", "--url", server.url + "/v1", "--lengths", 600, "--depths", "0,0.5,1",
                                 "--require-accuracy", 1)
        lengths = {e["prompt_tokens"] for e in server.log}
        if note:
            check(note in err, f"{options}: {err}")
            check(all(abs(n - 600) < 60 for n in lengths), f"{options}: about 600 tokens, got {lengths}")
        else:
            check(lengths == {600}, f"{options}: {lengths}")
        await server.stop()
    server = await FakeServer(first_token_ms=5, token_ms=1).start()
    await bam.run("passkey", "--url", server.url, "--endpoint", "chat", "--lengths", 600, "--depths", 3,
                  "--require-accuracy", 1)
    await server.stop()


async def test_needle_tasks(bam):
    server = await FakeServer(first_token_ms=5, token_ms=0).start()
    with open(bam.path("book.txt"), "w") as file:
        file.write("It was a cold day. The clock struck noon and nobody cared! Who would? Then it rained.\n" * 20)
    for task in ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
                 "niah_multivalue", "niah_multiquery"):
        args = ["--filler-file", bam.path("book.txt")] if task not in ("niah_single_1", "niah_multikey_2", "niah_multikey_3") else []
        out, _ = await bam.run("passkey", "--url", server.url, "--task", task, "--lengths", 900, "--depths", 3,
                               "--require-accuracy", 1, *args)
    await bam.run("passkey", "--url", server.url, "--distractors", 3, "--filler-file", bam.path("book.txt"), "--lengths",
                  900, "--depths", 3, "--require-accuracy", 1)
    await server.stop()


async def test_perplexity(bam):
    server = await FakeServer().start()
    with open(bam.path("text.txt"), "w") as file:
        file.write("the sky is blue and the grass is green \n" * 100)
    await bam.run("eval", "perplexity", bam.path("text.txt"), "--url", server.url, "--length", 200, "--window", 50,
                  "--out", bam.path("p.json"), "--report", bam.path("p.html"))
    result = json.load(open(bam.path("p.json")))
    check([w["end"] for w in result["windows"]] == [50, 100, 150, 200], str(result["windows"]))
    # The fake model: 0.5 nats up to token 99, 0.25 from token 100 on; token i is the i-th scored, from 1.
    expected = [0.5, (49 * 0.5 + 0.25) / 50, 0.25, 0.25]
    for window, nats in zip(result["windows"], expected):
        check(abs(window["nats"] - nats) < 1e-9, f"window {window['begin']}: {window['nats']} nats, expected {nats}")
    check(result["config"]["sequences"] == 900 // 201, str(result["config"]))
    await server.stop()


async def test_bad_command_lines(bam):
    for args in (["bench", "--nonsense"], ["bench", "--input-len", "abc"], ["bench", "--request-rate", "-3"],
                 ["bench", "--goodput", "x:1"], ["passkey", "--lengths", "x"], ["passkey", "--depths", "2,3"],
                 ["passkey", "--task", "unknown"], ["passkey", "--task", "niah_single_2"], ["eval"], ["bench", "--url", "ftp://x"],
                 ["passkey", "report", "missing.jsonl"], ["bench", "--compare", "missing.json"]):
        _, err = await bam.run(*args, code=2)
        check(len(err.strip().splitlines()) == 1, f"{args}: not one line: {err}")
    _, err = await bam.run("bench", "--url", "http://127.0.0.1:9", code=1)
    check("no server at" in err, err)
    for command in ("bench", "passkey", "eval"):
        out, _ = await bam.run(command, "--help")
        check("Examples:" in out, out)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bam", required=True)
    parser.add_argument("--only", default="", help="run the tests whose name contains this")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    failed = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_") and args.only in name]
    for name, test in tests:
        with tempfile.TemporaryDirectory() as folder:
            for attempt in range(1, ATTEMPTS + 1):
                # Times on a machine that is busy with other work may be off; those of a wrong client are off each time.
                try:
                    await test(Bam(os.path.abspath(args.bam), folder))
                    print(f"ok    {name}")
                    break
                except Exception as error:
                    text = str(error) if isinstance(error, Failed) else traceback.format_exc()
                    print(f"{'retry' if attempt < ATTEMPTS else 'FAIL '} {name}: {text}", flush=True)
                    failed += attempt == ATTEMPTS
                    for file in os.listdir(folder):
                        if os.path.isfile(os.path.join(folder, file)):
                            os.remove(os.path.join(folder, file))
    print(f"{len(tests) - failed} of {len(tests)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

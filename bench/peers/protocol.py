"""What compare.py asks and the Python peers answer: lines "prompt TOKENS" and "streams N", answered by a line of JSON."""
import json
import random
import statistics
import sys
import time

WARM_STEPS, STEPS = 8, 32  # as bench_model and llama_speed
SHORT_PROMPT, SHORT_REPEATS = 1024, 3


def timed(steps):
    """Seconds and tokens of every step."""
    done = []
    start = time.perf_counter()
    for tokens in steps:
        now = time.perf_counter()
        done.append((now - start, tokens))
        start = now
    return done


def decode_rate(done, streams):
    """Tokens per second of the last steps, in which every stream took part."""
    full = [seconds for seconds, tokens in done if tokens == streams][1 + WARM_STEPS:][:STEPS]
    return streams * len(full) / sum(full)


def prefill_seconds(done):
    """Until the first token."""
    first = next(i for i, (_, tokens) in enumerate(done) if tokens)
    return sum(seconds for seconds, _ in done[:first + 1])


def serve(steps):
    """steps(prompts, tokens) computes prompts of ids and `tokens` tokens after each; it yields after every step how many
    sequences got a token."""
    for line in sys.stdin:
        what, size = line.split()[0], int(line.split()[1])
        streams, length = (size, 1) if what == "streams" else (1, size)
        prompts = [[random.randrange(3, 32000) for _ in range(length)] for _ in range(streams)]
        done = timed(steps(prompts, WARM_STEPS + STEPS + 2))
        answer = {"decode": decode_rate(done, streams)}
        if what == "prompt":
            seconds = [prefill_seconds(done)]
            while size <= SHORT_PROMPT and len(seconds) < SHORT_REPEATS:
                seconds.append(prefill_seconds(timed(steps([prompts[0][::-1]], 1))))
            answer["prefill"] = size / statistics.median(seconds)
        print(json.dumps(answer), flush=True)

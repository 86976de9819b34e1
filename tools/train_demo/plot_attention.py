"""Draws how much of its attention every head spends on the pass key when it is asked for, against its theta_beta, as SVG.

    plot_attention.py --url http://127.0.0.1:8000 [--length 2048] [--depths 5] > attention.svg

Asks `/v1/attention` of a `bam serve` for the row of the last prompt token, "The pass key is", whose output is the key's first
digit. Means over evenly spaced depths. tasks.py has the wording.
"""
import argparse
import json
import pathlib
import statistics
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from plot_heads import BOTTOM, LEFT, RIGHT, TOP, Axis, Labels, line, marker, number, picture, text  # noqa: E402
from tasks import FILLER, NEEDLE, QUESTION, TASK  # noqa: E402

KEY = "71432"


def post(url: str, path: str, body: dict) -> dict:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def prompt(url: str, length: int, depth: float) -> tuple[list[int], range]:
    """Tokens of at most `length`, and where the needle's line stands."""
    encode = lambda words: post(url, "/tokenize", {"prompt": words, "add_special_tokens": False})["tokens"]
    head, filler, needle, question = map(encode, (TASK, FILLER, NEEDLE.format(key=KEY), QUESTION))
    count = (length - len(head) - len(needle) - len(question)) // len(filler)
    before = round(depth * count)
    begin = len(head) + before * len(filler)
    return head + filler * before + needle + filler * (count - before) + question, range(begin, begin + len(needle))


def shares(url: str, heads: list[dict], length: int, depths: int) -> list[float]:
    """Per head: the mean probability that falls on the needle's line."""
    prompts = [prompt(url, length, (i + 0.5) / depths) for i in range(depths)]

    def row(tokens: list[int], where: range) -> dict[tuple[int, int], float]:
        look = post(url, "/v1/attention", {"tokens": tokens, "bins": 1, "peaks": 0, "spans": [[where.start, where.stop]]})
        return {(head["layer"], head["head"]): head["spans"][0] for head in look["heads"]}

    rows = [row(*p) for p in prompts]
    return [statistics.mean(row[head["layer"], head["head"]] for row in rows) for head in heads]


def draw(heads: list[dict], found: list[float], length: int) -> str:
    x = Axis([h["beta"] for h in heads] + [0.0, 1.0], LEFT, RIGHT)
    y = lambda share: round(BOTTOM + share * (TOP - BOTTOM), 1)
    out = [text(16, 26, f"Attention on the pass key's line, {length:,} tokens, by θβ of the head", "t", "start", 15, 'font-weight="600"')]
    for value in x.ticks:
        out += [line(x(value), TOP, x(value), BOTTOM, "g"), text(x(value), BOTTOM + 18, number(value))]
    for share in (0, 0.25, 0.5, 0.75, 1):
        out += [line(LEFT, y(share), RIGHT, y(share), "g"), text(LEFT - 8, y(share) + 4, f"{share:.0%}", anchor="end")]
    out += [line(x(0), TOP, x(0), BOTTOM, "x", 'stroke-dasharray="4 4"'), text((LEFT + RIGHT) / 2, BOTTOM + 42, "θβ (exponent)", "t")]
    points = [(x(h["beta"]), y(share)) for h, share in zip(heads, found)]
    labels = Labels(points)
    for head, (px, py) in zip(heads, points):
        out += [marker(px, py, head["class"]), labels.place(px, py, f"{head['layer']}.{head['head']}")]
    at = LEFT
    for words, cls, chosen in (("θβ < 0", "retrieval", lambda b: b < 0), ("θβ ≥ 0", "heavy_tail", lambda b: b >= 0)):
        values = [share for head, share in zip(heads, found) if chosen(head["beta"])]
        if values:
            label = f"{len(values)} heads with {words}: mean {statistics.mean(values):.1%}, largest {max(values):.1%}"
            out += [marker(at + 6, 50, cls), text(at + 18, 54, label, "t", "start")]
            at += 330
    return picture(out, "attention on the pass key by head")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--depths", type=int, default=5)
    args = parser.parse_args()
    with urllib.request.urlopen(args.url + "/v1/prior") as reply:
        prior = json.load(reply)
    if prior["position_encoding"] != "bam":
        sys.exit(f"plot_attention.py: the model has no priors: its position encoding is {prior['position_encoding']}")
    heads = prior["heads"]
    sys.stdout.write(draw(heads, shares(args.url, heads, args.length, args.depths), args.length))


if __name__ == "__main__":
    main()

"""Markdown tables of a comparison: study_tables.py RESULTS [CURVES], as compare.sh and study.py leave them. Standard library only."""
import argparse
import csv
import json
import math
import pathlib
from collections import defaultdict

KNOWN = 0.95
TASKS = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1")


def wilson(right: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share."""
    share = right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def cells(path: pathlib.Path) -> dict[int, list[float]]:
    """length -> scores"""
    scores = defaultdict(list)
    if path.exists():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["type"] == "result" and "score" in entry:  # a failed request has none and is asked again
                scores[entry["length"]].append(entry["score"])
    return scores


def length_name(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1000 and tokens % 1024 == 0 or tokens == 512000 else str(tokens)


def show(scores: list[float]) -> str:
    if not scores:
        return "–"
    low, high = wilson(sum(scores), len(scores))
    return f"{sum(scores):g}/{len(scores)} ({100 * low:.0f}–{100 * high:.0f} %)"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def accuracy(results: pathlib.Path, names: list[str], suffix: str) -> str:
    found = {name: cells(results / f"{name}{suffix}.jsonl") for name in names}
    lengths = sorted({length for scores in found.values() for length in scores})
    rows = [[name, *(show(scores.get(length, [])) for length in lengths)] for name, scores in found.items() if scores]
    return table(["right", *map(length_name, lengths)], rows)


def learning(curves: pathlib.Path) -> str:
    """The first measured step from which on the task stayed known, and the last measurements."""
    rows = []
    for path in sorted(curves.glob("*.csv")):
        with path.open() as file:
            curve = list(csv.DictReader(file))
        unknown = [i for i, row in enumerate(curve) if float(row["passkey_512"]) < KNOWN]
        since = unknown[-1] + 1 if unknown else 0
        step = curve[since]["step"] if since < len(curve) else "not within the training"
        rows.append([path.stem, step, curve[-1]["passkey_512"], curve[-1]["text_nats"]])
    return table(["", "known at 512 since step", "held-out pass keys at the end", "held-out text, nats per token"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("curves", type=pathlib.Path, nargs="*")
    arguments = parser.parse_args()
    results, curves = arguments.results, arguments.curves
    names = sorted(path.stem for path in results.glob("*.jsonl") if "." not in path.stem)
    for folder in curves:
        print("## Learning\n\n" + learning(folder))
    print("## Pass keys by length\n\n" + accuracy(results, names, ""))
    for task in TASKS:
        print(f"## {task}\n\n" + accuracy(results, names, f".{task}"))


if __name__ == "__main__":
    main()

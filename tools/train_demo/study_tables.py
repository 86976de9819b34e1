"""Markdown tables of a comparison: study_tables.py RESULTS [CURVES], as compare.sh and study.py leave them. Standard library only."""
import argparse
import csv
import json
import math
import pathlib
import re
import statistics
from collections import defaultdict

KNOWN = 0.95
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided 95 %, by the number of values
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


def share_at(shares: dict[int, float], length: int) -> float:
    """A length that was not asked for counts as 0 after two without one right answer (compare.sh stops there)."""
    before = [shares[n] for n in sorted(shares) if n < length][-2:]
    return shares.get(length, 0.0 if before == [0, 0] else math.nan)


def spread(values: list[float]) -> str:
    """Percent of every seed, their mean and its 95 % interval by Student's t."""
    if any(map(math.isnan, values)):
        return "–"
    each = ", ".join(f"{100 * value:.0f}" for value in values)
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{100 * statistics.mean(values):.0f} ± {100 * half:.0f} ({each})"


def seeds(results: pathlib.Path, names: list[str], suffix: str = "") -> str:
    """Siblings that were trained with several seeds, and the differences between them, seed by seed."""
    runs = defaultdict(dict)  # sibling -> seed -> length -> share right
    for name in names:
        sibling, seed = re.fullmatch(r"(.+?)(?:-seed(\d+))?", name).groups()
        found = cells(results / f"{name}{suffix}.jsonl")
        if found:
            runs[sibling][int(seed or 1)] = {length: statistics.mean(scores) for length, scores in found.items()}
    runs = {sibling: by_seed for sibling, by_seed in sorted(runs.items()) if len(by_seed) > 1}
    lengths = sorted({length for by_seed in runs.values() for shares in by_seed.values() for length in shares})
    share = lambda sibling, seed, length: share_at(runs[sibling][seed], length)
    rows = [[sibling, *(spread([share(sibling, seed, n) for seed in sorted(by_seed)]) for n in lengths)] for sibling, by_seed in runs.items()]
    siblings = list(runs)
    for i, first in enumerate(siblings):
        for second in siblings[i + 1 :]:
            both = sorted(runs[first].keys() & runs[second].keys())
            if len(both) > 1:
                gaps = [spread([share(first, seed, n) - share(second, seed, n) for seed in both]) for n in lengths]
                rows.append([f"{first} − {second}", *gaps])
    return table(["% right, by seed", *map(length_name, lengths)], rows) if rows else ""


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
    if over_seeds := seeds(results, names):
        print("## Pass keys over seeds\n\n" + over_seeds)
    for task in TASKS:
        print(f"## {task}\n\n" + accuracy(results, names, f".{task}"))


if __name__ == "__main__":
    main()

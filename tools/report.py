#!/usr/bin/env python3
"""Figures for a paper from the result files of `bam passkey` and `bam eval`: PNG, PDF and CSV, and one table of runs by lengths.

    tools/report.py mine.jsonl other.jsonl --out figures --trained 512
    tools/report.py mine.json other.json --out figures          # perplexity by position
    tools/report.py arc.json other-arc.json --out figures       # scores of tasks

Needs matplotlib for the figures (Debian: apt-get install python3-matplotlib); without it the tables are written all the same.
"""
import argparse
import collections
import csv
import json
import math
import pathlib
import sys

from bamlib.failure import Failure, run

PASSKEY, PERPLEXITY, EVAL = "bam.passkey/1", "bam.perplexity/1", "bam.eval/1"
SIZE_INCHES = (5.2, 3.2)  # of every figure: one column of a paper


def load(path: pathlib.Path) -> dict:
    """{kind, label, path, points: {x: (value, low, high)}}; x is a length, a position or "task metric"."""
    lines = path.read_text().splitlines()
    try:
        first = json.loads(lines[0]) if lines else {}
        whole = first if first.get("type") == "header" else json.loads(path.read_text())
    except (json.JSONDecodeError, AttributeError) as error:
        raise Failure(f"{path} is no result file: {error}") from None
    kind = whole.get("schema", "") if isinstance(whole, dict) else ""
    read = {PASSKEY: lambda: passkey_points(lines[1:]), PERPLEXITY: lambda: perplexity_points(whole), EVAL: lambda: eval_points(whole)}
    if kind not in read:
        raise Failure(f"{path} is no result file of bam passkey or bam eval")
    return {"kind": kind, "label": whole.get("label") or path.stem, "path": path, "points": read[kind]()}


def wilson(hits: float, trials: int) -> tuple[float, float]:
    z = 1.959963984540054
    share, denominator = hits / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / denominator
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / denominator
    return max(0.0, middle - half), min(1.0, middle + half)


def passkey_points(lines: list[str]) -> dict:
    cells = {}
    for line in lines:
        record = json.loads(line)
        if "score" in record:  # the last answer of a cell counts
            cells[record["length"], record["depth"], record.get("repeat", 0)] = record["score"]
    by_length = collections.defaultdict(list)
    for (length, _, _), score in cells.items():
        by_length[length].append(score)
    return {length: (sum(s) / len(s), *wilson(sum(s), len(s))) for length, s in sorted(by_length.items())}


def perplexity_points(result: dict) -> dict:
    points = {}
    for window in result["windows"]:
        nats, error = window["nats"], window.get("nats_stderr", 0.0)
        points[window["end"]] = (math.exp(nats), math.exp(nats - 1.96 * error), math.exp(nats + 1.96 * error))
    return points


def eval_points(result: dict) -> dict:
    points = {}
    for task, values in result["results"].items():
        for name, (low, high) in result["tasks"][task]["intervals_95"].items():
            metric, name_of_filter = name.split(",", 1)
            label = f"{task} {metric}" + ("" if name_of_filter == "none" else f" ({name_of_filter})")
            points[label] = (values[name], low, high)
    return points


def tell_apart(runs: list[dict]) -> None:
    """Two runs of one model get the names of their files; of equal files, the folders' too."""
    for add in (lambda run: run["path"].stem, lambda run: run["path"].resolve().parent.name):
        counts = collections.Counter(run["label"] for run in runs)
        for each in runs:
            if counts[each["label"]] > 1:
                each["label"] += f" ({add(each)})"


def shown(x: object) -> str:
    """131072 as 128K, 500000 as 500,000."""
    if not isinstance(x, int):
        return str(x)
    for base, suffix in ((1 << 20, "M"), (1 << 10, "K")):
        if x >= base and x % base == 0:
            return f"{x // base}{suffix}"
    return f"{x:,}"


def number(value: float | None, kind: str) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if kind == PASSKEY else f"{value:.4g}"


def write_tables(runs: list[dict], out: pathlib.Path) -> str:
    """runs.csv has every point with its interval; the table of runs by lengths is returned as Markdown and written, too."""
    columns = list(dict.fromkeys(x for each in runs for x in each["points"]))
    columns.sort(key=lambda x: (isinstance(x, str), x))
    with (out / "points.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "x", "value", "low_95", "high_95"])
        for each in runs:
            for x, point in each["points"].items():
                writer.writerow([each["label"], x, *point])
    with (out / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *columns])
        for each in runs:
            writer.writerow([each["label"], *(each["points"].get(x, [None])[0] for x in columns)])
    rows = [["", *map(shown, columns)], ["---"] + ["---:"] * len(columns)]
    rows += [[each["label"], *(number(each["points"].get(x, [None])[0], each["kind"]) for x in columns)] for each in runs]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    (out / "table.md").write_text(table)
    return table


def draw(runs: list[dict], out: pathlib.Path, trained: int | None, title: str) -> None:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
                         "pdf.fonttype": 42, "svg.fonttype": "none", "legend.frameon": False})
    figure, axes = plt.subplots(figsize=SIZE_INCHES, constrained_layout=True)
    (draw_bars if runs[0]["kind"] == EVAL else draw_lines)(axes, runs, trained)
    if title:
        axes.set_title(title)
    axes.legend()
    for suffix in ("png", "pdf"):
        figure.savefig(out / f"figure.{suffix}", dpi=200)
    plt.close(figure)


def draw_lines(axes, runs: list[dict], trained: int | None) -> None:
    from matplotlib import ticker
    markers = "osD^vPX*"
    for i, each in enumerate(runs):
        x = list(each["points"])
        value, low, high = zip(*each["points"].values())
        colour = f"C{i}"
        few = len(x) <= 40
        axes.plot(x, value, marker=markers[i % len(markers)] if few else None, markersize=4, linewidth=1.4, color=colour, label=each["label"])
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: shown(round(v))))
    if runs[0]["kind"] == PASSKEY:
        axes.set_xlabel("prompt length, tokens (logarithmic)")
        axes.set_ylabel("accuracy, 95 % interval")
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    else:
        axes.set_xlabel("position, tokens (logarithmic)")
        axes.set_ylabel("perplexity (logarithmic), 95 % interval")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_minor_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    if trained:
        axes.axvline(trained, color="0.35", linestyle="--", linewidth=1)
        # Beside the line at half height: curves begin above, and bands end below.
        axes.annotate(f"trained at {shown(trained)}", (trained, 0.5), xytext=(-3, 0), xycoords=("data", "axes fraction"), ha="right", va="center",
                      textcoords="offset points", rotation=90, fontsize=8, color="0.35")


def draw_bars(axes, runs: list[dict], _: int | None) -> None:
    names = list(dict.fromkeys(x for each in runs for x in each["points"]))
    width = 0.8 / len(runs)
    for i, each in enumerate(runs):
        at = [names.index(x) + (i - (len(runs) - 1) / 2) * width for x in each["points"]]
        value, low, high = zip(*each["points"].values())
        error = [[v - (v if a is None else a) for v, a in zip(value, low)], [(v if b is None else b) - v for v, b in zip(value, high)]]
        axes.bar(at, value, width * 0.92, yerr=error, capsize=2, label=each["label"], color=f"C{i}")
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylabel("score, 95 % interval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="result files of one kind")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"), help="folder of the figures and tables")
    parser.add_argument("--trained", type=int, help="training length, marked in the figure")
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    runs = [load(path) for path in options.files]
    if len({each["kind"] for each in runs}) != 1:
        raise Failure("the files are of different kinds: " + ", ".join(sorted({each["kind"] for each in runs})))
    if not all(each["points"] for each in runs):
        raise Failure("a file has no results yet: " + ", ".join(str(each["path"]) for each in runs if not each["points"]))
    tell_apart(runs)
    options.out.mkdir(parents=True, exist_ok=True)
    print(write_tables(runs, options.out), end="")
    try:
        draw(runs, options.out, options.trained, options.title)
    except ImportError:
        print("no figures: matplotlib is missing (Debian: apt-get install python3-matplotlib)", file=sys.stderr)


if __name__ == "__main__":
    run(main)

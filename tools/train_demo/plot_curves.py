"""Draws the siblings' learning curves as SVG: plot_curves.py CURVES [NAME…] > curves.svg. Standard library only.

One small panel per sibling: the share of held-out pass keys found at 128 and at 512 tokens, by step.
"""
import argparse
import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from plot_heads import line, text  # noqa: E402

COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 4, 200, 150
LEFT, TOP, GAP, HEAD = 44, 34, 26, 56  # of a panel: room for its axis, title and neighbours; of the picture: its title
SERIES = {"passkey_512": ("far", "512 tokens"), "passkey_128": ("near", "128 tokens")}
STYLE = (
    ".t{fill:#1c1f24}.m{fill:#5d6570}.bg{fill:#fff}.g{stroke:#e3e6ea}.x{stroke:#9aa2ad}.far{stroke:#0072b2}.near{stroke:#d55e00}"
    "@media (prefers-color-scheme:dark){.t{fill:#e8eaed}.m{fill:#a2abb6}.bg{fill:#15181c}.g{stroke:#2c3138}.x{stroke:#636b76}"
    ".far{stroke:#56b4e9}.near{stroke:#ff8f4d}}polyline{fill:none;stroke-width:2}.near{stroke-dasharray:5 3}"
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
)


def read(path: pathlib.Path) -> list[dict[str, float]]:
    with path.open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def panel(name: str, curve: list[dict[str, float]], left: float, top: float) -> list[str]:
    last = curve[-1]["step"]
    x = lambda step: round(left + step / last * PANEL_WIDTH, 1)
    y = lambda share: round(top + (1 - share) * PANEL_HEIGHT, 1)
    out = [text(left, top - 10, name, "t", "start", 13, 'font-weight="600"')]
    for share in (0, 0.5, 1):
        out += [line(left, y(share), left + PANEL_WIDTH, y(share), "g"), text(left - 6, y(share) + 4, f"{share:.0%}", anchor="end", size=11)]
    for before, row in zip(curve, curve[1:]):
        if row["training_length"] != before["training_length"]:
            out.append(line(x(before["step"]), top, x(before["step"]), y(0), "g", 'stroke-dasharray="2 3"'))
    for step in (0, last):
        out.append(text(x(step), y(0) + 16, f"{step:g}", size=11))
    for column, (cls, _) in SERIES.items():
        points = " ".join(f"{x(row['step'])},{y(row[column])}" for row in curve)
        out.append(f'<polyline points="{points}" class="{cls}"/>')
    return out


def draw(folder: pathlib.Path, names: list[str]) -> str:
    paths = [folder / f"{name}.csv" for name in names] or sorted(folder.glob("*.csv"))
    cell_width, cell_height = LEFT + PANEL_WIDTH + 12, TOP + PANEL_HEIGHT + GAP
    width, height = min(COLUMNS, len(paths)) * cell_width + 12, HEAD + -(-len(paths) // COLUMNS) * cell_height
    out = [text(16, 26, "Held-out pass keys found, by training step (dotted: longer sequences begin)", "t", "start", 15, 'font-weight="600"')]
    at = 16
    for cls, words in SERIES.values():
        out += [f'<polyline points="{at},44 {at + 30},44" class="{cls}"/>', text(at + 38, 48, words, "t", "start")]
        at += 130
    for i, path in enumerate(paths):
        out += panel(path.stem, read(path), LEFT + i % COLUMNS * cell_width, HEAD + TOP + i // COLUMNS * cell_height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="learning curves"><style>{STYLE}</style><rect class="bg" width="{width}" height="{height}"/>' + "".join(out) + "</svg>\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curves", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="of the curves; default: all in the folder")
    arguments = parser.parse_args()
    sys.stdout.write(draw(arguments.curves, arguments.names))

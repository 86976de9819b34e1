#!/usr/bin/env python3
"""Draws the learned priors of a checkpoint as SVG: theta_alpha against theta_beta, one point per head, or the weight of
each head's prior by distance.

    bam inspect --model demo --json | tools/plot_heads.py > heads.svg
    bam inspect --model demo --json | tools/plot_heads.py --curves > curves.svg

Standard library only. Colour and shape tell the head's class, the label its layer and number.
"""
import argparse
import html
import json
import math
import sys

WIDTH, HEIGHT = 720, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 700, 70, 400
CLASSES = {  # name: (light, dark, marker, what it looks at); the colours are those of the page (web/style.css)
    "local": ("#2b5fb0", "#85aef5", "circle", "local (\u03b8\u03b2 \u2265 1)"),
    "heavy_tail": ("#96610a", "#e2b04e", "square", "heavy-tailed (0 < \u03b8\u03b2 < 1)"),
    "uniform": ("#6c7378", "#98a0a4", "triangle", "flat (\u03b8\u03b2 \u2248 0)"),
    "retrieval": ("#a92f62", "#f285ad", "diamond", "retrieval (\u03b8\u03b2 < 0)"),
}


def style() -> str:
    light = "".join(f".{name}{{fill:{c[0]}}}.l-{name}{{stroke:{c[0]}}}" for name, c in CLASSES.items())
    dark = "".join(f".{name}{{fill:{c[1]}}}.l-{name}{{stroke:{c[1]}}}" for name, c in CLASSES.items())
    return (
        ".t{fill:#1c1f24}.m{fill:#5d6570}.bg{fill:#fff}.g{stroke:#e3e6ea}.x{stroke:#9aa2ad}" + light +
        "@media (prefers-color-scheme:dark){.t{fill:#e8eaed}.m{fill:#a2abb6}.bg{fill:#15181c}.g{stroke:#2c3138}"
        ".x{stroke:#636b76}" + dark + "}text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    )


class Axis:
    """Maps values, with a tenth of their span to spare at either end, to pixels; ticks are multiples of a round step."""

    def __init__(self, values: list[float], begin: float, end: float):
        low, high = min(values), max(values)
        spare = 0.1 * (high - low) or 0.5
        self.low, self.high, self.begin, self.end = low - spare, high + spare, begin, end
        step = next((s for s in (0.25, 0.5, 1, 2, 5) if (self.high - self.low) / s <= 9), 10)
        first = int(self.low // step) + 1
        self.ticks = [i * step for i in range(first, int(self.high // step) + 1)]

    def __call__(self, value: float) -> float:
        return round(self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin), 1)


def number(value: float) -> str:
    return f"{value:g}".replace("-", "\u2212")


def text(x, y, words, cls="m", anchor="middle", size=12, extra="") -> str:
    return f'<text x="{x}" y="{y}" class="{cls}" text-anchor="{anchor}" font-size="{size}" {extra}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, cls, extra="") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{cls}" {extra}/>'


def marker(x, y, name, tip="") -> str:
    title = f"<title>{html.escape(tip)}</title>"
    shape = CLASSES[name][2]
    if shape == "circle":
        return f'<circle cx="{x}" cy="{y}" r="5.5" class="{name}">{title}</circle>'
    corners = {
        "square": [(-5, -5), (5, -5), (5, 5), (-5, 5)],
        "triangle": [(0, -6), (6, 5), (-6, 5)],
        "diamond": [(0, -7), (7, 0), (0, 7), (-7, 0)],
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" class="{name}">{title}</polygon>'


class Labels:
    """Puts each label beside its point, on the side where points and earlier labels leave most room."""

    SIDES = ((9, 4, "start"), (-9, 4, "end"), (0, -9, "middle"), (0, 17, "middle"))

    def __init__(self, points: list[tuple[float, float]]):
        self.taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in points]

    def place(self, x: float, y: float, words: str) -> str:
        def box(side):
            dx, dy, anchor = side
            width = 6.2 * len(words)
            left = x + dx - {"start": 0, "end": width, "middle": width / 2}[anchor]
            return left, y + dy - 9, left + width, y + dy + 1

        def overlap(side):
            l, t, r, b = box(side)
            return sum(max(0, min(r, c) - max(l, a)) * max(0, min(b, d) - max(t, e)) for a, e, c, d in self.taken)

        best = min(self.SIDES, key=overlap)
        self.taken.append(box(best))
        return text(round(x + best[0], 1), round(y + best[1], 1), words, "m", best[2], 10.5)


def draw(report: dict) -> str:
    heads = report["prior"]
    x = Axis([h["alpha"] for h in heads], LEFT, RIGHT)
    y = Axis([h["beta"] for h in heads] + [0.0, 1.0], BOTTOM, TOP)
    name = report["checkpoint"].rstrip("/").rsplit("/", 1)[-1]
    title = f"Learned priors of {name}: B(d) = \u2212exp(\u03b8\u03b1) \u00b7 d^\u03b8\u03b2"
    out = [text(16, 26, title, "t", "start", 15, 'font-weight="600"')]
    for value in x.ticks:
        out += [line(x(value), TOP, x(value), BOTTOM, "g"), text(x(value), BOTTOM + 18, number(value))]
    for value in y.ticks:
        out += [line(LEFT, y(value), RIGHT, y(value), "g"), text(LEFT - 8, y(value) + 4, number(value), anchor="end")]
    for value in (0, 1):  # where the classes meet
        out.append(line(LEFT, y(value), RIGHT, y(value), "x", 'stroke-dasharray="4 4"'))
    out.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "\u03b8\u03b1 (log scale of the prior)", "t"))
    middle = (TOP + BOTTOM) / 2
    out.append(text(18, middle, "\u03b8\u03b2 (exponent)", "t", extra=f'transform="rotate(-90 18 {middle})"'))
    points = [(x(h["alpha"]), y(h["beta"])) for h in heads]
    labels = Labels(points)
    for head, (px, py) in zip(heads, points):
        tip = (
            f"layer {head['layer']} head {head['head']}: \u03b8\u03b1 {head['alpha']:.2f}, "
            f"\u03b8\u03b2 {head['beta']:.2f}, s {head['seq_scale']:.3f}"
        )
        out.append(marker(px, py, head["class"], tip))
        out.append(labels.place(px, py, f"{head['layer']}.{head['head']}"))
    at = LEFT
    for cls in (c for c in CLASSES if any(h["class"] == c for h in heads)):
        words = f"{sum(h['class'] == cls for h in heads)} {CLASSES[cls][3]}"
        out += [marker(at + 6, 50, cls), text(at + 18, 54, words, "t", "start")]
        at += 40 + 7 * len(words)
    return picture(out, "learned priors")


def picture(shapes: list[str], label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}"><style>{style()}</style><rect class="bg" width="{WIDTH}" height="{HEIGHT}"/>'
        + "".join(shapes) + "</svg>\n"
    )


def prior(head: dict, form: str, distance: float) -> float:
    """B of one head at a distance, as kernels/prior.h has it."""
    mu = math.exp(head["theta_mu"]) - math.exp(-head["theta_mu"])
    offset, scale = abs(distance + mu), math.exp(head["alpha"])
    eps = 1e-5
    if form == "scale_inside":
        return -((offset * scale + eps) ** head["beta"])
    return -scale * (offset + eps) ** head["beta"]


LONGEST = 512 * 1024


def draw_curves(report: dict) -> str:
    """exp B(d) of every head, each relative to its own largest value, over distances on a logarithmic axis."""
    left, right, top, bottom = 64, 700, 76, 400

    def x(distance):
        return left + (right - left) * math.log(distance) / math.log(LONGEST)

    def y(weight):
        return bottom - (bottom - top) * weight

    name = report["checkpoint"].rstrip("/").rsplit("/", 1)[-1]
    out = [text(16, 26, f"What each head of {name} expects: weight of the prior by distance, exp B(d)", "t", "start", 15,
                'font-weight="600"')]
    for distance, label in ((1, "1"), (8, "8"), (64, "64"), (512, "512"), (4096, "4K"), (32768, "32K"), (LONGEST, "512K")):
        out += [line(round(x(distance), 1), top, round(x(distance), 1), bottom, "g"),
                text(round(x(distance), 1), bottom + 18, label)]
    for weight in (0, 0.25, 0.5, 0.75, 1):
        out += [line(left, y(weight), right, y(weight), "g"), text(left - 8, y(weight) + 4, f"{weight:g}", anchor="end")]
    trained = report["training_context"]
    out += [line(round(x(trained), 1), top, round(x(trained), 1), bottom, "x", 'stroke-dasharray="4 4"'),
            text(round(x(trained), 1) + 6, top + 150, f"longest text of the training, {trained}", anchor="start")]
    distances = [math.exp(i / 160 * math.log(LONGEST)) for i in range(161)]
    for head in report["prior"]:
        values = [prior(head, report["prior_form"], d) for d in distances]
        best = max(values)
        points = " ".join(f"{x(d):.1f},{y(math.exp(v - best)):.1f}" for d, v in zip(distances, values))
        out.append(f'<polyline points="{points}" fill="none" stroke-width="1.8" class="l-{head["class"]}"><title>layer '
                   f'{head["layer"]} head {head["head"]}</title></polyline>')
    at = left
    for cls in (c for c in CLASSES if any(h["class"] == c for h in report["prior"])):
        count = sum(h["class"] == cls for h in report["prior"])
        words = f"{count} {CLASSES[cls][3]}"
        out += [f'<line x1="{at}" y1="50" x2="{at + 18}" y2="50" stroke-width="2.5" class="l-{cls}"/>',
                text(at + 24, 54, words, "t", "start")]
        at += 46 + 7 * len(words)
    out.append(text((left + right) / 2, bottom + 42, "distance to the key (tokens)", "t"))
    return picture(out, "weight of every head's prior by distance")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--curves", action="store_true", help="weights by distance instead of the parameters")
    arguments = parser.parse_args()
    report = json.load(sys.stdin)
    if report["position_encoding"] != "bam":
        sys.exit(f"plot_heads.py: {report['checkpoint']} has no priors: its position encoding is {report['position_encoding']}")
    sys.stdout.write(draw_curves(report) if arguments.curves else draw(report))

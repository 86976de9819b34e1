#!/usr/bin/env python3
"""tools/plot_heads.py and its pictures: one class of heads has one colour, in the documents and on the page."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

from tooltest import REPO, TOOLS

PAGE_NAMES = {"local": "local", "heavy_tail": "heavy", "uniform": "uniform", "retrieval": "retrieval"}
PICTURES = ("priors.svg", "results-heads.svg", "results-siblings/heads.svg", "results-siblings/attention.svg")


def page_colours():
    css = (REPO / "web/style.css").read_text()
    return {name: re.search(rf"--{var}: light-dark\((#\w+), (#\w+)\)", css).groups() for name, var in PAGE_NAMES.items()}


def colours(svg):
    """{class: (light, dark)}: the first rule is for light pages."""
    return {name: tuple(re.findall(rf"\.{name}{{fill:(#\w+)}}", svg)) for name in PAGE_NAMES}


class Colours(unittest.TestCase):
    def test_pictures_of_the_documents(self):
        for name in PICTURES:
            self.assertEqual(colours((REPO / "docs/images" / name).read_text()), page_colours(), name)

    def test_what_the_tool_draws(self):
        bam = os.environ.get("BAM_BINARY", str(REPO / "build" / "bam"))
        if not pathlib.Path(bam).exists():
            self.skipTest("SKIPPED: no program")
        heads = subprocess.run([bam, "inspect", "demo", "--json"], capture_output=True, text=True, check=True).stdout
        for flags in ((), ("--curves",)):
            drawn = subprocess.run([sys.executable, str(TOOLS / "plot_heads.py"), *flags], input=heads, capture_output=True, text=True, check=True)
            self.assertEqual(colours(drawn.stdout), page_colours())


if __name__ == "__main__":
    unittest.main()

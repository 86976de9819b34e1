"""The page's prior explorer and attention view: test_web_prior.py --bam build/bam [unittest arguments].

Needs what test_web.py needs.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_harness import main, PageTest  # noqa: E402


class Prior(PageTest):
    def test_open_a_head_s_curve(self):
        self.open("prior")
        self.page.click(".head-cell[data-head='1/2']")
        self.wait_text(".prior .curve h2", "Layer 1, head 2")
        self.assertTrue(self.page.script("return location.hash") == "#prior/1/2")
        head = next(h for h in self.server.request("/v1/prior")["heads"] if (h["layer"], h["head"]) == (1, 2))
        facts = self.page.text(".facts").replace("−", "-")
        for name in ("alpha", "beta"):
            self.assertIn(f"{head[name]:.3f}", facts)
        self.assertGreater(len(self.page.attribute(f".prior .curve .line.class-{head['class']}", "d")), 500)
        self.page.script("document.querySelector('.prior .curve .chart').focus()")
        self.page.press("ArrowRight")
        self.wait_text(".prior .curve .readout", "distance 0")
        self.assertEqual(self.page.count(".prior .scatter .head-dot"), self.page.count(".head-cell"))

    def test_sliders_compare_a_changed_head(self):
        self.open("prior/0/0")
        self.page.wait("sliders", lambda: self.page.count("[data-parameter=beta]") == 1)
        self.page.script("const s = document.querySelector('[data-parameter=beta]'); s.value = -0.5;"
                         "s.dispatchEvent(new Event('input', {bubbles: true}))")
        self.wait_text(".facts thead", "what if")
        self.assertIn("Retrieval", self.page.text(".facts"))
        self.assertEqual(self.page.count(".prior .curve .line.curve-what-if"), 1)
        self.page.click(".what-if .small")
        self.page.wait("reset", lambda: "what if" not in self.page.text(".facts thead"))

    def test_counters_follow_the_engine(self):
        self.server.request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 4})
        self.open("prior")
        self.wait_text(".facts", "Tiles visited")
        self.page.wait("counters", lambda: "none yet" not in self.page.text(".facts"))
        self.assertGreater(self.page.count(".visited-bar:not([hidden])"), 0)


class Attention(PageTest):
    def test_row_of_a_head(self):
        self.open("attention")
        self.wait_text("#view-attention .stats", "looked most at")
        tokens = self.page.count(".attention-tokens .token")
        self.assertEqual(self.page.count("#view-attention .bar"), tokens)
        self.page.choose(".attention-choice .field:nth-child(1) select", "0")
        self.page.choose(".attention-choice .field:nth-child(2) select", "1")
        self.page.script("document.querySelector('.attention-tokens .token[data-position=\"5\"]').focus()")
        self.page.press("Enter")
        self.wait_text("#view-attention .stats", "Position 5 ")
        self.page.wait("six bars", lambda: self.page.count("#view-attention .bar") == 6)
        reply = self.server.request("/v1/attention", {"prompt": self.page.script(
            "return document.querySelector('#attention-prompt').value"), "layer": 0, "head": 1, "position": 5})
        row = reply["heads"][0]["sum"]
        self.assertAlmostEqual(sum(row), 1.0, delta=1e-3)
        shown = self.page.script("return [...document.querySelectorAll('.attention-tokens .token')].slice(0, 6).map((t) => "
                                 "Number(t.style.getPropertyValue('--w')))")
        for seen, weight in zip(shown, row, strict=True):
            self.assertAlmostEqual(seen, weight / max(row), delta=1e-3)


if __name__ == "__main__":
    sys.exit(main(__doc__))

"""What users saw go wrong on the page, one test each: test_web_defects.py --bam build/bam [unittest arguments].

Needs what test_web.py needs.
"""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bamtest  # noqa: E402
import page_harness  # noqa: E402
from page_harness import main, PageTest  # noqa: E402


class Demo(PageTest):
    def test_the_legend_says_what_the_colours_are(self):
        self.open("prior")
        self.wait_text(".scatter .legend", "Retrieval")
        self.page.click(".scatter .segmented input[value=layer]")
        self.wait_text(".scatter .legend", "layer 0")
        self.assertIn("layer 3", self.page.text(".scatter .legend"))
        self.assertNotIn("Retrieval", self.page.text(".scatter .legend"))
        self.page.click(".scatter .segmented input[value=class]")
        self.wait_text(".scatter .legend", "Retrieval")

    def test_the_end_of_an_answer_is_a_mark_and_not_a_tag(self):
        self.open()
        self.page.click(".segmented input[value=chat]")
        self.sampling(max_tokens="400", temperature="0")
        pane = "#view-playground .pane:not([hidden])"
        self.page.click(f"{pane} .segmented input[value=tokens]")
        self.page.type("#message", "Hello!")
        self.page.press("Control+Enter")
        self.page.wait("an answer", lambda: "first token after" in self.page.text(f"{pane} .stats"), 120)
        self.assertNotIn("</s>", self.page.text(f"{pane} .transcript"))
        if "stop" in self.page.text(f"{pane} .stats"):
            self.assertEqual(self.page.text(f"{pane} .token.special"), "∎")

    def test_no_gap_above_the_passkey_when_panels_open(self):
        self.open()
        gap = ("const pane = document.querySelector('.pane-card').getBoundingClientRect();"
               "const key = document.querySelector('.passkey').getBoundingClientRect(); return key.top - pane.bottom")
        before = self.page.script(gap)
        self.page.script("for (const d of document.querySelectorAll('.sampling details')) d.open = true")
        self.assertEqual(self.page.script(gap), before)
        self.assertLess(before, 40)

    def test_the_badge_beside_a_group_says_what_it_counts(self):
        self.open()
        self.assertEqual(self.page.text(".sampling details:first-child .set-count"), "2 set")
        self.assertIn("sent", self.page.attribute(".sampling details:first-child .set-count", "title"))

    def test_generate_without_a_prompt_says_so(self):
        self.open()
        self.page.click(".pane .primary")
        self.wait_text(".pane .notice", "The prompt is empty")
        self.assertEqual(self.page.script("return document.activeElement.id"), "prompt")

    def test_the_head_chosen_in_one_view_is_the_head_of_the_other(self):
        self.open("prior")
        self.page.click(".head-cell[data-head='1/2']")
        self.wait_text(".prior .curve h2", "Layer 1, head 2")
        self.page.click("#tab-attention")
        self.wait_text("#view-attention .stats", "looked most at")
        chosen = "return [...document.querySelectorAll('.attention-choice select')].map((s) => s.value).join('/')"
        self.assertEqual(self.page.script(chosen), "1/2")
        self.page.choose(".attention-choice .field:nth-child(2) select", "0")
        self.page.click("#tab-prior")
        self.wait_text(".prior .curve h2", "Layer 1, head 0")

    def test_a_phone_shows_the_model_and_the_result(self):
        self.page.resize(390, 844)
        self.open()
        self.page.wait("the model's name", lambda: self.page.visible("#model-line"))
        self.assertIn("demo", self.page.text("#model-line"))
        self.page.choose("#passkey-length", "1024")
        self.page.click("#passkey-run")
        self.page.wait("a verdict", lambda: self.page.count(".verdict") == 1, 120)
        inside = ("const box = document.querySelector('.table-scroll').getBoundingClientRect();"
                  "const cell = document.querySelector('.runs tbody td').getBoundingClientRect();"
                  "return cell.left >= box.left && cell.right <= box.right")
        self.assertTrue(self.page.script(inside))
        self.assertIn(self.page.text(".runs tbody td"), ("right", "wrong"))
        self.assertLessEqual(self.page.script("return document.documentElement.scrollWidth"), 390)


class OtherModel(PageTest):
    """A server whose checkpoint is made for the test."""
    checkpoint: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        model = bamtest.random_checkpoint(*cls.checkpoint, parent=folder.name)
        cls.server_flags = ("--model", model, "--served-model-name", "demo")
        super().setUpClass()


class TwelveLayers(OtherModel):
    checkpoint = ("--layers", "16", "--hidden", "64", "--heads", "4")

    def test_layers_out_of_sight_are_announced(self):
        self.open("prior")
        self.page.wait("the map", lambda: self.page.count(".head-row") == 16)
        self.wait_text(".map .scroll-hint", "more layers below")
        self.page.script("const g = document.querySelector('.head-map'); g.scrollTop = g.scrollHeight")
        self.page.wait("the hint gone", lambda: not self.page.visible(".map .scroll-hint"))


class WithoutPrior(OtherModel):
    checkpoint = ("--position-encoding", "rope")

    def test_no_parameters_that_do_not_exist(self):
        self.open("prior")
        self.wait_text("#view-prior", "uses RoPE, which has no prior over distance")
        self.assertEqual(self.page.attribute("#view-prior .empty a", "href"), "#attention")
        self.assertEqual(self.page.script("return [...document.querySelectorAll('.head-cell path')].filter((p) => p.hasAttribute('d')).length"), 0)
        self.wait_text(".facts", "Tiles visited")
        for word in ("θα", "θβ", "50 % within", "Reach"):
            self.assertNotIn(word, self.page.text(".facts"))
        for card in (".curve", ".what-if", ".scatter"):
            self.assertFalse(self.page.visible(f".prior {card}"), card)
        self.page.click("#tab-attention")
        self.wait_text("#view-attention .stats", "looked most at")
        self.assertEqual(self.page.text(".attention-choice .badge"), "rope")


class FixedSlopes(OtherModel):
    checkpoint = ("--position-encoding", "alibi")

    def test_a_slope_is_shown_and_nothing_can_be_turned(self):
        self.open("prior")
        self.wait_text(".facts", "Slope")
        self.assertTrue(self.page.visible(".prior .curve"))
        for word in ("θα", "θβ", "Class"):
            self.assertNotIn(word, self.page.text("#view-prior"))
        for card in (".what-if", ".scatter"):
            self.assertFalse(self.page.visible(f".prior {card}"), card)
        self.assertEqual(self.page.text(".prior .curve .flags"), "Uniform")  # not beside itself


if __name__ == "__main__":
    sys.exit(main(__doc__))

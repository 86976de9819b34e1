"""The page's attention view: all heads, one head at any length, from a token and from a passkey: test_web_attention.py --bam build/bam.

Needs what test_web.py needs.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_harness import main, PageTest  # noqa: E402

CHOSEN = "return [...document.querySelectorAll('.attention-choice select')].map((s) => s.value).join('/')"
SAVED = """
  window.saved = null;
  const click = HTMLAnchorElement.prototype.click;
  HTMLAnchorElement.prototype.click = function () {
    if (!this.download) return click.call(this);
    window.saved = this.download;
  };
  const make = URL.createObjectURL;
  URL.createObjectURL = (blob) => { blob.arrayBuffer().then((b) => { window.savedBytes = [...new Uint8Array(b)]; }); return make(blob); };
  URL.revokeObjectURL = () => {};
"""


class AttentionGrid(PageTest):
    def saved(self, kind):
        self.page.script("window.savedBytes = null")
        self.page.script(f"document.querySelectorAll('#view-attention [data-export={kind}]').forEach((b, i, all) => {{ if (i === all.length - 1) b.click(); }})")
        self.page.wait(f"a saved {kind}", lambda: self.page.script("return window.savedBytes !== null"))
        return bytes(self.page.script("return window.savedBytes"))

    def test_all_heads_then_one(self):
        self.open("attention")
        heads = self.server.request("/v1/prior")["heads"]
        self.page.wait("the grid", lambda: self.page.count(".attention-cell") == len(heads))
        self.assertTrue(all(self.page.script("return [...document.querySelectorAll('.attention-cell path')].map((p) => p.getAttribute('d').length > 0)")))
        self.page.click(".attention-cell[data-head='2/1']")
        self.page.wait("the head chosen", lambda: self.page.script(CHOSEN) == "2/1")
        self.assertEqual(self.page.attribute(".attention-cell[data-head='2/1']", "aria-selected"), "true")
        self.page.wait("its peaks", lambda: self.page.count(".peaks tbody tr") > 3)
        self.page.script("document.querySelector(\".attention-cell[data-head='2/1']\").focus()")
        self.page.press("ArrowRight")
        self.assertEqual(self.page.script("return document.activeElement.dataset.head"), "2/2")

    def test_a_long_text_is_zoomed_by_the_server(self):
        self.open("attention")
        self.wait_text("#view-attention .stats", "looked most at")
        self.page.script("const p = document.querySelector('#attention-prompt'); p.value = 'The sky is blue. '.repeat(3000);"
                         "p.dispatchEvent(new Event('input'))")
        self.page.wait("the long text counted", lambda: int(re.sub(r"\D", "", self.page.text("#view-attention .token-count")) or 0) > 10000)
        self.wait_text("#view-attention .range-text", "per bar", 120)
        self.wait_text(".attention-tokens", "Zoom into")
        self.page.click(".zoom [title='Around the largest weight']")
        self.page.wait("single keys", lambda: "per bar" not in self.page.text("#view-attention .range-text"), 60)
        self.page.wait("tokens", lambda: self.page.count(".attention-tokens .token") > 60)
        self.page.click(".zoom [title='Zoom out']")
        self.page.wait("a wider range", lambda: self.page.count("#view-attention .bar") > 200)
        self.page.click(".zoom [title='The whole text']")
        self.wait_text("#view-attention .range-text", "positions 0 –", 60)

    def test_charts_can_be_saved(self):
        self.open("attention/1/2")
        self.wait_text("#view-attention .stats", "looked most at")
        self.page.script(SAVED)
        image = self.saved("svg").decode()
        self.assertIn("<svg", image)
        self.assertIn("<rect", image)
        self.assertNotIn("class=", image)
        table = self.saved("csv").decode().splitlines()
        self.assertEqual(table[0], "first_key,last_key,weight,largest,prior,token")
        self.assertAlmostEqual(sum(float(row.split(",")[2]) for row in table[1:]), 1, delta=1e-3)
        self.assertEqual(self.saved("png")[:8], b"\x89PNG\r\n\x1a\n")

    def test_a_link_carries_head_and_prompt(self):
        self.open("attention/1/3/p=One%20two%20three%2Ffour")
        self.page.wait("the prompt", lambda: self.page.script("return document.querySelector('#attention-prompt').value") == "One two three/four")
        self.wait_text("#view-attention .stats", "looked most at")
        self.assertEqual(self.page.script(CHOSEN), "1/3")
        self.open("playground/p=Once%20upon")
        self.page.wait("the prompt", lambda: self.page.script("return document.querySelector('#prompt').value") == "Once upon")
        address = self.page.script("return import('/js/links.js').then((m) => m.linkTo({view: 'attention/0/1', prompt: 'a/b c'}))")
        self.assertTrue(address.endswith("/#attention/0/1/p=a%2Fb%20c"), address)


class FromThePlayground(PageTest):
    def test_a_click_on_a_token_opens_the_row_that_made_it(self):
        self.open()
        self.sampling(temperature="0", max_tokens="6")
        self.generate("The pass key is 48213. Remember it. What is the pass key? The pass key is")
        self.page.wait("tokens", lambda: self.page.count(".output .token") >= 5)
        self.page.click(".output .token:nth-child(3)")
        self.page.wait("the attention view", lambda: self.page.visible("#view-attention"))
        self.wait_text(".attention-subject", "Where the model looked when it wrote")
        self.wait_text("#view-attention .stats", "looked most at", 60)
        self.assertFalse(self.page.visible("#attention-prompt"))
        self.page.click(".attention-subject button")
        self.page.wait("the own prompt again", lambda: self.page.visible("#attention-prompt"))

    def test_who_found_the_passkey(self):
        self.open()
        self.page.choose("#passkey-length", "4096")
        self.page.click("#passkey-run")
        self.page.wait("an answer", lambda: self.page.count("#passkey-who") == 1, 120)
        self.page.click("#passkey-who")
        self.wait_text(".attention-subject", "Who found it?")
        self.page.wait("a ranking", lambda: self.page.count(".ranking tbody tr") > 4, 60)
        weights = [float(text.replace("<", "").replace(">", "").rstrip(" %")) for text in
                   self.page.script("return [...document.querySelectorAll('.ranking tbody tr td:nth-child(4)')].map((c) => c.textContent)")]
        self.assertEqual(weights, sorted(weights, reverse=True))
        self.assertGreater(weights[0], 5, "some head looked at the number")
        ranked = self.page.script("return [...document.querySelectorAll('.ranking tbody tr')].map((r) => r.dataset.head)")
        self.page.wait("the best head", lambda: self.page.script(CHOSEN) == ranked[0])
        self.page.wait("the number marked", lambda: self.page.count("#view-attention .span-mark") > 0, 60)
        self.page.click(f".ranking [data-head='{ranked[1]}'] button")
        self.page.wait("the second", lambda: self.page.script(CHOSEN) == ranked[1])


if __name__ == "__main__":
    sys.exit(main(__doc__))

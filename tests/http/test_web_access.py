"""The page for who has no mouse or cannot see well: names, keyboard, contrast: test_web_access.py --bam build/bam.

Needs what test_web.py needs.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_harness import main, PageTest  # noqa: E402

VIEWS = ("playground", "prior", "attention", "engine")
READY = {"playground": (".sampling .set-count", "set"), "prior": (".facts", "Tiles visited"),
         "attention": ("#view-attention .stats", "looked most at"), "engine": (".tiles", "Prefix cache")}
WIDGETS = {"button", "checkbox", "combobox", "gridcell", "link", "listbox", "radio", "slider", "spinbutton", "tab", "textbox"}

# Every visible piece of text with its contrast against what is behind it, where that is below WCAG AA. What is disabled
# is exempt, as there.
FAINT = """
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { const layers = [];
    for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); layers.push(c); if (c[3] === 1) break; }
    return layers.reverse().reduce((under, c) => over(c, under), [255, 255, 255, 1]); };
  const opacity = (e) => { let all = 1; for (; e; e = e.parentElement) all *= Number(getComputedStyle(e).opacity); return all; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility({checkVisibilityCSS: true}) || e.closest('[disabled], [aria-hidden=true], option, script, style, .disabled')) continue;
    const style = getComputedStyle(e), back = behind(e);
    if (style.backgroundImage !== 'none') continue;
    const ink = rgba(e.closest('svg') ? style.fill : style.color);
    const text = over([ink[0], ink[1], ink[2], ink[3] * opacity(e)], back);
    const [a, b] = [light(text), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${node.data.trim().slice(0, 30)} (${e.tagName}.${e.className.baseVal ?? e.className}): ${ratio.toFixed(2)}`);
  }
  return found;
"""

# Where the focus is, and whether it can be seen.
FOCUS = """
  const e = document.activeElement, style = getComputedStyle(e);
  const ring = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none';
  // A hidden radio's ring is drawn by its label.
  const label = e.closest('label'), shown = label ? getComputedStyle(label) : style;
  const beside = e.nextElementSibling ? getComputedStyle(e.nextElementSibling) : style;
  const drawn = ring || [shown, beside].some((s) => (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0) || s.boxShadow !== 'none');
  const again = window.reached.has(e);
  window.reached.add(e);
  return {name: `${e.tagName}.${e.className?.baseVal ?? e.className}#${e.id}[${e.name ?? ''}]`, again, drawn};
"""


class Access(PageTest):
    def show(self, view):
        self.open(view)
        self.wait_text(*READY[view])

    def test_every_control_has_a_name(self):
        for view in VIEWS:
            self.show(view)
            nameless = [node for node in self.page.devtools("Accessibility.getFullAXTree")["nodes"]
                        if not node["ignored"] and node["role"]["value"] in WIDGETS and not node.get("name", {}).get("value", "").strip()]
            described = [self.page.devtools("DOM.describeNode", backendNodeId=node["backendDOMNodeId"])["node"] for node in nameless]
            self.assertEqual([(node["nodeName"], node.get("attributes")) for node in described], [], view)

    def test_headings_and_landmarks(self):
        for view in VIEWS:
            self.show(view)
            levels = self.page.script("return [...document.querySelectorAll('h1, h2, h3, h4')].filter((e) => e.checkVisibility())"
                                      ".map((e) => Number(e.tagName[1]))")
            self.assertEqual(levels.count(1), 1, view)
            self.assertTrue(all(after <= before + 1 for before, after in zip(levels, levels[1:])), (view, levels))
            self.assertEqual(self.page.count("main"), 1)
        self.assertEqual(self.page.script("return document.documentElement.lang"), "en")

    def test_the_tab_key_goes_everywhere_and_the_focus_is_seen(self):
        for view in VIEWS:
            self.show(view)
            self.page.script("document.activeElement.blur(); getSelection().removeAllRanges(); window.reached = new Set()")
            for _ in range(200):
                self.page.press("Tab")
                focus = self.page.script(FOCUS)
                if focus["name"].startswith("BODY") or focus["again"]:
                    break
                self.assertTrue(focus["drawn"], (view, focus))
            # What Tab passes over is reached by arrow keys: the other members of a group.
            missed = self.page.script("""
              const group = '[role=grid], [role=tablist], .segmented, .output, .attention-tokens';
              const groups = new Set([...window.reached].map((e) => e.closest(group)).filter(Boolean));
              return [...document.querySelectorAll('a[href], button:not([disabled]), input:not([disabled]), select, textarea, summary')]
                .filter((e) => e.checkVisibility() && e.tabIndex >= 0 && !window.reached.has(e) && !groups.has(e.closest(group)))
                .map((e) => `${e.tagName}.${e.className}#${e.id} ${e.textContent.slice(0, 20)}`);""")
            self.assertEqual(missed, [], view)

    def test_no_text_is_faint(self):
        for scheme in ("light", "dark"):
            self.page.prefer_colors(scheme)
            for view in VIEWS:
                self.show(view)
                self.assertEqual(self.page.script(FAINT), [], (scheme, view))
            self.open()
            self.page.click(".segmented input[value=chat]")
            self.sampling(max_tokens="4")
            self.page.type("#message", "Hello!")
            self.page.press("Control+Enter")
            self.page.wait("an answer", lambda: "first token after" in self.page.text("#view-playground .pane:not([hidden]) .stats"))
            self.page.script("document.activeElement.blur()")
            self.assertEqual(self.page.script(FAINT), [], (scheme, "chat"))


if __name__ == "__main__":
    sys.exit(main(__doc__))

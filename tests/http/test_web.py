"""The built-in page in headless Chromium against a real server: test_web.py --bam build/bam [unittest arguments].

Needs Debian's chromium and chromium-driver, and nothing from PyPI. Without them it says so and is skipped (exit code 77).
"""

import math
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bamtest  # noqa: E402
from page_harness import LongRequest, main, OPTIONS, PageTest, Server  # noqa: E402

VIEWS = ("playground", "prior", "attention", "engine")


class Playground(PageTest):
    def test_generate_shows_tokens_with_probabilities(self):
        self.open()
        self.sampling(max_tokens="24", temperature="0", ignore_eos=True)
        self.generate("Once upon a time")
        self.assertEqual(self.page.count(".pane .token"), 24)
        reply = self.server.request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0,
                                                        "ignore_eos": True, "logprobs": 5})
        choice = reply["choices"][0]
        shown = self.page.script("return document.querySelector('.pane .output .plain-text').textContent")
        self.assertEqual(shown, choice["text"])
        probabilities = self.page.script("return [...document.querySelectorAll('.pane .token')].map((t) => "
                                         "Number(t.style.getPropertyValue('--p')))")
        for seen, logprob in zip(probabilities, choice["logprobs"]["token_logprobs"], strict=True):
            self.assertAlmostEqual(seen, math.exp(logprob), delta=2e-3)
        self.assertIn("24 tokens", self.page.text(".pane .stats"))

    def test_alternatives_on_hover_and_on_focus(self):
        self.open()
        self.sampling(max_tokens="6", alternatives="4", temperature="0", ignore_eos=True)
        self.generate("The")
        self.page.hover(".pane .token:nth-child(3)")
        self.page.wait("alternatives on hover", lambda: self.page.visible("#token-popover"))
        self.assertGreaterEqual(self.page.count("#token-popover li"), 4)
        self.page.hover("h1")
        self.page.wait("alternatives gone", lambda: not self.page.visible("#token-popover"))
        self.page.script("document.querySelector('.pane .token').focus()")
        first = self.page.text("#token-popover p")
        self.page.press("ArrowRight")
        self.page.wait("the next token's alternatives", lambda: self.page.text("#token-popover p") != first)
        self.assertEqual(self.page.script("return document.activeElement.getAttribute('aria-describedby')"),
                         "token-popover")

    def test_prompt_tokens_are_counted(self):
        self.open()
        text = "The grass is green. The sky is blue."
        self.page.type("#prompt", text)
        expected = self.server.request("/tokenize", {"prompt": text})["count"]
        self.page.wait("the count", lambda: self.page.text(".pane-card .token-count").startswith(f"{expected} of"))

    def test_stop_ends_the_request_on_the_server(self):
        self.open()
        self.sampling(max_tokens="100000", ignore_eos=True)
        self.page.type("#prompt", "Once")
        self.page.click(".pane .primary")
        self.page.wait("tokens", lambda: self.page.count(".pane .token") > 3)
        self.page.press("Escape")
        self.wait_text(".pane .stats", "stopped")
        self.page.wait("no live request", lambda: self.server.request("/v1/requests")["data"] == [])

    def test_regenerate_and_seed(self):
        self.open()
        text = "return document.querySelector('.pane .output .plain-text').textContent"
        self.sampling(max_tokens="32", temperature="1.5", seed="7", ignore_eos=True)
        self.generate("Once")
        first = self.page.script(text)
        for seed, same in (("7", True), ("8", False)):
            self.sampling(seed=seed)
            self.page.script("document.querySelector('.pane .stats').textContent = ''")
            self.page.click(".pane .actions button:nth-child(3)")
            self.wait_text(".pane .stats", "first token after")
            self.assertEqual(self.page.script(text) == first, same)

    def test_several_choices_and_a_format(self):
        self.open()
        self.sampling(max_tokens="8", n="3", temperature="1", response_format="regex", constraint="[0-9]{4}")
        self.generate("The number is")
        texts = self.page.script("return [...document.querySelectorAll('.output .plain-text')].map((e) => e.textContent)")
        self.assertEqual(len(texts), 3)
        for text in texts:
            self.assertRegex(text, r"^[0-9]{4}$")

    def test_a_bad_field_is_named_and_focused(self):
        self.open()
        self.sampling(temperature="hot")
        self.page.type("#prompt", "Once")
        self.page.click(".pane .primary")
        self.wait_text(".pane .notice", "Temperature must be a number")
        self.assertEqual(self.page.script("return document.activeElement.name"), "temperature")

    def test_chat(self):
        self.open()
        self.page.click(".segmented input[value=chat]")
        self.sampling(max_tokens="16")
        for turn in ("Hello!", "And now?"):
            self.page.type("#message", turn)
            self.page.press("Control+Enter")
            self.page.wait("an answer", lambda: "first token after" in self.page.text("#view-playground .pane:not([hidden]) .stats"))
            self.page.script("document.querySelector('.pane:not([hidden]) .stats').textContent = ''")
        self.assertEqual(self.page.count(".message.user"), 2)
        self.assertEqual(self.page.count(".message.assistant"), 2)
        self.page.wait("the count", lambda: "tokens" in self.page.text(".pane-card .token-count"))

    def test_model_text_cannot_become_markup(self):
        self.open()
        self.sampling(max_tokens="1", echo=True)
        self.generate("<img src=x onerror=alert(1)><b>bold</b>")
        self.assertEqual(self.page.count(".output img, .output b"), 0)
        self.assertIn("<b>bold</b>", self.page.text(".output"))


class Passkey(PageTest):
    def run_passkey(self, length: int, key: str, depth: int):
        self.page.choose("#passkey-length", str(length))
        self.page.script("const r = document.querySelector('.passkey input[type=range]'); r.value = arguments[0];"
                         "r.dispatchEvent(new Event('input'))", depth)
        self.page.type(".passkey input[type=text]", key)
        self.page.click("#passkey-run")
        self.page.wait("a verdict", lambda: self.page.count(".verdict") == 1, 120)
        return self.page.attribute(".verdict", "data-verdict"), self.page.text(".answer")

    def test_passkey_is_hidden_read_and_judged(self):
        self.open()
        for length, key, depth in ((1024, "48213", 50), (4096, "90627", 20)):
            verdict, answer = self.run_passkey(length, key, depth)
            digits = "".join(c for c in answer if c.isdigit())
            self.assertEqual(verdict, "right" if digits.startswith(key) else "wrong")
            self.assertEqual(verdict, "right", f"the demo model must find {key} in {length} tokens, it said “{answer}”")
            self.assertIn(f"{length:,} tokens read", self.page.text(".passkey .stats"))
        self.assertEqual(self.page.count(".runs tbody tr"), 2)

    def test_prompt_is_the_paper_s_to_the_token(self):
        """The ids that the page builds are those of the text, at every length and depth."""
        self.open()
        build = """
          const [length, depth, key, done] = arguments;
          import('/js/passkey_prompt.js').then(async (m) => {
            const encode = async (text) => (await (await fetch('/tokenize', {method: 'POST', body: JSON.stringify(
              {prompt: text, add_special_tokens: false}), headers: {'content-type': 'application/json'}})).json()).tokens;
            const {ids, lineAt} = m.assemble(await m.encodePieces(encode, key), length, depth);
            done({ids: [...ids], lineAt});
          });"""
        for length, depth in ((512, 0.0), (700, 0.31), (1024, 0.5), (2000, 1.0)):
            built = self.page.command("POST", "/execute/async", {"script": build, "args": [length, depth, "48213"]})
            self.assertEqual(len(built["ids"]), length)
            text = self.server.request("/detokenize", {"tokens": built["ids"]})["prompt"]
            line = "The pass key is 48213. Remember it. 48213 is the pass key."
            self.assertTrue(text.lstrip().startswith("There is an important info hidden inside a lot of irrelevant text."))
            self.assertTrue(text.endswith("What is the pass key? The pass key is"))
            self.assertEqual(text.count(line), 1)
            self.assertAlmostEqual(built["lineAt"] / length, depth, delta=0.12 if length < 1000 else 0.06)

    def test_stop(self):
        self.open()
        self.page.choose("#passkey-length", "262144")
        if self.page.script("return document.querySelector('#passkey-length').selectedOptions[0].disabled"):
            self.skipTest("the server does not take prompts of that length")
        self.page.click("#passkey-run")
        self.page.wait("reading", lambda: "tokens/s" in self.page.text(".passkey .stats"), 60)
        self.page.press("Escape")
        self.wait_text(".passkey .stats", "Stopped")
        self.page.wait("no live request", lambda: self.server.request("/v1/requests")["data"] == [])


class Engine(PageTest):
    def test_cancel_a_request(self):
        self.open("engine")
        self.wait_text("#view-engine", "No requests right now")
        request = LongRequest(self.server)
        self.addCleanup(request.join, 30)
        self.assertTrue(request.started.wait(30))
        card = f".request[data-id='{request.id}']"
        self.page.wait("its card", lambda: self.page.count(card) == 1)
        self.wait_text(card, "tokens written")
        self.page.click(f"{card} .danger")
        request.join(30)
        self.assertEqual(request.finish_reason, "abort")
        self.page.wait("the card gone", lambda: self.page.count(card) == 0)

    def test_numbers_are_those_of_the_metrics(self):
        self.server.request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True})
        self.open("engine")
        self.wait_text(".tiles", "Prefix cache")
        self.wait_text("#view-engine .pages + .legend", "used")
        health = self.server.request("/health")
        total = health["kv_pages"]["total"]
        self.assertIn(f"{total:,} pages", self.page.text("#view-engine"))
        request = LongRequest(self.server)
        self.addCleanup(request.join, 30)
        self.assertTrue(request.started.wait(30))
        charts = ".chart-card[aria-label='Tokens per second'] .line"
        self.page.wait("a line in the chart", lambda: len(self.page.attribute(f"{charts}.series-b", "d") or "") > 20)
        self.server.request(f"/v1/requests/{request.id}/cancel", {})

    def test_stages_are_shown_where_there_are_several(self):
        self.open("engine")
        self.wait_text(".tiles", "Prefix cache")
        self.assertFalse(self.page.visible(".stages"))
        if not (pathlib.Path(OPTIONS.bam).parent / "libbam_gloo.so").exists():
            self.skipTest("SKIPPED: no libbam_gloo.so here (make cluster)")
        with Server("--stages", "2") as server:
            server.request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True})
            stages = server.request("/props")["stages"]
            self.page.open(f"{server.url}/#engine")
            self.page.wait("a row for each stage", lambda: self.page.count(".stages tbody tr") == 2)
            for number, stage in enumerate(stages):
                row = self.page.text(f".stages tr[data-stage='{number}']")
                self.assertIn(f"{stage['first_layer']} – {stage['first_layer'] + stage['layers'] - 1}", row)
                self.assertIn(f"of {stage['kv_pages']['total']:,}", row)
                self.assertIn(stage["device"], row)
            self.assertIn("no rank was lost", self.page.text(".stages"))
            self.page.open("about:blank")
        self.page.requested_urls()  # those of the other server

    def test_polling_stops_when_the_view_is_left(self):
        self.open("engine")
        self.wait_text(".tiles", "Prefix cache")
        self.page.click("#tab-prior")
        self.page.wait("left", lambda: self.page.visible("#view-prior"))
        time.sleep(1.5)
        self.page.requested_urls()
        time.sleep(2.5)
        self.assertEqual([u for u in self.page.requested_urls() if u.endswith("/metrics")], [])


class Appearance(PageTest):
    BACKGROUND = "return getComputedStyle(document.documentElement).backgroundColor"

    def brightness(self) -> float:
        numbers = self.page.script(self.BACKGROUND).split("(")[1].rstrip(")").replace(",", " ").split()[:3]
        return sum(float(n) for n in numbers) / 3

    def test_dark_mode_by_system_and_by_choice(self):
        self.page.prefer_colors("dark")
        self.open()
        self.assertLess(self.brightness(), 60)
        self.page.click("#theme")  # system -> light
        self.assertGreater(self.brightness(), 200)
        self.visit()
        self.assertGreater(self.brightness(), 200, "the choice is remembered")
        self.page.click("#theme")  # light -> dark
        self.page.prefer_colors("light")
        self.assertLess(self.brightness(), 60)
        self.page.click("#theme")  # dark -> system
        self.assertGreater(self.brightness(), 200)

    def test_no_horizontal_scrolling_at_any_width(self):
        for width in (320, 375, 768, 1024, 1280):
            self.page.resize(width, 812, mobile=width < 500)
            for view in VIEWS:
                self.open(view)
                if view == "playground":
                    self.sampling(max_tokens="48")
                    self.page.script("for (const d of document.querySelectorAll('.sampling details')) d.open = true")
                    self.generate("Once upon a time")
                time.sleep(0.3)
                self.assertLessEqual(self.page.script("return document.documentElement.scrollWidth"), width, (view, width))
                wide = self.page.script(
                    "return [...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && !e.closest('.table-scroll')"
                    " && !e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 1)"
                    ".map((e) => e.tagName + '.' + e.className)")
                self.assertEqual(wide, [], (view, width))

    def test_text_has_contrast(self):
        """WCAG AA (4.5:1) for the colours that carry text, on the backgrounds they are used on."""
        measure = """
          const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
          const probe = document.body.appendChild(document.createElement('i'));
          const luminance = (name) => {
            probe.style.color = `var(${name})`;
            canvas.fillStyle = getComputedStyle(probe).color;
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
              .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          const pairs = arguments[0].map(([a, b]) => [a, b, ratio(luminance(a), luminance(b))]);
          probe.remove();
          return pairs;"""
        pairs = [[text, ground] for ground in ("--card", "--paper") for text in ("--ink", "--ink-2", "--accent", "--good", "--bad")]
        pairs += [["--ink-3", "--card"], ["--on-accent", "--accent"], ["--bad", "--bad-wash"], ["--accent", "--accent-wash"],
                  ["--ink", "--token-low"], ["--ink", "--token-mid"], ["--ink", "--token-high"],
                  ["--local", "--card"], ["--heavy", "--card"], ["--retrieval", "--card"], ["--uniform", "--card"]]
        for scheme in ("light", "dark"):
            self.page.prefer_colors(scheme)
            self.open()
            for text, ground, ratio in self.page.script(measure, pairs):
                self.assertGreaterEqual(ratio, 4.5, (scheme, text, ground))

    def test_controls_have_names(self):
        for view in VIEWS:
            self.open(view)
            time.sleep(0.3)
            nameless = self.page.script(
                "return [...document.querySelectorAll('button, input, select, textarea, [role=tab], svg[role=img]')]"
                ".filter((e) => e.checkVisibility() && !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))"
                ".map((e) => e.outerHTML.slice(0, 120))")
            self.assertEqual(nameless, [], view)


class Keyboard(PageTest):
    def focused(self, expression: str) -> str:
        return self.page.script(f"return document.activeElement?.{expression} ?? ''")

    def test_everything_without_a_mouse(self):
        self.open()
        self.page.press("Tab")
        self.assertEqual(self.focused("className"), "skip-link")
        self.page.press("Tab")
        self.assertEqual(self.focused("id"), "tab-playground")
        outline = self.page.script("return getComputedStyle(document.activeElement).outlineStyle")
        self.assertNotEqual(outline, "none", "focus must be visible")
        for name in ("prior", "attention", "engine", "playground"):
            self.page.press("ArrowRight")
            self.page.wait(name, lambda name=name: self.page.visible(f"#view-{name}"))
            self.assertEqual(self.focused("id"), f"tab-{name}")
        self.page.press("/")
        self.assertEqual(self.focused("id"), "prompt")
        self.page.press(*"Once")
        self.page.press("Control+Enter")
        self.wait_text(".pane .stats", "first token after", 60)
        self.page.script("document.activeElement.blur()")
        self.page.press("2")
        self.page.wait("the prior", lambda: self.page.count(".head-cell[aria-selected=true]") == 1)
        self.page.press("?")
        self.page.wait("help", lambda: self.page.visible("#help-dialog"))
        self.page.press("Escape")
        self.page.wait("help closed", lambda: not self.page.visible("#help-dialog"))

    def test_heads_by_arrow_keys(self):
        self.open("prior/0/0")
        self.page.wait("a head", lambda: self.page.count(".head-cell[aria-selected=true]") == 1)
        self.page.script("document.querySelector('.head-cell[aria-selected=true]').focus()")
        self.page.press("ArrowRight", "ArrowDown", "Enter")
        self.wait_text(".prior .curve h2", "Layer 1, head 1")
        self.assertEqual(self.focused("dataset.head"), "1/1")


class WithKey(PageTest):
    api_key = "open-sesame-42"
    expected_console = ("401",)

    def setUp(self):
        super().setUp()
        self.page.open(self.server.url)
        self.page.script("sessionStorage.clear()")
        self.page.open("about:blank")

    def wait_for_a_round(self):
        """The header has asked for the server's state twice more."""
        asked = lambda: self.page.script("return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/health')).length")
        before = asked()
        self.page.wait("another round", lambda: asked() >= before + 2)

    def test_key_is_asked_once_and_kept_for_the_session(self):
        # The page is there without a key and greets with its own question.
        address = self.server.url
        self.page.open(f"{address}/")
        self.page.wait("the question", lambda: self.page.visible("#key-dialog"))
        self.assertIn("asks for an API key", self.page.text("#key-message"))
        self.page.type("#key-input", self.api_key)
        self.page.press("Enter")
        self.page.wait("the page", lambda: "demo" in self.page.text("#model-line"))
        self.assertFalse(self.page.visible("#key-dialog"))
        # A key that the server does not take: the page asks by itself, once for all of its calls.
        self.page.script("sessionStorage.setItem('bam.key', 'stale')")
        self.page.click("#tab-engine")
        self.page.wait("the question", lambda: self.page.visible("#key-dialog"))
        self.assertIn("did not accept", self.page.text("#key-message"))
        self.page.type("#key-input", self.api_key)
        self.page.press("Enter")
        self.wait_text(".tiles", "Prefix cache")
        self.assertFalse(self.page.visible("#key-dialog"))
        self.assertEqual(self.page.script("return sessionStorage.getItem('bam.key')"), self.api_key)
        self.assertNotIn(self.api_key, self.page.script("return JSON.stringify(localStorage) + location.href"))
        # After a reload nobody is asked again.
        self.page.open("about:blank")
        self.page.open(f"{address}/#prior")
        self.page.wait("the prior", lambda: self.page.count(".head-cell[aria-selected=true]") == 1)
        self.assertFalse(self.page.visible("#key-dialog"))

    def test_declined_question_is_not_repeated(self):
        self.page.open(self.server.url)
        self.page.script("sessionStorage.setItem('bam.key', arguments[0])", self.api_key)
        self.page.open("about:blank")
        self.page.open(f"{self.server.url}/#engine")
        self.wait_text(".tiles", "Prefix cache")
        self.page.script("sessionStorage.setItem('bam.key', 'stale')")
        self.page.wait("the question", lambda: self.page.visible("#key-dialog"))
        self.page.press("Escape")
        self.wait_text("#view-engine .notice", "This server needs a key")
        self.wait_for_a_round()
        self.assertFalse(self.page.visible("#key-dialog"))
        self.wait_text("#status", "needs a key")
        self.page.click("#view-engine .notice button")
        self.page.wait("the question again", lambda: self.page.visible("#key-dialog"))
        self.page.type("#key-input", self.api_key)
        self.page.press("Enter")
        self.page.wait("the notice gone", lambda: not self.page.visible("#view-engine .notice"))
        self.wait_text("#status", "ready")

    def test_declined_at_the_door(self):
        self.page.open(self.server.url)
        self.page.wait("the question", lambda: self.page.visible("#key-dialog"))
        self.page.press("Escape")
        self.wait_text("#status", "needs a key")
        self.wait_for_a_round()
        self.assertFalse(self.page.visible("#key-dialog"))
        self.page.click("#key-button")
        self.page.wait("the question", lambda: self.page.visible("#key-dialog"))
        self.page.type("#key-input", self.api_key)
        self.page.press("Enter")
        self.wait_text("#status", "ready")
        self.page.wait("the model", lambda: "demo" in self.page.text("#model-line"))


class Trouble(PageTest):
    server_flags = ("--max-num-seqs", "1", "--max-queue", "1", *bamtest.UNREAD)
    # 503: a server that has come back answers so until its model is loaded.
    expected_console = ("429", "503", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE",
                        "ERR_INCOMPLETE_CHUNKED_ENCODING")

    def test_full_queue_says_when_to_come_back(self):
        self.open()
        running = [LongRequest(self.server)]
        running[0].started.wait(30)
        running.append(LongRequest(self.server))
        self.page.wait("a full queue", lambda: self.server.request("/v1/requests")["waiting"] == 1)
        self.page.type("#prompt", "Once")
        self.page.click(".pane .primary")
        self.wait_text(".pane .notice", "The queue is full")
        self.wait_text(".pane .notice button", "Try again in")
        for request in self.server.request("/v1/requests")["data"]:
            self.server.request(f"/v1/requests/{request['id']}/cancel", {})
        for request in running:
            request.join(30)
        # The server may have told of minutes; who does not want to wait sends again.
        self.sampling(max_tokens="4")
        self.page.click(".pane .primary")
        self.wait_text(".pane .stats", "first token after")

    def test_server_goes_away_and_comes_back(self):
        with Server() as server:
            self.page.open(f"{server.url}/#engine")
            self.wait_text(".tiles", "Prefix cache")
            server.kill()
            self.page.wait("the banner", lambda: self.page.visible("#offline"))
            self.wait_text("#status", "out of reach")
            with Server(port=server.port):
                self.page.wait("the banner gone", lambda: not self.page.visible("#offline"))
                self.wait_text("#status", "ready")
                self.page.open("about:blank")
        self.page.requested_urls()  # those of the other server


if __name__ == "__main__":
    sys.exit(main(__doc__))

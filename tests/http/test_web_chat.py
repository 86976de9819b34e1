"""Conversations of the page: kept, branched, exported, formatted: test_web_chat.py --bam build/bam [unittest arguments].

Needs what test_web.py needs.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_harness import main, PageTest  # noqa: E402

PANE = "#view-playground .pane:not([hidden])"
MESSAGES = ("return [...document.querySelectorAll('.message')].map((m) => "
            "[m.classList[1], m.querySelector('.plain-text, .markdown').textContent])")


class Chat(PageTest):
    def begin(self):
        self.open()
        self.page.click(".segmented input[value=chat]")
        self.sampling(max_tokens="8", temperature="0", ignore_eos=True)

    def say(self, text):
        self.page.script("document.querySelector(`${arguments[0]} .stats`).textContent = ''", PANE)
        self.page.type("#message", text)
        self.page.press("Control+Enter")
        self.wait_text(f"{PANE} .stats", "first token after", 60)

    def test_a_conversation_survives_a_reload(self):
        self.begin()
        self.say("Hello there")
        self.say("And now?")
        seen = self.page.script(MESSAGES)
        self.assertEqual([role for role, _ in seen], ["user", "assistant", "user", "assistant"])
        self.visit()
        self.page.wait("the messages", lambda: self.page.count(".message") == 4)
        self.assertEqual(self.page.script(MESSAGES), seen)
        self.assertEqual(self.page.script("return document.querySelector('.sampling [name=max_tokens]').value"), "8")
        self.page.click(f"{PANE} .actions button:nth-of-type(4)")  # New conversation
        self.page.wait("an empty one", lambda: self.page.count(".message") == 0)
        self.say("Another subject")
        names = self.page.script("return [...document.querySelectorAll('#conversation option')].map((o) => o.textContent)")
        self.assertEqual(names, ["New conversation", "Another subject", "Hello there"])
        self.page.script("const s = document.querySelector('#conversation'); s.value = s.options[2].value;"
                         "s.dispatchEvent(new Event('change'))")
        self.page.wait("the first one", lambda: self.page.script(MESSAGES) == seen)

    def test_edit_and_branch_lose_nothing(self):
        self.begin()
        self.say("Hello there")
        self.say("And now?")
        self.page.script("document.querySelectorAll('.message.user')[1].querySelectorAll('.message-actions button')[1].click()")
        self.page.wait("a branch", lambda: self.page.count(".message") == 2)
        self.assertEqual(self.page.script("return document.querySelector('#message').value"), "And now?")
        self.page.script("document.querySelectorAll('.message.assistant')[0].querySelectorAll('.message-actions button')[1].click()")
        names = self.page.script("return [...document.querySelectorAll('#conversation option')].map((o) => o.textContent)")
        self.assertEqual(len(names), 4)
        stored = json.loads(self.page.script("return localStorage.getItem('bam.conversations')"))
        self.assertEqual(sorted(len(each["messages"]) for each in stored), [2, 2, 4])

    def test_export(self):
        self.begin()
        self.say("Hello there")
        self.page.script("window.files = []; URL.createObjectURL = (blob) => { window.files.push(blob); return 'blob:nothing'; };"
                         "HTMLAnchorElement.prototype.click = () => {}")
        self.page.script("for (const b of document.querySelectorAll('.conversations button')) "
                         "if (['JSON', 'Markdown'].includes(b.textContent)) b.click()")
        texts = self.page.command("POST", "/execute/async", {"args": [], "script":
                                  "Promise.all(window.files.map((f) => f.text())).then(arguments[arguments.length - 1])"})
        self.assertEqual([m["role"] for m in json.loads(texts[0])["messages"]], ["user", "assistant"])
        self.assertIn("## user\n\nHello there\n", texts[1])

    def test_a_new_name_and_the_end_of_a_conversation(self):
        self.begin()
        self.say("Hello there")
        self.page.script("window.prompt = () => 'My talk'")
        self.page.click(".conversations button:nth-of-type(1)")
        self.assertIn("My talk", self.page.text("#conversation"))
        self.page.script("window.confirm = (text) => { window.asked = text; return false; }")
        self.page.click(".conversations button:nth-of-type(2)")
        self.assertIn("My talk", self.page.script("return window.asked"))
        self.assertEqual(self.page.count(".message"), 2, "deleted against somebody's will")
        self.page.script("window.confirm = () => true")
        self.page.click(".conversations button:nth-of-type(2)")
        self.page.wait("it is gone", lambda: self.page.count(".message") == 0)
        self.assertNotIn("My talk", self.page.text("#conversation"))


    def keep(self, *answers):
        """Conversations of earlier days, with one question each."""
        self.open()
        kept = [{"id": str(i), "name": f"Talk {i}", "system": "", "messages": [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": text}]}
                for i, text in enumerate(answers)]
        self.page.script("localStorage.setItem('bam.mode', '\"chat\"'); localStorage.setItem('bam.conversations', arguments[0])", json.dumps(kept))
        self.visit()
        self.page.wait("the messages", lambda: self.page.count(".message") == 2)

    def distance_to_end(self):
        return self.page.script("const t = document.querySelector('.transcript'); return t.scrollHeight - t.scrollTop - t.clientHeight")

    def test_the_end_stays_in_sight_unless_somebody_scrolls_back(self):
        self.keep("word\n\n" * 100)
        self.page.wait("its end", lambda: self.distance_to_end() < 8)
        self.sampling(max_tokens="200", ignore_eos=True)
        self.say("And now?")
        self.page.wait("the end of the answer", lambda: self.distance_to_end() < 8)
        self.page.script("document.querySelector('.transcript').scrollTop = 0; return new Promise(requestAnimationFrame)")
        self.page.script("document.querySelector(`${arguments[0]} .stats`).textContent = ''", PANE)
        self.page.script("[...document.querySelectorAll('.pane:not([hidden]) .actions button')].find((b) => b.textContent === 'Regenerate').click()")
        self.page.wait("a new answer, which comes into sight", lambda: self.distance_to_end() < 8)
        self.wait_text(f"{PANE} .stats", "first token after", 60)

    def test_code_can_be_copied(self):
        self.keep("```py\nx = 1\n```")
        self.page.script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        self.page.click(".code-block button")
        self.page.wait("the code", lambda: self.page.script("return window.copied ?? ''") == "x = 1")
        self.wait_text(".code-block button", "Copied")
        # Where the page has no clipboard of its own, as over plain HTTP from another machine, a selected text is copied.
        self.page.script("Object.defineProperty(navigator, 'clipboard', {value: undefined});"
                         "document.execCommand = () => { window.selected = document.activeElement.value; return true; }")
        self.page.click(".message.assistant .message-actions button")
        self.page.wait("the message", lambda: self.page.script("return window.selected ?? ''") == "```py\nx = 1\n```")

    def test_colours_are_explained_where_there_are_some(self):
        self.keep("Hello")
        shown = f"return getComputedStyle(document.querySelector('{PANE} .probability-legend')).visibility"
        self.assertEqual(self.page.script(shown), "hidden")
        self.page.click(f"{PANE} .segmented input[value=tokens]")
        self.assertEqual(self.page.script(shown), "visible")


class HostileAnswer(PageTest):
    ANSWER = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script> [here](javascript:window.pwned=1) **done**"

    def test_an_answer_runs_nothing(self):
        """The model is made to write it, the page shows it, keeps it and shows it again."""
        self.open()
        self.page.click(".segmented input[value=chat]")
        self.sampling(max_tokens="400", response_format="choice", constraint=self.ANSWER)
        self.page.type("#message", "Hello")
        self.page.press("Control+Enter")
        pane = "#view-playground .pane:not([hidden])"
        self.page.wait("an answer", lambda: "first token after" in self.page.text(f"{pane} .stats"), 120)
        for _ in range(2):
            self.page.wait("the answer", lambda: self.page.count(".message.assistant strong") == 1)
            self.assertIn("<script>window.pwned=1</script>", self.page.text(".message.assistant"))
            self.assertEqual(self.page.count(".message img, .message script, .message a[href^=javascript]"), 0)
            self.assertIsNone(self.page.script("return window.pwned ?? null"))
            self.visit("playground")
            self.page.click(".segmented input[value=chat]")


class Markdown(PageTest):
    def render(self, text):
        answer = self.page.command("POST", "/execute/async", {"args": [text], "script":
            "const done = arguments[1]; import('/js/markdown.js').then((m) => { const box = document.createElement('div');"
            "box.append(...m.markdown(arguments[0])); for (const b of box.querySelectorAll('.code-block')) b.replaceWith(b.firstChild);"
            "done(box.innerHTML); }, (e) => done(String(e)))"})
        return answer

    def test_blocks_and_words(self):
        self.open("engine")
        self.assertEqual(self.render("# Title\n\nSome *soft* and **loud** `code`\nnext"),
                         "<h3>Title</h3><p>Some <em>soft</em> and <strong>loud</strong> <code>code</code><br>next</p>")
        self.assertEqual(self.render("- one\n- two\n  more\n\n1. first"), "<ul><li>one</li><li>two more</li></ul><ol><li>first</li></ol>")
        self.assertEqual(self.render("```py\na < b\n```\n> quoted"),
                         "<pre><code>a &lt; b</code></pre><blockquote><p>quoted</p></blockquote>")
        self.assertEqual(self.render("```\nunfinished"), "<pre><code>unfinished</code></pre>")

    def test_lists(self):
        self.open("engine")
        self.assertEqual(self.render("1. one\n\n2. two\n   - a\n   - b\n     c\n\nend"),
                         "<ol><li>one</li><li>two<ul><li>a</li><li>b c</li></ul></li></ol><p>end</p>")
        self.assertEqual(self.render("3. three\n4. four"), '<ol start="3"><li>three</li><li>four</li></ol>')
        self.assertEqual(self.render("- run\n  ```sh\n  ls\n    -l\n  ```\n- done"),
                         "<ul><li>run<pre><code>ls\n  -l</code></pre></li><li>done</li></ul>")
        self.assertEqual(self.render("- one\n1. two"), "<ul><li>one</li></ul><ol><li>two</li></ol>")

    def test_tables(self):
        self.open("engine")
        self.assertEqual(self.render("Here:\n| a | **b** |\n|---|:-:|\n| 1 \\| 2 | `x` |\n\nend"),
                         '<p>Here:</p><div class="table-scroll"><table><thead><tr><th scope="col">a</th><th scope="col"><strong>b</strong></th></tr></thead>'
                         "<tbody><tr><td>1 | 2</td><td><code>x</code></td></tr></tbody></table></div><p>end</p>")
        self.assertEqual(self.render("a | b\nc"), "<p>a | b<br>c</p>")

    def test_nothing_becomes_markup(self):
        self.open("engine")
        for text in ("<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "`<b>`", "# <script>alert(1)</script>"):
            shown = self.render(text)
            self.assertNotRegex(shown, r"<(img|script|b)\b|href=.?javascript", text)
        self.assertIn('rel="noreferrer noopener"', self.render("[site](https://example.com/a)"))


if __name__ == "__main__":
    sys.exit(main(__doc__))

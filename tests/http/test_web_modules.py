"""The page's modules without its face, run in Chromium and compared with an independent computation here:
test_web_modules.py --bam build/bam [unittest arguments]. Needs what test_web.py needs.
"""

import json
import math
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_harness import main, OPTIONS, PageTest  # noqa: E402


class ModuleTest(PageTest):
    def setUp(self):
        super().setUp()
        self.open("engine")

    def evaluate(self, module: str, script: str, *args):
        """The value of script(module, …args), where both live in the page."""
        wrapped = f"""
          const done = arguments[arguments.length - 1];
          import('/js/{module}').then((m) => ({script})(m, ...arguments)).then((value) => done({{value}}),
            (error) => done({{error: String(error)}}));"""
        answer = self.page.command("POST", "/execute/async", {"script": wrapped, "args": list(args)})
        self.assertNotIn("error", answer, answer)
        return answer["value"]


def prior_bias(form: str, head: dict, eps: float, distance: int) -> float:
    """spec: B = -exp(a) (|j-i-mu| + eps)^b, or -(|(j-i-mu) exp(a)| + eps)^b, with j - i = -distance."""
    mu = math.exp(head["theta_mu"]) - math.exp(-head["theta_mu"])
    offset = -distance - mu
    if form == "scale_inside":
        return -((abs(offset * math.exp(head["alpha"])) + eps) ** head["beta"])
    return -math.exp(head["alpha"]) * (abs(offset) + eps) ** head["beta"]


class PriorMath(ModuleTest):
    def test_formula_of_both_forms_against_the_specification(self):
        heads = [{"alpha": a, "beta": b, "theta_mu": t, "seq_scale": s}
                 for a, b, t, s in ((0.3, 0.7, 0.0, 0.1), (-0.4, -0.31, 0.0, 0.19), (1.2, 1.3, -2.0, 0.5), (-2, 0.0, 0.4, 0.3),
                                    (0.0, -1.0, 0.0, 1.0), (-3.5, 0.4, -4.0, 0.05))]
        distances = [0, 1, 2, 3, 7, 50, 511, 4096, 100000, 1048575]
        for form in ("scale_outside", "scale_inside"):
            for ssmax, ssmax_prior in ((True, True), (True, False), (False, True)):
                model = {"prior_form": form, "prior_eps": 1e-5, "ssmax": ssmax, "ssmax_prior": ssmax_prior}
                got = self.evaluate("prior_math.js", "(m, heads, model, distances) => heads.map((h) => "
                                    "distances.map(m.bamLogit(h, model, 1048576)))", heads, model, distances)
                for head, row in zip(heads, got, strict=True):
                    scale = head["seq_scale"] * math.log(1048576) if ssmax and ssmax_prior else 1.0
                    for distance, value in zip(distances, row, strict=True):
                        expected = scale * prior_bias(form, head, 1e-5, distance)
                        self.assertAlmostEqual(value, expected, delta=1e-12 * max(1.0, abs(expected)))

    def test_distribution_is_normalised_and_alibi_is_a_special_case(self):
        model = {"prior_form": "scale_outside", "prior_eps": 0.0, "ssmax": False, "ssmax_prior": False}
        slope = 2 ** (-8 / 8 * 3)
        head = {"alpha": math.log(slope), "beta": 1.0, "theta_mu": 0.0, "seq_scale": 1.0}
        got = self.evaluate("prior_math.js", "(m, head, model) => { const d = new m.Distribution(m.bamLogit(head, model, 5000), 5000);"
                            "const a = new m.Distribution(m.alibiLogit(m.alibiSlope(2, 8)), 5000);"
                            "return {p: [0, 1, 10, 100].map((x) => d.p(x)), a: [0, 1, 10, 100].map((x) => a.p(x)),"
                            "all: d.mass(0, 4999), half: d.quantile(0.5), slopes: [0, 1, 2, 3, 4].map((k) => m.alibiSlope(k, 5))}}",
                            head, model)
        self.assertAlmostEqual(got["all"], 1.0, delta=1e-12)
        ratio = math.exp(-slope)
        for distance, p, a in zip((0, 1, 10, 100), got["p"], got["a"], strict=True):
            expected = (1 - ratio) * ratio**distance / (1 - ratio**5000)
            self.assertAlmostEqual(p, expected, delta=1e-12)
            self.assertAlmostEqual(a, expected, delta=1e-12)
        self.assertEqual(got["half"], math.ceil(math.log(0.5) / math.log(ratio)) - 1)
        # Five heads: the four of 4, then the first of 8 at even indices.
        for seen, expected in zip(got["slopes"], [2**-2, 2**-4, 2**-6, 2**-8, 2**-1], strict=True):
            self.assertAlmostEqual(seen, expected, delta=1e-15)

    REACH = ("(m, heads, model, lengths) => heads.map((h) => lengths.map((n) => {"
             "const r = m.reachAt(h, model, n, 2 ** -20); return Number.isFinite(r) ? r : null; }))")

    def test_reach_is_what_the_server_uses(self):
        prior = self.server.request("/v1/prior")
        got = self.evaluate("prior_math.js", self.REACH, prior["heads"], prior, [prior["max_model_len"]])
        self.assertEqual([row[0] for row in got], [head["reach"] for head in prior["heads"]])

    def test_reach_is_what_inspect_says_at_every_length(self):
        lengths = [1024, 65536, 1048576]
        report = json.loads(subprocess.run([OPTIONS.bam, "inspect", "--model", "demo", "--json", "--at", *map(str, lengths)],
                                           check=True, capture_output=True, text=True).stdout)
        got = self.evaluate("prior_math.js", self.REACH, report["prior"], self.server.request("/v1/prior"), lengths)
        for head, row in zip(report["prior"], got, strict=True):
            self.assertEqual(row, [head["reach"][str(n)] for n in lengths], head)


class Streams(ModuleTest):
    EVENTS = (": ping\n\ndata: {\"a\": 1}\n\ndata: one\ndata: two\n\n: ping\r\n\r\ndata:tight\r\n\r\nevent: x\rdata: ünï\r\r"
              "data: [DONE]\n\n")
    EXPECTED = ['{"a": 1}', "one\ntwo", "tight", "ünï", "[DONE]"]

    def test_events_are_the_same_however_the_bytes_are_cut(self):
        data = list(self.EVENTS.encode())
        cut = """async (m, data, sizes) => {
          const results = [];
          for (const size of sizes) {
            const body = new ReadableStream({start(control) {
              for (let at = 0; at < data.length; at += size) control.enqueue(new Uint8Array(data.slice(at, at + size)));
              control.close();
            }});
            const events = [];
            for await (const event of m.readEvents(body)) events.push(event);
            results.push(events);
          }
          return results;
        }"""
        sizes = [1, 2, 3, 5, 7, 11, 64, 4096]
        for size, events in zip(sizes, self.evaluate("sse.js", cut, data, sizes), strict=True):
            self.assertEqual(events, self.EXPECTED, f"pieces of {size} bytes")

    def test_an_unfinished_event_is_not_delivered(self):
        got = self.evaluate("sse.js", "(m) => new m.SseParser().push('data: whole\\n\\ndata: half')")
        self.assertEqual(got, ["whole"])


class Prometheus(ModuleTest):
    def test_labels_values_and_quantiles(self):
        text = "\n".join([
            "# HELP x y", 'pages{state="free",name="a\\\\b\\"c\\nd"} 3', 'pages{state="used"} 4.5e1', "plain 7",
            't_bucket{le="0.1"} 2', 't_bucket{le="1"} 6', 't_bucket{le="+Inf"} 8', "t_sum 9.5", "t_count 8"])
        got = self.evaluate("prometheus.js", """(m, text) => {
          const metrics = new m.Metrics(text);
          const h = metrics.histogram('t');
          const before = {bounds: h.bounds, counts: [2, 2, 2], sum: 0.2, count: 2};
          return {free: metrics.value('pages', {state: 'free'}), named: metrics.value('pages', {name: 'a\\\\b"c\\nd'}),
            all: metrics.value('pages'), plain: metrics.value('plain'), none: metrics.value('none'),
            median: m.quantile(h, 0.5), most: m.quantile(h, 0.99), mean: m.mean(h),
            delta: m.histogramDelta(h, before).counts, empty: m.quantile(m.histogramDelta(h, h), 0.5)};
        }""", text)
        self.assertEqual(got, {"free": 3, "named": 3, "all": 48, "plain": 7, "none": 0, "median": 0.1 + 0.9 * 2 / 4,
                               "most": 1, "mean": 9.5 / 8, "delta": [0, 4, 6], "empty": None})


class PromptCounter(ModuleTest):
    def totals(self, readings):
        """readings: (prompt_tokens_total, prefix_cache_hits_total, [processed tokens of live prefills])"""
        return self.evaluate("prompt_counter.js", """(m, readings) => {
          const counter = new m.PromptCounter();
          return readings.map(([prompt, hits, live]) => counter.add(
            {value: (name) => (name === 'bam_prompt_tokens_total' ? prompt : hits)},
            live.map((processed) => ({state: 'prefill', processed_tokens: processed}))));
        }""", readings)

    def test_a_long_prompt_counts_while_it_is_read(self):
        self.assertEqual(self.totals([(0, 0, []), (0, 0, [1000]), (0, 0, [3000]), (4000, 0, []), (4000, 0, [])]),
                         [None, 0, 1000, 3000, 4000])

    def test_readings_of_different_instants_make_no_spikes(self):
        # Cached tokens seen in the request before they are in the counter; a finished prompt seen twice; one not seen at all.
        self.assertEqual(self.totals([(0, 0, []), (0, 0, [900]), (0, 900, [950]), (0, 900, [1000])]), [None, 0, 50, 50])
        self.assertEqual(self.totals([(0, 0, [500]), (1000, 0, [1000]), (1000, 0, []), (1000, 0, [])]), [None, 500, 1000, 1000])
        self.assertEqual(self.totals([(0, 0, [500]), (0, 0, [600]), (0, 0, []), (1000, 0, []), (1000, 0, [])]),
                         [None, 500, 500, 500, 1000])

    def test_a_cancelled_prompt_does_not_block_the_count(self):
        self.assertEqual(self.totals([(0, 0, [9000]), (0, 0, [9000]), (0, 0, []), (0, 0, []), (0, 0, [100]), (0, 0, [300]),
                                      (0, 0, [400])])[-1], 9000 + 300)


if __name__ == "__main__":
    sys.exit(main(__doc__))

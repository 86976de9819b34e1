#include <cctype>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/client/bench_report.h"
#include "app/client/bench_result.h"
#include "app/client/completion_call.h"
#include "app/client/heat_map.h"
#include "app/client/line_chart.h"
#include "app/client/passkey_report.h"
#include "app/client/perplexity.h"
#include "app/client/terminal.h"

namespace bam::client {
namespace {

using nlohmann::json;

// Every tag closed in order, attributes quoted, no bare '<' or '&': what an XML parser would insist on.
// Returns the first fault, or nothing.
std::string markup_fault(const std::string& text, const std::set<std::string>& void_tags = {}) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      if (end == text.npos || end - at > 8) return "bare & near: " + text.substr(at, 30);
    }
    if (text[at] != '<') {
      ++at;
      continue;
    }
    if (text.compare(at, 2, "<!") == 0) {
      at = text.find('>', at) + 1;
      continue;
    }
    const bool closing = text[at + 1] == '/';
    size_t i = at + (closing ? 2 : 1), begin = i;
    while (i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == ':')) ++i;
    const std::string name = text.substr(begin, i - begin);
    if (name.empty()) return "bare < near: " + text.substr(at, 30);
    bool quoted = false;
    while (i < text.size() && (quoted || text[i] != '>')) {
      if (text[i] == '"') quoted = !quoted;
      if (text[i] == '<') return "< inside a tag near: " + text.substr(at, 60);
      ++i;
    }
    if (i >= text.size()) return "tag never ends: " + name;
    const bool self_closing = text[i - 1] == '/';
    if (closing) {
      if (open.empty() || open.back() != name) return "unexpected </" + name + ">";
      open.pop_back();
    } else if (!self_closing && void_tags.count(name) == 0) {
      open.push_back(name);
      if (name == "style") {
        i = text.find("</style>", i) - 1;
      }
    }
    at = i + 1;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

std::string html_fault(const std::string& html) { return markup_fault(html, {"meta", "br"}); }

size_t count_of(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++n;
  return n;
}

PasskeyRun sample_run(const std::string& label, int misses) {
  PasskeyRun run;
  run.label = label;
  run.header = {{"config", {{"task", "passkey"}, {"prompts", "ids"}, {"filler", "repeated"}}},
                {"target", {{"model", "m<odel> & \"co\""}}}};
  for (const int64_t length : {512, 1024, 65536}) {
    for (int d = 0; d < 5; ++d) {
      PasskeyRecord r;
      r.length = length, r.depth = d / 4.0;
      r.score = misses-- > 0 ? 0 : 1;
      r.expected = {"12345"};
      r.output = "<b>&\"54321\" \n";
      r.prompt_tokens = length, r.cached_tokens = 0;
      r.ttft_ms = static_cast<double>(length) / 10, r.e2e_ms = r.ttft_ms + 5, r.tpot_ms = 1;
      r.server_rss_bytes = 3e8;
      run.records.push_back(r);
    }
  }
  return run;
}

TEST(Report, MarkupCheckerSeesFaults) {
  EXPECT_EQ(markup_fault("<a b=\"c>d\"><e/>x &amp; y</a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=\"c></a>", "a & b", "1 < 2", "<a <b/></a>"}) {
    EXPECT_NE(markup_fault(bad), "") << bad;
  }
}

TEST(Report, PasskeyPageIsWholeAndSelfContained) {
  const Report report = make_passkey_report({sample_run("one <&> \"label\"", 2)}, "");
  const std::string html = report.html();
  EXPECT_EQ(html_fault(html), "");
  EXPECT_EQ(html.find("http://"), html.npos);  // nothing is fetched, not even a namespace
  EXPECT_EQ(html.find("https://"), html.npos);
  EXPECT_EQ(html.find("<script"), html.npos);
  EXPECT_NE(html.find("prefers-color-scheme:dark"), html.npos);
  EXPECT_EQ(html.find("<b>&\""), html.npos);  // model output is escaped
  EXPECT_EQ(html.find("nan"), html.npos);
  EXPECT_NE(html.find("86.7 %"), html.npos);  // 13 of 15
  EXPECT_NE(html.find("one &lt;&amp;&gt;"), html.npos);
}

TEST(Report, HeatMapShowsCellsMeansAndGaps) {
  PasskeyRun run = sample_run("x", 1);
  run.records.erase(run.records.begin() + 7);  // one cell was not run
  const Chart chart = draw_heat_map(run, "heatmap", "t");
  const std::string svg = chart.standalone_svg();
  EXPECT_EQ(markup_fault(svg), "");
  EXPECT_EQ(count_of(svg, ": not run"), 1u);
  EXPECT_EQ(count_of(svg, " tokens, depth "), 15u);
  EXPECT_EQ(count_of(svg, " tokens, all depths"), 3u);  // means by length
  EXPECT_EQ(count_of(svg, "all lengths, depth "), 5u);  // means by depth
  EXPECT_NE(svg.find("512 tokens, depth 0 %: 0 % of 1"), svg.npos);
  EXPECT_NE(svg.find("512 tokens, all depths: 80 % of 5"), svg.npos);
  EXPECT_NE(svg.find("64K"), svg.npos);
  EXPECT_EQ(markup_fault(draw_heat_map(PasskeyRun{}, "empty", "t").standalone_svg()), "");
}

TEST(Report, SeveralRunsGetTheirOwnMapsAndNames) {
  const Report report =
      make_passkey_report({sample_run("same", 0), sample_run("same", 9), sample_run("B/c d", 3)}, "T");
  const std::string html = report.html();
  EXPECT_EQ(html_fault(html), "");
  EXPECT_NE(html.find("id=\"heatmap-same\""), html.npos);
  EXPECT_NE(html.find("id=\"heatmap-same-2\""), html.npos);
  EXPECT_NE(html.find("id=\"heatmap-b-c-d\""), html.npos);
  const std::string markdown = report.markdown("img/");
  EXPECT_NE(markdown.find("](img/heatmap-b-c-d.svg)"), markdown.npos);
  EXPECT_NE(markdown.find("| length | accuracy |"), markdown.npos);
}

TEST(Report, BenchPage) {
  BenchData data;
  data.config = {{"mode", "closed"}, {"concurrency", 2}, {"prompts", "ids"}, {"input_len", "5"}, {"output_len", "5"}};
  data.label = "a & b";
  data.duration_s = 3;
  data.probe_interval_ms = 100;
  for (int i = 0; i < 20; ++i) {
    RequestRecord r;
    r.start_ms = i * 100, r.ttft_ms = 50 + i, r.e2e_ms = 150 + i, r.tpot_ms = 10, r.output_tokens = 11;
    r.itl_ms.assign(10, 10.0f + static_cast<float>(i));
    data.requests.push_back(r);
    data.probes.push_back({i * 100.0, 10, 12, 15, true, ""});
  }
  data.requests[3].failure = Failure::kTimeout;
  data.requests[3].error = "<timeout & more>";
  data.token_bins.assign(30, 7);
  const json one = bench_to_json(data, false);
  for (const auto& results : {std::vector<json>{one}, std::vector<json>{one, one, one}}) {
    const std::string html = make_bench_report(results, "").html();
    EXPECT_EQ(html_fault(html), "");
    EXPECT_NE(html.find("&lt;timeout &amp; more&gt;"), html.npos);
    EXPECT_NE(html.find("id=\"probe\""), html.npos);
    EXPECT_EQ(html.find("http"), html.npos);
  }
}

TEST(LineChart, SurvivesAwkwardData) {
  LineChartSpec spec;
  spec.id = "x";
  spec.title = "t";
  spec.y.scale = Scale::kLog10;
  const double nan = std::nan("");
  for (const auto& [x, y] : std::vector<std::pair<std::vector<double>, std::vector<double>>>{{{}, {}},
                                                                                             {{1}, {1}},
                                                                                             {{1, 2}, {nan, nan}},
                                                                                             {{1, 2, 3}, {0, -1, 5}},
                                                                                             {{5, 5}, {7, 7}},
                                                                                             {{1, 2}, {1e-9, 1e12}}}) {
    spec.series = {Series{"s", x, y, {}, {}}};
    const std::string svg = draw_line_chart(spec).standalone_svg();
    EXPECT_EQ(markup_fault(svg), "");
    EXPECT_EQ(svg.find("nan"), svg.npos);
    EXPECT_EQ(svg.find("inf"), svg.npos);
  }
}

TEST(LineChart, Ticks) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0, 1, 4), (std::vector<double>{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(log_ticks(0.9, 110), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(log_ticks(1, 1e5), (std::vector<double>{1, 10, 100, 1000, 1e4, 1e5}));
  EXPECT_GE(log_ticks(101, 109).size(), 2u);
}

TEST(Colours, EndsDifferAndTextIsReadable) {
  EXPECT_EQ(share_colour(0), "#a83b00");
  EXPECT_EQ(share_colour(1), "#1b5e9e");
  EXPECT_EQ(share_colour(std::nan("")), share_colour(0));
  EXPECT_EQ(text_colour_on(1), "#fff");
  EXPECT_EQ(text_colour_on(0.5), "#111");
}

TEST(Terminal, Tables) {
  EXPECT_EQ(align_table({{"a", "bb"}, {"ccc", "–"}}), "a    bb\nccc   –\n");
  EXPECT_EQ(markdown_table({{"a", "b|c"}, {"1", "2"}}), "| a | b\\|c |\n|---|---:|\n| 1 | 2 |\n");
}

TEST(Perplexity, ReadsBothDialects) {
  const TokenIds ids = {7, 8, 9};
  std::vector<double> logprobs;
  const auto echo = json::parse(R"({"choices":[{"logprobs":{"token_logprobs":[null,-0.5,-1.5,-3]}}]})");
  EXPECT_EQ(read_prompt_logprobs(echo, ids, &logprobs), "");
  EXPECT_EQ(logprobs, (std::vector<double>{-0.5, -1.5}));  // the generated token is left out
  const auto vllm = json::parse(
      R"({"choices":[{"prompt_logprobs":[null,{"8":{"logprob":-1}},{"5":{"logprob":-0.1},"9":{"logprob":-2}}]}]})");
  EXPECT_EQ(read_prompt_logprobs(vllm, ids, &logprobs), "");
  EXPECT_EQ(logprobs, (std::vector<double>{-1, -2}));
  for (const char* bad : {"{}", R"({"choices":[]})", R"({"choices":[{"text":"x"}]})",
                          R"({"choices":[{"logprobs":{"token_logprobs":[null,-1]}}]})",
                          R"({"choices":[{"logprobs":{"token_logprobs":[-1,-1,-1]}}]})",
                          R"({"choices":[{"logprobs":{"token_logprobs":[null,null,-1]}}]})",
                          R"({"choices":[{"prompt_logprobs":[null,{"1":{"logprob":-1}},{"9":{"logprob":-2}}]}]})"}) {
    EXPECT_NE(read_prompt_logprobs(json::parse(bad), ids, &logprobs), "") << bad;
  }
}

TEST(Perplexity, WindowsAndPage) {
  PositionWindow window{0, 512};
  for (const double nats : {1.0, 2.0, 3.0}) window.add(nats);
  EXPECT_DOUBLE_EQ(window.mean(), 2);
  EXPECT_DOUBLE_EQ(window.perplexity(), std::exp(2.0));
  EXPECT_NEAR(window.stddev(), std::sqrt(2.0 / 3), 1e-12);
  json result = {{"label", "m"},
                 {"perplexity", 7.5},
                 {"config", {{"file", "f"}, {"sequences", 2}, {"length", 32768}}},
                 {"windows", json::array()}};
  for (int64_t end = 512; end <= 32768; end += 512) {
    result["windows"].push_back({{"end", end}, {"nats", 2.0}, {"nats_stderr", 0.01}, {"perplexity", std::exp(2.0)}});
  }
  EXPECT_EQ(html_fault(make_perplexity_report({result, result}, "").html()), "");
  const Table table = perplexity_table({result});
  EXPECT_LE(table.size(), 14u);
  EXPECT_EQ(table.back()[1], "7.500");
}

}  // namespace
}  // namespace bam::client

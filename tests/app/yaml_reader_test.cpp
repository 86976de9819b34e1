// Expected values are PyYAML's (yaml.full_load); tests/http/test_eval.py compares whole task files with it.
#include "app/eval/yaml_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace bam::eval {
namespace {

TEST(YamlReader, ReadsATaskFile) {
  const Json task = read_yaml(R"(# a comment
task: arc_easy   # another
dataset_kwargs:
  data_files:
    test: arc.jsonl
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: '{{choices.label.index(answerKey)}}'
description: |
  First line.
    indented

  last line.
folded: >-
  one
  two

  three
num_fewshot: 0
weight: 1.5
exponent: 1e5
yes_word: yes
nothing:
tag: [a, "b, c", 3, {d: e, f: [1, 2]}]
plain: it's a text, no two
  that goes on
metric_list:
  - metric: acc
    higher_is_better: true
  - metric: acc_norm
until:
- "\n\n"
- '</s>'
process: !function utils.clean
)");
  const Json expected = Json::parse(R"({
    "task": "arc_easy", "dataset_kwargs": {"data_files": {"test": "arc.jsonl"}},
    "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "{{choices.label.index(answerKey)}}",
    "description": "First line.\n  indented\n\nlast line.\n", "folded": "one two\nthree", "num_fewshot": 0, "weight": 1.5,
    "exponent": "1e5", "yes_word": true, "nothing": null, "tag": ["a", "b, c", 3, {"d": "e", "f": [1, 2]}],
    "plain": "it's a text, no two that goes on",
    "metric_list": [{"metric": "acc", "higher_is_better": true}, {"metric": "acc_norm"}], "until": ["\n\n", "</s>"],
    "process": {"!function": "utils.clean"}})");
  EXPECT_EQ(task, expected) << task.dump(1);
}

TEST(YamlReader, QuotedTextsGoOnOverLines) {
  EXPECT_EQ(read_yaml("a: \"one\n  two\n\n  three \\\n  four\"\nb: 'it''s'\n"),
            Json::parse(R"({"a": "one two\nthree four", "b": "it's"})"));
  EXPECT_EQ(read_yaml("a: \"\\u00e9\\x41\\t\"")["a"],
            "\xc3\xa9"
            "A\t");
}

// bbh's tasks end a description like this.
TEST(YamlReader, BlankLinesBeforeAClosingQuoteStay) {
  EXPECT_EQ(read_yaml("a: 'one.\n\n\n  '\nb: !!null ''\nc: !function \"t.x\"\n"),
            Json::parse(R"({"a": "one.\n\n", "b": null, "c": {"!function": "t.x"}})"));
}

TEST(YamlReader, WhatItDoesNotKnowIsNamed) {
  const auto message = [](const char* text) {
    try {
      return read_yaml(text).dump();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(message("a: &x 1").find("line 1: anchors"), std::string::npos) << message("a: &x 1");
  EXPECT_NE(message("a: 1\nb: !!set {x}").find("the tag tag:yaml.org,2002:set"), std::string::npos);
  EXPECT_NE(message("a: 1\na: 2").find("'a' stands twice"), std::string::npos);
  EXPECT_NE(message("a: \"open").find("line 1: while scanning a quoted scalar"), std::string::npos);
  EXPECT_NE(message("a: [1, 2").find("while parsing a flow sequence"), std::string::npos);
  EXPECT_NE(message("a: 1\n---\na: 2").find("several documents"), std::string::npos);
  EXPECT_NE(message("a: 1\n   b: 2").find("line 2"), std::string::npos);
  EXPECT_NE(message("a: 1\n\tb: 2").find("line 2: while scanning a plain scalar: found a tab"), std::string::npos);
  EXPECT_NE(message("a: it's a text: no, two").find("line 1: mapping values are not allowed"), std::string::npos);
}

// Nothing that somebody writes may crash it or keep it busy.
TEST(YamlReader, EveryPrefixOfAFileEndsWell) {
  const std::string text = "a: [1, {b: \"c\\n\"}]\nd:\n  - 'e'\n  - f: |\n      g\n    h: >\n      i\nj: \"k\n  l\"\n";
  for (size_t length = 0; length <= text.size(); ++length) {
    try {
      read_yaml(std::string_view(text).substr(0, length));
    } catch (const UsageError&) {
    }
  }
}

}  // namespace
}  // namespace bam::eval

#include "server/grammar/constraint.h"

#include <algorithm>
#include <functional>

#include "server/grammar/cfg.h"
#include "server/grammar/codepoints.h"
#include "server/grammar/json_rules.h"
#include "server/grammar/json_schema.h"
#include "server/grammar/regex.h"

namespace bam {
namespace {

using constraints::AutomatonBuilder;

constexpr size_t kMaxChoices = 1024;
constexpr size_t kMaxChoiceBytes = 64 * 1024;

// `build` fills the builder, whose rule 0 is the text, and may throw Error.
ConstraintResult compile(const char* what, const ConstraintVocabulary& vocabulary,
                         const std::function<void(AutomatonBuilder&)>& build,
                         uint16_t max_depth = constraints::kMaxJsonDepth) {
  try {
    AutomatonBuilder builder(max_depth);
    build(builder);
    auto machine = std::make_shared<const constraints::Machine>(builder, vocabulary.trie());
    return std::shared_ptr<const Constraint>(std::make_shared<Constraint>(std::move(machine)));
  } catch (const Error& error) {
    return Error("{}: {}", what, error.what());
  }
}

}  // namespace

ConstraintResult compile_json_object(const ConstraintVocabulary& vocabulary) {
  return compile("json_object", vocabulary, [](AutomatonBuilder& out) {
    constraints::JsonRules rules(out);
    const auto root = out.add_rule();
    out.call(rules.space(out.start(root)), rules.object(), out.end(root));
  });
}

ConstraintResult compile_json_schema(const std::string& schema_json, const ConstraintVocabulary& vocabulary) {
  return compile("json_schema", vocabulary,
                 [&](AutomatonBuilder& out) { constraints::build_json_schema(schema_json, out); });
}

ConstraintResult compile_regex(const std::string& pattern, const ConstraintVocabulary& vocabulary) {
  return compile("regex", vocabulary, [&](AutomatonBuilder& out) {
    const auto nfa = constraints::compile_pattern(pattern, constraints::RegexMatch::kWhole);
    const auto root = out.add_rule();
    constraints::emit(nfa, constraints::TextEncoding::kUtf8, out, out.start(root), out.end(root));
  });
}

ConstraintResult compile_choice(const std::vector<std::string>& choices, const ConstraintVocabulary& vocabulary) {
  return compile("choice", vocabulary, [&](AutomatonBuilder& out) {
    if (choices.empty()) throw Error("no choices");
    if (choices.size() > kMaxChoices) {
      throw Error("{} choices, at most {} are allowed", choices.size(), kMaxChoices);
    }
    size_t bytes = 0;
    for (const auto& choice : choices) {
      if (choice.empty()) throw Error("an empty choice");
      if (!constraints::to_codepoints(choice)) throw Error("a choice that is not valid UTF-8");
      bytes += choice.size();
    }
    if (bytes > kMaxChoiceBytes) {
      throw Error("{} bytes of choices, at most {} are allowed", bytes, kMaxChoiceBytes);
    }
    const auto root = out.add_rule();
    constraints::JsonRules(out).literals(choices, out.start(root), out.end(root));
  });
}

ConstraintResult compile_grammar(const std::string& grammar, const ConstraintVocabulary& vocabulary) {
  return compile(
      "grammar", vocabulary, [&](AutomatonBuilder& out) { constraints::build_grammar(grammar, out); },
      constraints::kMaxGrammarDepth);
}

ConstraintResult compile_tool_calls(const ToolCallGrammar& grammar, const ConstraintVocabulary& vocabulary) {
  return compile("tools", vocabulary, [&](AutomatonBuilder& out) { constraints::build_tool_calls(grammar, out); });
}

}  // namespace bam

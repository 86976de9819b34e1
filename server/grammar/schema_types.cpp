#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "server/grammar/codepoints.h"
#include "server/grammar/formats.h"
#include "server/grammar/number_range.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema_compiler.h"

namespace bam::constraints {
namespace {

constexpr uint32_t kMaxArrayItems = 10'000;
constexpr uint32_t kMaxStringLength = 65'536;

// Texts that are none of the given names.
CodepointNfa all_but(const std::vector<std::u32string>& names) {
  CodepointNfa nfa;
  nfa.sets.push_back(CodepointSet::all());
  const uint32_t root = nfa.add_state(), free = nfa.add_state();
  std::vector<std::map<char32_t, uint32_t>> children(2);
  for (const auto& name : names) {
    uint32_t node = root;
    for (char32_t c : name) {
      auto it = children[node].find(c);
      if (it == children[node].end()) {
        const uint32_t next = nfa.add_state();
        it = children[node].emplace(c, next).first;
        children.emplace_back();
        node = next;
      } else {
        node = it->second;
      }
    }
    nfa.nodes[node].accepting = true;  // marks a name; turned round below
  }
  for (uint32_t node = 0; node < nfa.nodes.size(); ++node) {
    nfa.nodes[node].accepting = !nfa.nodes[node].accepting;
    std::vector<CodepointSet::Range> taken;
    for (const auto& [c, child] : children[node]) {
      nfa.sets.push_back(CodepointSet({{c, c}}));
      nfa.nodes[node].edges.push_back({static_cast<uint32_t>(nfa.sets.size() - 1), child});
      taken.push_back({c, c});
    }
    uint32_t others = 0;
    if (!taken.empty()) {
      nfa.sets.push_back(CodepointSet(std::move(taken)).complement());
      others = static_cast<uint32_t>(nfa.sets.size() - 1);
    }
    nfa.nodes[node].edges.push_back({others, free});
  }
  return nfa;
}

const Json& member_or(const Json& object, const char* key, const Json& otherwise) {
  const auto it = object.find(key);
  return it == object.end() ? otherwise : *it;
}

struct Property {
  std::string name;
  const Json* schema;  // null: only "required" names it
  bool required;
};

// The declared ones in their order, then those that are only required.
std::vector<Property> list_properties(const Json& declared, const Json& required, const std::string& at) {
  std::set<std::string> names;
  for (const Json& name : required) {
    if (!name.is_string()) fail_at(pointer_to(at, "required"), "must be an array of strings");
    names.insert(name.get<std::string>());
  }
  std::vector<Property> out;
  for (const auto& [name, schema] : declared.items()) out.push_back({name, &schema, names.erase(name) > 0});
  for (const Json& name : required) {
    if (names.erase(name.get<std::string>())) out.push_back({name.get<std::string>(), nullptr, true});
  }
  return out;
}

const Json kTrue = true, kFalse = false;
const Json kNoMembers = Json::object();
const Json kNoItems = Json::array();

}  // namespace

// Properties come in the order they are declared. Two rows of states, "nothing written yet" (no
// comma before the next one) and "something written", meet before each key:
//
//   empty[i] --------------- skip if optional -------------> empty[i+1]
//      +------------> key i ':' value ---------+
//   some[i] --','-----^                        +-----------> some[i+1]
//      +-------------------- skip if optional -----------------^
void SchemaCompiler::add_object(const Json& schema, State from, State to, const std::string& at) {
  const Json& declared = member_or(schema, "properties", kNoMembers);
  if (!declared.is_object()) fail_at(pointer_to(at, "properties"), "must be an object");
  const Json& required = member_or(schema, "required", kNoItems);
  if (!required.is_array()) fail_at(pointer_to(at, "required"), "must be an array of strings");
  // Leaving out "additionalProperties" allows anything; where properties are declared, writing only
  // those is meant.
  const Json& by_default = declared.empty() ? kTrue : kFalse;
  const Json& extra = member_or(schema, "additionalProperties", by_default);

  const auto properties = list_properties(declared, required, at);
  const auto num_required = static_cast<size_t>(
      std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; }));
  const auto min = count_keyword(schema, "minProperties", kMaxArrayItems, at);
  if (min && *min > num_required) {
    fail_at(pointer_to(at, "minProperties"), "only honoured up to the number of required properties");
  }
  const auto max = count_keyword(schema, "maxProperties", 1'000'000'000, at);
  if (max && (extra != false || *max < properties.size())) {
    fail_at(pointer_to(at, "maxProperties"), "only honoured where the declared properties ensure it");
  }

  const State open = out_.add_state();
  out_.byte(from, '{', open);
  if (num_required == 0) out_.byte(open, '}', to);
  State empty = rules_.space(open), some = out_.add_state();
  for (const Property& property : properties) {
    const State key = out_.add_state(), colon = out_.add_state(), comma = out_.add_state();
    const State next_some = out_.add_state();
    out_.epsilon(empty, key);
    out_.byte(some, ',', comma);
    out_.epsilon(rules_.space(comma), key);
    out_.literal(key, Json(property.name).dump() + ":", colon);
    if (property.schema) {
      add_value(*property.schema, rules_.space(colon), next_some,
                pointer_to(pointer_to(at, "properties"), property.name));
    } else {
      const Json& described = schema.contains("additionalProperties") ? extra : kTrue;
      add_value(described, rules_.space(colon), next_some, pointer_to(at, "additionalProperties"));
    }
    const State next_empty = out_.add_state();
    if (!property.required) {
      out_.epsilon(empty, next_empty);
      out_.epsilon(some, next_some);
    }
    empty = next_empty;
    some = next_some;
  }
  if (extra != false) {
    std::vector<std::u32string> names;
    for (const Property& property : properties) {
      if (auto codepoints = to_codepoints(property.name)) names.push_back(std::move(*codepoints));
    }
    add_extra_properties(names, extra, empty, some, at);
  }
  out_.byte(rules_.space(some), '}', to);
}

void SchemaCompiler::add_extra_properties(const std::vector<std::u32string>& declared, const Json& extra, State empty,
                                          State some, const std::string& at) {
  const State comma = out_.add_state(), key = out_.add_state(), colon = out_.add_state();
  const State value = out_.add_state();
  out_.epsilon(empty, key);
  out_.byte(some, ',', comma);
  out_.epsilon(rules_.space(comma), key);
  if (declared.empty()) {
    out_.call(key, rules_.string(), colon);
  } else {
    const State inside = out_.add_state(), quote = out_.add_state();
    out_.byte(key, '"', inside);
    emit(all_but(declared), TextEncoding::kJsonString, out_, inside, quote);
    out_.byte(quote, '"', colon);
  }
  out_.byte(colon, ':', value);
  add_value(extra, rules_.space(value), some, pointer_to(at, "additionalProperties"));
}

void SchemaCompiler::add_array(const Json& schema, State from, State to, const std::string& at) {
  const Json& items = member_or(schema, "items", kTrue);
  const bool tuple_items = items.is_array();  // the spelling of older drafts
  const Json& prefix = tuple_items ? items : member_or(schema, "prefixItems", kNoItems);
  const std::string prefix_at = pointer_to(at, tuple_items ? "items" : "prefixItems");
  if (!prefix.is_array()) fail_at(prefix_at, "must be an array of schemas");
  const uint32_t min = count_keyword(schema, "minItems", kMaxArrayItems, at).value_or(0);
  const auto max = count_keyword(schema, "maxItems", kMaxArrayItems, at);
  const auto num_prefix = static_cast<uint32_t>(prefix.size());

  const bool described = schema.contains("items") && !tuple_items;
  const Json& rest = described ? items : kTrue;
  // Like undeclared properties: items behind a tuple that nothing describes are left out unless
  // minItems needs them.
  const bool has_rest = rest != false && (described || num_prefix == 0 || min > num_prefix);
  const uint32_t most = has_rest ? max.value_or(kNoLimit) : std::min(max.value_or(kNoLimit), num_prefix);
  if (min > most) return;
  const RuleId rest_rule = has_rest && most > num_prefix ? rule_of(rest, pointer_to(at, "items")) : 0;

  auto add_item = [&](uint32_t index, State item_from, State item_to) {
    if (index < num_prefix) {
      add_value(prefix[index], item_from, item_to, pointer_to(prefix_at, std::to_string(index)));
    } else {
      out_.call(item_from, rest_rule, item_to);
    }
  };
  State last = out_.add_state();  // behind '[' or an item
  out_.byte(from, '[', last);
  const uint32_t unrolled = most == kNoLimit ? std::max({num_prefix, min, 1u}) : most;
  for (uint32_t i = 0;; ++i) {
    if (i >= min) out_.byte(i == 0 ? last : rules_.space(last), ']', to);
    if (i == unrolled && most != kNoLimit) break;
    State item_from = last;
    if (i > 0) {
      item_from = out_.add_state();
      out_.byte(last, ',', item_from);
    }
    const bool loop = i == unrolled;
    const State next = loop ? last : out_.add_state();
    add_item(i, rules_.space(item_from), next);
    if (loop) break;
    last = next;
  }
}

void SchemaCompiler::add_string(const Json& schema, State from, State to, const std::string& at) {
  const auto min = count_keyword(schema, "minLength", kMaxStringLength, at);
  const auto max = count_keyword(schema, "maxLength", kMaxStringLength, at);
  const bool has_pattern = schema.contains("pattern");
  if (schema.contains("format") && !schema["format"].is_string()) fail_at(pointer_to(at, "format"), "must be a string");
  // A format that nobody knows is an annotation, as the standard says.
  const char* known_format = schema.contains("format") ? format_pattern(schema["format"].get<std::string>()) : nullptr;
  const bool has_format = known_format != nullptr;
  const State inside = out_.add_state(), quote = out_.add_state();
  if (has_pattern || has_format) {
    const char* keyword = has_pattern ? "pattern" : "format";
    const std::string keyword_at = pointer_to(at, keyword);
    if (!schema[keyword].is_string()) fail_at(keyword_at, "must be a string");
    std::string pattern = schema[keyword].get<std::string>();
    if (has_format) {
      if (has_pattern) fail_at(pointer_to(at, "format"), "not supported beside pattern");
      pattern = known_format;
    }
    try {
      auto nfa = compile_pattern(pattern, has_pattern ? RegexMatch::kSearch : RegexMatch::kWhole);
      if (min || max) {
        nfa = limit_length(nfa, min.value_or(0), max.value_or(kNoLimit), kMaxRegexStates);
      }
      out_.byte(from, '"', inside);
      emit(nfa, TextEncoding::kJsonString, out_, inside, quote);
    } catch (const Error& error) {
      fail_at(keyword_at, error.what());
    }
    out_.byte(quote, '"', to);
    return;
  }
  if (!min && !max) return out_.call(from, rules_.string(), to);
  out_.byte(from, '"', inside);
  State last = inside;
  const uint32_t counted = max.value_or(*min);
  for (uint32_t i = 0; i < counted; ++i) {
    if (max && i >= min.value_or(0)) out_.epsilon(last, quote);
    const State next = out_.add_state();
    out_.call(last, rules_.character(), next);
    last = next;
  }
  if (!max) {
    const State loop = out_.add_state();
    out_.epsilon(last, loop);
    out_.call(loop, rules_.character(), loop);
    last = loop;
  }
  if (!max || !min || *min <= *max) out_.epsilon(last, quote);
  out_.byte(quote, '"', to);
}

void SchemaCompiler::add_number(const Json& schema, bool integer, State from, State to, const std::string& at) {
  NumberRange range{.integer = integer};
  auto read = [&](const char* keyword, const char* exclusive_keyword, bool lower, std::optional<NumberBound>& bound) {
    auto decimal = [&](const char* name) {
      const auto value = schema[name].is_number() ? Decimal::parse(schema[name].dump()) : std::nullopt;
      if (!value) fail_at(pointer_to(at, name), "must be a number of at most 40 digits");
      return *value;
    };
    if (schema.contains(keyword)) bound = {.value = decimal(keyword)};
    const auto it = schema.find(exclusive_keyword);
    if (it == schema.end() || *it == false) return;
    if (*it == true) {  // the spelling of older drafts
      if (bound) bound->exclusive = true;
      return;
    }
    const bool stronger = !bound || (lower ? *it >= schema[keyword] : *it <= schema[keyword]);
    const NumberBound exclusive{.value = decimal(exclusive_keyword), .exclusive = true};
    if (stronger) bound = exclusive;
  };
  read("minimum", "exclusiveMinimum", true, range.min);
  read("maximum", "exclusiveMaximum", false, range.max);
  if (range.min || range.max) return emit(range, out_, from, to);
  out_.call(from, integer ? rules_.integer() : rules_.number(), to);
}

}  // namespace bam::constraints

#include "server/api/constraint_fields.h"

#include <fmt/format.h>

namespace bam {

namespace {

using Kinds = FieldKinds<GenerationRequest>;

// A field that nobody asked for could have been a constraint.
void refuse_rest(FieldReader& fields) {
  for (const std::string& name : fields.unread()) {
    fields.fail(name.substr(name.rfind('.') + 1), fmt::format("'{}' is not supported.", name));
  }
}

void set_constraint(FieldReader& in, GenerationRequest& out, ConstraintSpec spec) {
  if (out.constraint.kind != ConstraintSpec::Kind::kNone) {
    in.fail(spec.param, fmt::format("'{}' and '{}' cannot be combined: one constraint per request.",
                                    out.constraint.param, spec.param));
    return;
  }
  out.constraint = std::move(spec);
}

void read_json_constraint(FieldReader& in, const std::string& key, const Json& schema, GenerationRequest& out,
                          std::string param = {}) {
  if (param.empty()) param = in.name_of(key);
  ConstraintSpec spec{.kind = ConstraintSpec::Kind::kJsonSchema, .param = param};
  if (schema.is_string()) {
    spec.text = schema.get<std::string>();  // vLLM also takes the schema as text
  } else if (schema.is_object() || schema.is_boolean()) {
    spec.text = schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  } else {
    in.fail(key, fmt::format("'{}' must be a JSON schema.", param));
    return;
  }
  if (spec.text.size() > limits::kSchemaBytes) {
    in.fail(key, fmt::format("'{}' is larger than {} bytes.", param, limits::kSchemaBytes));
    return;
  }
  set_constraint(in, out, std::move(spec));
}

void read_response_format(FieldReader& in, const std::string& key, GenerationRequest& out) {
  const Json* format = in.object(key);
  if (!format) return;
  FieldReader fields(*format, key);
  const auto may_name = [](FieldReader& schema) {  // what OpenAI lets stand beside a schema
    for (const char* known : {"name", "description", "strict"}) schema.raw(known);
  };
  const std::string type = fields.text("type", 64).value_or("");
  const bool flat = format->contains("schema") && !(*format)["schema"].is_null();  // llama.cpp's spelling
  if (type == "json_object" && !flat) {
    set_constraint(fields, out, {.kind = ConstraintSpec::Kind::kJsonObject, .param = "response_format"});
  } else if (flat && (type == "json_object" || type == "json_schema")) {
    may_name(fields);
    read_json_constraint(fields, "schema", *fields.raw("schema"), out);
  } else if (type == "json_schema") {
    may_name(fields);
    const Json* wrapper = fields.object("json_schema");
    if (wrapper && wrapper->contains("schema") && !(*wrapper)["schema"].is_null()) {
      FieldReader wrapped(*wrapper, fields.name_of("json_schema"));
      may_name(wrapped);
      read_json_constraint(fields, "json_schema", *wrapped.raw("schema"), out, wrapped.name_of("schema"));
      refuse_rest(wrapped);
      fields.adopt(wrapped);
    } else {
      fields.fail("json_schema", "'response_format.json_schema.schema' is missing.");
    }
  } else if (type != "text") {
    fields.fail("type", "'response_format.type' must be text, json_object or json_schema.");
  }
  refuse_rest(fields);
  in.adopt(fields);
}

void read_choice_constraint(FieldReader& in, const std::string& key, GenerationRequest& out) {
  const Json* list = in.array(key, limits::kChoiceConstraints);
  if (!list) return;
  ConstraintSpec spec{.kind = ConstraintSpec::Kind::kChoice, .param = in.name_of(key)};
  size_t bytes = 0;
  for (const Json& entry : *list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty()) {
      in.fail(key, fmt::format("'{}' must be an array of non-empty strings.", spec.param));
      return;
    }
    spec.choices.push_back(entry.get<std::string>());
    bytes += spec.choices.back().size();
  }
  if (spec.choices.empty()) in.fail(key, fmt::format("'{}' is empty.", spec.param));
  if (bytes > limits::kChoiceConstraintBytes) {
    in.fail(key, fmt::format("'{}' has more than {} bytes of text.", spec.param, limits::kChoiceConstraintBytes));
  }
  set_constraint(in, out, std::move(spec));
}

void read_regex_constraint(FieldReader& in, const std::string& key, GenerationRequest& out) {
  if (auto pattern = in.text(key, limits::kRegexBytes)) {
    set_constraint(in, out,
                   {.kind = ConstraintSpec::Kind::kRegex, .text = *std::move(pattern), .param = in.name_of(key)});
  }
}

void read_grammar_constraint(FieldReader& in, const std::string& key, GenerationRequest& out) {
  auto grammar = in.text(key, limits::kGrammarBytes);
  if (!grammar || grammar->empty()) return;  // llama.cpp's clients send "" for none
  set_constraint(in, out,
                 {.kind = ConstraintSpec::Kind::kGrammar, .text = *std::move(grammar), .param = in.name_of(key)});
}

Json texts_schema(size_t min_bytes, size_t max_items) {
  return {{"type", "array"}, {"items", {{"type", "string"}, {"minLength", min_bytes}}}, {"maxItems", max_items}};
}

Json grammar_schema() { return {{"type", "string"}, {"maxLength", limits::kGrammarBytes}}; }

// A schema, or a text that holds one.
Json json_schema_schema() { return {{"type", {"object", "boolean", "string"}}}; }

FieldKind<GenerationRequest> regex() {
  return Kinds::custom({{"type", "string"}, {"maxLength", limits::kRegexBytes}}, read_regex_constraint);
}

FieldKind<GenerationRequest> choice() {
  Json schema = texts_schema(1, limits::kChoiceConstraints);
  schema["minItems"] = 1;
  return Kinds::custom(std::move(schema), read_choice_constraint);
}

FieldKind<GenerationRequest> grammar() { return Kinds::custom(grammar_schema(), read_grammar_constraint); }

FieldKind<GenerationRequest> json_schema() {
  return Kinds::custom(json_schema_schema(), [](FieldReader& in, const std::string& key, GenerationRequest& out) {
    read_json_constraint(in, key, *in.raw(key), out);
  });
}

FieldKind<GenerationRequest> response_format() {
  const Json wrapped = {{"type", "object"},
                        {"properties",
                         {{"name", {{"type", "string"}}},
                          {"schema", json_schema_schema()},
                          {"strict", {{"type", {"boolean", "null"}}}}}}};
  return Kinds::custom({{"type", "object"},
                        {"required", {"type"}},
                        {"properties",
                         {{"type", {{"enum", {"text", "json_object", "json_schema"}}}},
                          {"json_schema", wrapped},
                          {"schema", json_schema_schema()}}}},
                       read_response_format);
}

// The object of vLLM, new spelling.
FieldKind<GenerationRequest> structured_outputs() {
  const auto json_object = [](FieldReader& in, const std::string& key, GenerationRequest& out) {
    if (in.boolean(key).value_or(false)) {
      set_constraint(in, out, {.kind = ConstraintSpec::Kind::kJsonObject, .param = in.name_of(key)});
    }
  };
  const FieldTable<GenerationRequest> fields = {
      {"regex", kAnyGeneration, regex(), "a regular expression"},
      {"choice", kAnyGeneration, choice(), "one of these texts"},
      {"grammar", kAnyGeneration, grammar(), "a GBNF or Lark grammar"},
      {"json", kAnyGeneration, json_schema(), "a JSON schema"},
      {"json_object", kAnyGeneration, Kinds::custom({{"type", "boolean"}}, json_object), "any JSON object"},
      // There is one implementation and nothing to fall back to.
      {"disable_fallback", kAnyGeneration, Kinds::ignored({{"type", "boolean"}}), "ignored"},
      {"disable_any_whitespace", kAnyGeneration, Kinds::refused(Json::array({false}), ""), "refused"},
      {"disable_additional_properties", kAnyGeneration, Kinds::refused(Json::array({false}), ""), "refused"},
  };
  FieldKind<GenerationRequest> kind = Kinds::object(fields);
  kind.set = [fields](FieldReader& in, const std::string& key, GenerationRequest& out) {
    const Json* nested = in.object(key);
    if (!nested) return;
    FieldReader reader(*nested, in.name_of(key));
    read_fields(reader, fields, kAnyGeneration, out);
    refuse_rest(reader);
    in.adopt(reader);
  };
  return kind;
}

void read_allowed_token_ids(FieldReader& in, const std::string& key, GenerationRequest& out) {
  const Json* ids = in.array(key, limits::kAllowedTokenIds);
  if (!ids) return;
  if (auto tokens = read_token_ids(in, key, *ids)) out.allowed_token_ids = *std::move(tokens);
  if (in.ok() && out.allowed_token_ids.empty()) in.fail(key, fmt::format("'{}' is empty.", key));
}

void read_bad_words(FieldReader& in, const std::string& key, GenerationRequest& out) {
  const Json* words = in.array(key, limits::kBadWords);
  if (!words) return;
  for (const Json& word : *words) {
    const std::string* text = word.get_ptr<const std::string*>();
    if (!text || text->empty() || text->size() > limits::kBadWordBytes) {
      return in.fail(key, fmt::format("'{}' must be an array of texts of 1 to {} bytes.", key, limits::kBadWordBytes));
    }
    out.bad_words.push_back(*text);
  }
}

}  // namespace

// clang-format off
FieldTable<GenerationRequest> constraint_fields() {
  constexpr const char* kOtherApi = "use 'response_format'";
  constexpr const char* kEager = "a grammar holds from the first token on";
  const Json allowed_ids = {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}}},
                            {"minItems", 1}, {"maxItems", limits::kAllowedTokenIds}};
  return {
      {"response_format", kAnyGeneration, response_format(), "text, json_object or json_schema"},
      {"regex", kAnyGeneration, regex(), "the text matches a regular expression", {"guided_regex"}},
      {"choice", kAnyGeneration, choice(), "the text is one of these", {"guided_choice"}},
      {"grammar", kAnyGeneration, grammar(), "the text follows a GBNF or Lark grammar", {"guided_grammar", "ebnf"}},
      {"json_schema", kAnyGeneration, json_schema(), "the text is JSON of this schema", {"guided_json"}},
      {"structured_outputs", kAnyGeneration, structured_outputs(), "vLLM's object with one of the above"},
      {"allowed_token_ids", kAnyGeneration, Kinds::custom(allowed_ids, read_allowed_token_ids), "the only tokens that may be generated"},
      {"bad_words", kAnyGeneration, Kinds::custom(texts_schema(1, limits::kBadWords), read_bad_words), "words that may not come"},
      {"guided_decoding_backend", kAnyGeneration, Kinds::ignored({{"type", "string"}}), "names an implementation; ignored"},
      {"logits_processors", kAnyGeneration, Kinds::refused(Json::array({Json::array()}), ""), "refused"},
      {"format", kAnyGeneration, Kinds::refused(Json::array({""}), kOtherApi), "refused: another API's response_format"},
      {"text", kAnyGeneration, Kinds::refused(Json::array({Json::object()}), kOtherApi), "refused, likewise"},
      {"output_config", kAnyGeneration, Kinds::refused(Json::array({Json::object()}), kOtherApi), "refused, likewise"},
      {"output_format", kAnyGeneration, Kinds::refused(Json::array(), kOtherApi), "refused, likewise"},
      {"guided_whitespace_pattern", kAnyGeneration, Kinds::refused(Json::array(), ""), "refused"},
      {"structural_tag", kAnyGeneration, Kinds::refused(Json::array(), ""), "refused"},
      {"guided_decoding", kAnyGeneration, Kinds::refused(Json::array(), ""), "refused"},
      {"grammar_lazy", kAnyGeneration, Kinds::refused(Json::array({false}), kEager), "refused: a grammar holds from the first token on"},
      {"grammar_triggers", kAnyGeneration, Kinds::refused(Json::array({Json::array()}), kEager), "refused, likewise"},
  };
}
// clang-format on

}  // namespace bam

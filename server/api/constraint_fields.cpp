#include "server/api/constraint_fields.h"

#include <fmt/format.h>

namespace bam {

namespace {

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

void read_response_format(FieldReader& in, GenerationRequest& out) {
  const Json* format = in.object("response_format");
  if (!format) return;
  FieldReader fields(*format, "response_format");
  const std::string type = fields.text("type", 64).value_or("");
  // llama.cpp's spelling, also for json_object.
  const Json* schema = fields.raw("schema");
  if (type == "json_object" && !schema) {
    set_constraint(fields, out, {.kind = ConstraintSpec::Kind::kJsonObject, .param = "response_format"});
  } else if (type == "json_object" || (type == "json_schema" && schema)) {
    read_json_constraint(fields, "schema", *schema, out);
  } else if (type == "json_schema") {
    const Json* wrapper = fields.object("json_schema");
    if (const Json* wrapped = wrapper && wrapper->contains("schema") ? &(*wrapper)["schema"] : nullptr) {
      read_json_constraint(fields, "json_schema", *wrapped, out, "response_format.json_schema.schema");
    } else {
      fields.fail("json_schema", "'response_format.json_schema.schema' is missing.");
    }
  } else if (type != "text") {
    fields.fail("type", "'response_format.type' must be text, json_object or json_schema.");
  }
  if (type != "json_schema") refuse_rest(fields);
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

// The object of vLLM, new spelling.
void read_structured_outputs(FieldReader& in, GenerationRequest& out) {
  const Json* nested = in.object("structured_outputs");
  if (!nested) return;
  FieldReader fields(*nested, "structured_outputs");
  read_regex_constraint(fields, "regex", out);
  read_choice_constraint(fields, "choice", out);
  read_grammar_constraint(fields, "grammar", out);
  if (const Json* schema = fields.raw("json")) read_json_constraint(fields, "json", *schema, out);
  if (fields.boolean("json_object").value_or(false)) {
    set_constraint(fields, out, {.kind = ConstraintSpec::Kind::kJsonObject, .param = "structured_outputs.json_object"});
  }
  fields.boolean("disable_fallback");  // there is one implementation and nothing to fall back to
  refuse_rest(fields);
  in.adopt(fields);
}

void read_token_constraints(FieldReader& in, GenerationRequest& out) {
  if (const Json* ids = in.array("allowed_token_ids", limits::kAllowedTokenIds)) {
    if (auto tokens = read_token_ids(in, "allowed_token_ids", *ids)) out.allowed_token_ids = *std::move(tokens);
    if (in.ok() && out.allowed_token_ids.empty()) in.fail("allowed_token_ids", "'allowed_token_ids' is empty.");
  }
  if (const Json* words = in.array("bad_words", limits::kBadWords)) {
    for (const Json& word : *words) {
      const std::string* text = word.get_ptr<const std::string*>();
      if (!text || text->empty() || text->size() > limits::kBadWordBytes) {
        in.fail("bad_words",
                fmt::format("'bad_words' must be an array of texts of 1 to {} bytes.", limits::kBadWordBytes));
        return;
      }
      out.bad_words.push_back(*text);
    }
  }
}

void refuse_unsupported_constraints(FieldReader& in) {
  for (const char* key : {"guided_whitespace_pattern", "structural_tag", "guided_decoding"}) {
    if (in.has(key)) in.fail(key, fmt::format("'{}' is not supported.", key));
  }
  if (in.boolean("grammar_lazy").value_or(false)) {
    in.fail("grammar_lazy", "'grammar_lazy' is not supported: a grammar holds from the first token on.");
  }
  if (const Json* triggers = in.raw("grammar_triggers"); triggers && !triggers->empty()) {
    in.fail("grammar_triggers", "'grammar_triggers' is not supported: a grammar holds from the first token on.");
  }
}

}  // namespace

void read_constraints(FieldReader& in, GenerationRequest& out) {
  read_response_format(in, out);
  for (const char* key : {"regex", "guided_regex"}) read_regex_constraint(in, key, out);
  for (const char* key : {"choice", "guided_choice"}) read_choice_constraint(in, key, out);
  for (const char* key : {"grammar", "guided_grammar", "ebnf"}) read_grammar_constraint(in, key, out);
  for (const char* key : {"json_schema", "guided_json"}) {
    if (const Json* schema = in.raw(key)) read_json_constraint(in, key, *schema, out);
  }
  read_structured_outputs(in, out);
  read_token_constraints(in, out);
  refuse_unsupported_constraints(in);
  in.text("guided_decoding_backend", limits::kRegexBytes);  // names an implementation, not a constraint
}

}  // namespace bam

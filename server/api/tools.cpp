#include "server/api/tools.h"

#include <algorithm>

#include <fmt/format.h>

#include "server/api/openai_api.h"

namespace bam {

namespace {

using namespace tool_call_text;

bool is_tool_name(std::string_view name) {
  if (name.empty() || name.size() > limits::kToolNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':';
  });
}

// The schema of a tool's arguments: always an object, an empty one where nothing is described.
std::optional<std::string> arguments_schema(FieldReader& function) {
  const Json* parameters = function.object("parameters");
  if (!function.ok()) return std::nullopt;
  Json schema = parameters ? *parameters : Json::object();
  if (const auto type = schema.find("type"); type != schema.end() && *type != "object") {
    function.fail("parameters", fmt::format("'{}' must describe an object.", function.name_of("parameters")));
    return std::nullopt;
  }
  const bool combined =
      schema.contains("$ref") || schema.contains("allOf") || schema.contains("anyOf") || schema.contains("oneOf");
  const auto properties = schema.find("properties");
  const bool described =
      combined || (properties != schema.end() && !properties->empty()) || schema.contains("additionalProperties");
  schema["type"] = "object";
  if (!described) schema["additionalProperties"] = false;
  return dump_json(schema);
}

void read_tool(FieldReader& in, const Json& entry, const std::string& where, ToolUse& out) {
  if (!entry.is_object()) return in.fail("tools", fmt::format("'{}' must be an object.", where));
  FieldReader fields(entry, where);
  if (const auto type = fields.text("type", 64); fields.ok() && type.value_or("") != "function") {
    fields.fail("type", fmt::format("'{}.type' must be \"function\".", where));
  }
  const Json* function = fields.object("function");
  if (fields.ok() && !function) fields.fail("function", fmt::format("'{}.function' is missing.", where));
  in.adopt(fields);
  if (!in.ok()) return;
  FieldReader inner(*function, where + ".function");
  ToolUse::Tool tool{.name = inner.text("name", limits::kToolNameBytes).value_or(""),
                     .where = inner.name_of("parameters")};
  if (inner.ok() && !is_tool_name(tool.name)) {
    inner.fail("name", fmt::format("'{}' must be 1 to {} of the characters A-Z a-z 0-9 _ . : -", inner.name_of("name"),
                                   limits::kToolNameBytes));
  }
  inner.text("description", limits::kToolBytes);
  inner.boolean("strict");  // arguments follow their schema always
  for (const ToolUse::Tool& other : out.tools) {
    if (other.name == tool.name) inner.fail("name", fmt::format("'{}': two tools are called '{}'.", where, tool.name));
  }
  if (auto schema = arguments_schema(inner)) tool.schema = *std::move(schema);
  in.adopt(inner);
  if (in.ok()) out.tools.push_back(std::move(tool));
}

void read_definitions(FieldReader& in, ToolUse& out) {
  const Json* list = in.array("tools", limits::kTools);
  if (!list || list->empty()) return;
  for (size_t i = 0; i < list->size() && in.ok(); ++i) read_tool(in, (*list)[i], fmt::format("tools[{}]", i), out);
  if (in.ok() && dump_json(*list).size() > limits::kToolBytes) {
    in.fail("tools", fmt::format("'tools' are larger than {} bytes.", limits::kToolBytes));
  }
  if (in.ok()) out.definitions = *list;
}

// Only the named ones may be called.
void restrict_to(FieldReader& in, const std::vector<std::string>& names, ToolUse& out) {
  for (ToolUse::Tool& tool : out.tools) tool.callable = false;
  for (const std::string& name : names) {
    const auto tool = std::find_if(out.tools.begin(), out.tools.end(), [&](const auto& t) { return t.name == name; });
    if (tool == out.tools.end()) {
      in.fail("tool_choice", fmt::format("'tool_choice' names '{}', which is not in 'tools'.", name.substr(0, 200)));
      return;
    }
    tool->callable = true;
  }
}

// {"type": "function", "function": {"name": …}}
std::string function_name(const Json& entry) {
  if (!entry.is_object() || entry.value("type", Json()) != "function") return {};
  const Json function = entry.value("function", Json());
  const Json name = function.is_object() ? function.value("name", Json()) : Json();
  return name.is_string() ? name.get<std::string>() : std::string();
}

constexpr const char* kChoiceForms =
    "'tool_choice' must be \"none\", \"auto\", \"required\", {\"type\": \"function\", \"function\": {\"name\": …}} or "
    "{\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": …, \"tools\": […]}}.";

std::optional<ToolUse::Choice> choice_of(const Json& mode) {
  if (mode == "auto") return ToolUse::Choice::kAuto;
  if (mode == "required" || mode == "any") return ToolUse::Choice::kRequired;
  return std::nullopt;
}

void read_choice(FieldReader& in, ToolUse& out) {
  const Json* given = in.raw("tool_choice");
  out.choice = out.tools.empty() ? ToolUse::Choice::kNone : ToolUse::Choice::kAuto;
  if (!given || !in.ok()) return;
  if (*given == "none") {
    out.choice = ToolUse::Choice::kNone;
    return;
  }
  if (out.tools.empty() && *given == "auto") return;
  if (out.tools.empty()) return in.fail("tool_choice", "'tool_choice' needs 'tools'.");
  if (const auto choice = choice_of(*given)) {
    out.choice = *choice;
    return;
  }
  if (const std::string name = function_name(*given); !name.empty()) {
    out.choice = ToolUse::Choice::kRequired;
    out.parallel = false;  // who names a function wants one call of it
    return restrict_to(in, {name}, out);
  }
  const Json allowed = given->is_object() ? given->value("allowed_tools", Json()) : Json();
  const auto mode = allowed.is_object() ? choice_of(allowed.value("mode", Json("auto"))) : std::nullopt;
  const Json tools = allowed.is_object() ? allowed.value("tools", Json()) : Json();
  if (!mode || !tools.is_array() || tools.empty()) return in.fail("tool_choice", kChoiceForms);
  std::vector<std::string> names;
  for (const Json& tool : tools) names.push_back(function_name(tool));
  out.choice = *mode;
  restrict_to(in, names, out);
}

std::string call_text(const Json& call) {
  const Json& function = call["function"];
  const Json& arguments = function["arguments"];
  return fmt::format("{}{}{}{}{}{}", kOpen, kBeforeName, function["name"].get<std::string>(), kBeforeArguments,
                     arguments.is_string() ? arguments.get<std::string>() : dump_json(arguments), kClose);
}

std::string descriptions(const ToolUse& use) {
  std::string text = "You can call these tools:\n";
  for (const Json& tool : use.definitions) text += dump_json(tool["function"]) + "\n";
  return text + fmt::format("To call one, answer with its name and its arguments in this form:\n{}{}NAME{}{{…}}{}\n",
                            kOpen, kBeforeName, kBeforeArguments, kClose);
}

}  // namespace

ToolUse read_tools(FieldReader& in, const ConstraintSpec& constraint) {
  using Kind = ConstraintSpec::Kind;
  ToolUse out;
  read_definitions(in, out);
  if (in.ok()) read_choice(in, out);
  if (!in.boolean("parallel_tool_calls").value_or(true)) out.parallel = false;
  if (!in.ok() || !out.active()) return out;
  if (constraint.kind == Kind::kRegex || constraint.kind == Kind::kChoice || constraint.kind == Kind::kGrammar) {
    in.fail("tools", fmt::format("'tools' cannot be combined with '{}'.", constraint.param));
  }
  return out;
}

void read_tool_fields(FieldReader& fields, ChatMessage& message) {
  message.name = fields.text("name", 1024).value_or("");
  message.tool_call_id = fields.text("tool_call_id", 1024).value_or("");
  const Json* calls = fields.array("tool_calls", limits::kMessageToolCalls);
  if (!calls || calls->empty()) return;
  if (message.role != "assistant") {
    return fields.fail("tool_calls", fmt::format("'{}' belongs to the assistant.", fields.name_of("tool_calls")));
  }
  message.tool_calls = Json::array();
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", fields.name_of("tool_calls"), i);
    const Json& entry = (*calls)[i];
    const Json function = entry.is_object() ? entry.value("function", Json()) : Json();
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string()) {
      return fields.fail("tool_calls", fmt::format("'{}' must be {{\"id\", \"type\", \"function\": {{\"name\", "
                                                   "\"arguments\"}}}}.",
                                                   where));
    }
    // Templates write arguments as JSON, so they get the value; what is no JSON stays the text that it is.
    Json arguments = function.value("arguments", Json::object());
    if (arguments.is_string()) {
      if (auto parsed = parse_json(arguments.get_ref<const std::string&>()); parsed && parsed->is_object()) {
        arguments = *std::move(parsed);
      } else if (arguments == "") {
        arguments = Json::object();
      }
    }
    const Json id = entry.value("id", Json());
    message.tool_calls.push_back({{"id", id.is_string() ? id : Json("")},
                                  {"type", "function"},
                                  {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }
}

ToolCallGrammar tool_call_grammar(const ToolUse& use, const ConstraintSpec& constraint) {
  using Content = ToolCallGrammar::Content;
  ToolCallGrammar grammar{.max_calls = use.parallel ? limits::kToolCalls : 1};
  for (const ToolUse::Tool& tool : use.tools) {
    if (tool.callable) grammar.tools.push_back({tool.name, tool.schema, tool.where});
  }
  if (use.choice == ToolUse::Choice::kRequired) return grammar;
  switch (constraint.kind) {
    case ConstraintSpec::Kind::kJsonSchema:
      grammar.content = Content::kJsonSchema;
      grammar.content_schema = constraint.text;
      break;
    case ConstraintSpec::Kind::kJsonObject: grammar.content = Content::kJsonObject; break;
    default: grammar.content = Content::kAnyText; break;
  }
  return grammar;
}

void write_out_tools(const ChatTemplate& chat_template, const ToolUse& use, std::vector<ChatMessage>& messages) {
  if (!chat_template.knows_tool_messages()) {
    std::vector<ChatMessage> written;
    bool answering = false;  // the last message has answers of tools: one message has all of them
    for (ChatMessage& message : messages) {
      const bool answer = message.role == "tool";
      if (answer) message.content = fmt::format("<tool_response>\n{}\n</tool_response>", message.content);
      if (answer && answering) {
        written.back().content += "\n" + message.content;
        continue;
      }
      answering = answer;
      if (answer) message.role = "user";
      if (!message.tool_calls.is_null()) {
        for (const Json& call : message.tool_calls) {
          message.content += (message.content.empty() ? "" : "\n") + call_text(call);
        }
      }
      message.tool_calls = Json();
      message.tool_call_id.clear();
      written.push_back(std::move(message));
    }
    messages = std::move(written);
  }
  if (!use.active() || chat_template.knows_tools()) return;
  const auto with_role = [&](const char* role) {
    return std::find_if(messages.begin(), messages.end(), [role](const ChatMessage& m) { return m.role == role; });
  };
  if (const auto system = with_role("system"); system != messages.end()) {
    system->content += (system->content.empty() ? "" : "\n\n") + descriptions(use);
  } else if (const auto user = with_role("user"); user != messages.end()) {
    user->content = descriptions(use) + "\n" + user->content;
  }
}

}  // namespace bam

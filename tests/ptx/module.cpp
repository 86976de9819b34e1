#include "tests/ptx/module.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/ptx/cfg.h"
#include "tests/ptx/parser.h"

namespace ptx {

Type type_of(std::string_view name) {
  static const std::map<std::string_view, Type> kTypes = {
      {"pred", Type::kPred},     {"b8", Type::kB8},         {"b16", Type::kB16},   {"b32", Type::kB32},
      {"b64", Type::kB64},       {"u8", Type::kU8},         {"u16", Type::kU16},   {"u32", Type::kU32},
      {"u64", Type::kU64},       {"s8", Type::kS8},         {"s16", Type::kS16},   {"s32", Type::kS32},
      {"s64", Type::kS64},       {"f16", Type::kF16},       {"bf16", Type::kBF16}, {"f16x2", Type::kF16x2},
      {"bf16x2", Type::kBF16x2}, {"e4m3x2", Type::kE4M3x2}, {"f32", Type::kF32},   {"f64", Type::kF64}};
  const auto it = kTypes.find(name);
  return it == kTypes.end() ? Type::kNone : it->second;
}

int type_bytes(Type type) {
  switch (type) {
    case Type::kB8:
    case Type::kU8:
    case Type::kS8: return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBF16:
    case Type::kE4M3x2: return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64: return 8;
    default: return 4;
  }
}

bool Instruction::has(std::string_view part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

std::string Instruction::opcode() const {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ".") + part;
  return text;
}

// The top level of a file: variables, and where functions are.
class ModuleParser {
 public:
  explicit ModuleParser(Module& module) : module_(module), lexer_(module.text_) {}

  void parse() {
    while (lexer_.peek().kind != Token::Kind::kEnd) {
      const Token word = lexer_.take();
      if (word.is(".target")) {
        const std::string_view target = lexer_.take().text;
        module_.target_ = std::stoi(std::string(target.substr(target.find('_') + 1)));
        while (lexer_.accept(",")) lexer_.take();
      } else if (word.is(".version") || word.is(".address_size")) {
        lexer_.take();
        if (word.is(".version")) lexer_.take();  // the digits behind the point
      } else if (word.is(".file")) {
        const auto index = static_cast<int>(lexer_.take().bits);
        module_.files_[index] = lexer_.take().text;
        while (lexer_.accept(",")) lexer_.take();
      } else if (word.is(".section")) {
        lexer_.take();
        lexer_.expect("{");
        lexer_.skip_braces();
      } else if (word.is(".global") || word.is(".const")) {
        add_variable(Space::kGlobal);
      } else if (word.is(".shared")) {
        add_variable(Space::kShared);
      } else if (word.is(".entry") || word.is(".func")) {
        add_function(word.is(".entry"));
      } else if (!word.is(".visible") && !word.is(".extern") && !word.is(".weak") && !word.is(".loc") &&
                 word.kind != Token::Kind::kNumber) {
        lexer_.fail("unexpected " + std::string(word.text));
      }
    }
  }

 private:
  void add_variable(Space space) {
    Variable variable = parse_variable(lexer_, space);
    if (space == Space::kGlobal) {
      auto memory = std::make_unique<uint64_t[]>((variable.bytes + 7) / 8);
      auto* bytes = reinterpret_cast<uint8_t*>(memory.get());
      if (lexer_.accept("=")) {
        if (variable.name.empty() || !lexer_.accept("{")) lexer_.fail("an initial value that is no list of bytes");
        for (uint64_t i = 0; !lexer_.accept("}"); ++i) {
          if (i >= variable.bytes) lexer_.fail("more initial values than bytes");
          bytes[i] = static_cast<uint8_t>(lexer_.take().bits);
          lexer_.accept(",");
        }
      }
      variable.offset = reinterpret_cast<uint64_t>(bytes);
      module_.contents_.push_back(std::move(memory));
    }
    lexer_.expect(";");
    module_.globals_.push_back(std::move(variable));
  }

  void add_function(bool entry) {
    Module::Body body;
    body.entry = entry;
    if (lexer_.peek().is("(")) {
      lexer_.take();
      body.result_begin = lexer_.taken();
      while (!lexer_.peek().is(")")) lexer_.take();
      body.result_end = lexer_.taken();
      lexer_.take();
    }
    body.line = lexer_.peek().line;
    const std::string name(lexer_.take().text);
    body.begin = lexer_.taken();
    while (!lexer_.peek().is("{") && !lexer_.peek().is(";")) {
      if (lexer_.peek().kind == Token::Kind::kEnd) lexer_.fail("a function without a body");
      lexer_.take();
    }
    if (lexer_.accept(";")) return;  // a declaration
    lexer_.expect("{");
    lexer_.skip_braces();
    body.end = lexer_.taken();
    module_.bodies_[name] = body;
    if (entry) module_.entries_.push_back(name);
  }

  Module& module_;
  Lexer lexer_;
};

Module::Module(std::string text, std::string name) : name_(std::move(name)), text_(std::move(text)) {
  ModuleParser(*this).parse();
}

Module::~Module() = default;

std::string_view Module::file(int index) const {
  const auto it = files_.find(index);
  return it == files_.end() ? std::string_view() : std::string_view(it->second);
}

bool Module::contains(uint64_t address, uint64_t bytes) const {
  return std::any_of(globals_.begin(), globals_.end(), [&](const Variable& variable) {
    return variable.space == Space::kGlobal && address >= variable.offset &&
           address + bytes <= variable.offset + variable.bytes;
  });
}

namespace {

void shift_registers(Operand& operand, int by) {
  if (operand.reg >= 0) operand.reg += by;
  if (operand.second >= 0) operand.second += by;
  for (Operand& element : operand.elements) shift_registers(element, by);
}

void map_variables(Operand& operand, const std::vector<int>& to) {
  if (operand.variable >= 0) operand.variable = to[static_cast<size_t>(operand.variable)];
  for (Operand& element : operand.elements) map_variables(element, to);
}

// Appends `callee` to `code` in place of a call; its returns become branches to what follows.
void inline_call(Function& into, std::vector<Instruction>& code, const Function& callee,
                 const FunctionParser::Call& call) {
  if (static_cast<int>(call.arguments.size()) != callee.num_params) {
    throw ParseError(0, "a call of " + callee.name + " with another number of arguments");
  }
  const auto first_register = static_cast<int>(into.wide.size());
  into.wide.insert(into.wide.end(), callee.wide.begin(), callee.wide.end());
  into.predicate.insert(into.predicate.end(), callee.predicate.begin(), callee.predicate.end());
  std::vector<int> variables;
  const uint64_t local = (into.local_bytes + 15) / 16 * 16;
  for (size_t v = 0; v < callee.variables.size(); ++v) {
    if (v < call.arguments.size()) {
      variables.push_back(call.arguments[v]);
    } else if (static_cast<int>(v) == callee.result) {
      variables.push_back(call.result);
    } else {
      variables.push_back(static_cast<int>(into.variables.size()));
      into.variables.push_back(callee.variables[v]);
      if (callee.variables[v].space == Space::kShared)
        throw ParseError(0, callee.name + " has shared memory of its own");
      if (callee.variables[v].thread_local_) into.variables.back().offset += local;
    }
  }
  into.local_bytes = local + callee.local_bytes;
  const auto begin = static_cast<int>(code.size()), end = begin + static_cast<int>(callee.code.size());
  for (Instruction instruction : callee.code) {
    for (Operand& operand : instruction.operands) {
      shift_registers(operand, first_register);
      map_variables(operand, variables);
    }
    if (instruction.guard >= 0) instruction.guard += first_register;
    if (instruction.flow == Flow::kBranch) instruction.target += begin;
    if (instruction.flow == Flow::kExit) {
      instruction.flow = Flow::kBranch;
      instruction.target = end;
    }
    code.push_back(std::move(instruction));
  }
}

}  // namespace

const Function& Module::function(const std::string& name) {
  if (const auto it = functions_.find(name); it != functions_.end()) {
    if (it->second == nullptr) throw ParseError(0, name + " calls itself");
    return *it->second;
  }
  const auto found = bodies_.find(name);
  if (found == bodies_.end()) throw ParseError(0, "no function " + name);
  const Body& body = found->second;
  functions_[name] = nullptr;  // being parsed
  const std::string_view text = text_;
  FunctionParser parser(text.substr(body.begin, body.end - body.begin), body.line, body.entry, globals_);
  std::unique_ptr<Function> function =
      parser.parse(name, text.substr(body.result_begin, body.result_end - body.result_begin));
  if (!parser.calls().empty()) {
    std::vector<Instruction> code;
    std::vector<int> moved;  // by old index
    std::set<size_t> own;    // branches whose targets are old indices
    for (const Instruction& instruction : function->code) {
      moved.push_back(static_cast<int>(code.size()));
      if (instruction.parts.front() == "call") {
        const FunctionParser::Call& call = parser.calls()[static_cast<size_t>(instruction.selector)];
        inline_call(*function, code, this->function(call.function), call);
      } else {
        if (instruction.flow == Flow::kBranch) own.insert(code.size());
        code.push_back(instruction);
      }
    }
    for (const size_t branch : own) code[branch].target = moved[static_cast<size_t>(code[branch].target)];
    function->code = std::move(code);
    function->traffic.assign(function->code.size(), {});
  }
  find_joins(*function);
  return *(functions_[name] = std::move(function));
}

}  // namespace ptx

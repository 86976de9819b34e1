#include "tests/ptx/parser.h"

#include <algorithm>

namespace ptx {

namespace {

// Shared variables lie apart from each other, so that an address that leaves one is noticed; every one begins in bank 0.
constexpr uint64_t kFirstShared = 1024, kSharedGap = 128;

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

bool special_register(std::string_view name, uint64_t& bits) {
  static const std::map<std::string_view, SpecialRegister> kVectors = {{"%tid", SpecialRegister::kTid},
                                                                       {"%ntid", SpecialRegister::kNtid},
                                                                       {"%ctaid", SpecialRegister::kCtaid},
                                                                       {"%nctaid", SpecialRegister::kNctaid}};
  if (name == "%laneid" || name == "%warpid") {
    bits = static_cast<uint64_t>(name == "%laneid" ? SpecialRegister::kLane : SpecialRegister::kWarp) << 2;
    return true;
  }
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || name.size() != dot + 2) return false;
  const auto it = kVectors.find(name.substr(0, dot));
  const size_t axis = std::string_view("xyz").find(name[dot + 1]);
  if (it == kVectors.end() || axis == std::string_view::npos) return false;
  bits = static_cast<uint64_t>(it->second) << 2 | axis;
  return true;
}

std::vector<std::string> split(std::string_view opcode) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', begin), opcode.size());
    if (end > begin) parts.emplace_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Operand variable_operand(int variable) {
  Operand operand;
  operand.kind = Operand::Kind::kVariable;
  operand.variable = variable;
  return operand;
}

}  // namespace

Variable parse_variable(Lexer& lexer, Space space) {
  Variable variable;
  variable.space = space;
  uint64_t element = 1;
  while (lexer.peek().text.starts_with(".")) {
    const Token word = lexer.take();
    if (word.is(".align")) {
      variable.alignment = lexer.take().bits;
    } else if (const Type type = type_of(word.text.substr(1)); type != Type::kNone) {
      element = static_cast<uint64_t>(type_bytes(type));
      variable.alignment = std::max(variable.alignment, element);
    } else if (!word.is(".ptr") && !word.is(".global")) {
      lexer.fail("a variable with " + std::string(word.text));
    }
  }
  variable.name = lexer.take().text;
  variable.bytes = element;
  if (lexer.accept("[")) {
    variable.dynamic = lexer.peek().is("]");
    variable.bytes = variable.dynamic ? 0 : element * lexer.take().bits;
    lexer.expect("]");
  }
  return variable;
}

FunctionParser::FunctionParser(std::string_view text, int line, bool entry, const std::vector<Variable>& globals)
    : lexer_(text, line), entry_(entry), globals_(globals) {}

std::unique_ptr<Function> FunctionParser::parse(const std::string& name, std::string_view result) {
  function_ = std::make_unique<Function>();
  function_->name = name;
  function_->entry = entry_;
  function_->shared_end = kFirstShared;
  scopes_.emplace_back();
  parse_params();
  if (!result.empty()) {
    Lexer own(result);
    own.expect(".param");
    function_->result = add_variable(parse_variable(own, Space::kParam));
  }
  while (!lexer_.peek().is("{")) {
    const Token directive = lexer_.take();
    if (directive.kind == Token::Kind::kEnd) lexer_.fail("a function without a body");
    if (directive.is(".maxntid") || directive.is(".reqntid")) {
      function_->max_threads = 1;
      do function_->max_threads *= static_cast<int>(lexer_.take().bits);
      while (lexer_.accept(","));
    }
  }
  parse_body();
  resolve_labels();
  function_->traffic.resize(function_->code.size());
  return std::move(function_);
}

void FunctionParser::parse_params() {
  if (!lexer_.accept("(")) return;
  while (!lexer_.accept(")")) {
    lexer_.expect(".param");
    add_variable(parse_variable(lexer_, Space::kParam));
    ++function_->num_params;
    lexer_.accept(",");
  }
}

// Gives it a place in its space.
int FunctionParser::add_variable(Variable variable) {
  Function& f = *function_;
  if (variable.space == Space::kShared && !variable.dynamic) {
    f.static_shared = round_up(f.static_shared, variable.alignment) + variable.bytes;
    variable.offset = round_up(f.shared_end, std::max(variable.alignment, kSharedGap));
    f.shared_end = variable.offset + variable.bytes + kSharedGap;
  } else if (variable.space == Space::kParam && entry_ && f.code.empty() && scopes_.size() == 1) {
    variable.offset = round_up(f.param_bytes, variable.alignment);
    f.param_bytes = variable.offset + variable.bytes;
  } else if (variable.space == Space::kLocal || variable.space == Space::kParam) {
    variable.thread_local_ = true;
    variable.offset = round_up(f.local_bytes, std::max<uint64_t>(variable.alignment, 8));
    f.local_bytes = variable.offset + variable.bytes;
  }
  const auto index = static_cast<int>(f.variables.size());
  scopes_.back().variables[variable.name] = index;
  f.variables.push_back(std::move(variable));
  return index;
}

int FunctionParser::add_register(Type type) {
  function_->wide.push_back(type_bytes(type) == 8);
  function_->predicate.push_back(type == Type::kPred);
  return static_cast<int>(function_->wide.size()) - 1;
}

void FunctionParser::parse_body() {
  lexer_.expect("{");
  scopes_.emplace_back();
  while (scopes_.size() > 1) {
    if (lexer_.peek().kind == Token::Kind::kEnd) lexer_.fail("the body has no end");
    parse_statement();
  }
  Instruction end;
  end.parts = {"exit"};
  end.line = lexer_.peek().line;
  decode(end);
  function_->code.push_back(std::move(end));
}

void FunctionParser::parse_statement() {
  const Token& token = lexer_.peek();
  if (lexer_.accept("{")) {
    scopes_.emplace_back();
  } else if (lexer_.accept("}")) {
    scopes_.pop_back();
  } else if (lexer_.accept(";")) {
  } else if (lexer_.accept(".reg")) {
    declare_registers();
  } else if (lexer_.accept(".local")) {
    declare_variable(Space::kLocal);
  } else if (lexer_.accept(".shared")) {
    declare_variable(Space::kShared);
  } else if (lexer_.accept(".param")) {
    declare_variable(Space::kParam);
  } else if (lexer_.accept(".pragma")) {
    lexer_.take();
    lexer_.expect(";");
  } else if (lexer_.accept(".loc")) {
    file_ = static_cast<int>(lexer_.take().bits);
    source_line_ = static_cast<int>(lexer_.take().bits);
    lexer_.take();  // the column; then perhaps ", function_name $L, inlined_at 1 2 3"
    while (lexer_.accept(",")) {
      if (lexer_.take().is("inlined_at")) {
        for (int i = 0; i < 3; ++i) lexer_.take();
      } else {
        lexer_.take();
        if (lexer_.accept("+")) lexer_.take();
      }
    }
  } else if (token.kind == Token::Kind::kName || token.is("@")) {
    parse_instruction();
  } else {
    lexer_.fail("unexpected " + std::string(token.text));
  }
}

void FunctionParser::declare_registers() {
  const Type type = type_of(lexer_.take().text.substr(1));
  if (type == Type::kNone) lexer_.fail("registers of an unknown type");
  do {
    const std::string name(lexer_.take().text);
    if (lexer_.accept("<")) {
      const auto count = static_cast<int>(lexer_.take().bits);
      lexer_.expect(">");
      const int first = static_cast<int>(function_->wide.size());
      for (int i = 0; i < count; ++i) add_register(type);
      scopes_.back().ranges[name] = {first, count};
    } else {
      scopes_.back().registers[name] = add_register(type);
    }
  } while (lexer_.accept(","));
  lexer_.expect(";");
}

void FunctionParser::declare_variable(Space space) {
  add_variable(parse_variable(lexer_, space));
  lexer_.expect(";");
}

int FunctionParser::find_register(const std::string& name) const {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  const std::string prefix = name.substr(0, digits);
  const int number = digits < name.size() && name.size() - digits < 9 ? std::stoi(name.substr(digits)) : -1;
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->registers.find(name); it != scope->registers.end()) return it->second;
    const auto range = scope->ranges.find(prefix);
    if (range != scope->ranges.end() && number >= 0 && number < range->second.second)
      return range->second.first + number;
  }
  return -1;
}

int FunctionParser::find_variable(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->variables.find(name); it != scope->variables.end()) return it->second;
  }
  for (const Variable& global : globals_) {
    if (global.name != name) continue;
    const int index = add_variable(global);
    scopes_.back().variables.erase(name);
    scopes_.front().variables[name] = index;  // once per function
    return index;
  }
  return -1;
}

Operand FunctionParser::named(const Token& token) {
  Operand operand;
  const std::string name(token.text);
  if (name == "_") {
    operand.kind = Operand::Kind::kSink;
  } else if (operand.reg = find_register(name); operand.reg >= 0) {
    operand.kind = Operand::Kind::kRegister;
  } else if (special_register(name, operand.bits)) {
    operand.kind = Operand::Kind::kSpecial;
  } else if (const int variable = find_variable(name); variable >= 0) {
    operand = variable_operand(variable);
  } else {
    throw ParseError(token.line, "unknown name " + name);
  }
  return operand;
}

Operand FunctionParser::parse_address() {
  Operand operand;
  if (lexer_.peek().kind == Token::Kind::kName) {
    operand = named(lexer_.take());
    if (operand.kind != Operand::Kind::kRegister && operand.kind != Operand::Kind::kVariable)
      lexer_.fail("not an address");
  } else {
    operand.bits = lexer_.take().bits;
  }
  operand.kind = Operand::Kind::kAddress;
  if (lexer_.accept("+")) {
    const bool negative = lexer_.accept("-");
    const uint64_t offset = lexer_.take().bits;
    operand.bits += negative ? -offset : offset;
  }
  lexer_.expect("]");
  return operand;
}

Operand FunctionParser::parse_operand() {
  if (lexer_.accept("[")) return parse_address();
  Operand operand;
  if (lexer_.accept("{")) {
    operand.kind = Operand::Kind::kVector;
    do operand.elements.push_back(parse_operand());
    while (lexer_.accept(","));
    lexer_.expect("}");
    return operand;
  }
  if (lexer_.accept("!")) {
    operand = named(lexer_.take());
    operand.negated = true;
    return operand;
  }
  const bool negative = lexer_.accept("-");
  const Token token = lexer_.take();
  if (token.kind == Token::Kind::kNumber) {
    operand.kind = Operand::Kind::kImmediate;
    operand.bits = negative ? -token.bits : token.bits;
    return operand;
  }
  if (token.kind != Token::Kind::kName || negative) throw ParseError(token.line, "not an operand");
  operand = named(token);
  if (lexer_.accept("|")) operand.second = named(lexer_.take()).reg;
  return operand;
}

void FunctionParser::parse_instruction() {
  Instruction instruction;
  instruction.line = lexer_.peek().line;
  instruction.file = file_;
  instruction.source_line = source_line_;
  if (lexer_.accept("@")) {
    instruction.guard_negated = lexer_.accept("!");
    instruction.guard = named(lexer_.take()).reg;
    if (instruction.guard < 0) lexer_.fail("a guard that is no register");
  }
  const Token word = lexer_.take();
  if (lexer_.accept(":")) {
    if (!labels_.emplace(word.text, static_cast<int>(function_->code.size())).second) {
      throw ParseError(word.line, "a label twice: " + std::string(word.text));
    }
    return;
  }
  instruction.parts = split(word.text);
  const std::string& family = instruction.parts.front();
  if (family == "bra") {
    branches_.emplace_back(function_->code.size(), lexer_.take().text);
  } else if (family == "call") {
    parse_call(instruction);
  } else {
    while (!lexer_.peek().is(";")) {
      instruction.operands.push_back(parse_operand());
      lexer_.accept(",");
    }
  }
  lexer_.expect(";");
  decode(instruction);
  function_->code.push_back(std::move(instruction));
}

// call (result), function, (arguments);
void FunctionParser::parse_call(Instruction& instruction) {
  if (instruction.guard >= 0) lexer_.fail("a call with a guard");
  Call call;
  const auto variables = [&] {
    std::vector<int> found;
    while (!lexer_.accept(")")) {
      found.push_back(named(lexer_.take()).variable);
      if (found.back() < 0) lexer_.fail("an argument that is no variable");
      lexer_.accept(",");
    }
    return found;
  };
  if (lexer_.accept("(")) {
    call.result = variables().at(0);
    lexer_.expect(",");
  }
  call.function = lexer_.take().text;
  if (lexer_.accept(",")) {
    lexer_.expect("(");
    call.arguments = variables();
  }
  instruction.selector = static_cast<int>(calls_.size());
  calls_.push_back(std::move(call));
}

void FunctionParser::resolve_labels() {
  for (const auto& [instruction, label] : branches_) {
    const auto it = labels_.find(label);
    if (it == labels_.end()) throw ParseError(function_->code[instruction].line, "unknown label " + label);
    function_->code[instruction].target = it->second;
  }
}

}  // namespace ptx

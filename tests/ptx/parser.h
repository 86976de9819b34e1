// From text to functions. See module.h.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/ptx/lexer.h"
#include "tests/ptx/module.h"

namespace ptx {

// .align 8 .b8 name[16] or .u64 name: what follows a directive that declares a variable.
Variable parse_variable(Lexer& lexer, Space space);

// One function's parameters and body.
class FunctionParser {
 public:
  // globals: variables of the module; calls: functions that were called, in the order of Call::index.
  struct Call {
    std::string function;
    std::vector<int> arguments;  // variables
    int result = -1;
  };

  FunctionParser(std::string_view text, int line, bool entry, const std::vector<Variable>& globals);
  // `result`: text of the declaration of the result, or empty.
  std::unique_ptr<Function> parse(const std::string& name, std::string_view result);
  const std::vector<Call>& calls() const { return calls_; }  // Instruction::selector of a call: index

 private:
  struct Scope {
    std::unordered_map<std::string, int> registers;
    std::unordered_map<std::string, std::pair<int, int>> ranges;  // prefix -> first register, count
    std::unordered_map<std::string, int> variables;
  };
  void parse_params();
  void parse_body();
  void parse_statement();
  void declare_registers();
  void declare_variable(Space space);
  int add_variable(Variable variable);
  int add_register(Type type);
  void parse_instruction();
  void parse_call(Instruction& instruction);
  Operand parse_operand();
  Operand parse_address();
  Operand named(const Token& token);
  int find_register(const std::string& name) const;  // -1: none
  int find_variable(const std::string& name);        // -1: none
  void resolve_labels();

  Lexer lexer_;
  bool entry_;
  const std::vector<Variable>& globals_;
  std::unique_ptr<Function> function_;
  std::vector<Scope> scopes_;
  std::map<std::string, int, std::less<>> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;  // instruction, label
  std::vector<Call> calls_;
  int file_ = 0, source_line_ = 0;
};

// Fills in what Instruction says is decoded, but for targets and joins. Throws ParseError for what is not known.
void decode(Instruction& instruction);

}  // namespace ptx

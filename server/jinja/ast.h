#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/jinja/lexer.h"
#include "server/jinja/value.h"

namespace bam::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kLiteral,      // literal
    kName,         // name
    kList,         // children
    kDict,         // children: key, value, key, value …
    kAttribute,    // children[0].name
    kItem,         // children[0][children[1]]
    kSlice,        // children[0][children[1]:children[2]:children[3]], null where left out
    kCall,         // children[0](children[1] …, keywords)
    kFilter,       // children[0] | name(children[1] …, keywords)
    kTest,         // children[0] is name(children[1] …)
    kNot,          // children[0]
    kNegate,       // children[0]
    kPlus,         // children[0]
    kBinary,       // children[0] op children[1]; name: the operator
    kCompare,      // children[0] op children[1] op children[2] …; operators
    kAnd,          // children[0], children[1]
    kOr,           // children[0], children[1]
    kConcat,       // children, joined as text
    kConditional,  // children[0] if children[1] else children[2]; [2] may be null
  };
  Kind kind;
  int line = 0;
  int depth = 1;
  std::string name;
  Value literal;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<std::string> operators;
};

struct Node;
using Body = std::vector<std::unique_ptr<const Node>>;

// What {% set %} and {% for %} assign to: one name, several for unpacking, or a namespace's attribute.
struct Target {
  std::vector<std::string> names;
  std::string attribute;  // not empty: names[0].attribute
};

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // with their defaults, or null
  Body body;
};

struct Node {
  enum class Kind : uint8_t {
    kText,         // text
    kPrint,        // expr
    kIf,           // branches
    kFor,          // target in expr if condition: body, else: otherwise
    kSet,          // target = expr
    kSetBlock,     // target = body, through expr (filters around a kName "") if given
    kFilterBlock,  // body through expr, likewise
    kMacro,        // macro
    kScope,        // body: {% generation %}
    kBreak,
    kContinue,
  };
  struct Branch {
    ExprPtr condition;  // null: else
    Body body;
  };
  Kind kind;
  int line = 0;
  std::string text;
  ExprPtr expr, condition;
  std::vector<Branch> branches;
  Target target;
  Body body, otherwise;
  Macro macro;
};

// Throws Error with the line.
Body parse_template(std::string_view source, Whitespace whitespace = Whitespace::kTrimmed);

// Nesting of blocks and of expressions.
inline constexpr int kMaxNesting = 100;

}  // namespace bam::jinja

#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "server/jinja/parser.h"

namespace bam::jinja {

using Kind = Expr::Kind;

// Counts how deep the parser has called itself.
struct ExpressionParser::Nesting {
  explicit Nesting(ExpressionParser& p) : parser(p) {
    if (++parser.nesting_ > kMaxNesting) parser.tokens_.fail("an expression nested too deep");
  }
  ~Nesting() { --parser.nesting_; }
  ExpressionParser& parser;
};

Token TokenStream::next() {
  Token token = peek();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool TokenStream::take(std::string_view op) {
  if (!peek().is(op)) return false;
  next();
  return true;
}

bool TokenStream::take_name(std::string_view name) {
  if (!peek().is_name(name)) return false;
  next();
  return true;
}

void TokenStream::expect(std::string_view op) {
  if (!take(op)) fail(fmt::format("'{}' expected", op));
}

void TokenStream::expect_name(std::string_view name) {
  if (!take_name(name)) fail(fmt::format("'{}' expected", name));
}

std::string TokenStream::expect_identifier() {
  if (peek().kind != Token::Kind::kName) fail("a name expected");
  return next().text;
}

void TokenStream::fail(std::string_view what) const {
  const Token& token = peek();
  const std::string near = token.text.empty() ? "" : fmt::format(" at '{}'", printable(token.text, 40));
  throw Error("line {}: {}{}", token.line, what, near);
}

ExprPtr ExpressionParser::make(Expr expr) const {
  int depth = 0;
  for (const auto& child : expr.children) depth = std::max(depth, child ? child->depth : 0);
  for (const auto& [name, value] : expr.keywords) depth = std::max(depth, value->depth);
  expr.depth = depth + 1;
  expr.line = tokens_.peek().line;
  if (expr.depth > kMaxNesting) tokens_.fail("an expression nested too deep");
  return std::make_unique<const Expr>(std::move(expr));
}

ExprPtr ExpressionParser::binary(Kind kind, std::string op, ExprPtr left, ExprPtr right) const {
  Expr expr{.kind = kind, .name = std::move(op)};
  expr.children.push_back(std::move(left));
  expr.children.push_back(std::move(right));
  return make(std::move(expr));
}

ExprPtr ExpressionParser::parse_tuple() {
  ExprPtr first = parse();
  if (!tokens_.peek().is(",")) return first;
  Expr list{.kind = Kind::kList};
  list.children.push_back(std::move(first));
  while (tokens_.take(",")) {
    if (tokens_.peek().kind == Token::Kind::kBlockEnd || tokens_.peek().kind == Token::Kind::kPrintEnd) break;
    list.children.push_back(parse());
  }
  return make(std::move(list));
}

ExprPtr ExpressionParser::parse_conditional(bool allow_if) {
  const Nesting nesting(*this);
  ExprPtr value = parse_or();
  while (allow_if && tokens_.take_name("if")) {
    Expr expr{.kind = Kind::kConditional};
    expr.children.push_back(std::move(value));
    expr.children.push_back(parse_or());
    expr.children.push_back(tokens_.take_name("else") ? parse_conditional(true) : nullptr);
    value = make(std::move(expr));
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (tokens_.take_name("or")) left = binary(Kind::kOr, "", std::move(left), parse_and());
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (tokens_.take_name("and")) left = binary(Kind::kAnd, "", std::move(left), parse_not());
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!tokens_.peek().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  tokens_.next();
  Expr expr{.kind = Kind::kNot};
  expr.children.push_back(parse_not());
  return make(std::move(expr));
}

ExprPtr ExpressionParser::parse_compare() {
  Expr compare{.kind = Kind::kCompare};
  compare.children.push_back(parse_sum());
  while (true) {
    const Token& token = tokens_.peek();
    if (token.is("==") || token.is("!=") || token.is("<") || token.is("<=") || token.is(">") || token.is(">=")) {
      compare.operators.push_back(tokens_.next().text);
    } else if (tokens_.take_name("in")) {
      compare.operators.emplace_back("in");
    } else if (token.is_name("not") && tokens_.peek(1).is_name("in")) {
      tokens_.next();
      tokens_.next();
      compare.operators.emplace_back("not in");
    } else {
      break;
    }
    compare.children.push_back(parse_sum());
  }
  if (compare.operators.empty()) return std::move(compare.children[0]);
  return make(std::move(compare));
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (tokens_.peek().is("+") || tokens_.peek().is("-")) {
    std::string op = tokens_.next().text;
    left = binary(Kind::kBinary, std::move(op), std::move(left), parse_concat());
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!tokens_.peek().is("~")) return first;
  Expr concat{.kind = Kind::kConcat};
  concat.children.push_back(std::move(first));
  while (tokens_.take("~")) concat.children.push_back(parse_product());
  return make(std::move(concat));
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while (true) {
    const Token& token = tokens_.peek();
    if (!token.is("*") && !token.is("/") && !token.is("//") && !token.is("%")) return left;
    std::string op = tokens_.next().text;
    left = binary(Kind::kBinary, std::move(op), std::move(left), parse_power());
  }
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (tokens_.take("**")) left = binary(Kind::kBinary, "**", std::move(left), parse_unary(true));
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr expr;
  if (tokens_.peek().is("-") || tokens_.peek().is("+")) {
    Expr sign{.kind = tokens_.next().text == "-" ? Kind::kNegate : Kind::kPlus};
    sign.children.push_back(parse_unary(false));
    expr = make(std::move(sign));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::parse_primary() {
  const Token token = tokens_.peek();
  auto literal = [&](Value value) { return make({.kind = Kind::kLiteral, .literal = std::move(value)}); };
  switch (token.kind) {
    case Token::Kind::kName:
      tokens_.next();
      if (token.text == "true" || token.text == "True") return literal(Value::boolean(true));
      if (token.text == "false" || token.text == "False") return literal(Value::boolean(false));
      if (token.text == "none" || token.text == "None") return literal(Value::none());
      return make({.kind = Kind::kName, .name = token.text});
    case Token::Kind::kString: {
      std::string text;
      while (tokens_.peek().kind == Token::Kind::kString) text += tokens_.next().text;
      return literal(Value::string(std::move(text)));
    }
    case Token::Kind::kInteger: {
      int64_t value = 0;
      const auto end = token.text.data() + token.text.size();
      if (std::from_chars(token.text.data(), end, value).ec != std::errc()) tokens_.fail("an integer too large");
      tokens_.next();
      return literal(Value::integer(value));
    }
    case Token::Kind::kFloat: {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      tokens_.next();
      return literal(Value::number(value));
    }
    default: break;
  }
  if (tokens_.take("(")) {
    if (tokens_.take(")")) return literal(Value::list({}));
    ExprPtr first = parse();
    if (tokens_.take(")")) return first;
    Expr tuple{.kind = Kind::kList};
    tuple.children.push_back(std::move(first));
    while (!tokens_.take(")")) {
      tokens_.expect(",");
      if (!tokens_.peek().is(")")) tuple.children.push_back(parse());
    }
    return make(std::move(tuple));
  }
  if (tokens_.take("[")) {
    Expr list{.kind = Kind::kList};
    while (!tokens_.take("]")) {
      if (!list.children.empty()) tokens_.expect(",");
      if (!tokens_.peek().is("]")) list.children.push_back(parse());
    }
    return make(std::move(list));
  }
  if (tokens_.take("{")) return parse_dict();
  tokens_.fail("an expression expected");
}

ExprPtr ExpressionParser::parse_dict() {
  Expr dict{.kind = Kind::kDict};
  while (!tokens_.take("}")) {
    if (!dict.children.empty()) tokens_.expect(",");
    if (tokens_.peek().is("}")) continue;
    dict.children.push_back(parse());
    tokens_.expect(":");
    dict.children.push_back(parse());
  }
  return make(std::move(dict));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (tokens_.take(".")) {
      Expr access{.kind = Kind::kAttribute};
      if (tokens_.peek().kind == Token::Kind::kInteger) {
        access.kind = Kind::kItem;
        access.children.push_back(std::move(expr));
        access.children.push_back(parse_primary());
      } else {
        access.name = tokens_.expect_identifier();
        access.children.push_back(std::move(expr));
      }
      expr = make(std::move(access));
    } else if (tokens_.take("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (tokens_.take("(")) {
      Expr call{.kind = Kind::kCall};
      call.children.push_back(std::move(expr));
      parse_arguments(call);
      expr = make(std::move(call));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  Expr access{.kind = Kind::kItem};
  access.children.push_back(std::move(object));
  auto part = [&]() -> ExprPtr { return tokens_.peek().is(":") || tokens_.peek().is("]") ? nullptr : parse(); };
  access.children.push_back(part());
  while (access.children.size() < 4 && tokens_.take(":")) {
    access.kind = Kind::kSlice;
    access.children.push_back(part());
  }
  tokens_.expect("]");
  if (access.kind == Kind::kItem && !access.children[1]) tokens_.fail("an empty subscript");
  if (access.kind == Kind::kSlice) access.children.resize(4);
  return make(std::move(access));
}

// Behind "(", up to and with ")".
void ExpressionParser::parse_arguments(Expr& call) {
  bool first = true;
  while (!tokens_.take(")")) {
    if (!first) tokens_.expect(",");
    first = false;
    if (tokens_.peek().is(")")) continue;
    if (tokens_.peek().is("*") || tokens_.peek().is("**")) tokens_.fail("* and ** arguments are not supported");
    if (tokens_.peek().kind == Token::Kind::kName && tokens_.peek(1).is("=")) {
      std::string name = tokens_.next().text;
      tokens_.next();
      call.keywords.emplace_back(std::move(name), parse());
    } else {
      if (!call.keywords.empty()) tokens_.fail("a positional argument behind a keyword argument");
      call.children.push_back(parse());
    }
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr expr) {
  while (true) {
    if (tokens_.take("|")) {
      expr = parse_filter(std::move(expr));
    } else if (tokens_.take_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (tokens_.peek().is("(")) {
      expr = parse_postfix(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_filter(ExprPtr expr) {
  Expr filter{.kind = Kind::kFilter, .name = tokens_.expect_identifier()};
  filter.children.push_back(std::move(expr));
  if (tokens_.take("(")) parse_arguments(filter);
  return make(std::move(filter));
}

ExprPtr ExpressionParser::parse_filters_of_block() {
  ExprPtr expr = make({.kind = Kind::kName});
  do {
    expr = parse_filter(std::move(expr));
  } while (tokens_.take("|"));
  return expr;
}

ExprPtr ExpressionParser::parse_test(ExprPtr expr) {
  const bool negated = tokens_.take_name("not");
  Expr test{.kind = Kind::kTest, .name = tokens_.expect_identifier()};
  test.children.push_back(std::move(expr));
  const Token& token = tokens_.peek();
  const bool operand =
      token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat ||
      token.is("[") || token.is("{") ||
      (token.kind == Token::Kind::kName && token.text != "else" && token.text != "or" && token.text != "and" &&
       token.text != "is" && token.text != "if" && token.text != "in" && token.text != "not");
  if (tokens_.take("(")) {
    parse_arguments(test);
  } else if (operand) {
    test.children.push_back(parse_postfix(parse_primary()));
  }
  ExprPtr result = make(std::move(test));
  if (!negated) return result;
  Expr inverse{.kind = Kind::kNot};
  inverse.children.push_back(std::move(result));
  return make(std::move(inverse));
}

}  // namespace bam::jinja

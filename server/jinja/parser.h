#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/jinja/ast.h"
#include "server/jinja/lexer.h"

namespace bam::jinja {

// A position in the tokens of a template. Throws Error with the line when something else is expected.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
  Token next();
  bool take(std::string_view op);
  bool take_name(std::string_view name);
  void expect(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_identifier();
  [[noreturn]] void fail(std::string_view what) const;

 private:
  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

// Expressions, with Jinja's precedences: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary, postfix and
// filters.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExprPtr parse() { return parse_conditional(true); }
  // Without a trailing "if", which belongs to the {% for %} around it.
  ExprPtr parse_without_if() { return parse_conditional(false); }
  // a, b, c: a list when there is a comma.
  ExprPtr parse_tuple();
  // The filters of {% filter … %} or {% set x | … %}, around an empty name.
  ExprPtr parse_filters_of_block();

 private:
  struct Nesting;
  ExprPtr make(Expr expr) const;
  ExprPtr binary(Expr::Kind kind, std::string op, ExprPtr left, ExprPtr right) const;

  ExprPtr parse_conditional(bool allow_if);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_test(ExprPtr expr);
  void parse_arguments(Expr& call);

  TokenStream& tokens_;
  int nesting_ = 0;
};

}  // namespace bam::jinja

#include "server/jinja/parser.h"

#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace bam::jinja {
namespace {

using Kind = Node::Kind;

// Statements: what stands between the tags.
class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  Body run() { return parse_body({}, 0); }

 private:
  // Up to a block that starts with one of the names, of which only "{%" is consumed; without names, up to the end.
  Body parse_body(std::initializer_list<std::string_view> until, int depth) {
    if (depth > kMaxNesting) tokens_.fail("blocks nested too deep");
    Body body;
    while (true) {
      const Token token = tokens_.peek();
      if (token.kind == Token::Kind::kEnd) {
        if (until.size() > 0)
          tokens_.fail(fmt::format("the template ends inside a block: '{}' missing", *(until.end() - 1)));
        return body;
      }
      tokens_.next();
      if (token.kind == Token::Kind::kText) {
        body.push_back(std::make_unique<const Node>(Node{.kind = Kind::kText, .line = token.line, .text = token.text}));
      } else if (token.kind == Token::Kind::kPrintBegin) {
        Node node{.kind = Kind::kPrint, .line = token.line};
        node.expr = expressions_.parse_tuple();
        end_of(Token::Kind::kPrintEnd);
        body.push_back(std::make_unique<const Node>(std::move(node)));
      } else {
        for (std::string_view name : until) {
          if (tokens_.peek().is_name(name)) return body;
        }
        body.push_back(parse_statement(depth));
      }
    }
  }

  void end_of(Token::Kind kind) {
    if (tokens_.peek().kind != kind) tokens_.fail("the end of the tag expected");
    tokens_.next();
  }
  void end_block() { end_of(Token::Kind::kBlockEnd); }

  // {% name %} that closes a block; parse_body() stopped at its name.
  void close(std::string_view name) {
    tokens_.expect_name(name);
    if (name == "endmacro" && tokens_.peek().kind == Token::Kind::kName) tokens_.next();
    end_block();
  }

  std::unique_ptr<const Node> parse_statement(int depth) {
    const int line = tokens_.peek().line;
    const std::string name = tokens_.expect_identifier();
    Node node{.kind = Kind::kScope, .line = line};
    if (name == "if") {
      parse_if(node, depth);
    } else if (name == "for") {
      parse_for(node, depth);
    } else if (name == "set") {
      parse_set(node, depth);
    } else if (name == "macro") {
      parse_macro(node, depth);
    } else if (name == "generation") {
      end_block();
      node.body = parse_body({"endgeneration"}, depth + 1);
      close("endgeneration");
    } else if (name == "filter") {
      node.kind = Kind::kFilterBlock;
      node.expr = expressions_.parse_filters_of_block();
      end_block();
      node.body = parse_body({"endfilter"}, depth + 1);
      close("endfilter");
    } else if ((name == "break" || name == "continue") && loops_ > 0) {
      node.kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      end_block();
    } else {
      throw Error("line {}: the statement '{}' is not supported here", line, printable(name, 40));
    }
    return std::make_unique<const Node>(std::move(node));
  }

  void parse_if(Node& node, int depth) {
    node.kind = Kind::kIf;
    Node::Branch branch{.condition = expressions_.parse_tuple()};
    while (true) {
      end_block();
      const bool last = branch.condition == nullptr;
      branch.body = last ? parse_body({"endif"}, depth + 1) : parse_body({"elif", "else", "endif"}, depth + 1);
      node.branches.push_back(std::move(branch));
      branch = {};
      if (last || tokens_.peek().is_name("endif")) break;
      if (tokens_.next().text == "elif") branch.condition = expressions_.parse_tuple();
    }
    close("endif");
  }

  void parse_for(Node& node, int depth) {
    node.kind = Kind::kFor;
    node.target = parse_names();
    tokens_.expect_name("in");
    node.expr = expressions_.parse_without_if();
    if (tokens_.take_name("if")) node.condition = expressions_.parse();
    if (tokens_.peek().is_name("recursive")) tokens_.fail("recursive loops are not supported");
    end_block();
    ++loops_;
    node.body = parse_body({"else", "endfor"}, depth + 1);
    --loops_;
    if (tokens_.take_name("else")) {
      end_block();
      node.otherwise = parse_body({"endfor"}, depth + 1);
    }
    close("endfor");
  }

  Target parse_names() {
    Target target;
    const bool parenthesized = tokens_.take("(");
    do {
      target.names.push_back(tokens_.expect_identifier());
    } while (tokens_.take(","));
    if (parenthesized) tokens_.expect(")");
    return target;
  }

  void parse_set(Node& node, int depth) {
    node.target = parse_names();
    if (node.target.names.size() == 1 && tokens_.take(".")) node.target.attribute = tokens_.expect_identifier();
    if (tokens_.take("=")) {
      node.kind = Kind::kSet;
      node.expr = expressions_.parse_tuple();
      end_block();
      return;
    }
    node.kind = Kind::kSetBlock;
    if (tokens_.take("|")) node.expr = expressions_.parse_filters_of_block();
    end_block();
    node.body = parse_body({"endset"}, depth + 1);
    close("endset");
  }

  void parse_macro(Node& node, int depth) {
    node.kind = Kind::kMacro;
    node.macro.name = tokens_.expect_identifier();
    tokens_.expect("(");
    while (!tokens_.take(")")) {
      if (!node.macro.parameters.empty()) tokens_.expect(",");
      std::string parameter = tokens_.expect_identifier();
      ExprPtr otherwise = tokens_.take("=") ? expressions_.parse() : nullptr;
      node.macro.parameters.emplace_back(std::move(parameter), std::move(otherwise));
    }
    end_block();
    const int loops = std::exchange(loops_, 0);
    node.macro.body = parse_body({"endmacro"}, depth + 1);
    loops_ = loops;
    close("endmacro");
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;  // open {% for %} blocks
};

}  // namespace

Body parse_template(std::string_view source, Whitespace whitespace) {
  return TemplateParser(tokenize(source, whitespace)).run();
}

}  // namespace bam::jinja

#pragma once

#include "server/grammar/automaton.h"

namespace bam::constraints {

// Rewrites rules of any kind into what an Automaton takes: no called rule matches the empty text and none begins with a
// call of itself, be it through other rules or behind rules that may be empty. Adds rule 0, the texts of the rule `root`,
// and what it needs to an empty builder.
//
// Left recursion is turned round ("left corner"): a rule of a cycle begins with whatever one of the cycle's rules can
// begin with other than the cycle itself; where that rule ends, any rule that begins with it goes on, until the wanted
// rule has ended.
//
//   sum ::= sum "+" term | term             o --term--> o --------------> end of "sum" --> o
//                                                       ^                      | sum begins with sum
//                                                       +----- "+" term -------+
void resolve_recursion(const AutomatonBuilder& in, RuleId root, AutomatonBuilder& out);

}  // namespace bam::constraints

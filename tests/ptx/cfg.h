// Where the sides of a divergent branch meet again: the branch's immediate post-dominator.
#pragma once

#include "tests/ptx/module.h"

namespace ptx {

// Sets Instruction::join of every branch that can diverge. Targets must be known.
void find_joins(Function& function);

}  // namespace ptx

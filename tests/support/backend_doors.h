// What every backend must refuse: rows, pages and lists whose shapes do not belong together.
#pragma once

#include "kernels/backend.h"

namespace bam::test {

// Death tests of every operation of kernels/backend.h. Each kills a process of its own that gets here by running the same
// test again.
void expect_misfits_are_refused(Backend& backend);

}  // namespace bam::test

#pragma once

namespace bam {

// How far a backend's arithmetic may move what it multiplies, beyond 1 % of a logit.
struct ArithmeticRounding {
  double activations = 0;  // every number of a row before a linear layer, relative to that number
  double queries = 0;      // a query row as a whole, relative to its norm
};

}  // namespace bam

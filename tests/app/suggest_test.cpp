#include "app/suggest.h"

#include <gtest/gtest.h>

namespace bam {
namespace {

TEST(Suggest, FindsTheWordThatWasMeant) {
  const std::vector<std::string> flags = {"--model", "--max-model-len", "--kv-memory", "--kv-dtype", "--port", "-n"};
  EXPECT_EQ(nearest_word("--modl", flags), "--model");
  EXPECT_EQ(nearest_word("--prot", flags), "--port") << "neighbours swapped";
  EXPECT_EQ(nearest_word("--kv_memory", flags), "--kv-memory");
  EXPECT_EQ(nearest_word("--kv-mem", flags), "--kv-memory") << "a beginning";
  EXPECT_EQ(nearest_word("--temperature", flags), "");
  EXPECT_EQ(nearest_word("", flags), "");
  EXPECT_EQ(did_you_mean("--modl", flags), "; did you mean --model?");
  EXPECT_EQ(did_you_mean("--colour", flags), "");
}

}  // namespace
}  // namespace bam

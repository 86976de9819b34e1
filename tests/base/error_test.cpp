#include "base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace bam {
namespace {

struct Counted {
  int copies = 0;
  Counted() = default;
  Counted(const Counted& other) : copies(other.copies + 1) {}
  Counted(Counted&&) = default;
  Counted& operator=(const Counted&) = default;
};

Result<Counted> make() { return Counted(); }

TEST(Result, AValueIsMovedOutOfAResultThatNobodyKeeps) {
  EXPECT_EQ(Counted(*make()).copies, 0);
  EXPECT_EQ(Counted(make().value()).copies, 0);
  auto kept = make();
  EXPECT_EQ(Counted(*std::move(kept)).copies, 0);
  EXPECT_EQ(Counted(*kept).copies, 1);
}

TEST(Result, SaysWhyThereIsNoValue) {
  const Result<int> none = Error("no {} here", "bread");
  EXPECT_FALSE(none.ok());
  EXPECT_FALSE(none);
  EXPECT_STREQ(none.error().what(), "no bread here");
}

}  // namespace
}  // namespace bam

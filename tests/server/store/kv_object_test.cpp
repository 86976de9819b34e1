#include "server/store/kv_object.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/kv_file.h"

namespace bam {
namespace {

const KvGeometry kGeometry(64, {-1, 100}, 64);
const KvLayout kLayout = make_kv_layout(DType::kF16, 32, 64);
const KvFileFormat kFormat{{1, 2, 3}, kGeometry, kLayout};

std::vector<int32_t> count_up(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 5);
  return tokens;
}

std::string first_name(const PrefixNames& names) { return to_hex(names.name(ObjectKind::kStretch, 0, 0)); }

TEST(PrefixNames, DependOnEverythingUpToTheirEnd) {
  const auto tokens = count_up(300);
  const PrefixNames names(kFormat, 128, 4096, "salt", tokens);
  ASSERT_EQ(names.num_stretches(), 2);
  std::vector<ObjectName> all;
  for (const ObjectKind kind : {ObjectKind::kStretch, ObjectKind::kTail}) {
    for (const int64_t index : {0, 1}) {
      for (const int64_t part : {0, 1}) all.push_back(names.name(kind, index, part));
    }
  }
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());

  auto other = tokens;
  other[200] = 1;
  const PrefixNames parted(kFormat, 128, 4096, "salt", other);
  EXPECT_EQ(first_name(parted), first_name(names));
  EXPECT_NE(parted.name(ObjectKind::kStretch, 1, 0), names.name(ObjectKind::kStretch, 1, 0));
  other = tokens;
  other[0] = 1;
  EXPECT_NE(PrefixNames(kFormat, 128, 4096, "salt", other).name(ObjectKind::kStretch, 1, 0),
            names.name(ObjectKind::kStretch, 1, 0));
}

TEST(PrefixNames, DependOnSaltIdentityAndCut) {
  const auto tokens = count_up(128);
  const std::string name = first_name({kFormat, 128, 4096, "salt", tokens});
  EXPECT_EQ(first_name({kFormat, 128, 4096, "salt", tokens}), name);
  EXPECT_NE(first_name({kFormat, 128, 4096, "sal", tokens}), name);
  EXPECT_NE(first_name({kFormat, 64, 4096, "salt", tokens}), name);
  EXPECT_NE(first_name({kFormat, 128, 8192, "salt", tokens}), name);
  EXPECT_NE(first_name({{{9, 2, 3}, kGeometry, kLayout}, 128, 4096, "salt", tokens}), name);
  EXPECT_NE(first_name({{{1, 9, 3}, kGeometry, kLayout}, 128, 4096, "salt", tokens}), name);
  EXPECT_NE(first_name({{{1, 2, 9}, kGeometry, kLayout}, 128, 4096, "salt", tokens}), name);
  const KvLayout eight = make_kv_layout(DType::kI8, 32, 64);
  EXPECT_NE(first_name({{{1, 2, 3}, kGeometry, eight}, 128, 4096, "salt", tokens}), name);
}

TEST(KvObject, EveryAlteredByteAndEveryLengthIsNoticed) {
  const ObjectName name = PrefixNames(kFormat, 64, 4096, "", count_up(64)).name(ObjectKind::kTail, 0, 0);
  std::vector<std::byte> object(kObjectHeaderBytes + 100, std::byte{7});
  seal_object(name, object);
  const auto opened = open_object(name, 100, object);
  ASSERT_TRUE(opened.ok()) << opened.error().what();
  EXPECT_EQ(opened->size(), 100u);
  EXPECT_EQ((*opened)[99], std::byte{7});
  for (size_t i = 0; i < object.size(); ++i) {
    auto altered = object;
    altered[i] ^= std::byte{16};
    EXPECT_FALSE(open_object(name, 100, altered).ok()) << i;
  }
  for (size_t length = 0; length < object.size(); ++length) {
    EXPECT_FALSE(open_object(name, 100, std::span(object).first(length)).ok()) << length;
  }
  object.push_back(std::byte{0});
  EXPECT_FALSE(open_object(name, 100, object).ok());
  object.pop_back();
  EXPECT_FALSE(open_object(name, 99, object).ok()) << "another engine's pages";
  EXPECT_FALSE(open_object(ObjectName{}, 100, object).ok()) << "put into the place of another one";
}

}  // namespace
}  // namespace bam

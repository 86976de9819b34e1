#include "models/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::RawTensor;
using testing::serialize_safetensors;
using testing::TempDir;
using testing::write_file;

std::string with_length(uint64_t header_bytes, std::string_view rest) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>(header_bytes >> (8 * i));
  return file.append(rest);
}

// A file with this header text and `data_bytes` bytes of data.
std::string file_of(const std::string& header, size_t data_bytes = 0) {
  return with_length(header.size(), header + std::string(data_bytes, '\x01'));
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())));
}

struct BadFile {
  const char* rule;
  std::string file;
  const char* message;  // a part of the error
};

// One tensor entry with everything right unless told otherwise.
std::string entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "\"F32\"") {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::vector<BadFile> bad_files() {
  const std::string ok = entry("[2]", "[0,8]");
  return {
      {"8 bytes of length: empty file", "", "file of 0 bytes is too short"},
      {"8 bytes of length: 7 bytes", std::string(7, '\0'), "file of 7 bytes is too short"},
      {"N <= 100,000,000", with_length(100'000'001, "{}"), "header length 100000001 is above the limit"},
      {"N is 64 bits, top bit set", with_length(~uint64_t{0}, "{}"), "header length 18446744073709551615 is above"},
      {"8 + N <= file size", with_length(3, "{}"), "header length 3 goes past the end of the file (10 bytes)"},
      {"8 + N <= file size, large N", with_length(100'000'000, "{}"), "goes past the end"},
      {"JSON object: empty header", file_of(""), "must be a JSON object"},
      {"JSON object: array", file_of("[]"), "must be a JSON object"},
      {"JSON object: number", file_of("17"), "must be a JSON object"},
      {"JSON object: starts with {", file_of(" {}"), "must be a JSON object that starts with '{'"},
      {"JSON object: byte order mark", file_of("\xef\xbb\xbf{}"), "must be a JSON object"},
      {"JSON: cut off", file_of("{\"a\":"), "not valid JSON"},
      {"JSON: two values", file_of("{}{}"), "not valid JSON"},
      {"JSON: trailing comma", file_of("{\"a\":" + ok + ",}", 8), "not valid JSON"},
      {"JSON: NUL byte hides the rest", file_of(std::string("{}\0{", 4)), "contains a NUL byte"},
      {"JSON: comment", file_of("{/* no */}"), "not valid JSON"},
      {"UTF-8: broken in a name", file_of("{\"\xff\":" + ok + "}", 8), "not valid JSON"},
      {"UTF-8: lone surrogate escape", file_of(R"({"\ud800":)" + ok + "}", 8), "not valid JSON"},
      {"depth: nested arrays in shape", file_of("{\"a\":" + entry("[[2]]", "[0,8]") + "}", 8),
       "shape must be an array"},
      {"depth: 100,000 levels", file_of("{\"a\":" + std::string(100'000, '[')), "tensor 'a' must be an object"},
      {"depth: object in metadata", file_of(R"({"__metadata__":{"a":{}}})"), "__metadata__ key 'a' must be a string"},
      {"duplicate: tensor", file_of("{\"a\":" + ok + ",\"a\":" + ok + "}", 8), "key 'a' appears twice in the header"},
      {"duplicate: escaped spelling", file_of("{\"a\":" + ok + R"(,"\u0061":)" + ok + "}", 8), "key 'a' appears twice"},
      {"duplicate: dtype", file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4),
       "key 'dtype' appears twice in tensor 'a'"},
      {"duplicate: shape", file_of(R"({"a":{"dtype":"F32","shape":[],"shape":[],"data_offsets":[0,4]}})", 4),
       "key 'shape' appears twice"},
      {"duplicate: data_offsets",
       file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"data_offsets":[0,4]}})", 4),
       "key 'data_offsets' appears twice"},
      {"duplicate: __metadata__", file_of(R"({"__metadata__":{},"__metadata__":{}})"), "'__metadata__' appears twice"},
      {"duplicate: in __metadata__", file_of(R"({"__metadata__":{"k":"1","k":"2"}})"),
       "key 'k' appears twice in __metadata__"},
      {"metadata: not an object", file_of(R"({"__metadata__":"x"})"), "__metadata__ must be an object"},
      {"metadata: null", file_of(R"({"__metadata__":null})"), "__metadata__ must be an object"},
      {"metadata: number value", file_of(R"({"__metadata__":{"a":1}})"), "__metadata__ key 'a' must be a string"},
      {"tensor: not an object", file_of(R"({"a":[]})"), "tensor 'a' must be an object"},
      {"tensor: unknown key", file_of(R"({"a":{"dtype":"F32","offset":3}})"), "tensor 'a': unknown key 'offset'"},
      {"dtype: missing", file_of(R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4), "tensor 'a': dtype is missing"},
      {"dtype: unknown", file_of("{\"a\":" + entry("[2]", "[0,8]", "\"F33\"") + "}", 8), "unknown dtype 'F33'"},
      {"dtype: lower case", file_of("{\"a\":" + entry("[2]", "[0,8]", "\"f32\"") + "}", 8), "unknown dtype 'f32'"},
      {"dtype: not a string", file_of("{\"a\":" + entry("[2]", "[0,8]", "32") + "}", 8), "dtype must be a string"},
      {"shape: missing", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "shape is missing"},
      {"shape: negative", file_of("{\"a\":" + entry("[-2]", "[0,8]") + "}", 8), "shape must be an array of unsigned"},
      {"shape: minus zero", file_of("{\"a\":" + entry("[-0]", "[0,0]") + "}"), "shape must be an array of unsigned"},
      {"shape: fraction", file_of("{\"a\":" + entry("[2.0]", "[0,8]") + "}", 8), "shape must be an array of unsigned"},
      {"shape: exponent", file_of("{\"a\":" + entry("[2e0]", "[0,8]") + "}", 8), "shape must be an array of unsigned"},
      {"shape: string", file_of("{\"a\":" + entry("[\"2\"]", "[0,8]") + "}", 8), "shape must be an array of unsigned"},
      {"shape: past 64 bits", file_of("{\"a\":" + entry("[18446744073709551616]", "[0,8]") + "}", 8),
       "shape must be an array of unsigned"},
      {"shape: number instead of array", file_of("{\"a\":" + entry("2", "[0,8]") + "}", 8), "shape must be an array"},
      {"shape: rank",
       file_of("{\"a\":" +
                   entry(
                       "[1" +
                           [] {
                             std::string ones;
                             for (int i = 0; i < 64; ++i) ones += ",1";
                             return ones;
                           }() +
                           "]",
                       "[0,4]") +
                   "}",
               4),
       "more than 64 dimensions"},
      {"offsets: missing", file_of(R"({"a":{"dtype":"F32","shape":[]}})"), "data_offsets are missing"},
      {"offsets: one", file_of("{\"a\":" + entry("[2]", "[0]") + "}", 8), "data_offsets must be two unsigned integers"},
      {"offsets: three", file_of("{\"a\":" + entry("[2]", "[0,8,8]") + "}", 8), "data_offsets must be two unsigned"},
      {"offsets: negative", file_of("{\"a\":" + entry("[2]", "[-8,0]") + "}", 8), "data_offsets must be two unsigned"},
      {"offsets: null", file_of("{\"a\":" + entry("[2]", "null") + "}", 8), "data_offsets must be two unsigned"},
      {"offsets: backwards", file_of("{\"a\":" + entry("[2]", "[8,0]") + "}", 8), "run backwards"},
      {"layout: does not begin at 0", file_of("{\"a\":" + entry("[2]", "[4,12]") + "}", 12), "leaving a hole"},
      {"layout: hole", file_of("{\"a\":" + ok + ",\"b\":" + entry("[1]", "[12,16]") + "}", 16),
       "tensor 'b': data begins at 12, leaving a hole after the previous tensor's end 8"},
      {"layout: overlap", file_of("{\"a\":" + ok + ",\"b\":" + entry("[1]", "[4,8]") + "}", 8),
       "tensor 'b': data begins at 4, overlapping the previous tensor's end 8"},
      {"layout: the same bytes twice", file_of("{\"a\":" + ok + ",\"b\":" + ok + "}", 8), "overlapping"},
      {"size: too small", file_of("{\"a\":" + entry("[3]", "[0,8]") + "}", 8), "need 12 bytes, data_offsets span 8"},
      {"size: too large", file_of("{\"a\":" + entry("[1]", "[0,8]") + "}", 8), "need 4 bytes, data_offsets span 8"},
      {"size: dtype counts", file_of("{\"a\":" + entry("[2]", "[0,8]", "\"BF16\"") + "}", 8), "need 4 bytes"},
      {"size: product overflows", file_of("{\"a\":" + entry("[4294967296,4294967296,4]", "[0,0]") + "}"), "overflows"},
      {"size: product wraps to the right size", file_of("{\"a\":" + entry("[4611686018427387906]", "[0,8]") + "}", 8),
       "overflows"},
      {"size: overflow before a zero", file_of("{\"a\":" + entry("[9223372036854775808,8,0]", "[0,0]") + "}"),
       "overflows"},
      {"end: trailing byte", file_of("{\"a\":" + ok + "}", 9), "but the file has 9 data bytes"},
      {"end: truncated data", file_of("{\"a\":" + ok + "}", 7), "the file has 7 data bytes (truncated file?)"},
      {"end: data without tensors", file_of("{}", 1), "tensors end at byte 0 of the data"},
      {"end: offsets near 2^64",
       file_of("{\"a\":" + entry("[18446744073709551615]", "[0,18446744073709551615]", "\"U8\"") + "}", 8),
       "tensors end at byte 18446744073709551615"},
  };
}

TEST(Safetensors, EveryRuleBrokenOnce) {
  for (const BadFile& bad : bad_files()) {
    const Result<SafetensorsHeader> result = parse(bad.file);
    ASSERT_FALSE(result.ok()) << bad.rule;
    const std::string message = result.error().what();
    EXPECT_NE(message.find(bad.message), std::string::npos) << bad.rule << "\n  got: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << bad.rule;
    EXPECT_LT(message.size(), 400u) << bad.rule;
  }
}

TEST(Safetensors, NamesInMessagesAreOneShortLine) {
  const std::string name = "a\\n" + std::string(100'000, 'x');
  const Result<SafetensorsHeader> result = parse(file_of("{\"" + name + "\":3}"));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(std::string(result.error().what()).find('\n'), std::string::npos);
  EXPECT_LT(std::strlen(result.error().what()), 200u);
}

TEST(Safetensors, AcceptsEverythingLegal) {
  // No tensors at all; padding; tensors out of order; empty and rank-0 tensors; any metadata text.
  EXPECT_TRUE(parse(file_of("{}")).ok());
  EXPECT_TRUE(parse(file_of("{}      \n\t ")).ok());
  const std::string header = R"({"b":)" + entry("[2,0,5]", "[8,8]") + R"(,"__metadata__":{"k\u00e9":"v","":""},"a":)" +
                             entry("[1,2]", "[0,8]") + R"(,"scalar":)" + entry("[]", "[8,16]", "\"F64\"") + R"(,"":)" +
                             entry("[3]", "[16,19]", "\"U8\"") + "}";
  const Result<SafetensorsHeader> result = parse(file_of(header, 19));
  ASSERT_TRUE(result.ok()) << result.error().what();
  EXPECT_EQ(result->tensors.size(), 4u);
  EXPECT_EQ(result->data_start, 8 + header.size());
  EXPECT_EQ(result->metadata.at("k\xc3\xa9"), "v");
  ASSERT_NE(result->find("scalar"), nullptr);
  EXPECT_TRUE(result->find("scalar")->shape.empty());
  EXPECT_EQ(result->find("b")->shape, (std::vector<uint64_t>{2, 0, 5}));
  EXPECT_EQ(result->find("")->begin, 16u);
  EXPECT_EQ(result->find("missing"), nullptr);
}

TEST(Safetensors, EveryDtypeHasItsSize) {
  const std::vector<std::pair<std::string, size_t>> types = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  for (const auto& [name, bytes] : types) {
    const std::string end = std::to_string(3 * bytes);
    const auto result =
        parse(file_of("{\"a\":" + entry("[3]", "[0," + end + "]", "\"" + name + "\"") + "}", 3 * bytes));
    ASSERT_TRUE(result.ok()) << name << ": " << result.error().what();
    EXPECT_EQ(tensor_type_name(result->tensors[0].type), name);
    EXPECT_EQ(tensor_type_bytes(result->tensors[0].type), bytes);
  }
}

TEST(Safetensors, ManyTinyTensors) {
  std::string header = "{";
  for (int i = 0; i < 50'000; ++i) {
    header += (i ? ",\"" : "\"") + std::to_string(i) + "\":" + entry("[0]", "[0,0]", "\"U8\"");
  }
  const auto result = parse(file_of(header + "}"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tensors.size(), 50'000u);
}

TEST(SafetensorsFile, ViewsPointAtTheData) {
  TempDir dir;
  const std::vector<RawTensor> tensors = {{"x", "U8", {3}, "abc"}, {"y", "F32", {1}, "0123"}, {"z", "U8", {0}, ""}};
  for (const bool padded : {true, false}) {
    write_file(dir / "f.safetensors", serialize_safetensors(tensors, padded));
    const SafetensorsFile file(dir / "f.safetensors");
    for (const RawTensor& tensor : tensors) {
      const auto data = file.data(*file.header().find(tensor.name));
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.data()), data.size()), tensor.data) << tensor.name;
    }
    EXPECT_EQ(file.file_bytes(), std::filesystem::file_size(dir / "f.safetensors"));
  }
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(SafetensorsFile, ErrorsNameTheFile) {
  TempDir dir;
  write_file(dir / "bad.safetensors", "short");
  const std::string message = error_of([&] { SafetensorsFile file(dir / "bad.safetensors"); });
  EXPECT_EQ(message, (dir / "bad.safetensors").string() + ": file of 5 bytes is too short for a safetensors header");
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(dir_ / "one.safetensors", serialize_safetensors({{"a", "U8", {1}, "A"}, {"b", "U8", {1}, "B"}}));
    write_file(dir_ / "two.safetensors", serialize_safetensors({{"c", "U8", {1}, "C"}}));
  }
  void index(const std::string& weight_map) {
    write_file(dir_ / "model.safetensors.index.json",
               R"({"metadata":{"total_size":3},"weight_map":)" + weight_map + "}");
  }
  std::string failure() {
    return error_of([&] { SafetensorsCheckpoint checkpoint(dir_.path()); });
  }
  void expect_failure(const std::string& part) {
    const std::string message = failure();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find(dir_.path().string()), std::string::npos) << message;
  }

  TempDir dir_;
  const std::string good_ = R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})";
};

TEST_F(Shards, Loads) {
  index(good_);
  const SafetensorsCheckpoint checkpoint(dir_.path());
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  ASSERT_EQ(checkpoint.files().size(), 2u);
  for (const auto& [name, entry] : checkpoint.tensors()) {
    EXPECT_EQ(static_cast<char>(entry.file->data(*entry.tensor)[0]), name[0] - 'a' + 'A');
  }
}

TEST_F(Shards, SingleFileWinsOverAnIndex) {
  index(good_);
  write_file(dir_ / "model.safetensors", serialize_safetensors({{"only", "U8", {1}, "O"}}));
  EXPECT_EQ(SafetensorsCheckpoint(dir_.path()).tensors().size(), 1u);
}

TEST_F(Shards, IndexErrors) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "key 'weight_map' must be an object, got []"},
      {R"({"a":1})", "weight_map of tensor 'a' must be a plain file name in this folder, got 1"},
      {R"({"a":""})", "must be a plain file name"},
      {R"({"a":"."})", "must be a plain file name"},
      {R"({"a":".."})", "must be a plain file name"},
      {R"({"a":"../one.safetensors"})", "must be a plain file name"},
      {R"({"a":"/etc/passwd"})", "must be a plain file name"},
      {R"({"a":"sub/one.safetensors"})", "must be a plain file name"},
      {R"({"a":"one.safetensors\u0000"})", "must be a plain file name"},
      {R"({"a":"three.safetensors"})", "names shard 'three.safetensors', which is not in the folder"},
      {R"({"a":"one.safetensors","a":"two.safetensors"})", "key 'a' appears twice"},
      {R"({"a":"one.safetensors","c":"two.safetensors"})", "tensor 'b' is not in model.safetensors.index.json"},
      {R"({"a":"two.safetensors","b":"one.safetensors","c":"two.safetensors"})",
       "tensor 'a' belongs in 'two.safetensors' according to"},
      {R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors"})",
       "tensor 'd' is not in shard 'two.safetensors'"},
  };
  for (const auto& [weight_map, message] : cases) {
    SCOPED_TRACE(weight_map);
    index(weight_map);
    expect_failure(message);
  }
}

TEST_F(Shards, IndexMustBeStrictJson) {
  const auto write_index = [&](const std::string& text) { write_file(dir_ / "model.safetensors.index.json", text); };
  write_index("{");
  expect_failure("not valid JSON");
  write_index("[]");
  expect_failure("must be a JSON object");
  write_index(R"({"metadata":{}})");
  expect_failure("key 'weight_map' is missing");
  write_index(R"({"metadata":)" + std::string(40, '[') + std::string(40, ']') + R"(,"weight_map":{}})");
  expect_failure("nested deeper than 32 levels");
  write_index(R"({"weight_map":{},"weight_map":{}})");
  expect_failure("key 'weight_map' appears twice");
}

TEST_F(Shards, SymbolicLinksStayInTheFolder) {
  TempDir outside;
  std::filesystem::rename(dir_ / "two.safetensors", outside / "two.safetensors");
  std::filesystem::create_symlink(outside / "two.safetensors", dir_ / "two.safetensors");
  index(good_);
  expect_failure("two.safetensors: is a symbolic link out of the checkpoint folder");

  std::filesystem::remove(dir_ / "two.safetensors");
  std::filesystem::copy_file(outside / "two.safetensors", dir_ / "real.bin");
  std::filesystem::create_symlink("real.bin", dir_ / "two.safetensors");
  EXPECT_EQ(SafetensorsCheckpoint(dir_.path()).tensors().size(), 3u);
}

TEST_F(Shards, DanglingLinkAndDirectory) {
  index(good_);
  std::filesystem::remove(dir_ / "two.safetensors");
  std::filesystem::create_symlink("nowhere", dir_ / "two.safetensors");
  expect_failure("names shard 'two.safetensors', which is not in the folder");
  std::filesystem::remove(dir_ / "two.safetensors");
  std::filesystem::create_directory(dir_ / "two.safetensors");
  expect_failure("is a directory, not a regular file");
}

TEST_F(Shards, FolderWithoutWeights) {
  expect_failure("has neither model.safetensors nor model.safetensors.index.json");
  EXPECT_EQ(failure().find("convert.py"), std::string::npos);
  write_file(dir_ / "model.pt", "pickle");
  expect_failure("run tools/convert.py");
  EXPECT_NE(
      error_of([] { SafetensorsCheckpoint("/no/such/folder"); }).find("/no/such/folder: no such checkpoint folder"),
      std::string::npos);
}

}  // namespace
}  // namespace bam

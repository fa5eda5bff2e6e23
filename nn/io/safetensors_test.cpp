// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/safetensors.h"

#include "tessera/autograd/autograd.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace tessera::io {
namespace {

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest()
      : path_(testing::TempDir() + "safetensors_test." + std::to_string(::getpid())) {}
  ~SafetensorsTest() override { std::filesystem::remove(path_); }
  // A file of this header and `bytes` bytes.
  void put(const std::string& header, size_t bytes, uint64_t length_off = 0) const {
    const uint64_t length = header.size() + length_off;
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    write_file_atomically(path_, file + header + std::string(bytes, 'x'));
  }
  [[nodiscard]] std::string error() const {
    try {
      const SafetensorsFile file(path_);
    } catch (const DataError& e) {
      return e.what();
    }
    return "no error";
  }

  Session session_;
  std::string path_;
};

TEST_F(SafetensorsTest, EveryDTypeComesBack) {
  std::vector<nn::NamedParameter> tensors;
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8_e4m3,
                      DType::f8_e5m2, DType::i64, DType::i32, DType::u8, DType::bool_}) {
    tensors.push_back({concat("t.", name(dtype)), from_values({0, 1, 1, 0, 1, 0}, {2, 3}, dtype)});
  }
  tensors.push_back({"scalar", from_values({2.5}, {})});
  tensors.push_back({"nothing", empty({0, 3})});
  write_safetensors(path_, tensors, {{"step", "7"}});

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"step", "7"}}));
  EXPECT_EQ(file.entries().size(), tensors.size());
  for (const auto& t : tensors) {
    const Tensor back = file.read(t.name);
    EXPECT_EQ(back.dtype(), t.tensor.dtype());
    EXPECT_EQ(back.shape(), t.tensor.shape());
    EXPECT_EQ(back.values(), t.tensor.values()) << t.name;
    EXPECT_EQ(file.entries().at(t.name).begin % static_cast<uint64_t>(item_size(back.dtype())), 0u);
  }
}

TEST_F(SafetensorsTest, TheSameTensorsGiveTheSameBytes) {
  const std::vector<nn::NamedParameter> tensors{{"b", tensor({1, 2})},
                                                {"a", tensor({3}, DType::bf16)}};
  write_safetensors(path_, tensors);
  const std::string first = read_file(path_);
  write_safetensors(path_, {tensors[1], tensors[0]});
  EXPECT_EQ(read_file(path_), first);
}

TEST_F(SafetensorsTest, FilesOfOthersAreRead) {
  put(R"({"a":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}}  )",
      8);
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.read("b").shape(), Shape());
  EXPECT_THROW((void)file.read("a"), DataError);  // known to the format, not to tensors here
  EXPECT_THROW((void)file.read("c"), DataError);
}

TEST_F(SafetensorsTest, TensorsThatCannotBeReadAreNamed) {
  put(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]}})",
      10);
  const SafetensorsFile file(path_);
  const auto error = [&](const char* name) {
    return test::error_of([&] { (void)file.read(name); });
  };
  EXPECT_EQ(error("a"),
            "[safetensors] tensor 'a' of " + path_ + " has 9 dims, at most 8 are supported");
  EXPECT_EQ(error("b"), "nothing was thrown");
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  EXPECT_EQ(error("b"),
            "[safetensors] cannot read tensor 'b' of " + path_ + ": the file ends before it");
}

TEST_F(SafetensorsTest, CorruptFilesAreRefused) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  struct Case {
    std::string header;
    size_t bytes;
    std::string message;
  };
  const std::vector<Case> cases{
      {"{" + a + "}", 9, "tensors end at byte 8, the file at 9"},
      {"{" + a + "}", 7, " outside the file"},
      {" {" + a + "}", 8, "does not begin with '{'"},
      {"{" + a, 8, "header: not JSON: wrong at line 1, column 54"},
      {"{" + a + "}{}", 8, "header: not JSON: wrong at line 1, column 55"},
      {"{" + a + "}" + std::string(1, '\0') + "}", 8, "header: not JSON: a NUL byte at line 1"},
      {R"({"a\u0000":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8,
       "header: the name 'a\\x00' holds a NUL byte"},
      {"{" + a + "," + a + "}", 8, "header: 'a' occurs twice"},
      {R"({"a\nb\u001b":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8,
       "tensor 'a\\nb\\x1b' has the unknown dtype"},
      {"{\"" + std::string(2000, 'n') + "\":1}", 8,
       "tensor '" + std::string(200, 'n') + "...' has a name of more than 1024 bytes"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8,
       "header: 'dtype' occurs twice"},
      {"{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8,
       "tensors overlap at byte 4"},
      {"{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[9,13]}})", 13,
       "there is a hole at byte 8"},
      {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "has the unknown dtype"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
       "takes 8 bytes, but its shape and dtype need 12"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8,
       "not an integer in [0, 2^48]"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8,
       "not an integer in [0, 2^48]"},
      {R"({"a":{"dtype":"F64","shape":[281474976710656,281474976710656],"data_offsets":[0,8]}})", 8,
       "overflow"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "does not fill whole bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, " outside the file"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", 8,
       "does not have exactly dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8,
       "has a shape that is not a list"},
      {R"({"__metadata__":{"n":1}})", 0, "__metadata__ 'n' is not text"},
      {R"({"__metadata__":"x"})", 0, "__metadata__ is not an object"},
      {R"({"a":[[[[[[[[]]]]]]]]})", 0, "header: nested deeper than 4 levels"},
  };
  for (const Case& c : cases) {
    put(c.header, c.bytes);
    EXPECT_NE(error().find(c.message), std::string::npos) << c.header << "\n" << error();
  }
}

// Quadratic time would be half a minute in each of both directions.
TEST_F(SafetensorsTest, TimeIsLinearInTheNumberOfTensors) {
  constexpr int kTensors = 60'000;
  std::vector<nn::NamedParameter> tensors;
  for (int i = 0; i < kTensors; ++i)
    tensors.push_back({concat("layers.", i, ".weight"), full({1}, i)});
  write_safetensors(path_, tensors);
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.read("layers.59999.weight").item(), kTensors - 1);
}

TEST_F(SafetensorsTest, BadLengthsAreRefusedBeforeAnythingIsAllocated) {
  put("{}", 0, 1);
  EXPECT_NE(error().find("beyond the end of the file"), std::string::npos);
  put("{}", 0, 200'000'000);
  EXPECT_NE(error().find("is above 100000000"), std::string::npos);
  put("{}", 0, ~uint64_t{0} - 8);
  EXPECT_NE(error().find("is above 100000000"), std::string::npos);
  write_file_atomically(path_, "1234");
  EXPECT_NE(error().find("fewer than the 8"), std::string::npos);
  EXPECT_THROW(SafetensorsFile(path_ + ".none"), IoError);
  EXPECT_THROW(SafetensorsFile(testing::TempDir()), IoError);
}

TEST_F(SafetensorsTest, WritingIsWholeOrNotAtAll) {
  write_safetensors(path_, {{"a", tensor({1})}});
  const std::string before = read_file(path_);
  EXPECT_THROW(write_file_atomically(path_,
                                     [](const auto& write) {
                                       write("half");
                                       fail<IoError>("test", "the disk is full");
                                     }),
               IoError);
  EXPECT_EQ(read_file(path_), before);
  EXPECT_THROW(write_safetensors(path_, {{"a", tensor({1})}, {"a", tensor({2})}}), UsageError);
  EXPECT_EQ(read_file(path_), before);
  EXPECT_THROW(write_safetensors(testing::TempDir() + "no/such/folder/x", {{"a", tensor({1})}}),
               IoError);
}

}  // namespace
}  // namespace tessera::io

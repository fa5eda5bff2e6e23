// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/arrays/array_file.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/train/data/data.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

// NumPy's own bytes, made by tests/goldens/npy.py.
class NpyTest : public testing::Test {
 protected:
  NpyTest()
      : golden_(nlohmann::json::parse(std::ifstream("tests/goldens/npy.json"))),
        path_(testing::TempDir() + "npy_test." + std::to_string(::getpid()) + ".npy") {}
  ~NpyTest() override { fs::remove(path_); }

  [[nodiscard]] std::string bytes(const std::string& name) const {
    const auto hex = golden_.at(name).get<std::string>();
    std::string out;
    for (size_t i = 0; i < hex.size(); i += 2)
      out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return out;
  }
  [[nodiscard]] ArrayFile open(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
    return ArrayFile(path_);
  }
  [[nodiscard]] std::string error_of(const std::string& content) const {
    try {
      const ArrayFile file = open(content);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
  static Ids all(const ArrayFile& file, int64_t limit = 1 << 20) {
    Ids ids(static_cast<size_t>(file.size()));
    file.read(0, ids, limit);
    return ids;
  }

  nlohmann::json golden_;
  std::string path_;
};

void holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nhas no\n" << part;
}

TEST_F(NpyTest, ReadsWhatNumpyWrites) {
  const Ids ids{7, 300, 0, 65535, 12, 1, 2};
  for (const char* name : {"u2", "i4", "u4", "i8"}) {
    const ArrayFile file = open(bytes(name));
    EXPECT_EQ(file.header().shape, (Ids{7})) << name;
    EXPECT_EQ(all(file), ids) << name;
    Ids part(3);
    file.read(2, part, 65536);
    EXPECT_EQ(part, (Ids{0, 65535, 12})) << name;
  }
  for (const char* name : {"rows", "format_2", "format_3"}) {
    const ArrayFile file = open(bytes(name));
    EXPECT_EQ(file.header().shape, (Ids{3, 4})) << name;
    EXPECT_EQ(all(file), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})) << name;
  }
}

TEST_F(NpyTest, IdsBeyondTheVocabularyAreNamed) {
  const ArrayFile file = open(bytes("u2"));
  try {
    static_cast<void>(all(file, 65535));
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    holds(error.what(), path_ + ", element 3: token 65535 is not in [0, 65535)");
  }
  EXPECT_THROW(static_cast<void>(all(open(bytes("negative")))), DataError);
}

TEST_F(NpyTest, OtherArraysAreRefused) {
  holds(error_of(bytes("f4")),
        path_ + " holds elements of type <f4, expected <u2, <i4, <u4 or <i8");
  holds(error_of(bytes("u1")), "of type |u1");
  holds(error_of(bytes("big_endian")), "of type >i4");
  holds(error_of(bytes("structured")), "of type [('a', '<i4')");
  holds(error_of(bytes("fortran")), "Fortran order; save it in C order with");
  holds(error_of(bytes("scalar")), "of shape (), expected one dimension");
  holds(error_of(bytes("three_dims")), "of shape (3, 2, 2), expected one dimension");
  holds(error_of(bytes("none")), "is empty: its shape is (0,)");
  holds(error_of(bytes("no_rows")), "is empty: its shape is (0, 4)");
  holds(error_of(bytes("empty_rows")), "is empty: its shape is (4, 0)");
  holds(error_of("token"), "does not begin as .npy files do");
  holds(error_of(""), "is empty");
}

TEST_F(NpyTest, WritesHeadersThatItReads) {
  for (const ElementType type :
       {ElementType::u16, ElementType::i32, ElementType::u32, ElementType::i64}) {
    for (const int64_t n : {int64_t{1}, int64_t{77}, int64_t{1} << 62}) {
      const std::string header = npy_header(type, n);
      EXPECT_EQ(header.size(), 128u);
      const ArrayHeader read = parse_npy_header(header, "x.npy");
      EXPECT_EQ(read.type, type);
      EXPECT_EQ(read.shape, (Ids{n}));
      EXPECT_EQ(read.data_offset, 128u);
    }
  }
  EXPECT_EQ(npy_header(ElementType::u16, 7) + bytes("u2").substr(128), bytes("u2")) << "as NumPy";
}

TEST_F(NpyTest, FindsTheFirstElementOfAtLeastAValue) {
  std::string content = npy_header(ElementType::u32, 5);
  for (const uint32_t value : {0u, 3u, 3u, 9u, 4'000'000'000u})
    content.append(reinterpret_cast<const char*>(&value), sizeof value);
  const ArrayFile file = open(content);
  const Ids values{0, 1, 3, 4, 9, 10, 4'000'000'000, 4'000'000'001}, places{0, 1, 1, 3, 3, 4, 4, 5};
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(file.lower_bound(values[i]), places[i]) << values[i];
  file.will_need(0, 5);
  file.will_need(4, 1);
  EXPECT_EQ(file.crc32c(), io::crc32c(content.substr(128)));
}

// The layout is that of llm.c's dev/data/data_common.py.
class LlmcTest : public test::FolderTest {
 protected:
  template <class T> static std::string shard(int32_t magic, int32_t version, const Ids& ids) {
    std::vector<int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = static_cast<int32_t>(ids.size());
    std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
    for (const int64_t id : ids) {
      const auto value = static_cast<T>(id);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return bytes;
  }
  [[nodiscard]] std::string error_of(const std::string& bytes) const {
    const std::string path = put("a.bin", bytes);
    return test::error_of<DataError>([&] { const ArrayFile file(path); });
  }
};

TEST_F(LlmcTest, ShardsAreReadAndOthersRefused) {
  const Ids ids{50256, 1, 65535, 7};
  const std::string gpt2 = shard<uint16_t>(20240520, 1, ids);
  for (const std::string& bytes : {gpt2, shard<uint32_t>(20240801, 7, ids)}) {
    const ArrayFile file(put("a.bin", bytes));
    EXPECT_EQ(file.size(), 4);
    Ids read(4);
    file.read(0, read, 65536);
    EXPECT_EQ(read, ids);
    for (size_t n = 0; n < bytes.size(); n += n < 1024 ? 97 : 1)
      EXPECT_NE(error_of(bytes.substr(0, n)), "nothing was thrown") << n;
    holds(error_of(bytes + "x"), "a.bin is too long");
  }
  holds(error_of(shard<uint16_t>(20240522, 1, ids)), "a.bin holds multiple-choice questions");
  holds(error_of(shard<uint16_t>(7, 1, ids)), "a.bin begins with 7, expected llm.c's magic number");
  holds(error_of(shard<uint16_t>(20240520, 2, ids)), "a shard for GPT-2 of version 2, expected");
  holds(error_of(shard<uint16_t>(20240520, 1, {})), "a.bin is empty");
  std::string negative = gpt2;
  negative[11] = '\xFF';
  holds(error_of(negative), "has a header of -");
}

// In a folder, by its magic number: other programs use the suffix too.
TEST_F(LlmcTest, AFolderOfShardsIsADataSet) {
  const Session session;
  Ids ids;
  for (int64_t i = 0; i < 50; ++i) ids.push_back(i % 10 == 0 ? 99 : i);
  (void)put("0.bin", shard<uint16_t>(20240520, 1, ids));
  (void)put("1.bin", shard<uint16_t>(20240520, 1, ids));
  (void)put("weights.bin", "other");
  DataLoader loader({.path = folder_, .shuffle = false, .begin_id = 99},
                    {.seq_len = 60, .vocabulary = 100, .seed = 1});
  EXPECT_EQ(loader.info().tokens, 100);
  holds(loader.info().listing, "2 taken (0.bin, 1.bin); passed over: 1 of other suffixes");
  const Batch batch = loader.next();
  EXPECT_EQ(batch.positions.data<int64_t>()[19], 9);
  EXPECT_EQ(batch.documents.data<int64_t>()[59], 5);
}

TEST_F(NpyTest, EveryCutIsFound) {
  const std::string whole = bytes("u2");
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_NE(error_of(whole.substr(0, n)), "no error") << n;
  holds(error_of(whole.substr(0, whole.size() - 1)), "is cut short: its header has shape (7,), 2");
  holds(error_of(whole.substr(0, 50)), "ends within its header: 50 bytes, expected 128");
  holds(error_of(whole + "xx"), "is too long");
}

// Any change of a header's byte gives the same array, another array of as many bytes, or an error.
TEST_F(NpyTest, DamagedHeadersAreErrors) {
  const std::string whole = bytes("rows");
  for (size_t i = 0; i < 128; ++i) {
    for (char c : {'\0', '9', '}', '\xFF', '\'', '('}) {
      std::string damaged = whole;
      damaged[i] = c;
      try {
        const ArrayFile file = open(damaged);
        EXPECT_EQ(file.size() * file.width(), 48) << i << ' ' << c;
      } catch (const DataError&) {
        SUCCEED();
      }
    }
  }
  const auto header = [](const std::string& dict) {
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(dict.size()) + '\0' + dict;
  };
  const auto fault = [&](const std::string& dict) {
    try {
      return concat(parse_npy_header(header(dict), "x.npy").shape.size());
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(fault("{'descr':'<i4','fortran_order':False,'shape':(2,3)}"), "2");
  EXPECT_EQ(fault(R"({"shape": (2,), "fortran_order": False, "descr": "<i4", })"), "1");
  holds(fault("{'descr': '<i4', 'fortran_order': False}"), "shape is missing");
  holds(fault("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}"), "not a size");
  holds(fault("{'descr': '<i4', 'descr': '<i4'}"), "key 'descr'");
  holds(fault("{'descr': '<i4', 'other': 1}"), "key 'other'");
  holds(fault("{'descr': '<i4"), "a quote without end");
  holds(fault("{'descr': '<i4', 'fortran_order': Maybe}"), "neither True nor False");
  holds(fault("{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}"),
        "not a size");
  holds(error_of(header("{'descr':'<i8','fortran_order':False,'shape':(4294967296,4294967296)}")),
        "is cut short");
}

TEST_F(NpyTest, AFileThatIsCutLaterIsAnError) {
  const ArrayFile file = open(bytes("u2"));
  fs::resize_file(path_, 130);
  try {
    static_cast<void>(all(file));
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    holds(error.what(), "was truncated while it was read: 130 bytes, expected 142");
  }
}

// A reader is a process of its own, which a lost page would kill. Of a mapped file, each of these
// reads would: they take longer than the time until the cut.
TEST_F(NpyTest, AFileThatIsCutDuringAReadIsAnError) {
  constexpr int64_t kElements = int64_t{1} << 22;
  constexpr int kFound = 7;
  std::random_device random;
  for (int i = 0; i < (test::long_form() ? 200 : 12); ++i) {
    std::ofstream(path_, std::ios::binary) << npy_header(ElementType::u32, kElements);
    fs::resize_file(path_, 128 + 4 * kElements);  // zeros, which take no room
    const auto until_cut = std::chrono::microseconds(random() % 20'000);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        const ArrayFile file(path_);
        Ids ids(static_cast<size_t>(kElements));
        for (;;) {
          if (i % 3 == 0) file.read(0, ids, 1);
          if (i % 3 == 1) static_cast<void>(file.crc32c());
          if (i % 3 == 2) static_cast<void>(file.lower_bound(1));
        }
      } catch (const DataError& error) {
        ::_exit(std::string_view(error.what()).find(path_) == std::string_view::npos ? 1 : kFound);
      } catch (...) {
        ::_exit(2);
      }
    }
    ASSERT_GT(child, 0);
    std::this_thread::sleep_for(until_cut);
    fs::resize_file(path_, random() % 2 == 0 ? 0 : 128 + random() % (4 * kElements));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status))
        << "signal " << WTERMSIG(status) << ", cut after " << until_cut.count() << " us";
    EXPECT_EQ(WEXITSTATUS(status), kFound);
  }
}

}  // namespace
}  // namespace tessera::train

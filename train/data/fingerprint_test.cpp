// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/fingerprint.h"

#include "tessera/tests/support/folder_test.h"

#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

class Fingerprint : public test::FolderTest {
 protected:
  [[nodiscard]] DataFingerprint of(const std::string& name) const {
    return fingerprint_data(folder_ + name, "dataloader.path");
  }
};

TEST_F(Fingerprint, NamesSizesAndChecksumsOfAFoldersFiles) {
  (void)put("data/b/two.txt", "123456789");
  (void)put("data/empty.txt", "");
  const DataFingerprint all = of("/data");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "b/two.txt");
  EXPECT_EQ(all[0].bytes, 9u);
  EXPECT_EQ(all[0].crc32c, 0xe3069283u);  // the check value of CRC-32C
  EXPECT_GT(all[0].modified, 0);
  EXPECT_EQ(all[0].text(), "9 bytes, checksum e3069283");
  EXPECT_EQ(all[1].name, "empty.txt");
  EXPECT_EQ(all[1].text(), "0 bytes, checksum 00000000");
  EXPECT_EQ(of("/data/empty.txt")[0].name, "empty.txt");
}

TEST_F(Fingerprint, SeesAnyByteOfASmallFile) {
  std::string bytes(size_t{1} << 18, 'x');
  (void)put("a.txt", bytes);
  const DataFingerprint before = of("/a.txt");
  EXPECT_FALSE(before[0].sampled());
  for (const size_t at : {size_t{0}, size_t{99'999}, bytes.size() - 1}) {
    std::string other = bytes;
    other[at] = 'y';
    (void)put("a.txt", other);
    EXPECT_NE(of("/a.txt")[0].crc32c, before[0].crc32c) << at;
  }
}

// A sparse file of a terabyte: only its samples are read.
TEST_F(Fingerprint, SamplesTheFirstTheLastAndMiddlePiecesOfALargeFile) {
  const std::string path = put("a.npy", "");
  constexpr uint64_t kBytes = uint64_t{1} << 40, kPiece = uint64_t{1} << 15;
  fs::resize_file(path, kBytes);
  const DataFingerprint before = of("/a.npy");
  EXPECT_TRUE(before[0].sampled());
  EXPECT_EQ(before[0].bytes, kBytes);
  for (const uint64_t at : {uint64_t{0}, (kBytes - kPiece) / 7 * 3, kBytes - 1}) {
    FILE* file = std::fopen(path.c_str(), "r+");
    ASSERT_EQ(std::fseek(file, static_cast<long>(at), SEEK_SET), 0);
    std::fputc('y', file);
    std::fclose(file);
    EXPECT_NE(of("/a.npy")[0].crc32c, before[0].crc32c) << at;
    fs::resize_file(path, 0);
    fs::resize_file(path, kBytes);
  }
  EXPECT_EQ(of("/a.npy")[0].crc32c, before[0].crc32c);
}

TEST_F(Fingerprint, DifferencesNameFileSizeAndChecksum) {
  const DataFingerprint before{{"a", 5, 1, 7}, {"b", 5, 1, 7}, {"c", 5, 1, 7}, {"d", 5, 1, 7}};
  const DataFingerprint now{{"a", 6, 2, 7}, {"b", 5, 2, 8}, {"c", 5, 2, 7}, {"e", 5, 1, 7}};
  EXPECT_EQ(data_differences(before, now),
            (Texts{"a has 6 bytes, had 5", "b has the checksum 00000008, had 00000007", "e is new",
                   "d is missing"}));
  EXPECT_EQ(data_differences(now, now), Texts{});
}

// Copies have other times; only where a checksum does not cover a file they are a hint.
TEST_F(Fingerprint, ModificationTimesCountOnlyForSampledFiles) {
  constexpr uint64_t kLarge = 1'000'000;
  EXPECT_EQ(data_differences({{"a", 5, 1, 7}}, {{"a", 5, 2, 7}}), Texts{});
  EXPECT_EQ(data_differences({{"a", kLarge, 1, 7}}, {{"a", kLarge, 2, 7}}),
            Texts{"a has another modification time, but the same size and samples"});
}

}  // namespace
}  // namespace tessera::train

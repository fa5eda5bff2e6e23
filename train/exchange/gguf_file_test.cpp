// SPDX-License-Identifier: Apache-2.0
// What a GGUF file cannot hold is an error, and no file is left.
#include "tessera/train/exchange/gguf_file.h"

#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"

#include <cmath>

namespace tessera::train {
namespace {

using test::error_of;
using GgufFile = test::FolderTest;

TEST_F(GgufFile, BlocksHoldFiniteWeightsWithinTheRangeOfTheirFactor) {
  std::vector<float> values(kQ8Block, 127.0F * 65504.0F);
  EXPECT_EQ(q8_0(values).size(), 34u);
  values[7] = 1e10F;
  EXPECT_EQ(error_of<DataError>([&] { (void)q8_0(values); }),
            "[gguf] a weight of 1e+10 is beyond the range of q8_0");
  values[7] = std::nanf("");
  EXPECT_EQ(error_of<DataError>([&] { (void)q8_0(values); }),
            "[gguf] a weight is nan, which q8_0 cannot hold");
}

TEST_F(GgufFile, ATensorHasTheBytesThatItsShapeSays) {
  const std::string path = folder_ + "/a.gguf";
  EXPECT_EQ(error_of<UsageError>([&] {
              write_gguf(path, {}, {{.name = "w", .shape = {2, 3}}},
                         [](size_t) { return std::string(20, '\0'); });
            }),
            "[gguf] w has 20 bytes, expected 24");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace tessera::train

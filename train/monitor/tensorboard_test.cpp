// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/tensorboard.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/file_size_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

std::string hex(std::string_view bytes) {
  std::string text;
  for (char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

TEST(TensorBoard, Crc32cOfTheCheckValue) {
  EXPECT_EQ(io::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(io::crc32c(""), 0u);
}

// Bytes that tensorboard's own reader takes: its event file's beginning, then loss = 1.5.
TEST(TensorBoard, BytesAreTheGolden) {
  const std::array<Scalar, 1> loss{{{"loss", 1.5}}};
  EXPECT_EQ(hex(event_file_header(1) + event_record(2, 5, loss)),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
            "1a00000000000000129bd82d09000000000000004010052a0d0a0b0a046c6f7373150000c03f838961ae");
}

// Written by tensorboard.compat.proto with a step of two varint bytes and two values.
TEST(TensorBoard, SeveralScalarsAndALargeStep) {
  const std::array<Scalar, 2> two{{{"throughput(tps)", 4306.25}, {"lr", 0.001}}};
  const std::string record = event_record(1.5, 300, two);
  EXPECT_EQ(hex(record.substr(12, record.size() - 16)),
            "09000000000000f83f10ac022a230a160a0f7468726f756768707574287470732915009286450a090a02"
            "6c72156f12833a");
}

TEST(TensorBoard, FilesAreNewAndHoldEachEventAtOnce) {
  const std::string folder = testing::TempDir() + "tb_test." + std::to_string(::getpid()) + "/a/b";
  fs::remove_all(folder);
  const std::array<Scalar, 1> loss{{{"loss", 1.5}}};
  TensorBoardWriter writer(folder);
  const auto empty = fs::file_size(writer.path());
  EXPECT_EQ(empty, event_file_header(0).size());
  writer.write(1, loss);
  EXPECT_EQ(fs::file_size(writer.path()), empty + event_record(0, 1, loss).size());
  TensorBoardWriter second(folder);
  EXPECT_NE(second.path(), writer.path());
  EXPECT_TRUE(fs::path(writer.path()).filename().string().starts_with("events.out.tfevents."));
  EXPECT_EQ(fs::path(second.path()).extension(), ".1");
  EXPECT_EQ(test::error_of<IoError>([&] {
              const test::FileSizeLimit limit(fs::file_size(second.path()));
              second.write(1, loss);
            }),
            "[metrics.save_tb_folder] cannot write " + second.path() + ": File too large");
  fs::remove_all(folder);
  EXPECT_THROW(TensorBoardWriter("/proc/none"), IoError);
}

}  // namespace
}  // namespace tessera::train

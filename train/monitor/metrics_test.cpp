// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/metrics.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/file_size_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unistd.h>

namespace tessera::train {
namespace {

TEST(Metrics, TheStepLineIsTorchtitans) {
  const StepRecord r{
      .step = 1, .loss = 7.624412, .grad_norm = 1.23454, .lr = 1e-3, .tokens_per_second = 4306.2};
  StepFacts facts{.peak_bytes = int64_t{460} << 20,
                  .total_bytes = int64_t{24} << 30,
                  .flops_per_token = 4e7,
                  .ceiling_flops = 4e11,
                  .seconds_left = 65};
  EXPECT_EQ(step_line(r, facts),
            "step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.45GiB(1.87%)  tps: 4,306  "
            "tflops: 0.17  mfu: 43.06%  eta: 1m 05s");
  EXPECT_EQ(
      step_line(r, {}),
      "step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.00GiB  tps: 4,306  tflops: 0.00");
  // Colours come around each part and change nothing else.
  const std::string plain = step_line(r, facts);
  facts.color = true;
  std::string stripped = step_line(r, facts);
  EXPECT_NE(stripped, plain);
  for (size_t at; (at = stripped.find('\033')) != stripped.npos;)
    stripped.erase(at, stripped.find('m', at) - at + 1);
  EXPECT_EQ(stripped, plain);
}

TEST(Metrics, MfuIsNotAvailableWhereThePeakIsExceededOrDoesNotHold) {
  EXPECT_EQ(mfu_of(25, 100, true), 25);
  EXPECT_EQ(mfu_of(100, 100, true), 100);
  EXPECT_FALSE(mfu_of(101, 100, true));
  EXPECT_FALSE(mfu_of(25, 100, false));
  EXPECT_FALSE(mfu_of(25, 0, true));
  const StepRecord r{.step = 1, .loss = 1, .tokens_per_second = 1000};
  StepFacts facts{.flops_per_token = 1e9, .ceiling_flops = 1e11};
  EXPECT_NE(step_line(r, facts).find("  mfu: N/A"), std::string::npos);  // 1e12 of 1e11
  facts.ceiling_flops = 4e12;
  EXPECT_NE(step_line(r, facts).find("  mfu: 25.00%"), std::string::npos);
  facts.ceiling_holds = false;
  EXPECT_NE(step_line(r, facts).find("  mfu: N/A"), std::string::npos);
}

TEST(Metrics, NumbersForPeople) {
  EXPECT_EQ(with_separators(0), "0");
  EXPECT_EQ(with_separators(999), "999");
  EXPECT_EQ(with_separators(1234567), "1,234,567");
  EXPECT_EQ(with_separators(-123456), "-123,456");
  EXPECT_EQ(duration(59.4), "59s");
  EXPECT_EQ(duration(59.6), "1m 00s");
  EXPECT_EQ(duration(3725), "1h 02m");
  EXPECT_EQ(duration(200000), "2d 07h");
  EXPECT_EQ(byte_count(0), "0 B");
  EXPECT_EQ(byte_count(1023), "1023 B");
  EXPECT_EQ(byte_count(1536), "1.5 KiB");
  EXPECT_EQ(byte_count(int64_t{3} << 50), "3072.0 TiB");
}

TEST(Metrics, ALinePerStep) {
  const std::string path = testing::TempDir() + "metrics." + std::to_string(::getpid()) + ".jsonl";
  MetricsLog log(path);
  log.write({.step = 1, .loss = 2.5, .grad_norm = 0.1, .lr = 0.001, .tokens_per_second = 10});
  log.write({.step = 2, .loss = 2.25, .grad_norm = 0.1, .lr = 0.001, .tokens_per_second = 20});
  EXPECT_EQ(io::read_file(path),
            "{\"step\": 1, \"loss\": 2.5, \"grad_norm\": 0.1, \"lr\": 0.001, "
            "\"tokens_per_second\": 10.0}\n"
            "{\"step\": 2, \"loss\": 2.25, \"grad_norm\": 0.1, \"lr\": 0.001, "
            "\"tokens_per_second\": 20.0}\n");
  log.write({.step = 3, .loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_NE(io::read_file(path).find("\"loss\": null"), std::string::npos);
  const Curve curve = read_metrics(path, "loss");
  EXPECT_EQ(curve.steps, (std::vector<double>{1, 2}));
  EXPECT_EQ(curve.values, (std::vector<double>{2.5, 2.25}));
  ::unlink(path.c_str());
  EXPECT_THROW(MetricsLog("/no/such/folder/metrics.jsonl"), IoError);
}

TEST(Metrics, AFullDiskIsAnError) {
  const std::string path = testing::TempDir() + "full." + std::to_string(::getpid()) + ".jsonl";
  MetricsLog log(path);
  EXPECT_EQ(test::error_of<IoError>([&] {
              const test::FileSizeLimit limit(10);
              log.write({.step = 1, .loss = 2.5});
            }),
            "[metrics] cannot write " + path + ": File too large");
  ::unlink(path.c_str());
}

TEST(Metrics, ARunThatGoesOnKeepsTheStepsBefore) {
  const std::string path = testing::TempDir() + "resumed." + std::to_string(::getpid()) + ".jsonl";
  {
    MetricsLog log(path);
    for (int64_t i = 1; i <= 5; ++i) log.write({.step = i, .loss = 1.0 * static_cast<double>(i)});
  }
  {
    MetricsLog log(path, 3);
    log.write({.step = 4, .loss = 40});
  }
  EXPECT_EQ(read_metrics(path, "loss").values, (std::vector<double>{1, 2, 3, 40}));
  MetricsLog anew(path);
  EXPECT_EQ(io::read_file(path), "");
  ::unlink(path.c_str());
}

TEST(Metrics, ReadsWhatIsWholeAndRefusesTheRest) {
  const std::string path = testing::TempDir() + "read." + std::to_string(::getpid()) + ".jsonl";
  io::write_file_atomically(path,
                            "{\"step\": 1, \"loss\": 2}\n{\"step\": 1, \"loss\": 3}\n{\"step\": 2");
  EXPECT_EQ(read_metrics(path, "loss").values, (std::vector<double>{3}));
  EXPECT_THROW((void)read_metrics(path, "nothing"), DataError);
  for (const char* bad : {"hello\n", "[1]\n", "{\"loss\": 1}\n", "{\"step\": \"a\"}\n", "", "\n"}) {
    io::write_file_atomically(path, bad);
    EXPECT_THROW((void)read_metrics(path, "loss"), DataError) << bad;
  }
  io::write_file_atomically(path, std::string("{\"step\": 1, \"loss\": 2}\0x\n", 25));
  EXPECT_THROW((void)read_metrics(path, "loss"), DataError);
  ::unlink(path.c_str());
  EXPECT_THROW((void)read_metrics(path, "loss"), IoError);
}

}  // namespace
}  // namespace tessera::train

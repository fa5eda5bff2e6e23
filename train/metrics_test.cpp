// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/metrics.h"

#include "tessera/core/error.h"
#include "tessera/train/files.h"

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
  EXPECT_EQ(step_line(r, int64_t{460} << 20, int64_t{24} << 30, 4e7, 65),
            "step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.45GiB(1.87%)  tps: 4,306  "
            "tflops: 0.17  eta: 1m 05s");
  EXPECT_EQ(
      step_line(r, 0, 0, 0, -1),
      "step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.00GiB  tps: 4,306  tflops: 0.00");
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
}

TEST(Metrics, ALinePerStep) {
  const std::string path = testing::TempDir() + "metrics." + std::to_string(::getpid()) + ".jsonl";
  MetricsLog log(path);
  log.write({.step = 1, .loss = 2.5, .grad_norm = 0.1, .lr = 0.001, .tokens_per_second = 10});
  log.write({.step = 2, .loss = 2.25, .grad_norm = 0.1, .lr = 0.001, .tokens_per_second = 20});
  EXPECT_EQ(read_file(path),
            "{\"step\": 1, \"loss\": 2.5, \"grad_norm\": 0.1, \"lr\": 0.001, "
            "\"tokens_per_second\": 10.0}\n"
            "{\"step\": 2, \"loss\": 2.25, \"grad_norm\": 0.1, \"lr\": 0.001, "
            "\"tokens_per_second\": 20.0}\n");
  ::unlink(path.c_str());
  EXPECT_THROW(MetricsLog("/no/such/folder/metrics.jsonl"), IoError);
}

TEST(Metrics, ThePlotHoldsEveryFinitePoint) {
  std::vector<StepRecord> records;
  for (int64_t i = 1; i <= 30; ++i)
    records.push_back({.step = i, .loss = 8.0 / static_cast<double>(i)});
  records[4].loss = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = loss_plot_svg(records, "a < b & c");
  EXPECT_NE(svg.find("a &lt; b &amp; c"), svg.npos);
  EXPECT_EQ(svg.find("nan"), svg.npos);
  const size_t begin = svg.find("points=\"") + 8;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  EXPECT_EQ(std::ranges::count(points, ','), 29);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_TRUE(loss_plot_svg({}, "none").ends_with("</svg>\n"));
  EXPECT_EQ(loss_plot_svg({{.step = 1, .loss = 3}}, "one").find("inf"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train

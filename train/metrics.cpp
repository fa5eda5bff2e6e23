// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/metrics.h"

#include "tessera/core/error.h"
#include "tessera/train/files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace tessera::train {

std::string with_separators(int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m {:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h {:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d {:02}h", s / 86400, s / 3600 % 24);
}

std::string step_line(const StepRecord& r, int64_t peak_bytes, int64_t total_bytes,
                      double flops_per_token, double seconds_left) {
  const auto peak = static_cast<double>(peak_bytes);
  std::string line =
      fmt::format("step: {:2}  loss: {:8.5f}  grad_norm: {:7.4f}  memory: {:5.2f}GiB", r.step,
                  r.loss, r.grad_norm, peak / (1 << 30));
  if (total_bytes > 0)
    line += fmt::format("({:.2f}%)", 100 * peak / static_cast<double>(total_bytes));
  line +=
      fmt::format("  tps: {}  tflops: {:.2f}", with_separators(std::llround(r.tokens_per_second)),
                  flops_per_token * r.tokens_per_second / 1e12);
  if (seconds_left >= 0) line += fmt::format("  eta: {}", duration(seconds_left));
  return line;
}

struct MetricsLog::File {
  std::FILE* handle;
  ~File() {
    if (handle) std::fclose(handle);
  }
};

namespace {

// The lines of steps up to `last`; a line that a killed run did not finish is none.
std::string lines_to(int64_t last, const std::string& path) {
  std::string kept;
  if (last == 0 || !std::filesystem::exists(path)) return kept;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("step", last + 1) <= last) kept += line + '\n';
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path, int64_t after) : path_(path) {
  write_file_atomically(path, lines_to(after, path));
  file_.reset(new File{std::fopen(path.c_str(), "ae")});
  if (!file_->handle) fail<IoError>("metrics", "cannot create ", path, ": ", std::strerror(errno));
}
MetricsLog::~MetricsLog() = default;

void MetricsLog::write(const StepRecord& r) {
  const std::string line = fmt::format(
      "{{\"step\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": {}, \"tokens_per_second\": "
      "{:.1f}}}\n",
      r.step, r.loss, r.grad_norm, r.lr, r.tokens_per_second);
  write_line(line);
}

void MetricsLog::write_validation(int64_t step, double loss) {
  const std::string text = std::isfinite(loss) ? fmt::format("{}", loss) : "null";
  write_line(fmt::format("{{\"step\": {}, \"validation_loss\": {}}}\n", step, text));
}

void MetricsLog::write_line(const std::string& line) {
  if (std::fputs(line.c_str(), file_->handle) < 0 || std::fflush(file_->handle) != 0) {
    fail<IoError>("metrics", "cannot write ", path_, ": ", std::strerror(errno));
  }
}

namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 20, kTop = 44, kBottom = 48;

// A step of 1, 2 or 5 times a power of ten that cuts `span` into about `count` parts.
double nice_step(double span, double count) {
  const double raw = span / count, power = std::pow(10, std::floor(std::log10(raw))),
               r = raw / power;
  return power * (r < 1.5 ? 1 : r < 3.5 ? 2 : r < 7.5 ? 5 : 10);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

// Maps steps and losses to the page.
struct Axes {
  double x0, x1, y0, y1;
  [[nodiscard]] double x(double v) const {
    return kLeft + (v - x0) / (x1 - x0) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double v) const {
    return kHeight - kBottom - (v - y0) / (y1 - y0) * (kHeight - kTop - kBottom);
  }
};

std::string polyline(const Axes& axes, const std::vector<StepRecord>& records,
                     const std::vector<double>& values, std::string_view style) {
  std::string points;
  for (size_t i = 0; i < values.size(); ++i) {
    points += fmt::format("{:.1f},{:.1f} ", axes.x(static_cast<double>(records[i].step)),
                          axes.y(values[i]));
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" {}/>\n", points, style);
}

}  // namespace

std::string loss_plot_svg(const std::vector<StepRecord>& all, const std::string& title) {
  std::vector<StepRecord> records;
  std::ranges::copy_if(all, std::back_inserter(records),
                       [](const StepRecord& r) { return std::isfinite(r.loss); });
  std::vector<double> losses;
  for (const auto& r : records) losses.push_back(r.loss);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#444\">\n<rect width=\"100%\" "
      "height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{2}\" y=\"26\" font-size=\"15\" fill=\"#111\">{3}</text>\n",
      kWidth, kHeight, kLeft, escaped(title));
  if (records.empty()) return svg + "</svg>\n";

  const auto [low, high] = std::ranges::minmax(losses);
  const double margin = std::max(0.05 * (high - low), 1e-3);
  const auto first = static_cast<double>(records.front().step),
             last = static_cast<double>(records.back().step);
  const Axes axes{first, std::max(last, first + 1), std::max(0.0, low - margin), high + margin};

  const double dy = nice_step(axes.y1 - axes.y0, 6),
               dx = std::max(1.0, nice_step(axes.x1 - axes.x0, 8));
  for (double v = std::ceil(axes.y0 / dy) * dy; v <= axes.y1; v += dy) {
    svg += fmt::format(
        "<line x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        kLeft, kWidth - kRight, axes.y(v), kLeft - 8, axes.y(v) + 4, v);
  }
  for (double v = std::ceil(axes.x0 / dx) * dx; v <= axes.x1; v += dx) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n",
                       axes.x(v), kHeight - kBottom + 18, v);
  }
  svg += fmt::format(
      "<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#999\"/>\n"
      "<text x=\"{4}\" y=\"{5}\" text-anchor=\"middle\">step</text>\n"
      "<text x=\"18\" y=\"{6}\" text-anchor=\"middle\" transform=\"rotate(-90 18 "
      "{6})\">loss</text>\n",
      kLeft, kTop, kHeight - kBottom, kWidth - kRight, (kLeft + kWidth - kRight) / 2, kHeight - 10,
      (kTop + kHeight - kBottom) / 2);

  const bool many = records.size() > 200;
  svg += polyline(
      axes, records, losses,
      many ? "stroke=\"#9ecae1\" stroke-width=\"1\"" : "stroke=\"#1f77b4\" stroke-width=\"2\"");
  if (many) {
    std::vector<double> mean(losses);
    for (size_t i = 1; i < mean.size(); ++i) mean[i] = 0.95 * mean[i - 1] + 0.05 * losses[i];
    svg += polyline(axes, records, mean, "stroke=\"#1f77b4\" stroke-width=\"2\"");
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"26\" text-anchor=\"end\">{:.4f} at step {} &#8594; {:.4f} at step "
      "{}</text>\n",
      kWidth - kRight, losses.front(), records.front().step, losses.back(), records.back().step);
  return svg + "</svg>\n";
}

}  // namespace tessera::train

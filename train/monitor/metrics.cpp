// SPDX-License-Identifier: Apache-2.0
// A resumed run keeps the lines up to its step and drops later ones, by one atomic write; then each
// line is flushed at once. A reader skips an incomplete last line, and uses the later line of a
// step that occurs twice.
#include "tessera/train/monitor/metrics.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

namespace tessera::train {

void MetricsConfig::fields(config::Fields& f) {
  f.add("log_freq", log_freq, "steps between log lines; the first and last step are always logged",
        {.min = 1, .unit = "steps"});
  f.add("enable_tensorboard", enable_tensorboard, "write TensorBoard event files");
  f.add("save_tb_folder", save_tb_folder, "folder of TensorBoard event files, below dump_folder");
  f.add("disable_color_printing", disable_color_printing,
        "print without colors and progress bar, on terminals too");
  f.add("measure_ceiling", measure_ceiling,
        "measure the peak FLOP/s of the machine's multiply-add instructions, to report mfu");
  f.add("summary", summary, "model summary at the start: none, total, or a line per layer",
        {.choices = {"none", "total", "layers"}});
  f.add("step_line", step_line,
        "values of metrics.jsonl that the step line shows besides its own, such as "
        "moe/load_max_over_mean");
}

double StepRecord::statistic(std::string_view name) const {
  std::string names;
  for (const auto& [known, value] : statistics) {
    if (known == name) return value;
    names += concat(names.empty() ? "" : ", ", known);
  }
  fail<ConfigError>("--metrics.step_line", "there is no value '", io::excerpt(name),
                    "': ", names.empty() ? "this model has none" : concat("there are ", names));
}

std::string with_separators(int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

std::string with_separators(int64_t value, std::string_view noun) {
  return concat(with_separators(value), ' ', noun_after(value, noun));
}

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m {:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h {:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d {:02}h", s / 86400, s / 3600 % 24);
}

std::string byte_count(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::optional<double> mfu_of(double flops, double ceiling, bool holds) {
  if (!(ceiling > 0) || !holds || !(flops <= ceiling)) return {};
  return 100 * flops / ceiling;
}

std::string step_line(const StepRecord& r, const StepFacts& f) {
  std::string line;
  // One colour of the terminal's sixteen per part, so that the eye finds a column again.
  const auto part = [&](int color, const std::string& text) {
    line += line.empty() ? "" : "  ";
    line += f.color ? fmt::format("\033[{}m{}\033[0m", color, text) : text;
  };
  const auto peak = static_cast<double>(f.peak_bytes);
  const double flops = f.flops_per_token * r.tokens_per_second;
  part(1, fmt::format("step: {:2}", r.step));
  part(32, fmt::format("loss: {:8.5f}", r.loss));
  part(33, fmt::format("grad_norm: {:7.4f}", r.grad_norm));
  std::string memory = fmt::format("memory: {:5.2f}GiB", peak / (1 << 30));
  if (f.total_bytes > 0)
    memory += fmt::format("({:.2f}%)", 100 * peak / static_cast<double>(f.total_bytes));
  part(36, memory);
  part(34, fmt::format("tps: {}", with_separators(std::llround(r.tokens_per_second))));
  part(36, fmt::format("tflops: {:.2f}", flops / 1e12));
  const auto mfu = mfu_of(flops, f.ceiling_flops, f.ceiling_holds);
  if (mfu) part(35, fmt::format("mfu: {:.2f}%", *mfu));
  else if (f.ceiling_flops > 0) part(35, "mfu: N/A");
  for (const std::string& name : f.statistics)
    part(33, fmt::format("{}: {:.4g}", name, r.statistic(name)));
  if (f.seconds_left >= 0) part(90, fmt::format("eta: {}", duration(f.seconds_left)));
  return line;
}

namespace {

using Json = nlohmann::ordered_json;

// The JSON object with a step of one line; nothing where it is none.
std::optional<Json> parsed_line(std::string_view line) {
  Json json = io::parse_json(line).value;
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return {};
  return json;
}

// Calls f(line, number) for each line that has its newline, and gives the number of lines.
template <class F> void for_each_line(std::string_view text, F f) {
  size_t number = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    f(text.substr(begin, end - begin), ++number);
}

// JSON has no NaN.
std::string json_number(double v) { return std::isfinite(v) ? fmt::format("{}", v) : "null"; }

}  // namespace

struct MetricsLog::File {
  std::FILE* handle;
  ~File() {
    if (handle) std::fclose(handle);
  }
};

MetricsLog::MetricsLog(const std::string& path, int64_t after) : path_(path) {
  std::string kept;
  if (after > 0 && std::filesystem::exists(path)) {
    for_each_line(io::read_file(path), [&](std::string_view line, size_t) {
      const auto json = parsed_line(line);
      if (json && json->at("step").get<int64_t>() <= after) kept += concat(line, '\n');
    });
  }
  io::write_file_atomically(path, kept);
  file_.reset(new File{::fdopen(io::open_to_append(path), "a")});
  if (!file_->handle) fail<IoError>("metrics", "cannot open ", path, ": ", std::strerror(errno));
}
MetricsLog::~MetricsLog() = default;

void MetricsLog::write(const StepRecord& r) {
  std::string line = fmt::format(
      "{{\"step\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": {}, \"tokens_per_second\": {:.1f}",
      r.step, json_number(r.loss), json_number(r.grad_norm), json_number(r.lr),
      r.tokens_per_second);
  for (const auto& [name, value] : r.statistics)
    line += fmt::format(", {}: {}", Json(name).dump(), json_number(value));
  write_line(line + "}\n");
}

void MetricsLog::write_validation(int64_t step, double loss) {
  write_line(fmt::format("{{\"step\": {}, \"validation_loss\": {}}}\n", step, json_number(loss)));
}

void MetricsLog::write_line(const std::string& line) {
  if (std::fputs(line.c_str(), file_->handle) < 0 || std::fflush(file_->handle) != 0) {
    fail<IoError>("metrics", "cannot write ", path_, ": ", std::strerror(errno));
  }
}

Curve read_metrics(const std::string& path, std::string_view name) {
  std::map<int64_t, double> by_step;
  for_each_line(io::read_file(path), [&](std::string_view line, size_t number) {
    const auto json = parsed_line(line);
    if (!json)
      fail<DataError>("metrics", path, ", line ", number,
                      " is not a JSON object with a step; the file is not a run's metrics.jsonl");
    const auto at = json->find(name);
    if (at != json->end() && at->is_number())
      by_step[json->at("step").get<int64_t>()] = at->get<double>();
  });
  if (by_step.empty())
    fail<DataError>("metrics", path, " has no step with a number called \"", io::excerpt(name),
                    "\"");
  Curve curve;
  for (const auto& [step, value] : by_step) {
    curve.steps.push_back(static_cast<double>(step));
    curve.values.push_back(value);
  }
  return curve;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// The commands import-hf, export-hf and export-gguf. They need no ranks: a checkpoint of any mesh
// is read by one process, a tensor at a time.
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/interruption.h"
#include "tessera/train/convert/convert.h"
#include "tessera/train/monitor/screen.h"

#include <fmt/format.h>

#include <chrono>
#include <ostream>

namespace tessera::train {
namespace {

struct ImportFields {
  std::string folder;
  ImportOptions options;
  void fields(config::Fields& f) {
    f.add("folder", folder,
          "folder of the model: config.json and safetensors; may be the argument itself");
    f.add("out", options.out, "new folder, which generate, eval and train then take as a run's");
    f.add_choice("dtype", options.dtype, "dtype of the parameters",
                 std::vector<std::pair<std::string, DType>>{
                     {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float64", DType::f64}});
  }
};

struct ExportFields {
  ExportOptions options;
  int64_t max_shard_bytes = static_cast<int64_t>(options.max_shard_bytes);
  void fields(config::Fields& f) {
    f.add("checkpoint", options.checkpoint, "dump folder of a run, or one of its checkpoints");
    f.add("out", options.out, "new folder for transformers");
    f.add_choice(
        "dtype", options.dtype, "dtype of the weights; stored: that of the checkpoint",
        std::vector<std::pair<std::string, std::optional<DType>>>{{"stored", {}},
                                                                  {"float32", DType::f32},
                                                                  {"bfloat16", DType::bf16},
                                                                  {"float16", DType::f16}});
    f.add("max_shard_bytes", max_shard_bytes,
          "a larger model is cut into files of at most this size", {.min = 1, .unit = "bytes"});
  }
};

struct GgufFields {
  GgufOptions options;
  void fields(config::Fields& f) {
    f.add("checkpoint", options.checkpoint, "dump folder of a run, or one of its checkpoints");
    f.add("out", options.out, "new file for llama.cpp");
    f.add_choice("type", options.type, "how matrices are stored; vectors are in f32",
                 std::vector<std::pair<std::string, GgufType>>{
                     {"f32", GgufType::f32}, {"bf16", GgufType::bf16}, {"q8_0", GgufType::q8_0}});
  }
};

// ConfigError: a path that a conversion needs is missing.
void require_paths(const std::string& checkpoint, const std::string& out, const char* what) {
  std::vector<std::string> faults;
  if (checkpoint.empty())
    faults.emplace_back("[--checkpoint] is missing: give the dump folder of a run");
  if (out.empty()) faults.push_back(concat("[--out] is missing: give a new ", what));
  config::throw_if_any(faults);
}

// Lines of a conversion, and on a terminal a bar below them. Ctrl-C ends it between two tensors.
class ConversionScreen {
 public:
  explicit ConversionScreen(std::ostream& out) : screen_(out, Screen::style_of(out)) {}
  [[nodiscard]] Warn lines() {
    return [this](const std::string& line) { screen_.line(line); };
  }
  [[nodiscard]] BytesDone bar() {
    return [this](uint64_t bytes, uint64_t of) {
      interruption_.check();
      if (!screen_.bar_due()) return;
      const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
      screen_.bar(byte_bar(bytes, of, seconds, screen_.width()));
    };
  }
  void written(const std::string& what, uint64_t bytes) {
    screen_.clear_bar();
    screen_.line(fmt::format("wrote {}, {:.1f} MiB", what, static_cast<double>(bytes) / (1 << 20)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Interruption interruption_{"interrupted: nothing was written"};
  Screen screen_;
  const Clock::time_point start_ = Clock::now();
};

int import_hf(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  auto [config, folders] = parsed_folders<ImportFields>(arguments, 1);
  if (config.options.out.empty()) fail<ConfigError>("--out", "is missing: give a new folder");
  config.options.from = folders[0];
  const Session session;
  ConversionScreen screen(out);
  screen.written(config.options.out,
                 import_hugging_face(config.options, catalogue, screen.lines(), screen.bar()));
  return 0;
}

int export_hf(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  auto config = parsed_fields<ExportFields>(arguments);
  require_paths(config.options.checkpoint, config.options.out, "folder");
  config.options.max_shard_bytes = static_cast<uint64_t>(config.max_shard_bytes);
  const Session session;
  ConversionScreen screen(out);
  screen.written(config.options.out,
                 export_hugging_face(config.options, catalogue, screen.lines(), screen.bar()));
  return 0;
}

int export_gguf(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  const auto config = parsed_fields<GgufFields>(arguments);
  require_paths(config.options.checkpoint, config.options.out, "file");
  const Session session;
  ConversionScreen screen(out);
  screen.written(config.options.out,
                 export_gguf(config.options, catalogue, screen.lines(), screen.bar()));
  return 0;
}

}  // namespace

Command import_hf_command() {
  return {.name = "import-hf",
          .arguments = " FOLDER --out DIR [fields]",
          .summary = "convert a model of Hugging Face: tessera import-hf FOLDER --out DIR",
          .run = import_hf,
          .help = fields_help<ImportFields>};
}

Command export_hf_command() {
  return {
      .name = "export-hf",
      .arguments = " --checkpoint DIR --out DIR [fields]",
      .summary =
          "convert a trained model for transformers: tessera export-hf --checkpoint DIR --out DIR",
      .run = export_hf,
      .help = fields_help<ExportFields>};
}

Command export_gguf_command() {
  return {
      .name = "export-gguf",
      .arguments = " --checkpoint DIR --out FILE [fields]",
      .summary =
          "convert a trained model for llama.cpp: tessera export-gguf --checkpoint DIR --out FILE",
      .run = export_gguf,
      .help = fields_help<GgufFields>};
}

}  // namespace tessera::train

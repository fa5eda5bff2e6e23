// SPDX-License-Identifier: Apache-2.0
// The commands import-hf, export-hf and export-gguf. They need no ranks: a checkpoint of any mesh
// is read by one process, a tensor at a time. Only what a dropped buffer costs is measured with the
// whole model.
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/interruption.h"
#include "tessera/train/cli/model_on_ranks.h"
#include "tessera/train/convert/convert.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/step/evaluate.h"

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
    f.add("model.ignore_hf_fields", options.ignore_hf_fields,
          "fields of config.json that are passed over though the model's type is not known to have "
          "them");
  }
};

struct ExportFields {
  ExportOptions options;
  std::string dataset_path;
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
    f.add("drop", options.drop,
          "buffer to leave out because transformers has no place for it: expert_bias, of routers");
    f.add("dataset_path", dataset_path,
          "with drop: data over which the loss is computed with and without what is left out");
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

// Zeros are what a buffer has that is not there.
void clear(models::LanguageModel& model, std::string_view buffer) {
  const NoGrad guard;
  for (const auto& [name, t] : nn::named_buffers(model, true)) {
    if (!name.ends_with(concat('.', buffer))) continue;
    const Tensor own = t.is_distributed() ? local(t) : t;
    nn::copy_values(own, full(own.shape(), 0, own.dtype(), own.device()));
  }
}

// The losses with and without what an export drops.
void measure_drop(const ExportFields& c, std::ostream& out, const Catalogue& catalogue) {
  ModelOnRanksConfig on;
  on.checkpoint = c.options.checkpoint;
  on.ranks = 1;
  const ModelOnRanks trained(on, out, catalogue);
  const DataConfig& like = trained.config().dataloader;
  const auto dropped = dropped_by(c.options.drop, trained.config().model);
  const EvaluationPlan plan = trained.evaluation_plan(c.dataset_path);
  check_evaluation_data(like, plan);
  trained.run("export-hf", {}, {}, [&](World&, models::LanguageModel& model) {
    DataLoader data = evaluation_data(like, plan, model.placement().mesh);
    const Evaluation with = evaluate(model, data, -1, {});
    for (const models::HfFixedOurs& row : dropped) clear(model, row.buffer);
    const Evaluation without = evaluate(model, data, -1, {});
    out << fmt::format("loss: {:.5f} with {}, {:.5f} without  tokens: {}  data: {}\n", with.loss,
                       c.options.drop, without.loss, with_separators(with.tokens), plan.path);
  });
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
  if (config.options.drop.empty() && !config.dataset_path.empty())
    fail<ConfigError>(
        "--dataset_path", io::excerpt(config.dataset_path),
        " is given, but it shows what --drop changes; give that too, or leave it out");
  config.options.max_shard_bytes = static_cast<uint64_t>(config.max_shard_bytes);
  if (!config.dataset_path.empty()) measure_drop(config, out, catalogue);
  const Session session;
  ConversionScreen screen(out);
  screen.written(config.options.out,
                 export_hugging_face(config.options, catalogue, screen.lines(), screen.bar()));
  if (const std::string& drop = config.options.drop; !drop.empty() && config.dataset_path.empty())
    screen.lines()(concat(
        "nothing was measured: --dataset_path FILE prints the loss with and without ", drop));
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

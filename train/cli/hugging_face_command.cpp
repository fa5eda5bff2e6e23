// SPDX-License-Identifier: Apache-2.0
// The commands import-hf and export-hf. They need no ranks: a checkpoint of any mesh is read by one
// process, a tensor at a time.
#include "tessera/train/cli/commands.h"
#include "tessera/train/hugging_face/hugging_face.h"

#include <fmt/format.h>

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

Warn lines_of(std::ostream& out) {
  return [&out](const std::string& line) { out << line << '\n'; };
}

std::string written(const std::string& folder, uint64_t bytes) {
  return fmt::format("wrote {}, {:.1f} MiB\n", folder, static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

int import_hf_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  auto [config, folders] = parsed_folders<ImportFields>(arguments, 1);
  if (config.options.out.empty()) fail<ConfigError>("--out", "is missing: give a new folder");
  config.options.from = folders[0];
  const Session session;
  out << written(config.options.out, import_hugging_face(config.options, catalogue, lines_of(out)));
  return 0;
}

std::string import_hf_help(Arguments, const Catalogue&) { return help_of_fields<ImportFields>(); }

int export_hf_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  auto config = parsed_fields<ExportFields>(arguments);
  std::vector<std::string> faults;
  if (config.options.checkpoint.empty())
    faults.emplace_back("[--checkpoint] is missing: give the dump folder of a run");
  if (config.options.out.empty()) faults.emplace_back("[--out] is missing: give a new folder");
  config::throw_if_any(faults);
  config.options.max_shard_bytes = static_cast<uint64_t>(config.max_shard_bytes);
  const Session session;
  out << written(config.options.out, export_hugging_face(config.options, catalogue, lines_of(out)));
  return 0;
}

std::string export_hf_help(Arguments, const Catalogue&) { return help_of_fields<ExportFields>(); }

}  // namespace tessera::train

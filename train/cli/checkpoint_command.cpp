// SPDX-License-Identifier: Apache-2.0
// The command checkpoint: looks at saved steps, and joins one into a single file. It needs no
// ranks: whatever mesh wrote a step, one process reads it.
#include "tessera/core/message.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/cli/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <ostream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct CheckpointCommandConfig {
  std::string folder, output;
  int64_t step = -1;
  void fields(config::Fields& f) {
    f.add("folder", folder,
          "a dump folder, a checkpoint folder or a step folder; the argument behind the action may "
          "be the folder itself");
    f.add("step", step, "which step of the folder; -1: the latest, for verify all of them",
          {.min = -1, .unit = "steps"});
    f.add("output", output, "merge: the safetensors file to write");
  }
};

std::string mebibytes(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

uint64_t bytes_of(const Manifest& m) {
  uint64_t bytes = 0;
  for (const CheckpointFile& file : m.files) bytes += file.bytes;
  return bytes;
}

std::string summary(const Manifest& m) {
  return fmt::format("{}, {}{}{}", counted(m.files.size(), "file"), mebibytes(bytes_of(m)),
                     m.mesh.empty() ? "" : ", written on " + m.mesh,
                     m.has_optimizer() ? "" : ", the model alone");
}

// Steps are listed the oldest first; what is incomplete is listed too.
int list(const std::vector<std::string>& steps, const CheckpointCommandConfig&, std::ostream& out) {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    out << *step << ": ";
    try {
      out << summary(CheckpointReader(*step).manifest()) << '\n';
    } catch (const Error& error) {
      out << "incomplete: " << io::message_lines(error.what()) << '\n';
    }
  }
  return 0;
}

void print_part(std::ostream& out, std::string_view title, const TensorEntries& part,
                const Manifest& m) {
  out << title << ":\n";
  for (const auto& [name, entry] : part) {
    std::vector<size_t> files;
    for (const ChunkEntry& chunk : entry.chunks) files.push_back(chunk.file);
    std::ranges::sort(files);
    files.erase(std::unique(files.begin(), files.end()), files.end());
    out << fmt::format("  {}  {}[{}]  {} in {}\n", io::excerpt(name), tessera::name(entry.dtype),
                       fmt::join(entry.shape.begin(), entry.shape.end(), ", "),
                       counted(entry.chunks.size(), "chunk"),
                       files.size() == 1 ? m.files[files[0]].name : counted(files.size(), "file"));
  }
}

int inspect(const std::vector<std::string>& steps, const CheckpointCommandConfig&,
            std::ostream& out) {
  const CheckpointReader reader(steps[0]);
  const Manifest& m = reader.manifest();
  out << fmt::format("{}: {}\n", reader.path(), summary(m));
  out << fmt::format(
      "step {}, optimizer steps {}, schedule step {}, rows of data {}, seed {}, matmuls by {}\n",
      m.progress.step, m.progress.optimizer_steps, m.progress.schedule_step, m.progress.data_rows,
      m.seed, m.products.empty() ? "unknown" : io::excerpt(m.products));
  for (const CheckpointFile& file : m.files)
    out << fmt::format("  {}  {}\n", file.name, mebibytes(file.bytes));
  if (m.tokenizer)
    for (const auto& [name, sum] : *m.tokenizer)
      out << fmt::format("  {}  {}\n", name, mebibytes(sum.bytes));
  print_part(out, "model", m.model, m);
  if (m.has_optimizer()) print_part(out, "optimizer", m.optimizer, m);
  return 0;
}

int verify(const std::vector<std::string>& steps, const CheckpointCommandConfig&,
           std::ostream& out) {
  int status = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      const CheckpointReader reader(*step);
      reader.verify();
      out << fmt::format("{}: whole, {}\n", *step, summary(reader.manifest()));
    } catch (const Error& error) {
      status = 1;
      out << fmt::format("{}: {}\n", *step, io::message_lines(error.what()));
    }
  }
  return status;
}

int merge(const std::vector<std::string>& steps, const CheckpointCommandConfig& c,
          std::ostream& out) {
  if (c.output.empty())
    fail<ConfigError>("--output", "is missing: give the safetensors file to write");
  (void)io::make_folder_of(c.output, "--output");
  const CheckpointReader reader(steps[0]);
  const Session session;
  std::vector<io::TensorBytes> tensors;
  for (const auto& [name, entry] : reader.manifest().model)
    tensors.push_back({name, entry.dtype, entry.shape});
  Tensor one;  // at a time
  const auto sums = io::write_safetensors(
      c.output, tensors, {{"step", std::to_string(reader.manifest().progress.step)}},
      [&](size_t i) {
        one = reader.read(tensors[i].name);
        return one.numel() > 0 ? one.read_data() : nullptr;
      });
  out << fmt::format("wrote {}, {}, the model of {}\n", c.output, mebibytes(sums.bytes),
                     reader.path());
  return 0;
}

struct Action {
  std::string_view name;
  int (*run)(const std::vector<std::string>& steps, const CheckpointCommandConfig&, std::ostream&);
  bool all_steps;
};
constexpr std::array<Action, 4> kActions{{{"ls", list, true},
                                          {"inspect", inspect, false},
                                          {"verify", verify, true},
                                          {"merge", merge, false}}};

std::vector<std::string> steps_to_read(const std::string& path, const CheckpointCommandConfig& c,
                                       bool all) {
  std::vector<std::string> steps = steps_at(path).paths;
  if (c.step >= 0) {
    const std::string wanted = concat("step-", c.step);
    std::erase_if(steps, [&](const auto& s) { return fs::path(s).filename() != wanted; });
    if (steps.empty())
      fail<ConfigError>("--step", "there is no ", wanted, " in ", io::excerpt(path));
  }
  if (!all) steps.resize(1);
  return steps;
}

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  for (const Action& action : kActions) {
    if (arguments.empty() || arguments[0] != action.name) continue;
    const auto [config, folders] = parsed_folders<CheckpointCommandConfig>(arguments.subspan(1), 1);
    return action.run(steps_to_read(folders[0], config, action.all_steps), config, out);
  }
  fail<ConfigError>("checkpoint",
                    arguments.empty() ? "no action is given"
                                      : concat("unknown action '", io::excerpt(arguments[0]), '\''),
                    ": give ls, inspect, verify or merge, then a folder");
}

std::string help(Arguments, const Catalogue&) {
  return "  ls       lists the steps\n"
         "  inspect  prints what a step holds, and in which files\n"
         "  verify   reads every byte of the steps and names what is damaged; status 1 if any is\n"
         "  merge    writes the model of a step as one safetensors file\n" +
         help_of_fields<CheckpointCommandConfig>();
}

}  // namespace

Command checkpoint_command() {
  return {.name = "checkpoint",
          .arguments = " ls|inspect|verify|merge FOLDER [fields]",
          .summary = "list, inspect, verify or merge saved steps: tessera checkpoint ls DIR",
          .run = run,
          .help = help};
}

}  // namespace tessera::train

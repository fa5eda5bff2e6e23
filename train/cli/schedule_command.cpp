// SPDX-License-Identifier: Apache-2.0
// Shows a pipeline schedule before anything is trained: idle time and micro-batches in flight of
// each rank, and a drawing. Its CSV can be edited by hand and read back. Or that of a run, with the
// times of its actions: what a step took beside what they would take without other delays.
#include "tessera/core/message.h"
#include "tessera/dist/schedules/drawing.h"
#include "tessera/dist/schedules/passes.h"
#include "tessera/nn/io/files.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/config/config.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/monitor/traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <ostream>
#include <utility>

namespace tessera::train {
namespace {

struct ScheduleFields {
  std::string name, csv, from, out, actions;
  int64_t ranks = 4, stages = 0, micro_batches = 8;
  ActionTimes times;
  void fields(config::Fields& f) {
    std::vector<std::string> names{""};
    std::string help = "schedule";
    for (const NamedSchedule& s : named_schedules()) {
      names.emplace_back(s.name);
      help += concat("; ", s.name, ": ", s.help);
    }
    f.add("name", name, help, {.choices = names});
    f.add("csv", csv, "file of a schedule to read instead of one by name");
    f.add("from", from,
          "dump folder of a run with a pipeline and --profiler.enable_profiling: its schedule, and "
          "how many milliseconds its actions took");
    f.add("ranks", ranks, "ranks of the pipeline", {.min = 1, .max = 4096, .unit = "ranks"});
    f.add("stages", stages, "stages of the model; 0: one per rank",
          {.min = 0, .max = 1 << 16, .unit = "stages"});
    f.add("micro_batches", micro_batches, "micro-batches of a step",
          {.min = 1, .max = 1 << 16, .unit = "micro-batches"});
    f.add("forward", times.forward, "time of a stage's forward, in any unit", {.min = 0});
    f.add("backward_input", times.backward_input,
          "time of the gradients of a stage's input (with those of its weights: the backward)",
          {.min = 0});
    f.add("backward_weight", times.backward_weight, "time of the gradients of a stage's weights",
          {.min = 0});
    f.add("message", times.message, "time of a message between ranks", {.min = 0});
    f.add("out", out, "write the schedule to this CSV file");
    f.add("actions", actions,
          "write all that each rank does, with gathers, messages and reductions, to this CSV file");
  }
};

// What a run measured: its schedule, the times of its actions and a step's, in milliseconds.
struct Measured {
  PipelineSchedule schedule;
  ActionTimes times;
  double step = 0;
};
Measured measured_by(const std::string& run, const Catalogue& catalogue) {
  require_there("--from", run);
  const Config config =
      read_config((std::filesystem::path(run) / "config.json").string(), catalogue);
  const std::vector<TraceFolder> folders = trace_folders(run);
  if (folders.empty() || !config.parallelism.pipelines()) {
    fail<ConfigError>("--from", run, folders.empty() ? " has no traces" : " has no pipeline",
                      ": give a run that trained with --parallelism.pipeline_parallel_degree and "
                      "--profiler.enable_profiling");
  }
  const auto ranks = std::ssize(folders.back().ranks);
  const StepSizes sizes = config.step_sizes(config.parallelism.data_parts(ranks));
  const models::Split split = config.parallelism.split(config.model.make()->parts());
  const MeasuredActions actions = measured_actions(folders.back());
  Measured m{config.parallelism.schedule(std::ssize(split), sizes.micro_batches), {}, 0};
  // As they run: an I with its W behind it is a B.
  for (std::vector<Action>& own : m.schedule.ranks) own = merge_backwards(own);
  constexpr double kMilliseconds = 1e3;
  for (const auto& [action, seconds] : actions.of)
    m.times.measured[action] = kMilliseconds * seconds;
  m.step = kMilliseconds * actions.step;
  return m;
}

PipelineSchedule schedule_of(const ScheduleFields& c) {
  if (c.name.empty() == c.csv.empty())
    fail<ConfigError>("--name", "give a schedule by --name, a file by --csv or a run by --from");
  if (!c.csv.empty()) require_there("--csv", c.csv);
  if (!c.csv.empty()) return read_schedule(io::read_file(c.csv));
  const int64_t stages = c.stages == 0 ? c.ranks : c.stages;
  if (stages % c.ranks != 0) {
    fail<ConfigError>("--stages", stages, " are not the same number on each of ",
                      counted(c.ranks, "rank"), "; give ", (stages / c.ranks + 1) * c.ranks);
  }
  return make_schedule(c.name, {.ranks = static_cast<int>(c.ranks),
                                .stages_per_rank = static_cast<int>(stages / c.ranks),
                                .micro_batches = static_cast<int>(c.micro_batches)});
}

// A schedule with a fault is wrong usage.
std::pair<PipelineSchedule, Simulation> simulated(const ScheduleFields& c,
                                                  const std::optional<Measured>& measured) {
  try {
    PipelineSchedule schedule = measured ? measured->schedule : schedule_of(c);
    Simulation simulation = simulate(schedule, measured ? measured->times : c.times);
    return {std::move(schedule), std::move(simulation)};
  } catch (const ValueError& error) {
    throw ConfigError(error.what());
  }
}

std::string stages_on(const PipelineSchedule& schedule, size_t rank) {
  std::string all;
  for (int s = 0; s < schedule.stages(); ++s)
    if (schedule.rank_of_stage[static_cast<size_t>(s)] == static_cast<int>(rank))
      all += concat(all.empty() ? "" : " ", s);
  return all;
}

// The lines of all ranks below one another, in pieces as wide as the terminal.
void draw(const std::vector<std::string>& lines, int width, std::ostream& out) {
  if (lines.empty()) return;
  const size_t margin = fmt::format("{} ", lines.size() - 1).size();
  const size_t piece = std::max<size_t>(20, static_cast<size_t>(std::max(0, width)) - margin);
  for (size_t from = 0; from < lines[0].size(); from += piece) {
    out << '\n';
    for (size_t rank = 0; rank < lines.size(); ++rank)
      out << fmt::format("{:>{}} {}\n", rank, margin - 1, lines[rank].substr(from, piece));
  }
}

void write(const std::string& path, const char* field, const std::string& csv, std::ostream& out) {
  if (path.empty()) return;
  (void)io::make_folder_of(path, field);
  io::write_file_atomically(path, csv);
  out << "wrote " << path << '\n';
}

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  const auto c = parsed_fields<ScheduleFields>(arguments);
  if (!c.from.empty() && !(c.name.empty() && c.csv.empty()))
    fail<ConfigError>("--from", "is the schedule of a run: leave out --name and --csv");
  std::optional<Measured> measured;
  if (!c.from.empty()) measured = measured_by(c.from, catalogue);
  const auto [schedule, s] = simulated(c, measured);
  const std::string& title = measured ? c.from : c.csv.empty() ? c.name : c.csv;
  out << fmt::format("{}: stages {}, ranks {}, micro-batches {}, a step takes {:.4g}\n", title,
                     schedule.stages(), schedule.ranks.size(), schedule.micro_batches, s.end);
  if (measured)
    out << fmt::format("measured: {:.4g} ms, {:+.1f} % from its actions one after another\n",
                       measured->step, 100 * (measured->step / s.end - 1));
  out << fmt::format("{:>4}  {:>8}  {:>16}  {:>14}  {:>9}  {}\n", "rank", "busy", "idle",
                     "idle in span", "in flight", "stages");
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const std::string idle =
        fmt::format("{:.4g} ({:.1f} %)", s.idle(rank), s.end > 0 ? 100 * s.idle(rank) / s.end : 0);
    out << fmt::format("{:>4}  {:>8.4g}  {:>16}  {:>14.4g}  {:>9}  {}\n", rank, s.ranks[rank].busy,
                       idle, s.idle_in_span(rank), s.ranks[rank].most_in_flight,
                       stages_on(schedule, rank));
  }
  draw(drawing_of(schedule, s), Screen::style_of(out).width, out);
  write(c.out, "--out", schedule_csv(schedule.ranks), out);
  write(c.actions, "--actions", schedule_csv(all_actions(schedule)), out);
  return 0;
}

}  // namespace

Command schedule_command() {
  return {.name = "schedule",
          .arguments = " --name NAME [fields]",
          .summary = "what the ranks of a pipeline do: tessera schedule --name 1F1B --ranks 4",
          .run = run,
          .help = fields_help<ScheduleFields>};
}

}  // namespace tessera::train

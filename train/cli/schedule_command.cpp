// SPDX-License-Identifier: Apache-2.0
// Shows pipeline schedules before anything is trained: idle time and micro-batches in flight of
// each rank, and a drawing. A CSV can be edited by hand and read back. Or that of a run, with the
// times of its actions: what a step took beside what they would take without other delays, and what
// other schedules would make of them.
#include "tessera/core/message.h"
#include "tessera/dist/schedules/drawing.h"
#include "tessera/dist/schedules/passes.h"
#include "tessera/nn/io/files.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/config/config.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/monitor/traces.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

struct ScheduleFields {
  std::vector<std::string> name;
  std::string csv, from, out, actions, svg;
  // Of a run they are its own.
  std::optional<int64_t> ranks, stages, micro_batches;
  std::optional<double> forward, backward_input, backward_weight;
  double message = 0;
  void fields(config::Fields& f) {
    std::vector<std::string> names;
    std::string help = "schedules";
    for (const NamedSchedule& s : named_schedules()) {
      names.emplace_back(s.name);
      help += concat("; ", s.name, ": ", s.help);
    }
    f.add("name", name, help, {.choices = names});
    f.add("csv", csv, "file of a schedule to read");
    f.add("from", from,
          "dump folder of a run with a pipeline and --profiler.enable_profiling: its schedule, and "
          "how many milliseconds its actions took. Other schedules have its sizes, and the mean "
          "times of its stages; a part of a backward that it does not have takes half of one");
    f.add("ranks", ranks, "ranks of the pipeline; none: 4",
          {.min = 1, .max = 4096, .unit = "ranks"});
    f.add("stages", stages,
          "stages of the model; none: one per rank, or two with a schedule for several",
          {.min = 1, .max = 1 << 16, .unit = "stages"});
    f.add("micro_batches", micro_batches, "micro-batches of a step; none: 8",
          {.min = 1, .max = 1 << 16, .unit = "micro-batches"});
    f.add("forward", forward,
          "time of a stage's forward, in any unit; of several schedules, where the model has the "
          "fewest stages: more stages take less each; none: 1",
          {.min = 0});
    f.add("backward_input", backward_input,
          "time of the gradients of a stage's input (with those of its weights: the backward); "
          "none: 1",
          {.min = 0});
    f.add("backward_weight", backward_weight, "time of the gradients of a stage's weights; none: 1",
          {.min = 0});
    f.add("message", message, "time of a message between ranks", {.min = 0});
    f.add("out", out, "write the schedule to this CSV file");
    f.add("actions", actions,
          "write all that each rank does, with gathers, messages and reductions, to this CSV file");
    f.add("svg", svg, "write a drawing of all schedules to this SVG file instead of the terminal");
  }
  [[nodiscard]] std::vector<std::string> faults() const {
    std::vector<std::string> all;
    for (const auto& [field, given] :
         {std::pair("ranks", ranks.has_value()), std::pair("stages", stages.has_value()),
          std::pair("micro_batches", micro_batches.has_value()),
          std::pair("forward", forward.has_value()),
          std::pair("backward_input", backward_input.has_value()),
          std::pair("backward_weight", backward_weight.has_value())}) {
      if (given && !from.empty())
        all.push_back(concat("[--", field, "] is that of the run of --from: leave it out"));
    }
    return all;
  }
};

// The schedule of a run, and what it measured, in milliseconds.
struct Run {
  PipelineSchedule schedule;
  MeasuredActions actions;
};
Run run_in(const std::string& folder, const Catalogue& catalogue) {
  require_there("--from", folder);
  const Config config =
      read_config((std::filesystem::path(folder) / "config.json").string(), catalogue);
  const std::vector<TraceFolder> folders = trace_folders(folder);
  if (folders.empty() || !config.parallelism.pipelines()) {
    fail<ConfigError>("--from", folder, folders.empty() ? " has no traces" : " has no pipeline",
                      ": give a run that trained with --parallelism.pipeline_parallel_degree and "
                      "--profiler.enable_profiling");
  }
  const auto ranks = std::ssize(folders.back().ranks);
  const StepSizes sizes = config.step_sizes(config.parallelism.data_parts(ranks));
  const models::Split split = config.parallelism.split(config.model.make()->parts());
  MeasuredActions actions = measured_actions(folders.back());
  constexpr double kMilliseconds = 1e3;
  for (auto& [action, time] : actions.of) time *= kMilliseconds;
  actions.step *= kMilliseconds;
  return {config.parallelism.schedule(std::ssize(split), sizes.micro_batches), std::move(actions)};
}

// Mean times of the stages of a run, by kind.
class StageTimes {
 public:
  explicit StageTimes(const MeasuredActions& measured) {
    for (const auto& [name, time] : measured.of) {
      const Action action = parse_action(name);
      auto& [sum, count] = means_[{action.stage, action.kind}];
      sum += time;
      ++count;
    }
  }
  [[nodiscard]] double of(int stage, ActionKind kind) const {
    if (const auto own = mean(stage, kind)) return *own;
    if (kind == ActionKind::backward)
      return mean(stage, ActionKind::backward_input).value_or(0) +
             mean(stage, ActionKind::backward_weight).value_or(0);
    return mean(stage, ActionKind::backward).value_or(0) / 2;
  }

 private:
  [[nodiscard]] std::optional<double> mean(int stage, ActionKind kind) const {
    const auto found = means_.find({stage, kind});
    if (found == means_.end()) return {};
    return found->second.first / found->second.second;
  }
  std::map<std::pair<int, ActionKind>, std::pair<double, int>> means_;
};

// Times of a schedule's actions by what a run measured: its own ones one by one, those of others by
// stage and kind.
ActionTimes times_by(const Run& run, const PipelineSchedule& schedule, bool own) {
  const StageTimes stages(run.actions);
  ActionTimes times;
  for (const std::vector<Action>& rank : schedule.ranks) {
    for (const Action& action : rank) {
      for (const Action& part : parts_of(action)) {
        const auto exact = run.actions.of.find(text(part));
        times.measured[text(part)] =
            own && exact != run.actions.of.end() ? exact->second : stages.of(part.stage, part.kind);
      }
    }
  }
  return times;
}

PipelineSchedule named(const std::string& name, const ScheduleFields& c, const Run* run) {
  const auto row = std::ranges::find(named_schedules(), name, &NamedSchedule::name);
  const int64_t ranks = run ? std::ssize(run->schedule.ranks) : c.ranks.value_or(4);
  const int64_t stages =
      run ? run->schedule.stages() : c.stages.value_or((row->several_stages ? 2 : 1) * ranks);
  if (stages % ranks != 0) {
    fail<ConfigError>("--stages", stages, " are not the same number on each of ",
                      counted(ranks, "rank"), "; give ", (stages / ranks + 1) * ranks);
  }
  return make_schedule(name,
                       {.ranks = static_cast<int>(ranks),
                        .stages_per_rank = static_cast<int>(stages / ranks),
                        .micro_batches = run ? run->schedule.micro_batches
                                             : static_cast<int>(c.micro_batches.value_or(8))});
}

// The schedules without their times, that of the run first.
std::vector<DrawnSchedule> schedules_of(const ScheduleFields& c, const Run* run) {
  std::vector<DrawnSchedule> all;
  const auto add = [&](const std::string& title, PipelineSchedule schedule) {
    all.push_back({title, std::move(schedule), {}, {}});
  };
  if (run) add(c.from, run->schedule);
  if (!c.csv.empty()) {
    require_there("--csv", c.csv);
    add(c.csv, read_schedule(io::read_file(c.csv)));
    if (run && all.back().schedule.stages() != run->schedule.stages())
      fail<ConfigError>("--csv", c.csv, " has ", counted(all.back().schedule.stages(), "stage"),
                        ", and the run ", run->schedule.stages());
  }
  for (const std::string& name : c.name) add(name, named(name, c, run));
  if (all.empty())
    fail<ConfigError>("--name", "give a schedule by --name, a file by --csv or a run by --from");
  return all;
}

// A schedule with a fault is wrong usage.
std::vector<DrawnSchedule> simulated(const ScheduleFields& c, const Run* run) {
  try {
    std::vector<DrawnSchedule> all = schedules_of(c, run);
    const auto stages = [](const DrawnSchedule& s) { return s.schedule.stages(); };
    const int fewest = stages(*std::ranges::min_element(all, {}, stages));
    for (DrawnSchedule& s : all) {
      const double part = static_cast<double>(fewest) / stages(s);
      s.times = run ? times_by(*run, s.schedule, &s == all.data())
                    : ActionTimes{.forward = part * c.forward.value_or(1),
                                  .backward_input = part * c.backward_input.value_or(1),
                                  .backward_weight = part * c.backward_weight.value_or(1)};
      s.times.message = c.message;
      s.simulation = simulate(s.schedule, s.times);
    }
    return all;
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

void write(const std::string& path, const char* field, const std::string& text, std::ostream& out) {
  if (path.empty()) return;
  (void)io::make_folder_of(path, field);
  io::write_file_atomically(path, text);
  out << "wrote " << path << '\n';
}

void show(const DrawnSchedule& drawn, const Run* of_run, std::ostream& out) {
  const auto& [title, schedule, times, s] = drawn;
  out << fmt::format("{}: stages {}, ranks {}, micro-batches {}, a step takes {:.4g}\n", title,
                     schedule.stages(), schedule.ranks.size(), schedule.micro_batches, s.end);
  if (of_run) {
    const double step = of_run->actions.step;
    out << fmt::format("measured: {:.4g} ms, {:+.1f} % from its actions one after another\n", step,
                       100 * (step / s.end - 1));
  }
  out << fmt::format("{:>4}  {:>8}  {:>16}  {:>14}  {:>9}  {}\n", "rank", "busy", "idle",
                     "idle in span", "in flight", "stages");
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const std::string idle =
        fmt::format("{:.4g} ({:.1f} %)", s.idle(rank), s.end > 0 ? 100 * s.idle(rank) / s.end : 0);
    out << fmt::format("{:>4}  {:>8.4g}  {:>16}  {:>14.4g}  {:>9}  {}\n", rank, s.ranks[rank].busy,
                       idle, s.idle_in_span(rank), s.ranks[rank].most_in_flight,
                       stages_on(schedule, rank));
  }
}

void require_one(const std::string& path, const char* field, size_t schedules) {
  if (!path.empty() && schedules > 1)
    fail<ConfigError>(field, "is for one schedule, and there are ", schedules,
                      ": give each a command");
}

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  const auto c = parsed_fields<ScheduleFields>(arguments);
  config::throw_if_any(c.faults());
  std::optional<Run> of_run;
  if (!c.from.empty()) of_run = run_in(c.from, catalogue);
  std::vector<DrawnSchedule> all = simulated(c, of_run ? &*of_run : nullptr);
  require_one(c.out, "--out", all.size());
  require_one(c.actions, "--actions", all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out << '\n';
    show(all[i], of_run && i == 0 ? &*of_run : nullptr, out);
    if (c.svg.empty())
      draw(drawing_of(all[i].schedule, all[i].simulation), Screen::style_of(out).width, out);
    all[i].title = printable(all[i].title);
  }
  write(c.svg, "--svg", c.svg.empty() ? "" : svg_drawing(all), out);
  write(c.out, "--out", schedule_csv(all[0].schedule.ranks), out);
  write(c.actions, "--actions", schedule_csv(all_actions(all[0].schedule)), out);
  return 0;
}

}  // namespace

Command schedule_command() {
  return {.name = "schedule",
          .arguments = " --name NAME[,NAME...] [fields]",
          .summary = "what the ranks of a pipeline do: tessera schedule --name 1F1B --ranks 4",
          .run = run,
          .help = fields_help<ScheduleFields>};
}

}  // namespace tessera::train

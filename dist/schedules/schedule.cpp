// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/schedule.h"

#include "tessera/core/message.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kWhere = "pipeline schedule";

// The parts of a micro-batch that a stage has computed so far; `whole`: its backward is a B.
struct Done {
  bool forward = false, input = false, weight = false, whole = false;
};

// Why a part of an action is none of a schedule, or an empty text.
std::string fault_of(const Action& part) {
  constexpr int kMost =
      1 << 16;  // stages and micro-batches, so that a wrong number asks for little
  if (!computes(part.kind)) return "only F, I, W, B and their overlaps compute";
  if (part.stage < 0 || part.stage >= kMost || part.micro_batch < 0 || part.micro_batch >= kMost)
    return concat("stages and micro-batches are 0 or above, and below ", kMost);
  return {};
}

[[noreturn]] void refuse(size_t rank, size_t at, const Action& action, std::string_view fault) {
  fail<ValueError>(kWhere, "action ", at, " of rank ", rank, ", ", text(action), ": ", fault);
}

class Check {
 public:
  explicit Check(const PipelineSchedule& schedule)
      : schedule_(schedule),
        done_(static_cast<size_t>(schedule.stages()) *
              static_cast<size_t>(schedule.micro_batches)) {}

  void run() {
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const Action& action = schedule_.ranks[rank][i];
        if (action.kind == ActionKind::overlap && action.parts.size() != 2)
          refuse(rank, i, action, "an overlap has two parts");
        for (const Action& part : parts_of(action)) {
          const std::string fault = take(static_cast<int>(rank), part);
          if (!fault.empty()) refuse(rank, i, action, fault);
        }
      }
    }
    for (int stage = 0; stage < schedule_.stages(); ++stage)
      for (int m = 0; m < schedule_.micro_batches; ++m) require_done(stage, m);
  }

 private:
  Done& at(int stage, int micro_batch) {
    return done_[static_cast<size_t>(stage * schedule_.micro_batches + micro_batch)];
  }
  // Takes the next action of a rank; returns its fault, or an empty text.
  std::string take(int rank, const Action& a) {
    if (std::string fault = fault_of(a); !fault.empty()) return fault;
    if (a.stage >= schedule_.stages()) return concat("stages end with ", schedule_.stages() - 1);
    if (a.micro_batch >= schedule_.micro_batches)
      return concat("micro-batches end with ", schedule_.micro_batches - 1);
    const int own = schedule_.rank_of_stage[static_cast<size_t>(a.stage)];
    if (own != rank) return concat("stage ", a.stage, " is on rank ", own);
    Done& done = at(a.stage, a.micro_batch);
    if (a.kind == ActionKind::forward) {
      if (done.forward) return "it is there twice";
      done.forward = true;
      return {};
    }
    if (!done.forward) return "it comes before its forward";
    const bool whole = a.kind == ActionKind::backward;
    if (done.input && done.whole != whole)
      return concat("its ", done.whole ? 'B' : 'I',
                    " is there too: a backward is a B, or an I and a W behind it");
    done.whole = whole;
    if (gives_input_gradient(a.kind)) {
      if (done.input) return "it is there twice";
      done.input = true;
    } else if (!done.input) {
      return "it comes before its I";
    }
    if (ends_backward(a.kind)) {
      if (done.weight) return "it is there twice";
      done.weight = true;
    }
    return {};
  }
  void require_done(int stage, int micro_batch) {
    const int rank = schedule_.rank_of_stage[static_cast<size_t>(stage)];
    if (rank < 0) fail<ValueError>(kWhere, "stage ", stage, " is on no rank");
    const Done& done = at(stage, micro_batch);
    if (done.weight) return;
    const char* missing = !done.forward ? "F" : done.input ? "W" : "B";
    fail<ValueError>(kWhere, "rank ", rank, " lacks ", stage, missing, micro_batch);
  }

  const PipelineSchedule& schedule_;
  std::vector<Done> done_;
};

// The pieces of a text between separators.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(separator, from), text.size());
    pieces.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return pieces;
}

// A stage is on the rank of its first action.
void place(PipelineSchedule& schedule, const Action& action, int rank) {
  const auto stage = static_cast<size_t>(action.stage);
  if (schedule.rank_of_stage.size() <= stage) schedule.rank_of_stage.resize(stage + 1, -1);
  if (schedule.rank_of_stage[stage] < 0) schedule.rank_of_stage[stage] = rank;
  schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
}

}  // namespace

void check_schedule(const PipelineSchedule& schedule) { Check(schedule).run(); }

PipelineSchedule make_schedule(std::vector<std::vector<Action>> ranks) {
  PipelineSchedule schedule{.ranks = std::move(ranks)};
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      for (const Action& part : parts_of(action)) {
        if (const std::string fault = fault_of(part); !fault.empty())
          refuse(rank, i, action, fault);
        place(schedule, part, static_cast<int>(rank));
      }
    }
  }
  if (schedule.rank_of_stage.empty()) fail<ValueError>(kWhere, "it holds no action");
  if (static_cast<int64_t>(schedule.stages()) * schedule.micro_batches > int64_t{1} << 24)
    fail<ValueError>(kWhere, counted(schedule.stages(), "stage"), " of ",
                     counted(schedule.micro_batches, "micro-batch"), ": more than it can hold");
  check_schedule(schedule);
  return schedule;
}

PipelineSchedule read_schedule(std::string_view csv) {
  std::vector<std::vector<Action>> ranks;
  while (csv.ends_with('\n') || csv.ends_with('\r')) csv.remove_suffix(1);
  for (std::string_view line : split(csv, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::vector<Action>& own = ranks.emplace_back();
    int cell = 0;
    for (const std::string_view word : split(line, ',')) {
      ++cell;
      if (word.find_first_not_of(" \t") == word.npos) continue;
      try {
        own.push_back(parse_action(word));
        for (const Action& part : parts_of(own.back()))
          if (const std::string fault = fault_of(part); !fault.empty())
            fail<ValueError>(kWhere, fault);
      } catch (const ValueError& error) {
        fail<ValueError>(kWhere, "line ", ranks.size(), ", cell ", cell, ": ", error.what());
      }
    }
  }
  return make_schedule(std::move(ranks));
}

std::string schedule_csv(const std::vector<std::vector<Action>>& ranks) {
  std::string csv;
  for (const std::vector<Action>& rank : ranks) {
    for (size_t i = 0; i < rank.size(); ++i) csv += concat(i > 0 ? "," : "", text(rank[i]));
    csv += '\n';
  }
  return csv;
}

}  // namespace tessera

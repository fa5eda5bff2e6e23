// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules beside those of torch.distributed.pipelining, and what a simulation says of
// them.
#include "tessera/core/error.h"
#include "tessera/dist/schedules/drawing.h"
#include "tessera/dist/schedules/passes.h"
#include "tessera/dist/schedules/simulate.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera {
namespace {

using Kind = ActionKind;

nlohmann::json goldens() {
  return nlohmann::json::parse(std::ifstream("tests/goldens/pipeline_schedules.json"));
}

// FNV-1a, as the generator of the goldens has it.
std::string sum_of(const std::string& text) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; value /= 16) digits[i] = "0123456789abcdef"[value % 16];
  return digits;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

void expect_refused(const std::string& csv, const std::string& why) {
  EXPECT_EQ(error_of([&] { (void)simulate(read_schedule(csv)); }), "[pipeline schedule] " + why)
      << csv;
}

TEST(PipelineSchedules, AreTorchs) {
  const nlohmann::json golden = goldens();
  int rows = 0, refused = 0;
  for (const auto& row : golden["rows"]) {
    const std::string name = row[0];
    const ScheduleShape shape{row[1], row[2], row[3]};
    SCOPED_TRACE(row.dump());
    ++rows;
    if (row[4] == "refused") {
      ++refused;
      EXPECT_NE(error_of([&] { (void)make_schedule(name, shape); }).find("; give "),
                std::string::npos);
      continue;
    }
    const PipelineSchedule schedule = make_schedule(name, shape);
    check_schedule(schedule);
    EXPECT_EQ(sum_of(schedule_csv(schedule.ranks)), row[4]);
    EXPECT_EQ(sum_of(schedule_csv(all_actions(schedule))), row[5]);
  }
  EXPECT_EQ(rows, 1701);
  EXPECT_EQ(refused, 225);
}

TEST(PipelineSchedules, AreTorchsInFull) {
  const nlohmann::json all = goldens();
  EXPECT_EQ(all["full"].size(), named_schedules().size());
  for (const auto& [name, golden] : all["full"].items()) {
    const PipelineSchedule schedule = make_schedule(name, {3, golden["stages_per_rank"], 6});
    EXPECT_EQ(schedule_csv(schedule.ranks), golden["computes"]) << name;
    EXPECT_EQ(schedule_csv(all_actions(schedule)), golden["actions"]) << name;
    EXPECT_EQ(read_schedule(std::string(golden["computes"])).ranks, schedule.ranks);
  }
}

// What a step idles on each rank, in a stage's times.
void expect_idle(const char* name, const ScheduleShape& shape, const ActionTimes& t, double idle) {
  SCOPED_TRACE(concat(name, ' ', shape.ranks, ' ', shape.stages_per_rank, ' ', shape.micro_batches,
                      " times ", t.forward, ' ', t.backward_input, ' ', t.backward_weight));
  const Simulation s = simulate(make_schedule(name, shape), t);
  const double work = t.forward + t.backward_input + t.backward_weight;
  for (size_t r = 0; r < s.ranks.size(); ++r) {
    EXPECT_DOUBLE_EQ(s.idle(r), (shape.ranks - 1) * idle);
    EXPECT_DOUBLE_EQ(s.ranks[r].busy, shape.stages_per_rank * shape.micro_batches * work);
    EXPECT_LE(s.idle_in_span(r), s.idle(r));
  }
}

ActionTimes times_of(double forward, double backward_input, double backward_weight) {
  return {.forward = forward, .backward_input = backward_input, .backward_weight = backward_weight};
}

TEST(PipelineSchedules, IdleAsTheirFormulasSay) {
  const ActionTimes times = times_of(2, 3, 1.5);
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (const int m : {ranks, 2 * ranks, 3 * ranks}) {
      expect_idle("GPipe", {ranks, 1, m}, times, 6.5);
      expect_idle("1F1B", {ranks, 1, m}, times, 6.5);
      for (int v = 1; v <= 3; ++v) {
        expect_idle("LoopedBFS", {ranks, v, m}, times, 6.5);
        expect_idle("Interleaved1F1B", {ranks, v, m}, times, 6.5);
      }
    }
  }
}

// W fills a wait up to the shorter one of F and I: behind that, a chain of F or of I is what takes
// the time.
TEST(PipelineSchedules, IdleOfZeroBubbleIsForwardAndInputLessWeight) {
  for (const ActionTimes& t :
       {times_of(4, 4, 4), times_of(4, 4, 2), times_of(4, 6, 3), times_of(6, 4, 3),
        times_of(2, 4, 3), times_of(2, 3, 5), times_of(6, 2, 4)}) {
    const double f = t.forward, i = t.backward_input, w = t.backward_weight;
    for (int ranks = 1; ranks <= 6; ++ranks)
      for (int v = 1; v <= 3; ++v)
        for (const int m : {ranks, 2 * ranks, 3 * ranks})
          expect_idle("InterleavedZeroBubble", {ranks, v, m}, t, std::max({f + i - w, f, i}));
  }
}

// With F = I. A W of less than half an F leaves waits of ZB-V open, and one of more than an F adds
// to its steady state.
TEST(PipelineSchedules, IdleOfVsIsShort) {
  for (const ActionTimes& t :
       {times_of(4, 4, 4), times_of(4, 4, 3), times_of(4, 4, 2), times_of(4, 4, 1)}) {
    const double f = t.forward, w = t.backward_weight, b = t.backward_input + w;
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (const int m : {2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 4 * ranks})
        expect_idle("ZBVZeroBubble", {ranks, 2, m}, t, std::max(f, 2 * (f - w)));
      for (const int m : {2 * ranks, 2 * ranks + 1, 4 * ranks})
        expect_idle("DualPipeV", {ranks, 2, m}, t, f + b + b - 3 * w);
    }
  }
  expect_idle("DualPipeV", {4, 2, 8}, times_of(4, 4, 6), 2 * 4);
  const Simulation s = simulate(make_schedule("ZBVZeroBubble", {4, 2, 8}));
  for (size_t r = 0; r < s.ranks.size(); ++r) EXPECT_EQ(s.idle_in_span(r), 0);
}

TEST(PipelineSchedules, KeepAsManyMicroBatchesAsTheirStagesNeed) {
  const auto kept = [](const char* name, const ScheduleShape& shape) {
    std::vector<int> most;
    for (const RankTimes& rank : simulate(make_schedule(name, shape)).ranks)
      most.push_back(rank.most_in_flight);
    return most;
  };
  EXPECT_EQ(kept("GPipe", {3, 1, 8}), (std::vector<int>{8, 8, 8}));
  EXPECT_EQ(kept("1F1B", {4, 1, 8}), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(kept("1F1B", {4, 1, 2}), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(kept("LoopedBFS", {2, 3, 4}), (std::vector<int>{12, 12}));
  EXPECT_EQ(kept("Interleaved1F1B", {2, 2, 4}), (std::vector<int>{5, 3}));
  EXPECT_EQ(kept("InterleavedZeroBubble", {4, 1, 8}), (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(kept("ZBVZeroBubble", {4, 2, 8}), (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(kept("DualPipeV", {4, 2, 8}), (std::vector<int>{9, 9, 9, 9}));
}

// A message of half a forward: the second rank begins so much later, the first waits twice as long.
TEST(PipelineSchedules, MessagesTakeTheirTime) {
  const Simulation s = simulate(make_schedule("GPipe", {2, 1, 1}), {.message = 0.5});
  ASSERT_EQ(s.ranks[1].spans.size(), 2u);
  EXPECT_DOUBLE_EQ(s.ranks[1].spans[0].begin, 1.5);
  EXPECT_DOUBLE_EQ(s.end, 1 + 0.5 + 3 + 0.5 + 2);
  EXPECT_DOUBLE_EQ(s.idle_in_span(0), 4);
}

TEST(PipelineSchedules, TextsAreReadBack) {
  for (const char* words :
       {"2F0", "10B31", "0I7", "3W2", "0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0", "2UNSHARD",
        "2RESHARD", "7REDUCE_GRAD", "(0F1;1B0)OVERLAP_F_B"})
    EXPECT_EQ(text(parse_action(words)), words);
  EXPECT_EQ(parse_action(" 2F0\t"), (Action{.stage = 2, .kind = Kind::forward, .micro_batch = 0}));
  const std::string expected =
      "; expected [stage][kind][micro-batch], such as 2F0, 0SEND_F3 or 1UNSHARD";
  for (const auto& [words, why] :
       {std::pair{"", "it does not begin with a stage"},
        {"F0", "it does not begin with a stage"},
        {"-1F0", "it does not begin with a stage"},
        {"99999999999F0", "it does not begin with a stage"},
        {"2X0", "unknown kind"},
        {"2", "unknown kind"},
        {"2OVERLAP_F_B", "unknown kind"},
        {"2F", "it names no micro-batch"},
        {"2F0x", "there is more behind it"},
        {"1UNSHARD3", "there is more behind it"},
        {"(0F1;1B0)", "an overlap is written (0F1;1B0)OVERLAP_F_B"},
        {"(0F1)OVERLAP_F_B", "an overlap has two parts, each F, I, W or B"},
        {"(0F1;1UNSHARD)OVERLAP_F_B", "an overlap has two parts, each F, I, W or B"}}) {
    EXPECT_EQ(error_of([w = words] { (void)parse_action(w); }),
              concat("[pipeline schedule] '", words, "' is no action: ", why, expected));
  }
}

TEST(PipelineSchedules, ACsvMayHaveIdleCellsAndBackwardsInTwoParts) {
  const PipelineSchedule schedule =
      read_schedule("0F0,0F1,,0I0,0W0,,0I1,0W1\r\n,1F0,1B0,(1F1;1I1)OVERLAP_F_B,1W1,,,\r\n");
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{0, 1}));
  EXPECT_EQ(schedule.micro_batches, 2);
  EXPECT_EQ(schedule_csv(schedule.ranks),
            "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1B0,(1F1;1I1)OVERLAP_F_B,1W1\n");
  EXPECT_EQ(simulate(schedule).ranks[0].most_in_flight, 2);
  EXPECT_EQ(schedule_csv(all_actions(schedule)),
            "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0RECV_B1,0W0,0I1,0W1,0REDUCE_GRAD,"
            "0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,(1F1;1I1)OVERLAP_F_B,1SEND_B1,1W1,"
            "1REDUCE_GRAD,1RESHARD\n");
}

// A stage stays whole from its first use to its last one while at most three are.
TEST(PipelineSchedules, StagesAreGatheredAheadAndFreedForOthers) {
  std::vector<Action> order;
  for (const int stage : {0, 1, 2, 3, 0}) order.push_back({stage, Kind::forward, 0});
  EXPECT_EQ(schedule_csv({add_unshards(order, 2)}),
            "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,1RESHARD,3UNSHARD,2F0,2RESHARD,0UNSHARD,"
            "3F0,3RESHARD,0F0,0RESHARD\n");
}

TEST(PipelineSchedules, AreDrawnInTime) {
  const auto drawn = [](const char* name, const ScheduleShape& shape, const ActionTimes& times) {
    const PipelineSchedule schedule = make_schedule(name, shape);
    std::string all;
    for (const std::string& line : drawing_of(schedule, simulate(schedule, times)))
      all += line + '\n';
    return all;
  };
  EXPECT_EQ(drawn("1F1B", {2, 1, 2}, {}),
            "0F0 0F1 ........0B0---- ....0B1---- \n"
            "....1F0 1B0---- 1F1 1B1---- ........\n");
  EXPECT_EQ(drawn("GPipe", {1, 1, 1}, {0, 0, 0}), "\n");
  EXPECT_EQ(drawn("GPipe", {1, 1, 1}, {.forward = 1e-6}), "");
}

// Every element ends, in the order of nesting, and texts hold no bare `<`, `>` or `&`.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] != '<') {
      EXPECT_NE(xml[at], '>') << at;
      EXPECT_TRUE(xml[at] != '&' || xml.substr(at, 5).find(';') != std::string::npos) << at;
      ++at;
      continue;
    }
    const size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    EXPECT_EQ(std::ranges::count(tag, '"') % 2, 0) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

// The width of each rectangle of a page, by the text of its action in the order of the page.
std::vector<std::pair<std::string, double>> rectangles_of(const std::string& svg) {
  std::vector<std::pair<std::string, double>> all;
  for (size_t at = svg.find("<rect "); at != svg.npos; at = svg.find("<rect ", at + 1)) {
    const size_t width = svg.find("width=\"", at) + 7, title = svg.find("<title>", at) + 7;
    all.emplace_back(svg.substr(title, svg.find(':', title) - title), std::stod(svg.substr(width)));
  }
  return all;
}

TEST(PipelineSchedules, ArePagesOfRectanglesAsWideAsTheirTimes) {
  const ActionTimes times = times_of(1, 2, 0.5);
  std::vector<DrawnSchedule> drawn;
  for (const auto& [name, shape] : {std::pair{"1F1B", ScheduleShape{2, 1, 3}},
                                    {"ZBVZeroBubble", {2, 2, 4}},
                                    {"DualPipeV", {2, 2, 4}}}) {
    const PipelineSchedule schedule = make_schedule(name, shape);
    drawn.push_back(
        {concat("<", name, "> & others\x01"), schedule, times, simulate(schedule, times)});
  }
  const std::string svg = svg_drawing(drawn);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("&lt;1F1B&gt; &amp; others </text>"), svg.npos);
  EXPECT_NE(
      svg.find(">2 ranks, 2 stages, 3 micro-batches: a step takes 14, ranks idle 25 % of it<"),
      svg.npos);
  for (const char* legend : {"F: ", "I: ", "W: ", "B: "})
    EXPECT_NE(svg.find(legend), svg.npos) << legend;
  double longest = 0;
  std::vector<Action> parts;
  for (const DrawnSchedule& d : drawn) {
    longest = std::max(longest, d.simulation.end);
    for (const std::vector<Action>& own : d.schedule.ranks)
      for (const Action& action : own)
        for (const Action& part : parts_of(action)) parts.push_back(part);
  }
  const std::vector<std::pair<std::string, double>> found = rectangles_of(svg);
  ASSERT_EQ(found.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(found[i].first, text(parts[i]));
    EXPECT_NEAR(found[i].second, times.of(parts[i]) / longest * 912, 1e-3);
  }
  expect_well_formed(svg_drawing({}));
  const DrawnSchedule none{"nothing takes time", drawn[0].schedule, times_of(0, 0, 0),
                           simulate(drawn[0].schedule, times_of(0, 0, 0))};
  EXPECT_EQ(svg_drawing({&none, 1}).find("nan"), std::string::npos);
}

TEST(PipelineSchedules, WhatDoesNotFitIsNamed) {
  EXPECT_EQ(error_of([] {
              (void)make_schedule("2F2B", {2, 1, 4});
            }),
            "[pipeline schedule] unknown schedule '2F2B'; there are GPipe, 1F1B, LoopedBFS, "
            "Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV");
  EXPECT_EQ(error_of([] {
              (void)make_schedule("1F1B", {2, 1, 0});
            }),
            "[pipeline schedule] 1F1B of 2 ranks, 1 stage per rank, 0 micro-batches: expected at "
            "least one of each");
  EXPECT_EQ(error_of([] {
              (void)make_schedule("GPipe", {2, 2, 4});
            }),
            "[pipeline schedule] GPipe does not fit 4 stages on 2 ranks and 4 micro-batches: it "
            "has one stage per rank; several have LoopedBFS, Interleaved1F1B, "
            "InterleavedZeroBubble, ZBVZeroBubble, DualPipeV");
  for (const auto& [name, shape, why] :
       {std::tuple{"InterleavedZeroBubble", ScheduleShape{4, 2, 9},
                   "8 stages on 4 ranks and 9 micro-batches: its micro-batches go through 4 ranks "
                   "in 2 rounds of equal size; give 8 or 12"},
        {"ZBVZeroBubble",
         {4, 1, 8},
         "4 stages on 4 ranks and 8 micro-batches: it has exactly 2 stages per rank; give 8 "
         "stages"},
        {"DualPipeV",
         {2, 3, 8},
         "6 stages on 2 ranks and 8 micro-batches: it has exactly 2 stages per rank; give 4 "
         "stages"},
        {"DualPipeV",
         {2, 2, 3},
         "4 stages on 2 ranks and 3 micro-batches: it has at least as many micro-batches as "
         "stages; give 4"}})
    EXPECT_EQ(error_of([n = name, s = shape] { (void)make_schedule(n, s); }),
              concat("[pipeline schedule] ", name, " does not fit ", why));
  EXPECT_EQ(error_of([] {
              (void)make_schedule("Interleaved1F1B", {4, 2, 9});
            }),
            "[pipeline schedule] Interleaved1F1B does not fit 8 stages on 4 ranks and 9 "
            "micro-batches: its micro-batches go through 4 ranks in 2 rounds of equal size; give 8 "
            "or 12");
}

TEST(PipelineSchedules, StagesOfAVAreOnRanksThereAndBack) {
  for (const char* name : {"ZBVZeroBubble", "DualPipeV"})
    EXPECT_EQ(make_schedule(name, {3, 2, 6}).rank_of_stage, (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(make_schedule("InterleavedZeroBubble", {3, 2, 6}).rank_of_stage,
            (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(PipelineSchedules, OnesOfOwnActionsAreChecked) {
  const auto of = [](ActionKind kind, int stage, int micro_batch) {
    return Action{.stage = stage, .kind = kind, .micro_batch = micro_batch};
  };
  const Action forward = of(Kind::forward, 0, 0), backward = of(Kind::backward, 0, 0);
  const PipelineSchedule own = make_schedule({{forward, backward}});
  EXPECT_EQ(own.rank_of_stage, std::vector<int>{0});
  EXPECT_EQ(own.micro_batches, 1);
  const Action nothing{.kind = Kind::overlap};
  const std::string range = "stages and micro-batches are 0 or above, and below 65536";
  for (const auto& [actions, why] :
       {std::pair{std::vector<Action>{forward, of(Kind::backward, -1, 0)},
                  "action 1 of rank 0, -1B0: " + range},
        {{of(Kind::forward, 0, -1)}, "action 0 of rank 0, 0F-1: " + range},
        {{forward, backward, nothing},
         "action 2 of rank 0, ()OVERLAP_F_B: an overlap has two parts"},
        {{forward}, "rank 0 lacks 0B0"}}) {
    EXPECT_EQ(error_of([&a = actions] { (void)make_schedule({a}); }), "[pipeline schedule] " + why);
    EXPECT_EQ(error_of([&a = actions] {
                check_schedule({.ranks = {a}, .rank_of_stage = {0}, .micro_batches = 1});
              }),
              "[pipeline schedule] " + why);
  }
}

TEST(PipelineSchedules, BadCsvsAreNamed) {
  const std::string only = "only F, I, W, B and their overlaps compute";
  expect_refused("", "it holds no action");
  expect_refused(",,\n\n", "it holds no action");
  expect_refused("0F0,0B0,0F0\n", "action 2 of rank 0, 0F0: it is there twice");
  expect_refused("0F0,0B0,0B0\n", "action 2 of rank 0, 0B0: it is there twice");
  expect_refused("0F0,0I0,0W0,0W0\n", "action 3 of rank 0, 0W0: it is there twice");
  expect_refused("0B0,0F0\n", "action 0 of rank 0, 0B0: it comes before its forward");
  expect_refused("0F0,0W0,0I0\n", "action 1 of rank 0, 0W0: it comes before its I");
  expect_refused("0F0,0I0\n", "rank 0 lacks 0W0");
  expect_refused("0F0,0W0\n", "action 1 of rank 0, 0W0: it comes before its I");
  expect_refused("0F0,0I0,0I0,0W0\n", "action 2 of rank 0, 0I0: it is there twice");
  const std::string too = " is there too: a backward is a B, or an I and a W behind it";
  expect_refused("0F0,0I0,0W0,0B0\n", "action 3 of rank 0, 0B0: its I" + too);
  expect_refused("0F0,0I0,0B0\n", "action 2 of rank 0, 0B0: its I" + too);
  expect_refused("0F0,0B0,0I0\n", "action 2 of rank 0, 0I0: its B" + too);
  expect_refused("0F0,0B0,0W0\n", "action 2 of rank 0, 0W0: its B" + too);
  expect_refused("0F0\n1F0,1B0\n", "rank 0 lacks 0B0");
  expect_refused("0F0,0B0,0F1,0B1\n1F0,1B0\n", "rank 1 lacks 1F1");
  expect_refused("0F0,0B0\n2F0,2B0\n", "stage 1 is on no rank");
  expect_refused("0F0,0B0\n0F1,0B1\n", "action 0 of rank 1, 0F1: stage 0 is on rank 0");
  expect_refused("0F0,0UNSHARD\n", "line 1, cell 2: [pipeline schedule] " + only);
  expect_refused("0F0\n1F70000\n",
                 "line 2, cell 1: [pipeline schedule] stages and micro-batches are 0 or above, and "
                 "below 65536");
  expect_refused("60000F60000\n", "60001 stages of 60001 micro-batches: more than it can hold");
  expect_refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
                 "ranks wait for each other for ever: rank 0 at 0B0 (action 1) needs 1B0 of rank "
                 "1; rank 1 at 1F1 (action 0) needs 0F1 of rank 0");
  expect_refused("1F0,0F0,0B0,1B0\n",
                 "ranks wait for each other for ever: rank 0 at 1F0 (action 0) needs 0F0 of rank "
                 "0");
  EXPECT_EQ(
      error_of([] { (void)all_actions(read_schedule("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")); }),
      "[pipeline schedule] ranks wait for each other for ever: rank 0 at 0B0");
}

}  // namespace
}  // namespace tessera

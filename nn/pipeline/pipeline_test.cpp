// SPDX-License-Identifier: Apache-2.0
// What ranks do is what the schedule says: the gradients of one rank, the messages, gathers and
// reductions of its actions, as many micro-batches at once as the simulation finds. On the named
// schedules and on random ones, of which some cannot end or lack an action: a plain executor says
// which. 20 of these, chosen by TESSERA_TEST_SEED; 200 with TESSERA_TEST_FULL=1.
#include "tessera/nn/pipeline/pipeline.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/schedules/passes.h"
#include "tessera/dist/schedules/simulate.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tessera::nn {
namespace {

using Kind = ActionKind;
using Orders = std::vector<std::vector<Action>>;  // of each rank

// --- Stages of whole numbers, whose sums are exact in any order ----------------------------------

constexpr int64_t kRows = 3, kWidth = 2;

Tensor whole_numbers(int64_t rows, int salt) {
  std::vector<double> v(static_cast<size_t>(rows * kWidth));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>(test::mix(static_cast<uint64_t>(salt) * 64 + i) % 5) - 2;
  return from_values(v, {rows, kWidth}, DType::f64);
}
Tensor input_of(int micro_batch) { return whole_numbers(kRows, 2 * micro_batch); }
Tensor weight_of(int stage) { return whole_numbers(kWidth, 2 * stage + 1).set_requires_grad(); }
// The second tensor needs no gradient behind the first two stages, which pass it on, as each other
// stage does.
TensorList apply(int stage, const Tensor& weight, const TensorList& x) {
  return {matmul(x[0], weight), stage == 0 ? x[0] : stage % 2 == 1 ? x[1] : x[1] + x[0]};
}
Tensor loss_of(int micro_batch, const TensorList& x) {
  return sum(x[0] * input_of(micro_batch + 1)) + sum(x[1] * input_of(micro_batch + 2));
}
size_t gradients_to(int stage) { return stage < 2 ? 1 : 2; }

// Of each stage, from so many steps on one rank.
std::vector<std::vector<double>> gradients_of_one_rank(int stages, int micro_batches, int steps) {
  const Session session;
  TensorList weights;
  for (int stage = 0; stage < stages; ++stage) weights.push_back(weight_of(stage));
  for (int i = 0; i < steps * micro_batches; ++i) {
    TensorList x{input_of(i % micro_batches)};
    for (size_t s = 0; s < weights.size(); ++s) x = apply(static_cast<int>(s), weights[s], x);
    backward(loss_of(i % micro_batches, x));
  }
  std::vector<std::vector<double>> gradients;
  for (const Tensor& w : weights) gradients.push_back(w.grad().values());
  return gradients;
}

struct Message {
  std::string op;
  int peer, tag;
  bool operator==(const Message&) const = default;
};
void PrintTo(const Message& m, std::ostream* out) { *out << m.op << ' ' << m.peer << ' ' << m.tag; }

// What the actions of a rank send and receive.
std::vector<Message> messages_of(const std::vector<Action>& actions, const PipelineSchedule& s) {
  std::vector<Message> all;
  for (const Action& a : actions) {
    const bool forward = a.kind == Kind::send_forward || a.kind == Kind::recv_forward;
    const bool sends = a.kind == Kind::send_forward || a.kind == Kind::send_backward;
    if (!forward && !sends && a.kind != Kind::recv_backward) continue;
    const int from = sends ? a.stage : forward ? a.stage - 1 : a.stage + 1;
    const int to = !sends ? a.stage : forward ? a.stage + 1 : a.stage - 1;
    const int after = std::max(from, to);
    const int tag = (2 * after + (forward ? 0 : 1)) * s.micro_batches + a.micro_batch;
    all.insert(
        all.end(), forward ? 2 : gradients_to(to),
        {sends ? "send" : "recv", s.rank_of_stage[static_cast<size_t>(sends ? to : from)], tag});
  }
  return all;
}

// Counts the graphs of a rank that exist.
class Graphs {
 public:
  void add(const Tensor& of) {
    most_ = std::max(most_, ++now_);
    const std::shared_ptr<int> token(&now_, [](int* now) { --*now; });
    (void)register_hook(of, [token](const Tensor&) { return Tensor(); });
  }
  [[nodiscard]] int most() const { return most_; }
  [[nodiscard]] int now() const { return now_; }

 private:
  int now_ = 0, most_ = 0;
};

// Two steps: in the first one messages are described by messages of their own.
void expect_run_as_said(const PipelineSchedule& schedule) {
  const int stages = schedule.stages();
  const auto whole = gradients_of_one_rank(stages, schedule.micro_batches, 2);
  const auto actions = all_actions(schedule);
  const Simulation simulation = simulate(schedule);
  test::on_ranks(static_cast<int>(schedule.ranks.size()), [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const PipelineRanks ranks{Mesh::make({{"pp", world.size()}}), 0, schedule.rank_of_stage};
    Pipeline pipeline(schedule, ranks);
    Graphs graphs;
    std::map<int, Tensor> weights;
    std::map<int, PipelineStage> own;
    for (int stage = 0; stage < stages; ++stage) {
      if (!ranks.has(stage)) continue;
      const Tensor weight = weights[stage] = weight_of(stage);
      own[stage].forward = [=, &graphs](int m, const TensorList& inputs) {
        const TensorList y =
            apply(stage, weight, inputs.empty() ? TensorList{input_of(m)} : inputs);
        graphs.add(y[0]);
        return StageResult{y};
      };
      own[stage].loss = loss_of;
    }
    pipeline.step(own, {kRows, kWidth});
    const CommTrace trace;
    pipeline.step(own, {kRows, kWidth});
    std::vector<Message> sent;
    for (const CommEntry& e : trace.entries()) sent.push_back({e.op, e.peer, e.message});
    EXPECT_EQ(sent, messages_of(actions[rank], schedule)) << "rank " << rank;
    EXPECT_EQ(graphs.most(), simulation.ranks[rank].most_in_flight) << "rank " << rank;
    EXPECT_EQ(graphs.now(), 0);
    for (const auto& [stage, weight] : weights)
      EXPECT_EQ(weight.grad().values(), whole[static_cast<size_t>(stage)]) << "stage " << stage;
  });
}

// Named schedules of 2 to 4 ranks.
void for_each_schedule(int most_ranks, const std::function<void(const PipelineSchedule&)>& f) {
  for (const NamedSchedule& named : named_schedules()) {
    for (int ranks = 2; ranks <= most_ranks; ++ranks) {
      for (const int stages : {1, 2, 4}) {
        const ScheduleShape shape{ranks, stages, 2 * ranks};
        if (stages > 1 && !named.several_stages) continue;
        if (named.misfit && !named.misfit(shape).empty()) continue;
        SCOPED_TRACE(concat(named.name, " of ", ranks, " ranks with ", stages, " stages each"));
        f(make_schedule(named.name, shape));
      }
    }
  }
}

TEST(Pipeline, SendsAndKeepsWhatItsScheduleSays) { for_each_schedule(4, expect_run_as_said); }

// The next stage would not send the gradient of what it knows as a constant.
TEST(Pipeline, AStageThatGivesOtherTensorsThanItDescribedSaysSo) {
  const PipelineSchedule schedule = make_schedule("GPipe", {2, 1, 1});
  std::string why;
  const auto on_rank = [&](World& world) {
    Pipeline pipeline(schedule, {Mesh::make({{"pp", 2}}), 0, schedule.rank_of_stage});
    Tensor weight = weight_of(0).set_requires_grad(false);
    std::map<int, PipelineStage> own;
    own[world.rank()].forward = [&](int m, const TensorList& x) {
      return StageResult{{matmul(x.empty() ? input_of(m) : x[0], weight)}};
    };
    own[world.rank()].loss = [](int, const TensorList& x) { return sum(x[0]); };
    pipeline.step(own, {kRows, kWidth});
    weight.set_requires_grad();
    if (world.rank() == 0) why = test::error_of([&] { pipeline.step(own, {kRows, kWidth}); });
  };
  test::on_ranks(2, on_rank);
  EXPECT_EQ(why,
            "[pipeline] stage 0 gives f64[3, 2], which requires grad, and gave f64[3, 2] for the "
            "first micro-batch of this shape, which the next stage goes by: make the pipeline anew "
            "after what it computes has changed");
}

// --- Random schedules ----------------------------------------------------------------------------

// Orders of ranks, and what a plain executor says of them.
struct Trial {
  int micro_batches = 1;
  std::vector<int> rank_of_stage = {};
  Orders orders = {};

  [[nodiscard]] int stages() const { return static_cast<int>(rank_of_stage.size()); }
  [[nodiscard]] size_t actions() const { return static_cast<size_t>(2 * stages() * micro_batches); }
  // What an action needs of others, but for the forward of its own stage.
  [[nodiscard]] std::optional<Action> need(const Action& a) const {
    const bool forward = a.kind == Kind::forward;
    if (a.stage == (forward ? 0 : stages() - 1)) return {};
    return Action{a.stage + (forward ? -1 : 1), a.kind, a.micro_batch};
  }
  [[nodiscard]] bool complete() const {
    std::set<std::string> seen;
    size_t count = 0;
    for (const auto& own : orders) {
      for (const Action& a : own) {
        if (a.kind == Kind::backward &&
            !seen.contains(text({a.stage, Kind::forward, a.micro_batch})))
          return false;
        seen.insert(text(a));
        ++count;
      }
    }
    return count == actions() && seen.size() == count;
  }
  // In rounds each rank does its next action if what it needs was done in an earlier one. Who waits
  // when nobody moves; empty: all come to an end.
  [[nodiscard]] std::string waits() const {
    std::set<std::string> done;
    std::vector<size_t> next(orders.size());
    for (bool moved = true; moved;) {
      std::vector<std::string> round;
      for (size_t r = 0; r < orders.size(); ++r) {
        if (next[r] == orders[r].size()) continue;
        const Action& a = orders[r][next[r]];
        if (const auto n = need(a); n && !done.contains(text(*n))) continue;
        round.push_back(text(a));
        ++next[r];
      }
      done.insert(round.begin(), round.end());
      moved = !round.empty();
    }
    std::string all;
    for (size_t r = 0; r < orders.size(); ++r) {
      if (next[r] == orders[r].size()) continue;
      const Action& a = orders[r][next[r]];
      const Action n = *need(a);
      all += concat(all.empty() ? "" : "; ", "rank ", r, " at ", text(a), " (action ", next[r],
                    ") needs ", text(n), " of rank ", rank_of_stage[static_cast<size_t>(n.stage)]);
    }
    return all;
  }
};

size_t draw(test::Dice& dice, size_t below) {
  return static_cast<size_t>(dice.below(static_cast<int64_t>(below)));
}

// Actions in an order in which they can run, each on its rank.
void fill_in_turn(Trial& t, test::Dice& dice) {
  std::vector<Action> left;
  for (int stage = 0; stage < t.stages(); ++stage) {
    for (int m = 0; m < t.micro_batches; ++m) {
      left.push_back({stage, Kind::forward, m});
      left.push_back({stage, Kind::backward, m});
    }
  }
  std::set<std::string> done;
  while (!left.empty()) {
    const size_t i = draw(dice, left.size());
    const Action a = left[i];
    const auto n = t.need(a);
    if (n && !done.contains(text(*n))) continue;
    if (a.kind == Kind::backward && !done.contains(text({a.stage, Kind::forward, a.micro_batch})))
      continue;
    done.insert(text(a));
    t.orders[static_cast<size_t>(t.rank_of_stage[static_cast<size_t>(a.stage)])].push_back(a);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Any order in which backwards come behind their forwards.
void shuffle(std::vector<Action>& own, test::Dice& dice) {
  dice.shuffle(own);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].kind != Kind::backward) continue;
    const Action forward{own[i].stage, Kind::forward, own[i].micro_batch};
    const auto at = std::find(own.begin() + static_cast<std::ptrdiff_t>(i), own.end(), forward);
    if (at != own.end()) std::swap(own[i], *at);
  }
}

Trial random_trial(test::Dice& dice) {
  Trial t;
  const auto ranks = 2 + draw(dice, 3), each = 1 + draw(dice, 2);
  t.micro_batches = 1 + static_cast<int>(dice.below(6));
  for (size_t i = 0; i < ranks * each; ++i) t.rank_of_stage.push_back(static_cast<int>(i % ranks));
  dice.shuffle(t.rank_of_stage);
  t.orders.resize(ranks);
  fill_in_turn(t, dice);
  std::vector<Action>& own = t.orders[draw(dice, ranks)];
  const auto at = [&](size_t i) { return own.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (dice.below(6)) {
    case 0: own.erase(at(draw(dice, own.size()))); break;
    case 1: {
      const Action again = own[draw(dice, own.size())];
      own.insert(at(draw(dice, own.size() + 1)), again);
      break;
    }
    case 2: shuffle(own, dice); break;
    case 3: std::swap(own[draw(dice, own.size())], own[draw(dice, own.size())]); break;
    default: break;
  }
  return t;
}

TEST(Pipeline, RunsARandomScheduleOrSaysWhyItCannot) {
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  const int trials = test::long_form() ? 200 : 20;
  test::Dice dice(seed);
  int run = 0, stuck = 0;
  for (int i = 0; i < trials; ++i) {
    const Trial t = random_trial(dice);
    const std::string csv = schedule_csv(t.orders);
    SCOPED_TRACE(concat("trial ", i, " of TESSERA_TEST_SEED=", seed, ":\n", csv));
    if (!t.complete()) {
      EXPECT_THROW((void)read_schedule(csv), ValueError);
      continue;
    }
    const PipelineSchedule schedule = read_schedule(csv);
    EXPECT_EQ(schedule.rank_of_stage, t.rank_of_stage);
    if (const std::string waits = t.waits(); !waits.empty()) {
      ++stuck;
      EXPECT_EQ(test::error_of([&] { (void)simulate(schedule); }),
                "[pipeline schedule] ranks wait for each other for ever: " + waits);
      EXPECT_THROW((void)all_actions(schedule), ValueError);
      continue;
    }
    ++run;
    expect_run_as_said(schedule);
  }
  std::cout << trials << " schedules, TESSERA_TEST_SEED=" << seed << ": " << run << " run, "
            << stuck << " cannot end, " << trials - run - stuck << " are wrong\n";
}

// --- Sharded stages ------------------------------------------------------------------------------

// Three units, whose sizes tell the stage: 4 x width, width and 4 x width, below 32.
class Block final : public Layer<Block> {
 public:
  explicit Block(int stage)
      : a(4, width_of(stage), Init::normal(1), DType::f64),
        norm(width_of(stage), 1e-5, DType::f64),
        b(width_of(stage), 4, Init::normal(1), DType::f64) {}
  void visit(Visitor& v) override {
    v.child("a", a);
    v.child("norm", norm);
    v.child("b", b);
  }
  static int64_t width_of(int stage) { return 8 + 2 * stage; }
  static int stage_of(int64_t elements) {
    return static_cast<int>(((elements < 32 ? elements : elements / 4) - 8) / 2);
  }
  Linear a;
  RmsNorm norm;
  Linear b;

 private:
  friend class Layer<Block>;
  [[nodiscard]] Tensor forward(const Tensor& x) const { return b(norm(a(x))); }
};

// The stage of each gather or reduction; its units are one behind the other.
std::vector<int> stages_of(const CommTrace& trace, std::string_view op) {
  std::vector<int> stages;
  int units = 0;
  for (const CommEntry& e : trace.entries()) {
    if (e.op != op) continue;
    const int stage = Block::stage_of(e.bytes / static_cast<int64_t>(sizeof(double)));
    if (units++ % 3 == 0) stages.push_back(stage);
    EXPECT_EQ(stages.back(), stage) << op << ' ' << units;
  }
  EXPECT_EQ(units % 3, 0) << op;
  return stages;
}

std::vector<int> stages_of(const std::vector<Action>& actions, Kind kind) {
  std::vector<int> stages;
  for (const Action& a : actions)
    if (a.kind == kind) stages.push_back(a.stage);
  return stages;
}

void expect_gathers_as_said(const PipelineSchedule& schedule) {
  const auto actions = all_actions(schedule);
  const auto ranks = static_cast<int>(schedule.ranks.size());
  test::on_ranks(2 * ranks, [&](World& world) {
    const int first = world.rank() / 2 * 2;
    const Mesh mesh = Mesh::make({{"dp", 2}}, {first, first + 1});
    const PipelineRanks along{Mesh::make({{"pp", ranks}, {"other", 2}}), 0, schedule.rank_of_stage,
                              mesh};
    Pipeline pipeline(schedule, along);
    std::map<int, std::unique_ptr<Block>> blocks;
    std::map<int, PipelineStage> own;
    const Layout by_rows = Layout::of(mesh, {Shard(0)});
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      if (!along.has(stage)) continue;
      Block* const block = (blocks[stage] = std::make_unique<Block>(stage)).get();
      for (Module* unit : std::initializer_list<Module*>{&block->a, &block->b, block})
        fully_shard(*unit, mesh, {{"dp"}, {}}, {.accumulation = Accumulation::whole});
      initialize(*block, 3, laid_out(*block, mesh));
      own[stage] = {block,
                    [=](int m, const TensorList& x) {
                      const auto begin =
                          normal({6, 4}, RngKey{3, static_cast<uint64_t>(m)}, 0, 1, DType::f64);
                      return StageResult{{(*block)(x.empty() ? distribute(begin, by_rows) : x[0])}};
                    },
                    [](int, const TensorList& x) { return sum(x[0] * x[0]); }};
    }
    pipeline.step(own, {6, 4});
    const CommTrace trace;
    pipeline.step(own, {6, 4});
    const auto& of_rank = actions[static_cast<size_t>(along.rank())];
    EXPECT_EQ(stages_of(trace, "all_gather"), stages_of(of_rank, Kind::unshard));
    EXPECT_EQ(stages_of(trace, "reduce_scatter"), stages_of(of_rank, Kind::reduce_grad));
    for (const auto& [stage, block] : blocks) EXPECT_EQ(whole_parameter_bytes(*block), 0) << stage;
  });
}

TEST(Pipeline, GathersAndReducesWhatItsScheduleSays) {
  for_each_schedule(3, expect_gathers_as_said);
}

}  // namespace
}  // namespace tessera::nn

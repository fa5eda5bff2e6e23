// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/split_orders_impl.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>

namespace tessera::schedules {
namespace {

// The stages of a rank: micro-batches pass the ranks through the first ones, and come back through
// the second ones.
enum Leg : uint8_t { kFirst, kSecond };

// The order of a rank with two stages of a V, in which each stage takes the micro-batches in turn.
class VOrder {
 public:
  VOrder(const ScheduleShape& shape, int rank) : stages_{rank, shape.stages() - 1 - rank} {}

  void forward(Leg leg) { order_.push_back(next(leg, ActionKind::forward)); }
  void backward(Leg leg) { order_.push_back(next(leg, ActionKind::backward)); }
  void input(Leg leg) {
    order_.push_back(next(leg, ActionKind::backward_input));
    weights_.push_back(order_.back());
    weights_.back().kind = ActionKind::backward_weight;
  }
  void overlap(Leg forward, Leg backward) {
    order_.push_back(
        {.kind = ActionKind::overlap,
         .parts = {next(forward, ActionKind::forward), next(backward, ActionKind::backward)}});
  }
  // The W of the oldest I that lacks it, of one stage or of both; false: none lacks it.
  bool weight(std::optional<Leg> leg = {}) {
    const auto of = std::ranges::find_if(
        weights_, [&](const Action& w) { return !leg || w.stage == stages_[*leg]; });
    if (of == weights_.end()) return false;
    order_.push_back(*of);
    weights_.erase(of);
    return true;
  }
  void input_and_weight(Leg leg) {
    input(leg);
    weight(leg);
  }
  [[nodiscard]] int forwards(Leg leg) const { return forwards_[leg]; }
  [[nodiscard]] std::vector<Action> take() { return std::move(order_); }

 private:
  Action next(Leg leg, ActionKind kind) {
    int& count = (kind == ActionKind::forward ? forwards_ : backwards_)[leg];
    return {.stage = stages_[leg], .kind = kind, .micro_batch = count++};
  }

  std::array<int, 2> stages_, forwards_{}, backwards_{};
  std::vector<Action> order_;
  std::vector<Action> weights_;  // that its inputs lack
};

}  // namespace

std::vector<Action> split_backwards(const std::vector<Action>& whole, int later) {
  std::vector<Action> order;
  std::deque<Action> weights;
  const auto add_weight = [&] {
    order.push_back(weights.front());
    weights.pop_front();
  };
  for (Action action : whole) {
    if (action.kind != ActionKind::backward) {
      order.push_back(action);
      continue;
    }
    action.kind = ActionKind::backward_weight;
    weights.push_back(action);
    action.kind = ActionKind::backward_input;
    order.push_back(action);
    if (std::ssize(weights) > later) add_weight();
  }
  while (!weights.empty()) add_weight();
  return order;
}

std::vector<Action> zbv_zero_bubble(const ScheduleShape& shape, int rank) {
  const int micro_batches = std::max(2 * shape.ranks - 1, shape.micro_batches);
  const int to_turn = shape.ranks - rank;  // ranks up to the last one, where the V turns
  VOrder order(shape, rank);
  for (int i = 0; i < 2 * to_turn - 1; ++i) order.forward(kFirst);
  for (int i = 0; i < rank; ++i) {
    order.forward(kSecond);
    order.forward(kFirst);
  }
  for (int i = 0; i < to_turn; ++i) {
    order.forward(kSecond);
    order.input_and_weight(kSecond);
  }
  while (order.forwards(kSecond) < micro_batches) {
    if (order.forwards(kFirst) < micro_batches) order.forward(kFirst);
    order.input_and_weight(kFirst);
    order.forward(kSecond);
    order.input_and_weight(kSecond);
  }
  for (int i = 0; i < rank; ++i) {
    order.input(kFirst);
    order.input(kSecond);
  }
  for (int i = 0; i < to_turn; ++i) {
    order.input(kFirst);
    order.weight(kFirst);
  }
  for (const Leg leg : {kSecond, kFirst})
    while (order.weight(leg)) {
    }
  std::vector<Action> all = order.take();
  std::erase_if(all, [&](const Action& a) { return a.micro_batch >= shape.micro_batches; });
  return all;
}

std::vector<Action> dual_pipe_v(const ScheduleShape& shape, int rank) {
  const int behind = shape.ranks - 1 - rank;  // ranks between this one and the turn of the V
  VOrder order(shape, rank);
  for (int i = 0; i < 2 * behind; ++i) order.forward(kFirst);
  for (int i = 0; i <= rank; ++i) {
    order.forward(kFirst);
    order.forward(kSecond);
  }
  for (int i = 0; i < behind; ++i) {
    order.input_and_weight(kSecond);
    order.forward(kSecond);
  }
  for (int i = 0; i < shape.micro_batches - shape.stages() + rank + 1; ++i) {
    // At the turn of the V the forward does not wait for the first gradient.
    if (i == 0 && behind == 0) {
      order.forward(kFirst);
      order.backward(kSecond);
    } else {
      order.overlap(kFirst, kSecond);
    }
    order.overlap(kSecond, kFirst);
  }
  for (int i = 0; i < behind; ++i) {
    order.backward(kSecond);
    order.overlap(kSecond, kFirst);
  }
  for (int i = 0; i < 2 * (rank + 1); ++i) {  // the second half of them is split
    const Leg leg = i % 2 == 0 ? kSecond : kFirst;
    if (i <= rank) order.backward(leg);
    else order.input(leg);
  }
  for (int i = 0; i < behind; ++i) {
    order.weight();
    order.input(kFirst);
  }
  while (order.weight()) {
  }
  return order.take();
}

}  // namespace tessera::schedules

// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule of one's own beside 1F1B: checked, simulated and drawn without a model. All
// gradients of weights come at the end, so that no rank waits for them, at the price of memory.
#include <algorithm>
#include <iostream>
#include <tessera/dist/schedules/drawing.h>
#include <tessera/tessera.h>
#include <vector>

using namespace tessera;

namespace {

// The actions of a rank with one stage.
std::vector<Action> order_of(int stage, int stages, int micro_batches) {
  std::vector<Action> order;
  const auto add = [&](ActionKind kind, int micro_batch) {
    order.push_back({.stage = stage, .kind = kind, .micro_batch = micro_batch});
  };
  const int ahead = std::min(micro_batches, stages - 1 - stage);
  for (int m = 0; m < ahead; ++m) add(ActionKind::forward, m);
  for (int m = 0; m < micro_batches; ++m) {
    if (ahead + m < micro_batches) add(ActionKind::forward, ahead + m);
    add(ActionKind::backward_input, m);
  }
  for (int m = 0; m < micro_batches; ++m) add(ActionKind::backward_weight, m);
  return order;
}

void show(const char* name, const PipelineSchedule& schedule, const Simulation& simulation) {
  std::cout << name << ": a step takes " << simulation.end << ", rank 0 idles "
            << simulation.idle(0) << " of it and keeps " << simulation.ranks[0].most_in_flight
            << " micro-batches\n";
  for (const std::string& line : drawing_of(schedule, simulation)) std::cout << line << '\n';
}

}  // namespace

int main() {
  const int ranks = 3, micro_batches = 4;
  std::vector<std::vector<Action>> actions;
  for (int r = 0; r < ranks; ++r) actions.push_back(order_of(r, ranks, micro_batches));
  const PipelineSchedule own = make_schedule(actions);  // checks it
  const PipelineSchedule named = make_schedule("1F1B", {ranks, 1, micro_batches});
  const Simulation of_own = simulate(own), of_named = simulate(named);
  show("own", own, of_own);
  show("1F1B", named, of_named);

  actions[1].pop_back();  // a W is missing, which the checks find
  try {
    (void)make_schedule(actions);
    return 1;
  } catch (const ValueError& error) {
    std::cout << error.what() << '\n';
  }
  return of_own.end < of_named.end ? 0 : 1;
}

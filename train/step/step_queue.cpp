// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/step_queue.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/cat/cat.h"

#include <algorithm>
#include <utility>

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void StepQueue::push(QueuedStep step, StepValues& values, Tensor skip) {
  unread_.push_back({std::move(step), values.names(), values.gathered()});
  spoiled_ = std::move(skip);
}

void StepQueue::begin_reading() {
  const NoGrad guard;
  std::vector<Tensor> values;
  for (const Unread& step : unread_) values.push_back(step.values);
  on_the_way_.emplace(cat(values, 0));
  reading_ = std::exchange(unread_, {});
}

std::vector<ReadStep> StepQueue::finish_reading() {
  if (!on_the_way_) return {};
  const std::vector<double> values = on_the_way_->values();
  on_the_way_.reset();
  const std::vector<Unread> steps = std::exchange(reading_, {});
  // If nobody waits for a step, its time is known only together with others.
  const std::chrono::duration<double> time =
      Clock::now() - std::max(steps[0].step.began, last_read_);
  last_read_ = Clock::now();
  std::vector<ReadStep> read_steps;
  size_t at = 0;
  for (const Unread& step : steps) {
    read_steps.push_back(read(step, std::span(values).subspan(at, step.names.size())));
    read_steps.back().record.tokens_per_second =
        static_cast<double>(tokens_per_step_) * static_cast<double>(steps.size()) / time.count();
    at += step.names.size();
  }
  if (unread_.empty()) spoiled_ = Tensor();
  return read_steps;
}

void StepQueue::clear() {
  unread_.clear();
  spoiled_ = Tensor();
}

ReadStep StepQueue::read(const Unread& unread, std::span<const double> values) {
  ReadStep read{.step = unread.step, .record = {.step = unread.step.step, .lr = unread.step.lr}};
  bool of_model = false;  // statistics may have any names
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& name = unread.names[i];
    if (of_model) read.record.statistics.emplace_back(name, values[i]);
    else if (name == kLossValue) read.record.loss = values[i];
    else if (name == kNormValue) read.record.grad_norm = values[i];
    else if (name == kFlopsValue) read.record.flops = values[i];
    else if (name == kTargetsValue) read.targets = values[i];
    else if (name == kSkipValue) {
      read.skipped = values[i] != 0;
      of_model = true;
    } else read.record.statistics.emplace_back(name, values[i]);
  }
  return read;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/loss_history.h"

namespace tessera::train {
namespace {

constexpr size_t kMost = 8192, kColumns = 4;

}  // namespace

void LossHistory::add(const StepRecord& record) {
  if ((record.step - 1) % stride_ != 0) return;
  if (records_.size() == kMost) {
    for (size_t i = 0; i < kMost / 2; ++i) records_[i] = records_[2 * i];
    records_.resize(kMost / 2);
    stride_ *= 2;
    if ((record.step - 1) % stride_ != 0) return;
  }
  records_.push_back(record);
}

Tensor LossHistory::tensor() const {
  std::vector<double> values;
  for (const StepRecord& r : records_)
    values.insert(values.end(), {static_cast<double>(r.step), r.loss, r.grad_norm, r.lr});
  return from_span(values, {static_cast<int64_t>(records_.size()), kColumns});  // (records, 4)
}

void LossHistory::restore(const Tensor& losses) {
  records_.clear();
  stride_ = 1;
  const std::vector<double> values = losses.values();
  for (size_t i = 0; i + kColumns <= values.size(); i += kColumns) {
    records_.push_back({.step = static_cast<int64_t>(values[i]),
                        .loss = values[i + 1],
                        .grad_norm = values[i + 2],
                        .lr = values[i + 3]});
  }
  if (records_.size() > 1) stride_ = records_[1].step - records_[0].step;
}

}  // namespace tessera::train

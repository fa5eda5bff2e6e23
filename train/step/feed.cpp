// SPDX-License-Identifier: Apache-2.0
// Rows are counted on the host, where they come from; ranks that read the same rows do not count
// them again.
#include "tessera/train/step/feed.h"

#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/fill/fill.h"

#include <algorithm>
#include <utility>

namespace tessera::train {
namespace {

int64_t valid_targets(const Batch& batch) {
  const auto* targets = batch.targets.data<int64_t>();
  const int64_t all = batch.targets.numel();
  return all - std::count(targets, targets + all, CrossEntropyOptions{}.ignore_index);
}

int64_t tokens_of(const Batch& batch) {
  const int64_t all = batch.tokens.numel();
  if (!batch.padding.defined()) return all;
  const auto* padding = batch.padding.data<bool>();
  return all - std::count(padding, padding + all, true);
}

// Lengths of documents of this rank's rows; a sequence without positions is one document.
std::vector<int64_t> document_lengths(const Batch& batch) {
  const int64_t rows = batch.tokens.size(0), length = batch.tokens.size(1);
  if (!batch.positions.defined()) return std::vector<int64_t>(static_cast<size_t>(rows), length);
  std::vector<int64_t> lengths;
  const auto* positions = batch.positions.data<int64_t>();
  for (int64_t i = 0; i < rows * length; ++i) {
    if (i % length == 0 || positions[i] == 0) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

}  // namespace

Feed::Feed(MicroBatchSource source, FeedSizes sizes, models::LanguageModel& model,
           BatchPlacer placer, DataShare share)
    : source_(std::move(source)),
      sizes_(sizes),
      model_(model),
      placer_(std::move(placer)),
      share_(std::move(share)) {}

StepInput Feed::input_from(int64_t first, const Around& around) {
  std::vector<Batch> rows;  // this rank's, plain and on the host
  around({"data"}, [&] {
    for (int64_t i = 0; i < sizes_.micro_batches; ++i)
      rows.push_back(source_(first + i * rows_at_once()));
  });
  StepInput input{.first = first};
  around({"place"}, [&] {  // cuts of sequences are found on the host
    for (const Batch& batch : rows) {
      input.targets += static_cast<double>(valid_targets(batch));
      input.tokens += static_cast<double>(tokens_of(batch));
      input.flops += model_.flops(document_lengths(batch));
      input.batches.push_back(placer_.place(batch));
    }
  });
  return input;
}

StepInput Feed::next(const Around& around) {
  std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt);
  // After a step that was not finite the same rows come again.
  if (!ahead || ahead->input.first != rows_) return input_from(rows_, around);
  if (ahead->failure) std::rethrow_exception(ahead->failure);
  return std::move(ahead->input);
}

void Feed::look_ahead(const Around& around) {
  const int64_t first = rows_ + rows_per_step();
  try {
    ahead_ = Ahead{input_from(first, around)};
  } catch (...) {
    ahead_ = Ahead{{.first = first}, std::current_exception()};
  }
}

Tensor summed_counts(const StepInput& input, const Mesh& mesh, const DataShare& share,
                     Device device) {
  const Tensor counts = zeros({3}, DType::f64);
  auto* sums = counts.data<double>();
  sums[0] = input.targets;
  sums[1] = input.tokens;
  sums[2] = input.flops;
  mesh.group(share.axes).all_reduce(counts)->wait();
  return to_device(counts, device);
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// A description is a message of fixed size: for each tensor its dtype, whether it requires grad,
// its shape, and the placement and place of each mesh axis.
#include "tessera/nn/pipeline/stage_messages.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/point_to_point.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>

namespace tessera::nn {
namespace {

constexpr size_t kMostTensors = 8;
constexpr size_t kAxisNumbers = 4;
constexpr size_t kTensorNumbers = 4 + kMaxRank + kAxisNumbers * kMaxAxes;
constexpr size_t kNumbers = 1 + kMostTensors * kTensorNumbers;

// Writes numbers into a description, or reads them in the same order.
class Numbers {
 public:
  explicit Numbers(const Tensor& description) : at_(description.data<int64_t>()) {}
  void put(int64_t value) { *at_++ = value; }
  [[nodiscard]] int64_t take() { return *at_++; }
  template <class T> [[nodiscard]] T take_as() { return static_cast<T>(take()); }

 private:
  int64_t* at_;
};

Tensor empty_description() { return empty({static_cast<int64_t>(kNumbers)}, DType::i64); }

Tensor description_of(const TensorList& tensors) {
  if (tensors.size() > kMostTensors) {
    fail<UsageError>("pipeline", "a stage gives ", counted(tensors.size(), "tensor"),
                     " to the next one, expected at most ", kMostTensors);
  }
  Tensor description = empty_description();
  std::fill_n(description.data<int64_t>(), kNumbers, 0);
  Numbers numbers(description);
  numbers.put(static_cast<int64_t>(tensors.size()));
  for (const Tensor& t : tensors) {
    const TensorForm form = form_of(t);
    numbers.put(static_cast<int64_t>(form.dtype));
    numbers.put(form.requires_grad);
    numbers.put(form.states.has_value());
    numbers.put(t.rank());
    for (int i = 0; i < kMaxRank; ++i) numbers.put(i < t.rank() ? t.size(i) : 0);
    for (const AxisState& state : form.states.value_or(AxisStates{})) {
      numbers.put(static_cast<int64_t>(state.placement.kind));
      numbers.put(static_cast<int64_t>(state.placement.op));
      numbers.put(state.placement.dim);
      numbers.put(state.position);
    }
  }
  return description;
}

std::vector<TensorForm> forms_in(const Tensor& description) {
  Numbers numbers(description);
  std::vector<TensorForm> forms(numbers.take_as<size_t>());
  for (TensorForm& form : forms) {
    form.dtype = numbers.take_as<DType>();
    form.requires_grad = numbers.take() != 0;
    const bool distributed = numbers.take() != 0;
    std::vector<int64_t> dims(numbers.take_as<size_t>());
    for (size_t i = 0; i < static_cast<size_t>(kMaxRank); ++i) {
      const int64_t size = numbers.take();
      if (i < dims.size()) dims[i] = size;
    }
    form.shape = Shape(std::span<const int64_t>(dims));
    AxisStates states;
    for (AxisState& state : states) {
      state.placement.kind = numbers.take_as<Placement::Kind>();
      state.placement.op = numbers.take_as<ReduceOp>();
      state.placement.dim = numbers.take_as<int16_t>();
      state.position = numbers.take_as<int8_t>();
    }
    if (distributed) form.states = states;
  }
  return forms;
}

// `f32[2, 3], which requires grad, i64[2]`.
std::string text_of(const std::vector<TensorForm>& forms) {
  std::string text;
  for (const TensorForm& form : forms) {
    text +=
        concat(text.empty() ? "" : ", ", form.dtype, form.shape, form.states ? " on a mesh" : "",
               form.requires_grad ? ", which requires grad" : "");
  }
  return text.empty() ? "nothing" : text;
}

bool recorded() { return Context::current().grad_enabled; }

// What this rank has of a tensor.
Tensor bytes_of(const Tensor& x) {
  const NoGrad guard;
  return contiguous(x.is_distributed() ? local(x) : x.detach());
}

}  // namespace

TensorForm form_of(const Tensor& t) {
  TensorForm form{t.shape(), t.dtype(), t.requires_grad()};
  if (t.is_distributed()) form.states = layout_of(t).states();
  return form;
}

Tensor empty_of(const TensorForm& form, Mesh mesh, Device device) {
  if (!form.states) return empty(form.shape, form.dtype, device);
  const Layout layout = Layout::intern(mesh, *form.states);
  return make_distributed(empty(layout.local_shape(form.shape), form.dtype, device), form.shape,
                          layout);
}

StageMessages::StageMessages(PipelineRanks ranks, int micro_batches)
    : ranks_(std::move(ranks)), micro_batches_(micro_batches) {}

void StageMessages::begin(const Shape& micro_batch, Device device) {
  device_ = device;
  shape_.assign(micro_batch.begin(), micro_batch.end());
}

void StageMessages::set_input_forms(const Shape& micro_batch,
                                    std::span<const std::vector<TensorForm>> inputs) {
  begin(micro_batch, device_);
  for (int stage = 1; stage < ranks_.stages(); ++stage)
    inputs_[key(stage)] = inputs[static_cast<size_t>(stage)];
}

StageMessages::Key StageMessages::key(int stage) const { return {stage, shape_}; }

int StageMessages::tag(int stage, bool forward, int micro_batch) const {
  return (2 * stage + (forward ? 0 : 1)) * micro_batches_ + micro_batch;
}

void StageMessages::send(const Tensor& x, int to, int tag) {
  std::erase_if(sent_, [](const Ref<Work>& work) { return work->test(); });  // frees their bytes
  const Tensor bytes = bytes_of(x);
  if (bytes.numel() > 0) sent_.push_back(tessera::send(ranks_.along, ranks_.axis, bytes, to, tag));
}

Tensor StageMessages::receive(const TensorForm& form, int from, int tag) const {
  const Tensor x = empty_of(form, ranks_.mesh, device_);
  const Tensor bytes = bytes_of(x);
  if (bytes.numel() > 0) (void)recv(ranks_.along, ranks_.axis, bytes, from, tag);
  return x;
}

void StageMessages::send_forward(int stage, int micro_batch, const TensorList& outputs) {
  const int to = ranks_.rank_of(stage + 1);
  const int with = tag(stage + 1, true, micro_batch);
  std::vector<TensorForm> forms;
  for (const Tensor& t : outputs) forms.push_back(form_of(t));
  const auto known = recorded() ? inputs_.find(key(stage + 1)) : inputs_.end();
  if (known == inputs_.end()) {
    sent_.push_back(tessera::send(ranks_.along, ranks_.axis, description_of(outputs), to, with));
    if (recorded()) inputs_[key(stage + 1)] = std::move(forms);
  } else if (forms != known->second) {
    fail<UsageError>("pipeline", "stage ", stage, " gives ", text_of(forms), ", and gave ",
                     text_of(known->second),
                     " for the first micro-batch of this shape, which the next stage goes by: make "
                     "the pipeline anew after what it computes has changed");
  }
  for (const Tensor& t : outputs) send(t, to, with);
}

TensorList StageMessages::receive_forward(int stage, int micro_batch) {
  const int from = ranks_.rank_of(stage - 1);
  const int with = tag(stage, true, micro_batch);
  std::vector<TensorForm> forms;
  if (const auto known = inputs_.find(key(stage)); recorded() && known != inputs_.end()) {
    forms = known->second;
  } else {
    const Tensor description = empty_description();
    recv(ranks_.along, ranks_.axis, description, from, with)->wait();
    forms = forms_in(description);
    if (recorded()) inputs_[key(stage)] = forms;
  }
  TensorList inputs;
  for (const TensorForm& form : forms) {
    inputs.push_back(receive(form, from, with));
    if (form.requires_grad) inputs.back().set_requires_grad();
  }
  return inputs;
}

void StageMessages::send_backward(int stage, int micro_batch, const TensorList& gradients) {
  for (const Tensor& g : gradients)
    send(g, ranks_.rank_of(stage - 1), tag(stage, false, micro_batch));
}

TensorList StageMessages::receive_backward(int stage, int micro_batch,
                                           std::span<const TensorForm> outputs) {
  TensorList gradients;
  for (const TensorForm& form : outputs)
    gradients.push_back(
        receive(form, ranks_.rank_of(stage + 1), tag(stage + 1, false, micro_batch)));
  return gradients;
}

TensorList StageMessages::from_last(const TensorList& results) {
  const NoGrad guard;
  const int last = ranks_.rank_of(ranks_.stages() - 1);
  ProcessGroup& group = ranks_.along.group(ranks_.axis);
  const bool mine = ranks_.rank() == last;
  const Tensor description = mine ? description_of(results) : empty_description();
  group.broadcast(description, last)->wait();
  TensorList all = results;
  if (!mine) {
    all.clear();
    for (const TensorForm& form : forms_in(description))
      all.push_back(empty_of(form, ranks_.mesh, device_));
  }
  for (Tensor& t : all) {
    t = t.detach();
    if (const Tensor bytes = bytes_of(t); bytes.numel() > 0) group.broadcast(bytes, last);
  }
  return all;
}

void StageMessages::finish() {
  for (const Ref<Work>& work : sent_) work->wait();
  sent_.clear();
}

}  // namespace tessera::nn

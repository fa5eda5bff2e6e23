// SPDX-License-Identifier: Apache-2.0
// The tensors: names, shapes, and values that only change their places.
#include "tessera/models/hugging_face.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera::models {
namespace {

// The name with its number as `#`, and the number; empty: it has none.
struct Numbered {
  std::string pattern, number;
};

Numbered numbered(std::string_view name) {
  Numbered n;
  for (size_t at = 0; at <= name.size();) {
    const size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view word = name.substr(at, dot - at);
    const bool digits =
        !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
    if (at > 0) n.pattern += '.';
    if (digits && n.number.empty()) {
      n.pattern += '#';
      n.number = word;
    } else {
      n.pattern += word;
    }
    at = dot + 1;
  }
  return n;
}

std::string filled(std::string_view pattern, char mark, const std::string& number) {
  std::string name(pattern);
  if (const size_t at = name.find(mark); at != name.npos) name.replace(at, 1, number);
  return name;
}

Shape without_first(const Shape& shape) {
  return Shape(std::span<const int64_t>(shape.begin() + 1, shape.end()));
}

// The rows as runs: a dim of this size more.
Tensor in_runs(const Tensor& x, int rows, int64_t run) {
  std::vector<int64_t> shape(x.shape().begin(), x.shape().end());
  shape[static_cast<size_t>(rows)] /= run;
  shape.insert(shape.begin() + rows + 1, run);
  return reshape(x, Shape(shape));
}

}  // namespace

Tensor HfTensor::join(const std::vector<Tensor>& parts) const {
  const NoGrad guard;
  Tensor whole = parts[0];
  if (turns() > 1) {
    std::vector<Tensor> runs;
    for (const Tensor& part : parts) runs.push_back(in_runs(part, rows(), run()));
    Shape joined = parts[0].shape();
    joined[rows()] *= turns();
    whole = reshape(stack(runs, rows() + 1), joined);
  } else if (parts.size() > 1) {
    whole = cat(parts, rows());
  }
  if (change == HfChange::transposed) whole = contiguous(transpose(whole, rows(), rows() + 1));
  if (turns_heads()) whole = with_heads(whole, false);
  return whole;
}

// The two dims of a head's pairs change places: (pair, half) where adjacent values turn, (half,
// pair) where halves do.
Tensor HfTensor::with_heads(const Tensor& x, bool theirs) const {
  const int64_t rest = x.numel() / x.size(0);
  const int64_t outer = (change == HfChange::pairs) == theirs ? head_dim / 2 : 2;
  const Tensor heads = reshape(x, {x.size(0) / head_dim, outer, head_dim / outer, rest});
  return reshape(contiguous(transpose(heads, 1, 2)), x.shape());
}

Tensor HfTensor::part(size_t i, const Shape& begin, const Shape& size, const HfRead& read) const {
  const NoGrad guard;
  Shape from = begin, count = size;  // of theirs, before the change
  int64_t& row = from[rows()];
  int64_t& row_count = count[rows()];
  int64_t before = 0;  // rows that are read and not wanted
  if (turns() > 1) {
    before = row % run();
    const int64_t runs = (before + row_count + run() - 1) / run();
    row = (row / run() * turns() + static_cast<int64_t>(i)) * run();
    row_count = ((runs - 1) * turns() + 1) * run();
  } else {
    for (size_t j = 0; j < i; ++j) row += ours[j].shape[rows()];
  }
  if (turns_heads()) {
    before = row % head_dim;
    row -= before;
    row_count = (before + row_count + head_dim - 1) / head_dim * head_dim;
  }
  if (change == HfChange::transposed) {
    std::swap(row, from[rows() + 1]);
    std::swap(row_count, count[rows() + 1]);
  }
  Tensor x = read(name, from, count);
  if (change == HfChange::transposed) x = transpose(x, rows(), rows() + 1);
  if (turns_heads()) x = narrow(with_heads(x, true), rows(), before, size[rows()]);
  if (turns() > 1) {
    Shape joined = size;
    x = slice(in_runs(contiguous(x), rows(), run()), rows(), {.step = turns()});
    joined[rows()] = x.size(rows()) * run();
    x = narrow(reshape(contiguous(x), joined), rows(), before, size[rows()]);
  }
  return contiguous(x);
}

int64_t HfTensor::turns() const {
  return order == HfJoin::follow ? 1 : static_cast<int64_t>(ours.size());
}

std::vector<NamedShape> tensors_of(const ModelConfig& config) {
  const auto model = config.make();
  std::vector<NamedShape> all;
  for (const auto& [name, tensor] : nn::named_parameters(*model))
    all.push_back({name, tensor.shape()});
  for (const auto& [name, tensor] : nn::named_buffers(*model, true))
    all.push_back({name, tensor.shape()});
  return all;
}

HfTensors::HfTensors(const HuggingFace& family, const ModelConfig& config)
    : HfTensors(family.tensors, tensors_of(config), family.head_dim ? family.head_dim(config) : 0) {
}

HfTensors::HfTensors(const std::vector<HfTensorNames>& rows, std::span<const NamedShape> ours,
                     int64_t head_dim)
    : ours_(ours.begin(), ours.end()) {
  std::map<std::string_view, std::pair<const HfTensorNames*, size_t>> by_ours;  // by our pattern
  for (const HfTensorNames& row : rows) {
    for (size_t i = 0; i < row.ours.size(); ++i) by_ours[row.ours[i]] = {&row, i};
  }
  std::map<std::string_view, const Shape*> shapes;
  for (const auto& [name, shape] : ours_) shapes[name] = &shape;

  for (const auto& [name, shape] : ours_) {
    const Numbered n = numbered(name);
    const auto at = by_ours.find(n.pattern);
    if (at == by_ours.end())
      fail<UsageError>("hugging_face", "there is no name for ", name, ": add a row to the table");
    const auto& [row, index] = at->second;
    if (index != 0) continue;  // a part of the tensor that the first one began
    HfTensor t{filled(row->theirs, '#', n.number)};
    t.change = row->change;
    t.order = row->order;
    t.experts = row->experts == HfExperts::together;
    if (t.turns_heads() || t.order == HfJoin::heads) t.head_dim = head_dim;
    if (t.turns_heads() && t.order != HfJoin::follow)
      fail<UsageError>("hugging_face", row->theirs, " has halves of heads that take turns");
    const bool apart = row->experts == HfExperts::apart;
    for (const std::string_view pattern : row->ours) {
      const std::string part = filled(pattern, '#', n.number);
      const Shape& whole = *shapes.at(part);
      t.ours.push_back({part, apart ? without_first(whole) : whole});
    }
    t.shape = t.ours[0].shape;
    for (size_t i = 1; i < t.ours.size(); ++i) t.shape[t.rows()] += t.ours[i].shape[t.rows()];
    if (t.change == HfChange::transposed) std::swap(t.shape[t.rows()], t.shape[t.rows() + 1]);
    const std::string pattern = t.name;
    for (int64_t e = 0; e < (apart ? shape[0] : 1); ++e) {
      if (apart) {
        t.expert = e;
        t.name = filled(pattern, '%', std::to_string(e));
      }
      for (size_t i = 0; i < t.ours.size(); ++i) parts_[t.ours[i].name].push_back({all_.size(), i});
      all_.push_back(t);
    }
  }
}

Tensor HfTensors::read(const std::string& ours, const Shape& begin, const Shape& size,
                       const HfRead& read) const {
  const NoGrad guard;
  const std::vector<Part>& parts = parts_.at(ours);
  if (const auto& [theirs, index] = parts[0]; all_[theirs].expert < 0)
    return all_[theirs].part(index, begin, size, read);
  std::vector<Tensor> experts;
  for (int64_t e = begin[0]; e < begin[0] + size[0]; ++e) {
    const auto& [theirs, index] = parts[static_cast<size_t>(e)];
    experts.push_back(all_[theirs].part(index, without_first(begin), without_first(size), read));
  }
  // Files may store each expert in another dtype: then all are read in one that holds each exactly.
  const auto is = [](DType dtype) {
    return [dtype](const Tensor& expert) { return expert.dtype() == dtype; };
  };
  if (!experts.empty() && !std::ranges::all_of(experts, is(experts[0].dtype()))) {
    const DType wide = std::ranges::any_of(experts, is(DType::f64)) ? DType::f64 : DType::f32;
    for (Tensor& expert : experts) expert = cast(expert, wide);
  }
  return stack(experts);
}

bool matches_any(std::string_view name, const std::vector<std::string_view>& patterns) {
  return std::ranges::count(patterns, numbered(name).pattern) > 0;
}

}  // namespace tessera::models

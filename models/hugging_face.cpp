// SPDX-License-Identifier: Apache-2.0
// The tensors: names, shapes, and values that only change their places.
#include "tessera/models/hugging_face.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/cat/cat.h"
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

std::string filled(std::string_view pattern, const std::string& number) {
  std::string name(pattern);
  if (const size_t at = name.find('#'); at != name.npos) name.replace(at, 1, number);
  return name;
}

// The two dims of a head's pairs change places: (pair, half) of ours, (half, pair) of theirs.
Tensor with_heads(const Tensor& x, int64_t head_dim, int64_t outer) {
  const int64_t rest = x.numel() / x.size(0);
  const Tensor heads = reshape(x, {x.size(0) / head_dim, outer, head_dim / outer, rest});
  return reshape(contiguous(transpose(heads, 1, 2)), x.shape());
}

}  // namespace

Tensor HfTensor::join(const std::vector<Tensor>& parts) const {
  const NoGrad guard;
  Tensor whole = parts.size() == 1 ? parts[0] : cat(parts, 0);
  if (change == HfChange::transposed) whole = contiguous(transpose(whole, 0, 1));
  if (change == HfChange::halves) whole = with_heads(whole, head_dim, head_dim / 2);
  return whole;
}

Tensor HfTensor::part(const Tensor& theirs, size_t i) const {
  const NoGrad guard;
  Tensor whole = theirs;
  if (change == HfChange::transposed) whole = transpose(whole, 0, 1);
  if (change == HfChange::halves) whole = with_heads(whole, head_dim, 2);
  int64_t begin = 0;
  for (size_t before = 0; before < i; ++before) begin += ours[before].shape[0];
  return contiguous(narrow(whole, 0, begin, ours[i].shape[0]));
}

std::vector<HfTensor> hf_tensors(const HuggingFace& family, const ModelConfig& config) {
  std::map<std::string_view, std::pair<const HfTensorNames*, size_t>> rows;  // by our pattern
  for (const HfTensorNames& row : family.tensors) {
    for (size_t i = 0; i < row.ours.size(); ++i) rows[row.ours[i]] = {&row, i};
  }
  const auto model = config.make();
  std::vector<nn::NamedParameter> own = nn::named_parameters(*model);
  for (auto& buffer : nn::named_buffers(*model, true)) own.push_back(std::move(buffer));
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : own) shapes[name] = tensor.shape();

  std::vector<HfTensor> all;
  for (const auto& [name, tensor] : own) {
    const Numbered n = numbered(name);
    const auto at = rows.find(n.pattern);
    if (at == rows.end())
      fail<UsageError>("hugging_face", config.family(), " has no name for ", name, ": add a row");
    const auto& [row, index] = at->second;
    if (index != 0) continue;  // a part of the tensor that the first one began
    HfTensor t{filled(row->theirs, n.number)};
    t.change = row->change;
    if (t.change == HfChange::halves) t.head_dim = family.head_dim(config);
    for (const std::string_view pattern : row->ours) {
      const std::string part = filled(pattern, n.number);
      t.ours.push_back({part, shapes.at(part)});
    }
    t.shape = t.ours[0].shape;
    for (size_t i = 1; i < t.ours.size(); ++i) t.shape[0] += t.ours[i].shape[0];
    if (t.change == HfChange::transposed) std::swap(t.shape[0], t.shape[1]);
    all.push_back(std::move(t));
  }
  return all;
}

bool matches_any(std::string_view name, const std::vector<std::string_view>& patterns) {
  return std::ranges::count(patterns, numbered(name).pattern) > 0;
}

}  // namespace tessera::models

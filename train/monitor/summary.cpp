// SPDX-License-Identifier: Apache-2.0
// The layer of a parameter is read off its path, with the number in a list (`layers.3`). Neighbours
// of a list are alike if their weights agree in name, dtype, shape and layout.
#include "tessera/train/monitor/summary.h"

#include "tessera/dist/dtensor.h"
#include "tessera/nn/parallel/tensor_parallel.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/monitor/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tessera::train {
namespace {

int64_t bytes_of_one(const Tensor& t) {
  if (!t.defined()) return 0;
  const Tensor part = t.is_distributed() ? local(t) : t;
  return part.numel() * item_size(part.dtype());
}

// `layers.3.attention.wq.weight`: the layer is `layers.3`, of the list `layers`.
struct Layer {
  std::string name, list, end;  // end: the last of equal neighbours
  int64_t alike = 1, parameters = 0, bytes = 0;
  std::vector<std::string> weights;  // name within the layer, dtype and shape
};

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

std::pair<std::string, std::string> split(const std::string& path) {
  size_t dot = path.find('.');
  if (dot == path.npos) return {path, ""};
  const size_t next = path.find('.', dot + 1);
  if (next != path.npos && is_number(std::string_view(path).substr(dot + 1, next - dot - 1)))
    dot = next;
  return {path.substr(0, dot), path.substr(dot + 1)};
}

std::vector<Layer> layers_of(nn::Module& model) {
  std::vector<Layer> layers;
  for (const auto& p : nn::named_parameters(model)) {
    const auto [layer, weight] = split(p.name);
    if (layers.empty() || layers.back().name != layer) {
      const size_t dot = layer.rfind('.');
      layers.emplace_back();
      layers.back().name = layer;
      if (dot != layer.npos) layers.back().list = layer.substr(0, dot);
    }
    Layer& at = layers.back();
    at.parameters += p.tensor.numel();
    at.bytes += bytes_of_one(p.tensor);
    std::string line = concat(weight.empty() ? layer : weight, ' ', p.tensor.meta());
    if (p.tensor.is_distributed() && layout_of(p.tensor).last_sharded_dim() >= 0)
      line += ' ' + layout_of(p.tensor).placements_text();
    at.weights.push_back(std::move(line));
  }
  return layers;
}

std::vector<Layer> merged(const std::vector<Layer>& layers) {
  std::vector<Layer> all;
  for (const Layer& layer : layers) {
    Layer* before = all.empty() ? nullptr : &all.back();
    if (before && !layer.list.empty() && before->list == layer.list &&
        before->weights == layer.weights) {
      ++before->alike;
      before->end = layer.name.substr(layer.list.size() + 1);
    } else {
      all.push_back(layer);
    }
  }
  return all;
}

}  // namespace

int64_t bytes_of(std::span<const Tensor> tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors) sum += bytes_of_one(t);
  return sum;
}

int64_t gradient_bytes(std::span<const Tensor> parameters) {
  int64_t sum = 0;
  for (const Tensor& p : parameters) sum += bytes_of_one(p.grad());
  return sum;
}

ParameterCounts count_parameters(nn::Module& model) {
  ParameterCounts counts;
  for (const auto& p : nn::named_parameters(model)) {
    counts.all += p.tensor.numel();
    counts.trained += p.tensor.requires_grad() ? p.tensor.numel() : 0;
  }
  return counts;
}

std::string total_summary(nn::Module& whole, nn::Module& own, int64_t optimizer_bytes) {
  int64_t parameters = 0, gradients = 0;
  for (const auto& p : nn::named_parameters(own)) {
    parameters += bytes_of_one(p.tensor);
    gradients += p.tensor.requires_grad() ? bytes_of_one(p.tensor) : 0;
  }
  const auto [trained, all] = count_parameters(whole);
  std::string text = with_separators(all) + " parameters";
  if (trained != all) text += fmt::format(" ({} of them trained)", with_separators(trained));
  return text + fmt::format("; memory: parameters {}, gradients {}, optimizer {}, {} together",
                            byte_count(parameters), byte_count(gradients),
                            byte_count(optimizer_bytes),
                            byte_count(parameters + gradients + optimizer_bytes));
}

std::string layer_summary(nn::Module& model) {
  const auto total = static_cast<double>(std::max<int64_t>(1, count_parameters(model).all));
  std::string text =
      fmt::format("{:<32}{:>16}{:>8}{:>12}\n", "layer", "parameters", "share", "bytes");
  for (const Layer& layer : merged(layers_of(model))) {
    const std::string name =
        layer.alike == 1 ? layer.name
                         : fmt::format("{} to {} ({} alike)", layer.name, layer.end, layer.alike);
    const int64_t parameters = layer.parameters * layer.alike;
    text += fmt::format("{:<32}{:>16}{:>7.1f}%{:>12}\n", name, with_separators(parameters),
                        100 * static_cast<double>(parameters) / total,
                        byte_count(layer.bytes * layer.alike));
    for (const std::string& weight : layer.weights) text += fmt::format("    {}\n", weight);
  }
  if (const auto* plan = nn::tensor_parallel_plan_of(model)) return text + plan->text();
  text.pop_back();
  return text;
}

}  // namespace tessera::train

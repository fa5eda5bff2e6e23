// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/optimizer.h"

#include "tessera/core/context.h"
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/train/monitor/summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>
#include <sstream>

namespace tessera::train {
namespace {

struct ParsedGroup {
  std::string pattern;
  std::optional<double> lr, weight_decay;
  std::string fault;  // empty: none
};

// A number in [0, max]; none otherwise.
std::optional<double> parsed_factor(std::string_view text, double max) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 && value <= max ? std::optional(value) : std::nullopt;
}

ParsedGroup parsed_group(const std::string& text) {
  ParsedGroup group;
  const auto wrong = [&](const auto&... what) {
    group.fault = concat("[--optimizer.param_groups] '", text, "': ", what...,
                         "; expected 'PATTERN [lr=X] [weight_decay=Y]'");
    return group;
  };
  std::istringstream words(text);
  if (!(words >> group.pattern)) return wrong("no pattern");
  // The compiler of expressions recurses as deep as they are long.
  constexpr size_t kLongest = 500;
  if (group.pattern.size() > kLongest) return wrong("a pattern above ", kLongest, " characters");
  try {
    (void)std::regex(group.pattern);
  } catch (const std::regex_error&) {
    return wrong("'", group.pattern, "' is not a regular expression");
  }
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == word.npos || (key != "lr" && key != "weight_decay"))
      return wrong("'", word, "' sets neither lr nor weight_decay");
    const double max = key == "lr" ? 1e6 : 1e3;
    const auto value = parsed_factor(std::string_view(word).substr(equals + 1), max);
    if (!value) return wrong("'", word, "' is not a number from 0 to ", max);
    (key == "lr" ? group.lr : group.weight_decay) = value;
  }
  if (!group.lr && !group.weight_decay) return wrong("it changes nothing");
  return group;
}

std::vector<nn::NamedParameter> numbered(const std::vector<Tensor>& parameters) {
  std::vector<nn::NamedParameter> named;
  for (const Tensor& p : parameters) named.push_back({std::to_string(named.size()), p});
  return named;
}

}  // namespace

void OptimizerConfig::fields(config::Fields& f) {
  f.add("lr", lr, "learning rate after warm-up", {.min = 0, .max = 1e6});
  f.add("beta1", beta1, "decay of the mean of gradients", {.min = 0, .max = 0.999999});
  f.add("beta2", beta2, "decay of the mean of their squares", {.min = 0, .max = 0.9999999});
  f.add("eps", eps, "added to the root of the squares", {.min = 0, .max = 1, .above_min = true});
  f.add("weight_decay", weight_decay, "share of a parameter taken off per step, times lr",
        {.min = 0, .max = 1e3});
  f.add_choice("state_dtype", state_dtype, "of both moments; bfloat16 is rounded stochastically",
               std::vector<std::pair<std::string, DType>>{{"float32", DType::f32},
                                                          {"bfloat16", DType::bf16}});
  f.add("param_groups", param_groups,
        "'PATTERN [lr=X] [weight_decay=Y]' each: parameters with values of their own, first match "
        "wins");
}

std::vector<std::string> parameter_group_faults(const std::vector<std::string>& groups) {
  std::vector<std::string> faults;
  for (const std::string& text : groups) {
    if (auto group = parsed_group(text); !group.fault.empty()) faults.push_back(group.fault);
  }
  return faults;
}

std::vector<ParameterGroup> parameter_groups(const OptimizerConfig& config,
                                             const std::vector<std::string>& names) {
  config::throw_if_any(parameter_group_faults(config.param_groups));
  std::vector<ParameterGroup> groups;
  std::vector<std::regex> patterns;
  for (const std::string& text : config.param_groups) {
    const ParsedGroup g = parsed_group(text);
    groups.push_back(
        {g.pattern, g.lr.value_or(config.lr), g.weight_decay.value_or(config.weight_decay)});
    patterns.emplace_back(g.pattern);
  }
  groups.push_back({"", config.lr, config.weight_decay});
  for (size_t i = 0; i < names.size(); ++i) {
    size_t at = 0;
    while (at < patterns.size() && !std::regex_search(names[i], patterns[at])) ++at;
    groups[at].members.push_back(i);
  }
  std::vector<std::string> faults;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (!groups[i].members.empty()) continue;
    faults.push_back(concat("[--optimizer.param_groups] no parameter is left for '",
                            groups[i].pattern, "': names are like ",
                            names.empty() ? "" : names.back()));
  }
  config::throw_if_any(faults);
  return groups;
}

AdamW::AdamW(std::vector<nn::NamedParameter> parameters, const OptimizerConfig& config,
             uint64_t seed)
    : config_(config), seed_(seed) {
  config::require_valid("optimizer", config);
  bool narrow = config.state_dtype == DType::bf16;
  for (nn::NamedParameter& p : parameters) {
    if (!p.tensor.requires_grad()) continue;
    const DType state = p.tensor.dtype() == DType::f64 ? DType::f64 : config.state_dtype;
    for (auto* moments : {&first_, &second_}) {
      const NoGrad guard;
      moments->push_back(
          call_like(op::Fill{p.tensor.shape(), state, p.tensor.device(), 0}, p.tensor));
    }
    narrow = narrow || p.tensor.dtype() == DType::bf16;
    names_.push_back(std::move(p.name));
    parameters_.push_back(std::move(p.tensor));
  }
  if (narrow) {
    for (const std::string& name : names_) streams_.push_back(stream_of(name));
  }
  groups_ = parameter_groups(config, names_);
}

AdamW::AdamW(const std::vector<Tensor>& parameters, const OptimizerConfig& config)
    : AdamW(numbered(parameters), config) {}

int64_t AdamW::state_bytes() const { return bytes_of(first_) + bytes_of(second_); }

std::vector<Tensor> AdamW::grads() const {
  std::vector<Tensor> grads;
  grads.reserve(parameters_.size());
  for (const Tensor& p : parameters_) {
    Tensor g = p.grad();
    if (!g.defined()) {
      fail<AutogradError>("adamw", "parameter ", names_[grads.size()], ", ", p.meta(),
                          ", has no gradient: run backward first");
    }
    grads.push_back(std::move(g));
  }
  return grads;
}

void AdamW::step(double scale) {
  const NoGrad guard;
  const std::vector<Tensor> gradients = grads();
  ++steps_;
  for (const ParameterGroup& group : groups_) {
    if (group.members.empty()) continue;
    const auto of_group = [&](const auto& all) {
      std::remove_cvref_t<decltype(all)> part;
      for (size_t i : group.members) part.push_back(all[i]);
      return part;
    };
    adamw_(of_group(parameters_), of_group(gradients), of_group(first_), of_group(second_), steps_,
           {.lr = group.lr * scale,
            .beta1 = config_.beta1,
            .beta2 = config_.beta2,
            .eps = config_.eps,
            .weight_decay = group.weight_decay,
            .seed = seed_,
            .streams = streams_.empty() ? streams_ : of_group(streams_)});
  }
}

void AdamW::zero_grad() {
  for (Tensor& p : parameters_) p.set_grad({});
}

std::vector<nn::NamedParameter> AdamW::state() const {
  std::vector<nn::NamedParameter> state;
  for (size_t i = 0; i < names_.size(); ++i) {
    state.push_back({names_[i] + ".exp_avg", first_[i]});
    state.push_back({names_[i] + ".exp_avg_sq", second_[i]});
  }
  return state;
}

}  // namespace tessera::train

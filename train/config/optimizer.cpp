// SPDX-License-Identifier: Apache-2.0
// The first pattern that matches a name gets the parameter. Entries are checked without a model. A
// pattern without parameters is an error too, since the run would silently ignore its values. RE2
// matches in a time linear in the name, whatever the pattern.
#include "tessera/train/config/optimizer.h"

#include "tessera/nn/io/utf8.h"

#include <charconv>
#include <optional>
#include <re2/re2.h>
#include <sstream>

namespace tessera::train {
namespace {

struct ParsedGroup {
  std::unique_ptr<RE2> pattern;
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
    group.fault = concat("[--optimizer.param_groups] '", io::excerpt(text), "': ", what...,
                         "; expected 'PATTERN [lr=X] [weight_decay=Y]'");
    return std::move(group);
  };
  std::istringstream words(text);
  std::string pattern;
  if (!(words >> pattern)) return wrong("no pattern");
  RE2::Options options;
  options.set_log_errors(false);  // a fault is an error of this field, not a line of RE2's log
  group.pattern = std::make_unique<RE2>(pattern, options);
  if (!group.pattern->ok())
    return wrong("'", io::excerpt(pattern),
                 "' is not a regular expression of RE2: ", io::excerpt(group.pattern->error()));
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == word.npos || (key != "lr" && key != "weight_decay"))
      return wrong("'", io::excerpt(word), "' sets neither lr nor weight_decay");
    const double max = key == "lr" ? 1e6 : 1e3;
    const auto value = parsed_factor(std::string_view(word).substr(equals + 1), max);
    if (!value) return wrong("'", io::excerpt(word), "' is not a number from 0 to ", max);
    (key == "lr" ? group.lr : group.weight_decay) = value;
  }
  if (!group.lr && !group.weight_decay) return wrong("it changes nothing");
  return group;
}

std::vector<ParsedGroup> parsed_groups(const std::vector<std::string>& texts) {
  std::vector<ParsedGroup> groups;
  for (const std::string& text : texts) groups.push_back(parsed_group(text));
  return groups;
}

std::vector<std::string> faults_of(const std::vector<ParsedGroup>& groups) {
  std::vector<std::string> faults;
  for (const ParsedGroup& group : groups)
    if (!group.fault.empty()) faults.push_back(group.fault);
  return faults;
}

}  // namespace

void OptimizerConfig::fields(config::Fields& f) {
  f.add("lr", lr, "learning rate after warm-up, before decay", {.min = 0, .max = 1e6});
  f.add("beta1", beta1, "AdamW: decay rate of the first moment", {.min = 0, .max = 0.999999});
  f.add("beta2", beta2, "AdamW: decay rate of the second moment", {.min = 0, .max = 0.9999999});
  f.add("eps", eps, "AdamW: added to the denominator for numerical stability",
        {.min = 0, .max = 1, .above_min = true});
  f.add("weight_decay", weight_decay, "AdamW: decoupled weight decay coefficient",
        {.min = 0, .max = 1e3});
  f.add_choice("state_dtype", state_dtype,
               "dtype of the moments; bfloat16 is rounded stochastically",
               std::vector<std::pair<std::string, DType>>{{"float32", DType::f32},
                                                          {"bfloat16", DType::bf16}});
  f.add("param_groups", param_groups,
        "parameter groups with their own values, each 'PATTERN [lr=X] [weight_decay=Y]': a regular "
        "expression (RE2) for parameter names; the first match wins");
}

std::vector<std::string> parameter_group_faults(const std::vector<std::string>& groups) {
  return faults_of(parsed_groups(groups));
}

std::vector<PatternGroup> parameter_groups(const OptimizerConfig& config,
                                           const std::vector<nn::NamedParameter>& parameters,
                                           uint64_t seed,
                                           const std::vector<nn::NamedParameter>& whole) {
  const std::vector<ParsedGroup> parsed = parsed_groups(config.param_groups);
  config::throw_if_any(faults_of(parsed));
  const optim::AdamWOptions common{.lr = config.lr,
                                   .beta1 = config.beta1,
                                   .beta2 = config.beta2,
                                   .eps = config.eps,
                                   .weight_decay = config.weight_decay,
                                   .state_dtype = config.state_dtype,
                                   .seed = seed};
  std::vector<PatternGroup> groups;
  for (const ParsedGroup& g : parsed) {
    PatternGroup& group = groups.emplace_back(PatternGroup{g.pattern->pattern(), {}, common});
    group.options.lr = g.lr.value_or(config.lr);
    group.options.weight_decay = g.weight_decay.value_or(config.weight_decay);
  }
  groups.push_back({"", {}, common});
  const auto group_of = [&](const std::string& name) {
    size_t at = 0;
    while (at < parsed.size() && !RE2::PartialMatch(name, *parsed[at].pattern)) ++at;
    return at;
  };
  for (const nn::NamedParameter& p : parameters)
    if (p.tensor.requires_grad()) groups[group_of(p.name)].parameters.push_back(p);
  std::vector<int64_t> counts(groups.size());
  std::string example;
  for (const nn::NamedParameter& p : whole.empty() ? parameters : whole) {
    if (!p.tensor.requires_grad()) continue;
    ++counts[group_of(p.name)];
    example = p.name;
  }
  std::vector<std::string> faults;
  for (size_t i = 0; i < parsed.size(); ++i) {
    if (counts[i] > 0) continue;
    faults.push_back(concat("[--optimizer.param_groups] no parameter is left for '",
                            io::excerpt(groups[i].pattern), "': names are like ", example));
  }
  config::throw_if_any(faults);
  return groups;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config,
                                                 const std::vector<nn::NamedParameter>& parameters,
                                                 uint64_t seed,
                                                 const std::vector<nn::NamedParameter>& whole) {
  config::require_valid("optimizer", config);
  std::vector<optim::AdamW::Group> groups;
  for (PatternGroup& g : parameter_groups(config, parameters, seed, whole)) {
    if (!g.parameters.empty()) groups.push_back({std::move(g.parameters), g.options});
  }
  return std::make_unique<optim::AdamW>(groups);
}

}  // namespace tessera::train

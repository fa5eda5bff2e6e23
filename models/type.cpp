// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/type.h"

#include <algorithm>
#include <set>

namespace tessera::models {
namespace {

std::vector<std::string> words_of(std::string_view fields) {
  std::vector<std::string> words;
  while (!fields.empty()) {
    const size_t end = std::min(fields.find(' '), fields.size());
    words.push_back(concat("--model.", fields.substr(0, end)));
    fields.remove_prefix(std::min(end + 1, fields.size()));
  }
  return words;
}

TypeConfig sized(const TypeConfig& base, const Type& type, const Size& size) {
  TypeConfig c = base;
  config::Fields fields;
  fields.section("model", c);
  std::vector<std::string> faults = fields.parse(words_of(size.fields));
  if (faults.empty()) faults = fields.check();
  if (faults.empty()) faults = c.conflicts();
  if (!faults.empty())
    fail<UsageError>("model", type.names.model_type, ' ', size.name, ": ", faults[0]);
  c.simplify();
  return c;
}

}  // namespace

// Fields that its table of config.json names, RoPE's, and what only says how to compute and to
// train.
std::vector<std::string_view> TypeConfig::shown() const {
  std::vector<std::string_view> all{"fused_qkv"};
  if (!type) return all;
  const HuggingFace& names = type->names;
  for (const HfField& f : names.fields) all.push_back(f.ours);
  for (const HfFixedOurs& f : names.fixed_ours) all.push_back(f.ours);
  if (names.rope) all.push_back("rope_theta");
  all.insert(all.end(), type->rope_fields.begin(), type->rope_fields.end());
  if (std::ranges::count(all, "num_experts") > 0)
    all.insert(all.end(),
               {"load_balance_coeff", "balance_loss_coeff", "z_loss_coeff", "capacity_factor"});
  return all;
}

TypeConfig TypeConfig::defaults() const {
  if (!type) return *this;
  TypeConfig c{type->architecture, type};
  c.family = type->names.model_type;
  return c;
}

void TypeConfig::simplify() {
  Architecture::simplify(std::ranges::count(shown(), "sliding_window_pattern") > 0);
}

Family family_of(const Type& type) {
  const TypeConfig base = TypeConfig{{}, &type}.defaults();
  std::vector<std::pair<std::string_view, TypeConfig>> sizes;
  for (const Size& size : type.sizes) sizes.emplace_back(size.name, sized(base, type, size));
  if (sizes.empty()) sizes.emplace_back("", base);
  Family f = family<Model<TypeConfig>>(std::string(type.names.model_type),
                                       std::string(type.description), sizes);
  f.hugging_face = {&type.names};
  return f;
}

}  // namespace tessera::models

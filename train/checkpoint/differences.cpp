// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/differences.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace tessera::train {
namespace {

std::string text_of(DType dtype, const Shape& shape) {
  return fmt::format("{}[{}]", name(dtype), fmt::join(shape.begin(), shape.end(), ", "));
}

}  // namespace

std::vector<std::string> tensor_differences(const TensorEntries& there,
                                            const std::vector<nn::NamedParameter>& wanted) {
  std::vector<std::string> differences;
  std::set<std::string_view> known;
  for (const auto& [name, tensor] : wanted) {
    known.insert(name);
    const auto at = there.find(name);
    const std::string expected = text_of(tensor.dtype(), tensor.shape());
    if (at == there.end()) {
      differences.push_back(concat(name, " is missing"));
    } else if (at->second.dtype != tensor.dtype() || at->second.shape != tensor.shape()) {
      differences.push_back(concat(name, " is ", text_of(at->second.dtype, at->second.shape),
                                   ", expected ", expected));
    }
  }
  for (const auto& [name, entry] : there) {
    if (!known.contains(name))
      differences.push_back(concat(io::excerpt(name), ", ", text_of(entry.dtype, entry.shape),
                                   ", is not in this run"));
  }
  return differences;
}

std::vector<std::string> tokenizer_differences(const std::vector<TokenizerEntry>& there,
                                               const std::vector<TokenizerEntry>& here) {
  std::vector<std::string> differences;
  for (const TokenizerEntry& entry : there) {
    const auto at = std::ranges::find(here, entry.name, &TokenizerEntry::name);
    if (at == here.end()) differences.push_back(concat(entry.name, " is missing"));
    else if (at->sum != entry.sum) differences.push_back(concat(entry.name, " differs"));
  }
  for (const TokenizerEntry& entry : here) {
    if (!std::ranges::count(there, entry.name, &TokenizerEntry::name))
      differences.push_back(concat(entry.name, " is new"));
  }
  return differences;
}

std::vector<ConfigDifference> config_differences(std::string_view before, std::string_view now) {
  const auto fields = [](std::string_view text) {
    std::map<std::string, std::string> flat;
    const nlohmann::ordered_json json = io::parse_json(text).value;
    if (!json.is_object()) fail<DataError>("config", "not a JSON object");
    for (const auto& [section, value] : json.items()) {
      if (!value.is_object()) flat[section] = value.dump();
      else
        for (const auto& [key, member] : value.items()) flat[section + '.' + key] = member.dump();
    }
    return flat;
  };
  const auto a = fields(before), b = fields(now);
  std::vector<ConfigDifference> differences;
  for (const auto& [field, value] : a) {
    const auto other = b.find(field);
    if (other == b.end()) differences.push_back({field, value, ""});
    else if (other->second != value) differences.push_back({field, value, other->second});
  }
  for (const auto& [field, value] : b) {
    if (!a.contains(field)) differences.push_back({field, "", value});
  }
  return differences;
}

}  // namespace tessera::train

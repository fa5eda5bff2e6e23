// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/pipeline/split.h"

#include "tessera/core/message.h"

#include <algorithm>

namespace tessera::models {
namespace {

std::string list_of(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names) list += concat(list.empty() ? "" : ", ", name);
  return list;
}

}  // namespace

bool is_layer(const std::string& part) { return part.starts_with("layers."); }

Split split_parts(std::span<const std::string> parts, int64_t stages, const SplitWeights& weights) {
  const auto begin = std::ranges::find_if(parts, is_layer);
  const auto end = std::find_if_not(begin, parts.end(), is_layer);
  const int64_t layers = end - begin;
  const int64_t counted_layers = layers + weights.first + weights.last;
  const int64_t each = stages > 0 ? counted_layers / stages : 0;
  const int64_t heaviest = std::max({int64_t{1}, weights.first, weights.last});
  const bool fits = stages == 1 || (stages > 1 && each >= heaviest);
  if (!fits) {
    fail<ValueError>("pipeline", counted(layers, "layer"), " do not fill ",
                     counted(stages, "stage"), ", with the embedding counted as ", weights.first,
                     " and the head as ", weights.last, ": give at most ",
                     std::max<int64_t>(1, counted_layers / heaviest));
  }
  Split split(static_cast<size_t>(stages));
  auto at = begin;
  for (int64_t stage = 0; stage < stages; ++stage) {
    std::vector<std::string>& own = split[static_cast<size_t>(stage)];
    int64_t count = each + (stage < counted_layers % stages ? 1 : 0);
    if (stage == 0) {
      own.assign(parts.begin(), begin);
      count -= weights.first;
    }
    if (stage + 1 == stages) count = end - at;
    for (; count > 0 && at != end; --count) own.push_back(*at++);
    if (stage + 1 == stages) own.insert(own.end(), end, parts.end());
  }
  return split;
}

std::string split_fault(std::span<const std::string> parts, const Split& split) {
  std::vector<std::string> all;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    if (split[stage].empty()) return concat("stage ", stage, " has no parts: give each stage one");
    for (const std::string& name : split[stage]) {
      if (std::ranges::find(parts, name) == parts.end())
        return concat('\'', name, "' is no part of the model: its parts are ", list_of(parts));
      if (std::ranges::find(all, name) != all.end())
        return concat(name, " is in two stages, or twice in one");
      all.push_back(name);
    }
  }
  for (const std::string& part : parts)
    if (std::ranges::find(all, part) == all.end()) return concat(part, " is in no stage");
  if (!std::ranges::equal(all, parts))
    return concat("the parts are not in the order of forward, which is ", list_of(parts));
  return {};
}

}  // namespace tessera::models

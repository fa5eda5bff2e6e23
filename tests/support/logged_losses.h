// SPDX-License-Identifier: Apache-2.0
// What a run has logged.
#pragma once

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace tessera::test {

/// The losses in the metrics.jsonl of a run's folder, a step each, in their order.
inline std::vector<double> logged_losses(const std::string& folder) {
  std::vector<double> all;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto at = nlohmann::json::parse(line);
    if (at.contains("loss")) all.push_back(at["loss"]);
  }
  return all;
}

}  // namespace tessera::test

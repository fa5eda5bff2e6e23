// SPDX-License-Identifier: Apache-2.0
// What a run has logged.
#pragma once

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::test {

/// Loss and gradient norm of each step in the metrics.jsonl of a run's folder, in their order.
inline std::vector<std::pair<double, double>> logged_losses_and_norms(const std::string& folder) {
  std::vector<std::pair<double, double>> all;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto at = nlohmann::json::parse(line);
    if (at.contains("loss")) all.emplace_back(at["loss"], at["grad_norm"]);
  }
  return all;
}

/// The losses alone.
inline std::vector<double> logged_losses(const std::string& folder) {
  std::vector<double> all;
  for (const auto& [loss, norm] : logged_losses_and_norms(folder)) all.push_back(loss);
  return all;
}

}  // namespace tessera::test

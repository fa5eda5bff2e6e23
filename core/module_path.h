// SPDX-License-Identifier: Apache-2.0
// The text of Context::module_path, as errors, traces and random keys show it.
#pragma once

#include <string>
#include <vector>

namespace tessera {

/// `layers.3.attention` of {"layers.3", "attention"}; a root has no name.
[[nodiscard]] inline std::string joined_path(const std::vector<std::string>& parts) {
  std::string path;
  for (const std::string& part : parts) {
    if (!path.empty() && !part.empty()) path += '.';
    path += part;
  }
  return path;
}

/// How errors end: ` (in layers.3.attention)`; nothing where the path is empty.
[[nodiscard]] inline std::string in_module(const std::string& path) {
  return path.empty() ? path : " (in " + path + ')';
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Reading a tree: no preprocessor runs, so an #include counts under every condition.
#include "tessera/tests/layers/layers.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

namespace tessera::layers {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool is_source(const fs::path& file) {
  const std::string ending = file.extension().string();
  return ending == ".h" || ending == ".cpp" || ending == ".cu" || ending == ".cuh";
}

Source read_source(const fs::path& root, const fs::path& file, const std::string& folder) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*(["<])([^">]+)[">])");
  Source source;
  source.path = fs::relative(file, root).generic_string();
  source.folder = folder;
  source.test = file.stem().string().ends_with("_test");
  source.unit = unit_of(folder.empty() ? file.filename().string() : folder + '/');
  int number = 0;
  for (const std::string& line : lines_of(file)) {
    ++number;
    std::smatch match;
    if (line.find('#') != std::string::npos && std::regex_search(line, match, kInclude))
      source.includes.push_back({match[2], number, match[1] == "\""});
  }
  return source;
}

void read_layers(const fs::path& file, Module& module) {
  if (!fs::exists(file)) return;
  module.has_layers = true;
  int number = 0;
  for (const std::string& line : lines_of(file)) {
    ++number;
    std::istringstream names(line.substr(0, line.find('#')));
    for (std::string name; names >> name;) {
      if (name == "*") module.folders = number;
      else if (name == ".") module.root_files = number;
      else module.layer[name] = number;
    }
  }
}

// Folder by folder in the order of their names, so that findings come in one order everywhere.
void read_sources(const fs::path& root, const fs::path& folder, const std::string& unit,
                  Module& module) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    if (fs::is_directory(entry)) {
      if (name[0] != '_' && name[0] != '.')
        read_sources(root, entry, unit.empty() ? name : unit + '/' + name, module);
    } else if (is_source(entry)) {
      module.sources.push_back(read_source(root, entry, unit));
    }
  }
}

std::set<std::string> all_below(const Tree& tree, const Module& module) {
  std::set<std::string> below;
  std::vector<std::string> open = module.uses;
  while (!open.empty()) {
    const std::string name = open.back();
    open.pop_back();
    const auto found = tree.modules.find(name);
    if (found == tree.modules.end() || !below.insert(name).second) continue;
    open.insert(open.end(), found->second.uses.begin(), found->second.uses.end());
  }
  return below;
}

}  // namespace

std::string unit_of(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash != std::string::npos) return path.substr(0, slash);
  std::string stem = path.substr(0, path.find('.'));
  if (stem.ends_with("_impl")) stem.resize(stem.size() - 5);
  return stem;
}

Tree read_tree(const fs::path& root) {
  static const std::regex kModule(R"(^\s*tessera_module\(([^)]*)\))");
  Tree tree{root, {}};
  for (const auto& entry : fs::directory_iterator(root)) {
    int number = 0;
    for (const std::string& line : lines_of(entry.path() / "CMakeLists.txt")) {
      ++number;
      std::smatch match;
      if (!std::regex_search(line, match, kModule)) continue;
      Module module;
      module.line = number;
      std::istringstream words(match[1]);
      words >> module.name;
      for (std::string used; words >> used;) module.uses.push_back(used);
      read_layers(entry.path() / "layers.txt", module);
      read_sources(root, entry.path(), "", module);
      tree.modules[module.name] = std::move(module);
    }
  }
  for (auto& [name, module] : tree.modules) module.below = all_below(tree, module);
  return tree;
}

}  // namespace tessera::layers

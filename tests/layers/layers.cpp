// SPDX-License-Identifier: Apache-2.0
// The rules. Arrows between layers are judged line by line; only the folders under `*` can have
// circles that no line gives away, so circles are looked for among modules and among them.
#include "tessera/tests/layers/layers.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <ostream>
#include <sstream>

namespace tessera::layers {
namespace {

template <class... Parts> std::string text(const Parts&... parts) {
  std::ostringstream os;
  (os << ... << parts);
  return os.str();
}

// `tessera/dist/mpi/api.h` as module `dist` and `mpi/api.h`; nothing for headers of others.
struct Target {
  std::string module, path;
};
std::optional<Target> target_of(const std::string& header) {
  constexpr std::string_view kOurs = "tessera/";
  if (!header.starts_with(kOurs)) return std::nullopt;
  const size_t slash = header.find('/', kOurs.size());
  if (slash == std::string::npos) return Target{"", header.substr(kOurs.size())};
  return Target{header.substr(kOurs.size(), slash - kOurs.size()), header.substr(slash + 1)};
}

std::string list_of(const Module& module) { return module.name + "/layers.txt"; }

// Whether a unit is a subfolder: a root file and a folder can only be told apart by their paths.
bool is_folder(const std::string& path) { return path.find('/') != std::string::npos; }

// The line of a unit in layers.txt, and whether `*` stands for it.
struct Place {
  int line = 0;  // 0: not there
  bool wildcard = false;
};
Place place_of(const Module& module, const std::string& unit, bool folder) {
  const auto named = module.layer.find(unit);
  if (named != module.layer.end()) return {named->second, false};
  if (folder) return {module.folders.value_or(0), module.folders.has_value()};
  return {module.root_files.value_or(0), false};
}

// A circle of arrows through one of the nodes, as the nodes in order; each circle is found once.
using Arrows = std::map<std::string, std::map<std::string, std::string>>;  // with where they are
std::vector<std::vector<std::string>> circles_in(const Arrows& arrows) {
  std::vector<std::vector<std::string>> circles;
  std::set<std::string> finished;
  std::vector<std::string> path;
  const std::function<void(const std::string&)> visit = [&](const std::string& node) {
    const auto seen = std::ranges::find(path, node);
    if (seen != path.end()) {
      circles.emplace_back(seen, path.end());
      return;
    }
    if (finished.contains(node)) return;
    path.push_back(node);
    if (const auto out = arrows.find(node); out != arrows.end()) {
      for (const auto& [to, where] : out->second) visit(to);
    }
    path.pop_back();
    finished.insert(node);
  };
  for (const auto& [node, out] : arrows) visit(node);
  return circles;
}

std::string circle_text(const std::vector<std::string>& circle, const Arrows& arrows) {
  std::string all = circle[0];
  for (size_t i = 0; i < circle.size(); ++i) {
    const std::string& to = circle[(i + 1) % circle.size()];
    all += text(" -> ", to, " (", arrows.at(circle[i]).at(to), ')');
  }
  return all;
}

void check_modules(const Tree& tree, Findings& findings) {
  Arrows arrows;
  for (const auto& [name, module] : tree.modules) {
    for (const std::string& used : module.uses)
      arrows[name][used] = text(name, "/CMakeLists.txt:", module.line);
  }
  for (const auto& circle : circles_in(arrows)) {
    const Module& first = tree.modules.at(circle[0]);
    findings.push_back({first.name + "/CMakeLists.txt", first.line,
                        text("modules use each other in a circle: ", circle_text(circle, arrows),
                             "; take one use away, and move what both need below them")});
  }
}

// The arrow of one #include to another module.
void check_arrow_out(const Tree& tree, const Module& module, const Source& source,
                     const Include& include, const Target& target, Findings& findings) {
  if (module.below.contains(target.module)) return;
  const std::string what =
      tree.modules.contains(target.module)
          ? text("module ", module.name, " does not use ", target.module, " (", module.name,
                 "/CMakeLists.txt:", module.line, "): the arrow runs up. Move what is needed into ",
                 module.name, " or below, or let the caller hand it in")
      : target.module.empty() ? std::string(
                                    "the umbrella header is for users: include the headers "
                                    "of what is used")
                              : text(target.module, "/ is no module: only tests include it");
  findings.push_back(
      {source.path, include.line, text("includes ", include.header, ", but ", what)});
}

// The arrow of one #include inside its module; true where it joins two folders under `*`.
bool check_arrow_inside(const Module& module, const Source& source, const Include& include,
                        const Target& target, Findings& findings) {
  const std::string to = unit_of(target.path);
  if (to == source.unit && is_folder(target.path) == !source.folder.empty()) return false;
  const Place from_place = place_of(module, source.unit, !source.folder.empty());
  const Place to_place = place_of(module, to, is_folder(target.path));
  if (from_place.line == 0 || to_place.line == 0) return false;  // told once, by check_names
  if (from_place.wildcard && to_place.wildcard) return true;
  const bool both_in_root = source.folder.empty() && !is_folder(target.path);
  if (both_in_root && !module.layer.contains(source.unit) && !module.layer.contains(to))
    return false;  // both under `.`
  if (to_place.line < from_place.line) return false;
  findings.push_back(
      {source.path, include.line,
       text("includes ", include.header, ", but in ", list_of(module), " ", to, " (line ",
            to_place.line, ") does not lie below ", source.unit, " (line ", from_place.line,
            "): the arrow runs up. Move what is needed to ", source.unit,
            " or below, let the caller hand it in, or set the lines in another order")});
  return false;
}

// layers.txt holds every unit, and nothing else. A header that is included is there, even where
// the build writes it.
void check_names(const Module& module, const std::set<std::string>& included, Findings& findings) {
  if (!module.has_layers) {
    findings.push_back({list_of(module), 0,
                        "is missing: name the module's folders in it, one layer per line, lowest "
                        "first (`.` stands for the module's own files, `*` for all folders)"});
    return;
  }
  std::set<std::string> there = included, told;
  for (const Source& source : module.sources) {
    there.insert(source.unit);
    if (source.test || place_of(module, source.unit, !source.folder.empty()).line > 0 ||
        !told.insert(source.unit).second)
      continue;
    findings.push_back({source.path, 0,
                        text(source.unit, " is not in ", list_of(module),
                             ": put it on a line above all that it includes")});
  }
  for (const auto& [name, line] : module.layer) {
    if (there.contains(name)) continue;
    findings.push_back({list_of(module), line,
                        text("names ", name, ", which is neither a folder nor a file of ",
                             module.name, "/: take it out")});
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Finding& finding) {
  os << finding.file;
  if (finding.line > 0) os << ':' << finding.line;
  return os << ": " << finding.text;
}

Findings check_includes(const Tree& tree) {
  Findings findings;
  check_modules(tree, findings);
  for (const auto& [name, module] : tree.modules) {
    Arrows arrows;
    std::set<std::string> included;
    for (const Source& source : module.sources) {
      if (source.test) continue;
      for (const Include& include : source.includes) {
        const auto target = target_of(include.header);
        if (!target) {
          if (include.quoted) {
            findings.push_back({source.path, include.line,
                                text("includes \"", include.header,
                                     "\": our headers are spelled \"tessera/<module>/<file>.h\", "
                                     "those of others <file.h>")});
          }
        } else if (target->module != name) {
          check_arrow_out(tree, module, source, include, *target, findings);
        } else {
          included.insert(unit_of(target->path));
          if (check_arrow_inside(module, source, include, *target, findings))
            arrows[source.unit].emplace(unit_of(target->path),
                                        text(source.path, ':', include.line));
        }
      }
    }
    for (const auto& circle : circles_in(arrows)) {
      const std::string& where = arrows.at(circle[0]).at(circle[1 % circle.size()]);
      const size_t colon = where.rfind(':');
      findings.push_back({where.substr(0, colon), std::stoi(where.substr(colon + 1)),
                          text("closes a circle of folders: ", circle_text(circle, arrows),
                               "; move what both need below them")});
    }
    check_names(module, included, findings);
  }
  return findings;
}

Findings check_sizes(const Tree& tree, const std::vector<std::string>& modules, int most) {
  Findings findings;
  for (const std::string& name : modules) {
    const auto module = tree.modules.find(name);
    if (module == tree.modules.end()) {
      findings.push_back({name, 0, "is no module: take it out of the list of sizes"});
      continue;
    }
    std::map<std::string, int> count;
    for (const Source& source : module->second.sources) count[source.folder] += !source.test;
    for (const auto& [folder, n] : count) {
      if (n <= most) continue;
      findings.push_back({folder.empty() ? name : text(name, '/', folder), 0,
                          text("holds ", n, " sources (.h, .cpp, .cu, .cuh; tests do not count), ",
                               most, " at most: give what belongs together a folder of its own")});
    }
  }
  return findings;
}

Findings check_private_headers(const Tree& tree) {
  Findings findings;
  for (const auto& [name, module] : tree.modules) {
    for (const Source& source : module.sources) {
      if (source.test) continue;
      for (const Include& include : source.includes) {
        const auto target = target_of(include.header);
        if (!target || target->module != name || !is_folder(target->path)) continue;
        const std::string owner = unit_of(target->path);
        const bool is_private = target->path.ends_with("_impl.h") || target->path.ends_with(".cuh");
        if (!is_private || owner == source.unit || !place_of(module, owner, true).wildcard)
          continue;
        findings.push_back(
            {source.path, include.line,
             text("includes ", include.header, ", a private header of ", name, '/', owner,
                  ": include its public header, or move what both need to a "
                  "folder that ",
                  list_of(module), " names below them")});
      }
    }
  }
  return findings;
}

Findings check_family_names(const Tree& tree, const std::vector<std::string>& exceptions) {
  Findings findings;
  const auto models = tree.modules.find("models");
  if (models == tree.modules.end()) return findings;
  std::set<std::string> families;
  for (const Source& source : models->second.sources) {
    if (!source.folder.empty() && place_of(models->second, source.unit, true).wildcard)
      families.insert(source.unit);
  }
  std::set<std::string> unused(exceptions.begin(), exceptions.end());
  for (const auto& [name, module] : tree.modules) {
    if (!module.below.contains("models")) continue;
    for (const Source& source : module.sources) {
      if (source.test) continue;
      std::ifstream in(tree.root / source.path);
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        std::ranges::transform(line, line.begin(),
                               [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        const auto named = std::ranges::find_if(families, [&](const std::string& family) {
          return line.find(family) != std::string::npos;
        });
        if (named == families.end()) continue;
        const auto allowed = std::ranges::find_if(
            exceptions, [&](const std::string& path) { return source.path.starts_with(path); });
        if (allowed != exceptions.end()) unused.erase(*allowed);
        else
          findings.push_back({source.path, number,
                              text("names the model family ", *named,
                                   ": above models/ a model is known by models/model.h alone; "
                                   "families are data of recipes and of models/models.cpp")});
        break;  // one finding a file
      }
    }
  }
  for (const std::string& path : unused) {
    findings.push_back({path, 0, "names no model family: take it out of the exceptions"});
  }
  return findings;
}

}  // namespace tessera::layers

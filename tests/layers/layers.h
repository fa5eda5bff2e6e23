// SPDX-License-Identifier: Apache-2.0
// Reads the #include lines of a source tree and says where they break the layers: of modules, which
// stand in the lines tessera_module(<name> <what it uses>...) of <module>/CMakeLists.txt, and of
// the folders of a module, which stand in <module>/layers.txt. Test files (*_test.*) may look
// anywhere; folders that begin with `_` are templates and are left out.
//
// layers.txt has a layer per line, lowest first. An #include goes to a lower line or stays in its
// own folder. A name is a subfolder, or files of the module's own folder without their endings
// (`mesh` is mesh.h and mesh.cpp). `*` is all subfolders that are not named: folders of one kind
// (rooms, model families), which may include each other where that makes no circle, but never
// each other's private headers. `.` is all files of the module's folder that are not named.
// `#` begins a comment.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::layers {

/// What breaks a rule, and how to mend it. Prints as compilers print: `dist/mesh.cpp:7: ...`.
struct Finding {
  std::string file;
  int line = 0;  ///< from 1; 0: of the file or folder as a whole
  std::string text;
};
std::ostream& operator<<(std::ostream& os, const Finding& finding);
using Findings = std::vector<Finding>;

struct Include {
  std::string header;
  int line = 0;
  bool quoted = true;
};

/// A file .h, .cpp, .cu or .cuh of a module.
struct Source {
  std::string path;    ///< from the root of the tree
  std::string folder;  ///< below the module; empty: the module's own folder
  std::string unit;    ///< as layers.txt names it: the folder, or the file without its endings
  bool test = false;
  std::vector<Include> includes;
};

struct Module {
  std::string name;
  int line = 0;                            ///< of tessera_module in its CMakeLists.txt
  std::vector<std::string> uses;           ///< as that line says
  std::set<std::string> below;             ///< all that it may include: those, and what they use
  bool has_layers = false;                 ///< there is a layers.txt
  std::map<std::string, int> layer;        ///< by name, the line in layers.txt
  std::optional<int> folders, root_files;  ///< the lines of `*` and `.`
  std::vector<Source> sources;
};

/// The name in layers.txt of a path from its module: `mesh` of mesh_impl.h, `mpi` of mpi/api.h.
std::string unit_of(const std::string& path);

/// A source tree, read once.
struct Tree {
  std::filesystem::path root;
  std::map<std::string, Module> modules;
};
/// Modules are the folders of `root` whose CMakeLists.txt calls tessera_module.
Tree read_tree(const std::filesystem::path& root);

/// Arrows that run up and circles, between modules and between folders; names in layers.txt that
/// stand for nothing, and folders that are not in it.
Findings check_includes(const Tree& tree);

/// Folders of these modules, their own included, with more than `most` sources; tests do not count.
Findings check_sizes(const Tree& tree, const std::vector<std::string>& modules, int most);

/// `*_impl.h` and `*.cuh` of a folder under `*`, included by another folder.
Findings check_private_headers(const Tree& tree);

/// Sources of modules above `models` that name a model family: a folder under `*` of models/. Paths
/// that begin with a line of `exceptions` may; a line that no such file needs is a finding too.
Findings check_family_names(const Tree& tree, const std::vector<std::string>& exceptions);

}  // namespace tessera::layers

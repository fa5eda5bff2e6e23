// SPDX-License-Identifier: Apache-2.0
// How a module tree prints: as PyTorch's repr, with counts of parameters. A visitor gives paths, of
// which the tree is made; a name with a dot (`layers.3`) is an element of a list.
#include "tessera/core/message.h"
#include "tessera/nn/module_impl.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace tessera::nn {
namespace {

// `Block` of `tessera::gpt2::Block` and of `Block<float>`.
std::string class_name(const Module& module) {
  std::string name;
  int depth = 0;
  for (char c : detail::type_name(module)) {
    depth += c == '<';
    if (depth == 0) name += c;
    depth -= c == '>';
  }
  const size_t scope = name.rfind("::");
  return scope == name.npos ? name : name.substr(scope + 2);
}

struct TreeNode {
  std::string name, type = "ModuleList";
  std::string extra = {};  // extra_repr, or else what follows
  bool lists_parameters = false;
  int64_t count = 0;  // of parameters, here and below
  std::vector<TreeNode> children = {};

  void describe(const Module& module) {
    type = class_name(module);
    extra = module.extra_repr();
    lists_parameters = extra.empty();
  }
};

class Tree final : public Visitor {
 public:
  explicit Tree(Module& module) {
    root_.describe(module);
    walk(module);
  }
  [[nodiscard]] const TreeNode& root() const { return root_; }
  bool on_module(const std::string& path, Module& module) override {
    at(path, 0).describe(module);
    return true;
  }
  void on_parameter(const std::string& path, Tensor& p, const Init&) override {
    const size_t dot = path.rfind('.');
    const bool of_root = dot == path.npos;
    TreeNode& node = at(of_root ? "" : path.substr(0, dot), p.numel());
    if (!node.lists_parameters) return;
    if (!node.extra.empty()) node.extra += ", ";
    node.extra += concat(of_root ? path : path.substr(dot + 1), '=', p.dtype(), p.shape());
  }

 private:
  // The node of a path, made where it is not there; `count` is added to it and to all above.
  TreeNode& at(std::string_view path, int64_t count) {
    TreeNode* node = &root_;
    node->count += count;
    while (!path.empty()) {
      const std::string_view name = path.substr(0, path.find('.'));
      path.remove_prefix(std::min(name.size() + 1, path.size()));
      auto child = std::ranges::find(node->children, name, &TreeNode::name);
      if (child == node->children.end())
        child = node->children.insert(child, TreeNode{std::string(name)});
      node = &*child;
      node->count += count;
    }
    return *node;
  }
  TreeNode root_;
};

// 1234567 as 1,234,567.
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (size_t place = text.size(); place > 3; place -= 3) text.insert(place - 3, 1, ',');
  return text;
}

std::string text_of(const TreeNode& node, bool repeated);

std::optional<int64_t> number_of(const std::string& name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

// How many children from `first` on print alike under names that count upwards.
size_t run_length(const std::vector<TreeNode>& children, size_t first) {
  const auto start = number_of(children[first].name);
  const std::string text = text_of(children[first], false);
  size_t n = 1;
  while (start && first + n < children.size() &&
         number_of(children[first + n].name) == *start + static_cast<int64_t>(n) &&
         text_of(children[first + n], false) == text)
    ++n;
  return n;
}

// `Linear(in_features=8, out_features=2, bias=True)  # 18 parameters`, over as many lines as its
// children need; of a repeated one the count is that of each.
std::string text_of(const TreeNode& node, bool repeated) {
  std::string count;
  if (node.count > 0)
    count = concat("  # ", grouped(node.count), ' ', noun_after(node.count, "parameter"),
                   repeated ? " each" : "");
  if (node.children.empty()) return concat(node.type, '(', node.extra, ')', count);
  std::string text = concat(node.type, '(', count, '\n');
  if (!node.extra.empty()) text += concat("  ", node.extra, '\n');
  for (size_t i = 0; i < node.children.size();) {
    const TreeNode& child = node.children[i];
    const size_t n = run_length(node.children, i);
    text += concat("  (", child.name, n > 1 ? "-" + node.children[i + n - 1].name : "",
                   "): ", n > 1 ? concat(n, " x ") : "");
    for (char c : text_of(child, n > 1))
      text += c == '\n' ? std::string("\n  ") : std::string(1, c);
    text += '\n';
    i += n;
  }
  return text + ')';
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Module& root) {
  const Tree tree(detail::visitable(root));
  return os << text_of(tree.root(), false);
}

}  // namespace tessera::nn

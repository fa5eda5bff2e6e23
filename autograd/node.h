// SPDX-License-Identifier: Apache-2.0
// The graph: a node per recorded op, with edges to the nodes that made its inputs. A node holds
// only the tensors that its op saves. Sequence numbers increase with recording and order the graph:
// backward runs the latest ready node first.
#pragma once

#include "tessera/core/op_row.h"

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

class Node;

/// The destination of an input's gradient: output `index` of `node`. Null if the input needs none.
struct Edge {
  Ref<Node> node;
  int32_t index = 0;
};

using GradHook =
    std::function<Tensor(const Tensor&)>;  ///< may return a replacement, or undefined to keep
using NodePostHook = std::function<void(const Grads& inputs, const Grads& outputs)>;

/// The nodes recorded in one scope (a call of a module), regions nested in it included. A backward
/// pass calls `before` ahead of the first of them that it runs, and `after` when the last of them
/// that it reaches has run and the leaves have their gradients.
struct TESSERA_API Region : RefCounted<Region> {
  Region(std::function<void()> b, std::function<void()> a, Ref<Region> o)
      : before(std::move(b)), after(std::move(a)), outer(std::move(o)) {}
  std::function<void()> before, after;
  Ref<Region> outer;

 private:
  friend class BackwardPass;
  const void* pass_ = nullptr;  // as of Node
  size_t slot_ = 0;
};

class TESSERA_API Node : public GradNode {
 public:
  /// Gradients of the inputs in `needs`, from those of the outputs. May be called several times
  /// with different Needs.
  virtual Grads apply(const Grads& dy, const Needs& needs) = 0;
  /// Releases saved tensors; a second backward is then an error.
  virtual void release() {}
  [[nodiscard]] virtual const TensorMeta* input_meta(size_t) const { return nullptr; }

  SmallVector<Edge, 2> edges;
  uint64_t sequence = 0;  // 0: leaves
  int32_t outputs = 1;
  uint32_t context = 0;  // number of the Context that recorded it; 0: leaves
  bool always = false;   // runs in each pass that reaches it, also if no output has a gradient
  Ref<Region> region;    // the innermost that it was recorded in

  struct Hooks {
    std::vector<std::pair<int32_t, GradHook>> gradient;  // before the node runs, by output
    std::vector<NodePostHook> post;                      // after it ran
  };
  std::unique_ptr<Hooks> hooks;
  std::string module_path;  // recorded in anomaly mode, and by profilers

 private:
  friend class BackwardPass;
  const void* pass_ = nullptr;  // the pass that is walking this node, and its slot there
  size_t slot_ = 0;
};

/// Collects a leaf's gradient.
class AccumulateNode final : public Node {
 public:
  explicit AccumulateNode(Ref<TensorImpl> leaf);
  ~AccumulateNode() override;
  [[nodiscard]] std::string_view name() const override { return "accumulate"; }
  Grads apply(const Grads& dy, const Needs& needs) override;
  [[nodiscard]] const Tensor& leaf() const { return leaf_; }

 private:
  Tensor leaf_;
};

using PackHook = std::function<std::any(const Tensor&)>;
using UnpackHook = std::function<Tensor(const std::any&)>;

/// A tensor saved for backward: its handle and version, or the result of a pack hook.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(Tensor t, const PackHook* pack, const UnpackHook* unpack);
  /// The tensor; throws InPlaceError if it was written since, naming `op`.
  [[nodiscard]] Tensor unpack(std::string_view op) const;
  [[nodiscard]] bool defined() const { return tensor_.defined() || packed_; }

 private:
  struct Packed {
    std::any value;
    UnpackHook unpack;
    Edge edge;  // connects the unpacked tensor to the graph, for gradients of gradients
  };
  Tensor tensor_;
  uint32_t version_ = 0;
  std::shared_ptr<Packed> packed_;
};

/// The edge for the gradient of `t`; null if it needs none.
[[nodiscard]] TESSERA_API Edge edge_of(const Tensor& t);
/// Makes `out` output `index` of `node`.
void attach(const Tensor& out, const Ref<Node>& node, int32_t index);

}  // namespace tessera

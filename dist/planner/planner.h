// SPDX-License-Identifier: Apache-2.0
// Planner: runs ops on distributed tensors. A call becomes a plan (the local op, redistributions of
// the inputs, layouts of the outputs), cached by op, attributes and the inputs' layouts, shapes and
// dtypes; a cached plan costs a lookup. A plan that communicates is a LayoutError that names the
// fix, except in an AutoRedistribute scope, and in backward, where it is traced as `grad`.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/hooks.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/layout.h"
#include "tessera/dist/planner/cost.h"

#include <memory>
#include <string>

namespace tessera {

/// During its lifetime, ops whose operands have layouts that do not fit redistribute them by the
/// cheapest plan instead of throwing; the collectives are traced as `forward`.
class TESSERA_API AutoRedistribute {
 public:
  AutoRedistribute();
  ~AutoRedistribute();
  AutoRedistribute(const AutoRedistribute&) = delete;
  AutoRedistribute& operator=(const AutoRedistribute&) = delete;

 private:
  Context& context_;
};

class TESSERA_API Planner final : public Distributor {
 public:
  Planner();
  ~Planner() override;
  void call(const OpRow& row, const void* op, Tensors in, TensorList& out) override;
  TensorList arrange(const OpRow& row, const void* op, Tensors in) override;
  void call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out) override;
  Tensor settle(const Tensor& gradient, const Tensor& leaf) override;
  Tensor whole(const Tensor& x) override;
  std::string layout_text(const Tensor& x) override;
  /// Runs an op without inputs; its outputs get `layout`, each rank computes its own shard.
  void create(const OpRow& row, const void* op, Layout layout, TensorList& out);

  /// What communication on this mesh is taken to cost: constants, unless set. Setting drops all
  /// cached plans. All ranks of the mesh set the same, as `set_costs(mesh, measure_costs(mesh))`
  /// does.
  [[nodiscard]] MeshCosts costs(Mesh mesh) const;
  void set_costs(Mesh mesh, const MeshCosts& costs);

  struct Counts {
    uint64_t hits = 0, misses = 0;
    size_t plans = 0;  ///< cached; bounded
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The output of an op that has no inputs, with layout `layout`: `call_on(op::Fill{...}, layout)`.
template <class Op> Tensor call_on(const Op& op, Layout layout) {
  auto* planner = dynamic_cast<Planner*>(Context::current().distributor);
  if (!planner) fail<UsageError>(Op::name, "this Context has no planner: it belongs to no World");
  TensorList out;
  planner->create(RowOf<Op>::row, &op, layout, out);
  return std::move(out[0]);
}

}  // namespace tessera

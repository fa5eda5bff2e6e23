// SPDX-License-Identifier: Apache-2.0
// The row of an op table: an op's room behind function pointers. A module (or a user's program)
// lists its rooms once:
//   #include "tessera/core/op_row.h"
//   TESSERA_ROOM(my::op::SquaredRelu)            // in one .cpp; defines RowOf<SquaredRelu>::row
// An explicit list, because registration by static initialisers drops ops from static archives.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/op_key.h"

#include <memory>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace tessera {

enum class OpKind : uint8_t { compute, view, in_place };

/// A sample with its op erased; `op` keeps it alive.
struct SampleRow {
  std::shared_ptr<const void> op;
  std::vector<Arg> in;
  std::string throws;
  bool bench = false;
};

struct OpRow {
  std::string_view name;
  OpKind kind = OpKind::compute;
  Saves saves;
  DTypeSet dtypes;
  std::string_view not_differentiable, not_shardable,
      not_on_cuda;  // the opt-out's sentence, else empty
  size_t op_size = 0, op_align = 0;
  void (*copy)(const void* op, void* to) = nullptr;
  void (*destroy)(void* op) = nullptr;
  bool (*writes)(size_t i, size_t n) = nullptr;
  MetaList (*meta)(const void* op, Metas in) = nullptr;
  Geometry (*view)(const void* op, const Geometry& in) = nullptr;
  bool (*can_view)(const void* op,
                   const Geometry& in) = nullptr;  // null: any strides can be viewed
  ShardingRule (*sharding)(const void* op, Metas in) = nullptr;
  bool localizes = false;  // whether pieces run another op than the whole
  std::shared_ptr<const void> (*local)(const void* op, const Piece&) = nullptr;
  void (*cpu)(const void* op, Tensors in, Outputs y) = nullptr;
  void (*cuda)(const void* op, Tensors in, Outputs y,
               Stream) = nullptr;  // null: ask the CUDA library
  Grads (*vjp)(const void* op, const Saved&, const Grads& dy, Needs) = nullptr;
  Cost (*cost)(const void* op, Metas in, Metas out) = nullptr;
  std::vector<std::string> (*attributes)(const void* op) = nullptr;
  /// Keys of the plan cache: what decides a plan is the same in two ops of this row.
  bool (*same)(const void* a, const void* b) = nullptr;
  uint64_t (*key_hash)(const void* op) = nullptr;
  std::vector<SampleRow> (*samples)() = nullptr;
};

class Context;

namespace detail {
/// Runs the kernel of `device` on plain tensors, without checks or records: for `call` and
/// distributors.
TESSERA_API void run_kernel(Context& context, const OpRow& row, const void* op, Tensors in,
                            Outputs out, Device device);
/// Anomaly mode: NumericError if the op made NaN from plain inputs without it.
TESSERA_API void find_nan(const Context& context, const OpRow& row, Tensors in, Tensors out);
template <class Op> const Op& as(const void* op) { return *static_cast<const Op*>(op); }

template <class Op> auto plan_key(const Op& op) {
  if constexpr (op_has::plan_key<Op>) return op.plan_key();
  else if constexpr (op_has::attributes<Op>) return op.attributes();
  else return std::tuple<>();
}

template <class Op, bool kCudaInLibrary> constexpr OpRow make_row() {
  static_assert(complete_op<Op>());
  OpRow row;
  row.name = Op::name;
  row.op_size = sizeof(Op);
  row.op_align = alignof(Op);
  row.copy = [](const void* op, void* to) { new (to) Op(as<Op>(op)); };
  row.destroy = [](void* op) { static_cast<Op*>(op)->~Op(); };
  if constexpr (requires { Op::saves; }) row.saves = Op::saves;
  if constexpr (ViewOp<Op>) {
    row.kind = OpKind::view;
    row.dtypes = kAllDTypes;
    row.view = [](const void* op, const Geometry& g) { return as<Op>(op).view(g); };
    if constexpr (op_has::can_view<Op>)
      row.can_view = [](const void* op, const Geometry& g) { return as<Op>(op).can_view(g); };
    row.meta = [](const void* op, Metas in) {
      Geometry g{in[0].shape, contiguous_strides(in[0].shape), 0};
      return MetaList{{as<Op>(op).view(g).shape, in[0].dtype, in[0].device}};
    };
  } else {
    row.dtypes = Op::dtypes;
    row.meta = [](const void* op, Metas in) { return as<Op>(op).meta(in); };
    row.cpu = [](const void* op, Tensors in, Outputs y) { as<Op>(op).cpu(in, y); };
    if constexpr (op_has::no_cuda<Op>) {
      row.not_on_cuda = Op::cuda.why;
    } else if constexpr (!kCudaInLibrary) {
      row.cuda = [](const void* op, Tensors in, Outputs y, Stream s) { as<Op>(op).cuda(in, y, s); };
    }
  }
  if constexpr (InPlaceOp<Op>) {
    row.kind = OpKind::in_place;
    row.writes = &Op::writes;
  }
  if constexpr (op_has::no_sharding<Op>) row.not_shardable = Op::sharding.why;
  else row.sharding = [](const void* op, Metas in) { return as<Op>(op).sharding(in); };
  if constexpr (op_has::no_vjp<Op>) row.not_differentiable = Op::vjp.why;
  else
    row.vjp = [](const void* op, const Saved& s, const Grads& dy, Needs n) {
      return as<Op>(op).vjp(s, dy, n);
    };
  row.localizes = op_has::local<Op>;
  row.local = [](const void* op, const Piece& p) -> std::shared_ptr<const void> {
    if constexpr (op_has::local<Op>) return std::make_shared<Op>(as<Op>(op).local(p));
    else return std::make_shared<Op>(as<Op>(op));
  };
  row.cost = [](const void* op, Metas in, Metas out) {
    if constexpr (op_has::cost<Op>) return as<Op>(op).cost(in, out);
    else return bytes_moved(in, out);
  };
  row.attributes = [](const void* op) {
    std::vector<std::string> texts;
    if constexpr (op_has::attributes<Op>) {
      std::apply([&](const auto&... a) { (texts.push_back(concat(a)), ...); },
                 as<Op>(op).attributes());
    }
    return texts;
  };
  row.same = [](const void* a, const void* b) {
    return same_attributes(plan_key(as<Op>(a)), plan_key(as<Op>(b)));
  };
  row.key_hash = [](const void* op) { return hash_attributes(plan_key(as<Op>(op))); };
  row.samples = [] {
    std::vector<SampleRow> rows;
    for (auto& s : Op::samples())
      rows.push_back({std::make_shared<Op>(s.op), s.in, s.throws, s.bench});
    return rows;
  };
  return row;
}
}  // namespace detail

/// Defines the row of one op, in the one .cpp that lists it.
#define TESSERA_ROOM(Op) \
  template <> const tessera::OpRow tessera::RowOf<Op>::row = tessera::detail::make_row<Op, false>();

// A table of the project: naming an op in its list is enough to define the row, and CUDA kernels
// are left to the CUDA library, which links every Op::cuda or does not link. Elsewhere a row that
// no list names must stay undefined.
#ifdef TESSERA_OP_TABLE
template <class Op> constinit const OpRow RowOf<Op>::row = detail::make_row<Op, true>();
#endif

/// Rows of a whole list, for tables: `rows_of(KernelRooms{})`.
template <class... Ops> std::vector<const OpRow*> rows_of(OpList<Ops...>) {
  return {&RowOf<Ops>::row...};
}

/// All rooms of kernels/. Defined in kernels/op_table.cpp.
TESSERA_API std::span<const OpRow* const> kernel_rows();

}  // namespace tessera

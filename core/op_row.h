// SPDX-License-Identifier: Apache-2.0
// The row of an op table: an op's room behind function pointers. A module (or a user's program)
// lists its rooms once:
//   #include "tessera/core/op_row.h"
//   TESSERA_ROOM(my::op::SquaredRelu)            // in one .cpp; defines RowOf<SquaredRelu>::row
// The list is explicit, because a linker drops static initialisers from static archives.
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
  std::vector<std::vector<double>> known;
};

struct OpRow {
  std::string_view name;
  OpKind kind = OpKind::compute;
  Saves saves;
  DTypeSet dtypes;
  bool expensive = false;
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
  std::shared_ptr<const void> (*local)(const void* op,
                                       const Piece&) = nullptr;  // null: pieces run the op itself
  void (*cpu)(const void* op, Tensors in, Outputs y) = nullptr;
  void (*cuda)(const void* op, Tensors in, Outputs y,
               Stream) = nullptr;  // null: ask the CUDA library
  Grads (*vjp)(const void* op, const Saved&, const Grads& dy, Needs) = nullptr;
  Cost (*cost)(const void* op, Metas in, Metas out) = nullptr;
  int64_t (*workspace)(const void* op, Metas in, Device device) = nullptr;  // null: next to nothing
  std::vector<std::string> (*attributes)(const void* op) = nullptr;
  /// Key of the plan cache: whether two ops of this row always have the same plan.
  bool (*same)(const void* a, const void* b) = nullptr;
  uint64_t (*key_hash)(const void* op) = nullptr;
  std::vector<SampleRow> (*samples)() = nullptr;
};

class Context;

namespace detail {
/// Runs the kernel of `device` on plain tensors, unchecked and unrecorded: for `call` and
/// distributors.
TESSERA_API void run_kernel(Context& context, const OpRow& row, const void* op, Tensors in,
                            Outputs out, Device device);
/// Anomaly mode: NumericError if the op made NaN from plain inputs without it.
TESSERA_API void find_nan(const Context& context, const OpRow& row, Tensors in, Tensors out);
/// A copy of an op, owned by its users.
TESSERA_API std::shared_ptr<const void> copy_of(const OpRow& row, const void* op);
/// The op that a piece runs.
TESSERA_API std::shared_ptr<const void> local_op(const OpRow& row, const void* op, const Piece&);
TESSERA_API void add_sample(std::vector<SampleRow>& rows, const OpRow& row, const void* op,
                            const std::vector<Arg>& in, const std::string& throws, bool bench,
                            const std::vector<std::vector<double>>& known);
TESSERA_API void add_text(std::vector<std::string>& texts, std::string text);
/// Shared by rows of ops without attributes or their own cost.
TESSERA_API std::vector<std::string> no_attributes(const void* op);
TESSERA_API bool always_same(const void* a, const void* b);
TESSERA_API uint64_t hash_of_nothing(const void* op);
TESSERA_API Cost cost_of_bytes(const void* op, Metas in, Metas out);

template <class Op> auto plan_key(const Op& op) {
  if constexpr (op_has::plan_key<Op>) return op.plan_key();
  else return op.attributes();
}

/// The functions of a row. Every op gets its own copy of them, so they are small: the rest is
/// compiled once, in op_row.cpp.
template <class Op> struct RowFunctions {
  static const Op& as(const void* op) { return *static_cast<const Op*>(op); }
  static void copy(const void* op, void* to) { new (to) Op(as(op)); }
  static void destroy(void* op) { static_cast<Op*>(op)->~Op(); }
  static Geometry view(const void* op, const Geometry& g) { return as(op).view(g); }
  static bool can_view(const void* op, const Geometry& g) { return as(op).can_view(g); }
  static MetaList meta(const void* op, Metas in) {
    if constexpr (ViewOp<Op>) {
      Geometry g{in[0].shape, contiguous_strides(in[0].shape), 0};
      return MetaList{{as(op).view(g).shape, in[0].dtype, in[0].device}};
    } else {
      return as(op).meta(in);
    }
  }
  static ShardingRule sharding(const void* op, Metas in) { return as(op).sharding(in); }
  static std::shared_ptr<const void> local(const void* op, const Piece& p) {
    const Op piece = as(op).local(p);
    return copy_of(RowOf<Op>::row, &piece);
  }
  static void cpu(const void* op, Tensors in, Outputs y) { as(op).cpu(in, y); }
  static void cuda(const void* op, Tensors in, Outputs y, Stream s) { as(op).cuda(in, y, s); }
  static Grads vjp(const void* op, const Saved& s, const Grads& dy, Needs n) {
    return as(op).vjp(s, dy, n);
  }
  static Cost cost(const void* op, Metas in, Metas out) { return as(op).cost(in, out); }
  static int64_t workspace(const void* op, Metas in, Device device) {
    return as(op).workspace(in, device);
  }
  static std::vector<std::string> attributes(const void* op) {
    std::vector<std::string> texts;
    std::apply([&](const auto&... a) { (add_text(texts, concat(a)), ...); }, as(op).attributes());
    return texts;
  }
  static bool same(const void* a, const void* b) {
    return same_attributes(plan_key(as(a)), plan_key(as(b)));
  }
  static uint64_t key_hash(const void* op) { return hash_attributes(plan_key(as(op))); }
  static std::vector<SampleRow> samples() {
    std::vector<SampleRow> rows;
    for (const auto& s : Op::samples())
      add_sample(rows, RowOf<Op>::row, &s.op, s.in, s.throws, s.bench, s.known);
    return rows;
  }
};

template <class Op, bool kCudaInLibrary> constexpr OpRow make_row() {
  static_assert(complete_op<Op>());
  using Of = RowFunctions<Op>;
  OpRow row;
  row.name = Op::name;
  row.op_size = sizeof(Op);
  row.op_align = alignof(Op);
  row.copy = &Of::copy;
  row.destroy = &Of::destroy;
  row.meta = &Of::meta;
  if constexpr (requires { Op::saves; }) row.saves = Op::saves;
  if constexpr (ViewOp<Op>) {
    row.kind = OpKind::view;
    row.dtypes = kAllDTypes;
    row.view = &Of::view;
    if constexpr (op_has::can_view<Op>) row.can_view = &Of::can_view;
  } else {
    row.dtypes = Op::dtypes;
    row.cpu = &Of::cpu;
    if constexpr (op_has::no_cuda<Op>) row.not_on_cuda = Op::cuda.why;
    else if constexpr (!kCudaInLibrary) row.cuda = &Of::cuda;
  }
  if constexpr (InPlaceOp<Op>) {
    row.kind = OpKind::in_place;
    row.writes = &Op::writes;
  }
  if constexpr (op_has::no_sharding<Op>) row.not_shardable = Op::sharding.why;
  else row.sharding = &Of::sharding;
  if constexpr (op_has::no_vjp<Op>) row.not_differentiable = Op::vjp.why;
  else row.vjp = &Of::vjp;
  if constexpr (op_has::local<Op>) row.local = &Of::local;
  if constexpr (op_has::cost<Op>) row.cost = &Of::cost;
  else row.cost = &cost_of_bytes;
  if constexpr (op_has::workspace<Op>) row.workspace = &Of::workspace;
  if constexpr (requires { Op::expensive; }) row.expensive = Op::expensive;
  if constexpr (op_has::attributes<Op>) row.attributes = &Of::attributes;
  else row.attributes = &no_attributes;
  if constexpr (op_has::plan_key<Op> || op_has::attributes<Op>) {
    row.same = &Of::same;
    row.key_hash = &Of::key_hash;
  } else {
    row.same = &always_same;
    row.key_hash = &hash_of_nothing;
  }
  row.samples = &Of::samples;
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

// SPDX-License-Identifier: Apache-2.0
// Defines what an op is: a value whose members form its room: attributes, meta, sharding, cpu,
// cuda, vjp, samples. `complete_op` is the checklist: a missing member is a one-line compile error,
// an opt-out is a sentence. `call(op, in)` runs: meta check -> distributed plan if an input is
// distributed -> device kernel -> autograd record.
//
// A compute room has
//   static constexpr std::string_view name; static constexpr DTypeSet dtypes;
//   static constexpr Saves saves; static constexpr int outputs (default 1);
//   MetaList     meta(Metas in) const;
//   ShardingRule sharding(Metas in) const;
//   void         cpu (Tensors in, Outputs y) const;
//   void         cuda(Tensors in, Outputs y, Stream) const;
//   Grads        vjp (const Saved&, const Grads& dy, Needs) const;
//   static std::vector<Sample<Op>> samples();
//   attributes() if there are data members; optional: local(const Piece&), cost(Metas in, Metas
//   out), plan_key(): the attributes that meta and sharding read (default: all);
//   workspace(Metas in, Device): bytes that the kernel takes at once besides its outputs;
//   static constexpr bool expensive = true: its work is large relative to its outputs' bytes, so
//   that selective activation checkpointing stores them.
// A View room has `Geometry view(const Geometry&)` instead of meta, cpu, cuda and dtypes. An
// InPlace room also has `static constexpr bool writes(size_t i, size_t n)`; its outputs are the
// operands that it writes.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/rule.h"
#include "tessera/core/sample.h"

#include <array>
#include <concepts>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace tessera {

struct OpRow;

/// Opt-outs: a sentence that the laws list.
struct NotDifferentiable {
  std::string_view why;
};
struct NotShardable {
  std::string_view why;
};
struct NotOnCuda {
  std::string_view why;
};

/// The ops of a room or of a module.
template <class... Ops> struct OpList {};
template <class... Lists> struct ConcatOpLists;
template <class... A> struct ConcatOpLists<OpList<A...>> { using type = OpList<A...>; };
template <class... A, class... B, class... Rest>
struct ConcatOpLists<OpList<A...>, OpList<B...>, Rest...>
    : ConcatOpLists<OpList<A..., B...>, Rest...> {};
template <class... Lists> using ConcatOps = typename ConcatOpLists<Lists...>::type;

template <class Op>
concept ViewOp = requires(const Op& op, const Geometry& g) {
  { op.view(g) } -> std::same_as<Geometry>;
};
template <class Op>
concept InPlaceOp = requires(size_t i) {
  { Op::writes(i, i) } -> std::same_as<bool>;
};

namespace op_has {
template <class Op>
concept name = requires {
  { Op::name } -> std::convertible_to<std::string_view>;
};
template <class Op>
concept dtypes = requires {
  { Op::dtypes } -> std::convertible_to<DTypeSet>;
};
template <class Op>
concept saves = requires {
  { Op::saves } -> std::convertible_to<Saves>;
};
template <class Op>
concept meta = requires(const Op& op, Metas in) {
  { op.meta(in) } -> std::same_as<MetaList>;
};
template <class Op>
concept no_sharding = requires {
  requires std::same_as<std::remove_cvref_t<decltype(Op::sharding)>, NotShardable>;
};
template <class Op>
concept sharding = no_sharding<Op> || requires(const Op& op, Metas in) {
  { op.sharding(in) } -> std::same_as<ShardingRule>;
};
template <class Op>
concept cpu = requires(const Op& op, Tensors in, Outputs y) {
  op.cpu(in, y);
};
template <class Op>
concept no_cuda = requires {
  requires std::same_as<std::remove_cvref_t<decltype(Op::cuda)>, NotOnCuda>;
};
template <class Op>
concept cuda = no_cuda<Op> || requires(const Op& op, Tensors in, Outputs y, Stream s) {
  op.cuda(in, y, s);
};
template <class Op>
concept no_vjp = requires {
  requires std::same_as<std::remove_cvref_t<decltype(Op::vjp)>, NotDifferentiable>;
};
template <class Op>
concept vjp = no_vjp<Op> || requires(const Op& op, const Saved& s, const Grads& dy, Needs n) {
  { op.vjp(s, dy, n) } -> std::same_as<Grads>;
};
template <class Op>
concept samples = requires {
  { Op::samples() } -> std::same_as<std::vector<Sample<Op>>>;
};
template <class Op>
concept local = requires(const Op& op, const Piece& p) {
  { op.local(p) } -> std::same_as<Op>;
};
template <class Op>
concept attributes = requires(const Op& op) {
  op.attributes();
};
template <class Op>
concept can_view = requires(const Op& op, const Geometry& g) {
  { op.can_view(g) } -> std::same_as<bool>;
};
template <class Op>
concept plan_key = requires(const Op& op) {
  op.plan_key();
};
template <class Op>
concept workspace = requires(const Op& op, Metas in, Device device) {
  { op.workspace(in, device) } -> std::same_as<int64_t>;
};
template <class Op>
concept cost = requires(const Op& op, Metas m) {
  { op.cost(m, m) } -> std::same_as<Cost>;
};
}  // namespace op_has

/// The checklist. Each line that fails is one readable compile error.
template <class Op> consteval bool complete_op() {
  static_assert(op_has::name<Op>, "room has no `static constexpr std::string_view name`");
  static_assert(op_has::sharding<Op>,
                "room has no `ShardingRule sharding(Metas) const`, nor `static constexpr "
                "NotShardable sharding{\"why\"}`");
  static_assert(op_has::vjp<Op>,
                "room has no `Grads vjp(const Saved&, const Grads&, Needs) const`, nor `static "
                "constexpr NotDifferentiable vjp{\"why\"}`");
  static_assert(op_has::samples<Op>,
                "room has no `static std::vector<Sample<Op>> samples()`: the laws cannot see it");
  static_assert(op_has::attributes<Op> || std::is_empty_v<Op>,
                "room has data members but no `auto attributes() const { return std::tie(...); }`");
  static_assert(!(op_has::plan_key<Op> && op_has::local<Op>),
                "room has both plan_key and local: a cached plan would run a local form with the "
                "attributes of an earlier call; drop plan_key");
  if constexpr (!ViewOp<Op>) {
    static_assert(op_has::dtypes<Op>, "room has no `static constexpr DTypeSet dtypes`");
    static_assert(
        op_has::saves<Op> || op_has::no_vjp<Op>,
        "room has no `static constexpr Saves saves`: what backward keeps must be visible");
    static_assert(op_has::meta<Op>, "room has no `MetaList meta(Metas) const`");
    static_assert(op_has::cpu<Op>, "room has no `void cpu(Tensors, Outputs) const`");
    static_assert(op_has::cuda<Op>,
                  "room has no `void cuda(Tensors, Outputs, Stream) const`, nor `static constexpr "
                  "NotOnCuda cuda{\"why\"}`");
  }
  return true;
}

/// The op's row in the table: declared for every op, defined where a list of rooms includes
/// op_row.h. A room that no list names is an undefined reference to RowOf<Op>::row. (A static
/// member, because compilers differ on whether a list's use instantiates a variable template that
/// was declared extern.)
template <class Op> struct RowOf { TESSERA_API static const OpRow row; };

namespace detail {
/// The one compiled function behind every call; appends the outputs.
TESSERA_API void call(const OpRow& row, const void* op, Tensors in, TensorList& out);
TESSERA_API void call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out);

template <class Op>
constexpr int outputs_of = [] {
  if constexpr (requires { Op::outputs; }) return Op::outputs;
  else return InPlaceOp<Op> ? 0 : 1;
}();
}  // namespace detail

/// Runs `op`. Returns its output, a std::array of outputs if it has several, or nothing if it works
/// in place. Throws the error of the room's meta check before any work is done.
template <class Op> auto call(const Op& op, Tensors in) {
  TensorList out;
  detail::call(RowOf<Op>::row, &op, in, out);
  constexpr int kOutputs = detail::outputs_of<Op>;
  if constexpr (kOutputs == 1) {
    return std::move(out[0]);
  } else if constexpr (kOutputs > 1) {
    std::array<Tensor, kOutputs> results;
    for (size_t i = 0; i < kOutputs; ++i) results[i] = std::move(out[i]);
    return results;
  }
}
template <class Op> auto call(const Op& op, std::initializer_list<Tensor> in) {
  return call(op, Tensors(in.begin(), in.size()));
}
/// Runs an op that has no inputs. If `like` is distributed, the output gets its layout (replicated
/// where `like` is partial), and each rank computes its own shard.
template <class Op> Tensor call_like(const Op& op, const Tensor& like) {
  TensorList out;
  detail::call_like(RowOf<Op>::row, &op, like, out);
  return std::move(out[0]);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// A complete room, each part of which can be left out by a WITHOUT_ macro, or spoiled by a WITH_
// macro; the compile tests see what is said then.
#include "tessera/core/op_row.h"

namespace tessera::op {

struct Twice {
  static constexpr std::string_view name = "twice";
  static constexpr DTypeSet dtypes = kFloats;
#ifndef WITHOUT_SAVES
  static constexpr Saves saves = Saves::none();
#endif
#ifndef WITHOUT_META
  MetaList meta(Metas in) const { return {in[0]}; }
#endif
#ifndef WITHOUT_SHARDING
  ShardingRule sharding(Metas in) const { return pointwise_rule(in, in[0].shape).linear({0}); }
#endif
#ifndef WITHOUT_CPU
  void cpu(Tensors, Outputs) const {}
#endif
#ifndef WITHOUT_CUDA
  void cuda(Tensors, Outputs, Stream) const;
#endif
#ifndef WITHOUT_VJP
  Grads vjp(const Saved&, const Grads& dy, Needs) const { return {call(Twice{}, {dy[0]})}; }
#endif
#ifndef WITHOUT_SAMPLES
  static std::vector<Sample<Twice>> samples();
#endif
#ifdef WITH_PLAN_KEY_AND_LOCAL
  std::tuple<> plan_key() const { return {}; }
  Twice local(const Piece&) const { return {}; }
#endif
};

#ifndef WITHOUT_SAMPLES
std::vector<Sample<Twice>> Twice::samples() { return {Sample<Twice>{Twice{}, {arg({2, 3})}}}; }
#endif
#if !defined(WITHOUT_CUDA) && !defined(WITHOUT_CUDA_BODY)
void Twice::cuda(Tensors, Outputs, Stream) const {}
#endif

}  // namespace tessera::op

TESSERA_ROOM(tessera::op::Twice)

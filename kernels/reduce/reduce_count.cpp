// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/reduce/reduce_count.h"

#include "tessera/kernels/reduce/reduce_family_impl.h"

namespace tessera::op {

template struct Reduce<CountNonzero>;

MetaList CountNonzero::meta(Metas in) const {
  check_reduced(name, dtypes, in[0], dims, true);
  return {{kept_shape(in[0].shape, dims, keepdim), DType::i64, in[0].device}};
}

ShardingRule CountNonzero::sharding(Metas in) const {
  return reduce_rule(in[0].shape, dims, keepdim, 1, false);
}

void CountNonzero::cpu(Tensors in, Outputs y) const {
  int64_t* to = y[0].data<int64_t>();
  const auto store = [to](int64_t o, int64_t count) { to[o] = count; };
  const bool sign = is_floating(in[0].dtype());  // whose bit a zero may have
  switch (item_size(in[0].dtype())) {
    case 1: return reduce_elements<BitsSet<0xff>, uint8_t>(in[0], dims, nullptr, store);
    case 2: return reduce_elements<BitsSet<0x7fff>, uint16_t>(in[0], dims, nullptr, store);
    case 4:
      if (sign) reduce_elements<BitsSet<0x7fffffff>, uint32_t>(in[0], dims, nullptr, store);
      else reduce_elements<BitsSet<0xffffffff>, uint32_t>(in[0], dims, nullptr, store);
      return;
    default:
      if (sign) reduce_elements<BitsSet<INT64_MAX>, int64_t>(in[0], dims, nullptr, store);
      else reduce_elements<BitsSet<-1>, int64_t>(in[0], dims, nullptr, store);
  }
}

}  // namespace tessera::op

namespace tessera {

Tensor count_nonzero(const Tensor& x, Dims dims) {
  return call(op::CountNonzero{{op::mask_of(dims, x.rank(), "count_nonzero"), false}}, {x});
}

}  // namespace tessera

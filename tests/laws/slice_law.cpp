// SPDX-License-Identifier: Apache-2.0
// Slice law. In ops that treat every element alike (pointwise, optimizers), an element's bits do
// not depend on where it lies: in a vector body or its tail, at an aligned address or not, in one
// task or another. Uneven shards are then bitwise equal to the whole.
#include "tessera/tests/laws/pieces.h"

#include <algorithm>

namespace tessera::laws {
namespace {

// Every dim free, unscaled, and aligned at the right with the outputs' dims, which are all alike:
// no element meets another. Size-1 dims and scalars are broadcast.
bool treats_elements_alike(const Call& c) {
  if (c.in.empty() || c.out.empty() || rule_problem(c)) return false;
  if (std::ranges::any_of(c.rule.factors(), &Factor::replicate)) return false;
  const auto out = c.rule.dims(c.rule.inputs());
  bool some_input_is_whole = false;
  for (int o = 0; o < c.rule.operands(); ++o) {
    const auto dims = c.rule.dims(o);
    if (dims.size() > out.size() || (o >= c.rule.inputs() && dims.size() != out.size()))
      return false;
    bool whole = dims.size() == out.size();
    for (size_t d = 0; d < dims.size(); ++d) {
      const int16_t expected = out[out.size() - dims.size() + d].factor;
      const auto i = static_cast<size_t>(o);
      if (dims[d].factor < 0 && o < c.rule.inputs() && c.in[i].shape()[static_cast<int>(d)] != 1)
        return false;
      if (dims[d].scale != 1 || expected < 0 || (dims[d].factor >= 0 && dims[d].factor != expected))
        return false;
      whole = whole && dims[d].factor == expected;
    }
    some_input_is_whole |= whole && o < c.rule.inputs();
  }
  return some_input_is_whole && !out.empty();
}

Tensor slice(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined() || x.rank() == 0) return x;
  return alias(x, {end - begin}, x.strides(), x.offset() + begin);
}

void judge(const Subject& s, const SampleRow& sample, DType t, int64_t n,
           std::span<const std::pair<int64_t, int64_t>> ranges, Report& report) {
  Random random(concat(s.row->name, " slices ", t));
  SampleRow flat = sample;
  for (Arg& a : flat.in) {
    if (a.shape.rank() > 0) a.shape = {n};
  }
  const TensorVector in = inputs_of(flat, t, random);
  TensorVector whole;
  try {
    whole = run(s, sample.op.get(), in);
  } catch (const Error&) {
    return;  // an attribute that holds a size ties the op to its sample's shape
  }
  for (const auto& [begin, end] : ranges) {
    TensorVector part;
    for (const Tensor& x : in) part.push_back(slice(x, begin, end));
    const TensorVector got = run(s, sample.op.get(), part);
    for (size_t o = 0; o < got.size(); ++o) {
      report.check(flat, difference(got[o], slice(whole[o], begin, end), 0), "elements ", begin,
                   " to ", end, " of ", n, " in ", t, ", output ", o);
    }
  }
}

}  // namespace

Outcome slice_law(const Subject& s) {
  Report report(s);
  if (!s.sharding || s.row->kind == OpKind::view) return report.take();
  std::vector<std::pair<int64_t, int64_t>> small;
  for (int64_t begin = 0; begin <= 17; ++begin) {
    for (const int64_t end : {begin + 1, begin + 3, begin + 8, begin + 21, int64_t{67}})
      small.emplace_back(begin, end);
  }
  constexpr std::pair<int64_t, int64_t> kLarge[] = {{1, 40000}, {16383, 16386}, {12345, 33333}};
  for (const SampleRow& sample : good_samples(s)) {
    report.attempt(sample, "the slice check", [&] {
      Random random(concat(s.row->name, " slices"));
      if (std::ranges::any_of(sample.in,
                              [](const Arg& a) { return a.defined && a.shape.numel() == 0; }))
        return;
      const Call call(s, sample, inputs_of(sample, exact_dtype(*s.row), random));
      if (!treats_elements_alike(call)) return;
      for (const DType t : run_dtypes(*s.row, sample)) judge(s, sample, t, 67, small, report);
      judge(s, sample, s.row->dtypes.has(DType::f32) ? DType::f32 : exact_dtype(*s.row), 40000,
            kLarge, report);
    });
  }
  return report.take();
}

}  // namespace tessera::laws

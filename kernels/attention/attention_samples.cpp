// SPDX-License-Identifier: Apache-2.0
// Samples of attention and of its gradient: every mask alone and with others, and bad input.
#include "tessera/kernels/attention/attention.h"

#include <optional>

namespace tessera::op {
namespace {

template <class Op> std::vector<Op> variants() {
  return {{true, false, 0, 0, 0, 0, 0}, {false, false, 0.3, 0, 0, 0, 0},
          {true, true, 0, 2, 0, 0, 0},  {false, true, 0, 0, 0, 0, 0},
          {true, false, 0, 2, 3, 0, 0}, {true, true, 0, 1, 0, 4, 0},
          {true, true, 0.3, 2, 4, 5, 3}};
}
// Two batches' documents of seven tokens; the first goes on with a document of earlier keys.
Arg packed_positions(bool earlier) {
  const double first = earlier ? 2 : 0;
  return index_arg({2, 7}, 0, 1)
      .listed({first, first + 1, first + 2, 0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3});
}
Arg short_positions() { return index_arg({5, 5}, 0, 1).listed({0, 1, 2, 0, 1}); }
std::vector<Arg> qkv(bool inner, int64_t b, int64_t h, int64_t hkv, int64_t t, int64_t s,
                     int64_t d) {
  if (inner) return {arg({b, t, h, d}), arg({b, s, hkv, d}), arg({b, s, hkv, d})};
  return {arg({b, h, t, d}), arg({b, hkv, s, d}), arg({b, hkv, s, d})};
}

}  // namespace

std::vector<Sample<Attention>> Attention::samples() {
  std::vector<Sample<Attention>> all;
  const auto with = [](std::vector<Arg> in, Arg positions) {
    in.push_back(std::move(positions));
    return in;
  };
  for (const Attention& v : variants<Attention>()) {
    all.push_back({v, qkv(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 6, 8)});
    all.push_back({v, qkv(v.heads_inner, 5, 2, 2, 5, 5, 5)});
    if (v.key_start > 0) continue;
    all.push_back(
        {v, with(qkv(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 7, 8), packed_positions(false))});
    all.push_back({v, with(qkv(v.heads_inner, 5, 2, 2, 5, 5, 5), short_positions())});
  }
  all.push_back({Attention{}, qkv(false, 1, 2, 1, 131, 131, 24)});
  all.push_back({Attention{true, false, 0, 0, 70, 100, 0}, qkv(false, 1, 2, 1, 131, 131, 24)});
  // One query against a cache, also of a document that started earlier.
  all.push_back({Attention{true, true, 0, 698, 300, 0, 0}, qkv(true, 1, 6, 2, 1, 700, 24)});
  all.push_back({Attention{true, false, 0, 698},
                 with(qkv(false, 2, 6, 2, 1, 700, 24), index_arg({2, 1}, 0, 1).listed({650, 7}))});
  all.push_back(
      {Attention{true, false, 0, -2}, qkv(false, 1, 1, 1, 5, 5, 4)});  // the first rows see nothing
  const auto documents = [](int64_t length, int64_t each) {
    std::vector<double> p(static_cast<size_t>(length));
    for (size_t i = 0; i < p.size(); ++i)
      p[i] = static_cast<double>(static_cast<int64_t>(i) % each);
    return index_arg({1, length}, 0, 1).listed(std::move(p));
  };
  all.push_back(timed(Attention{true, true}, qkv(true, 8, 16, 16, 512, 512, 16)));
  all.push_back(timed(Attention{true, true}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(timed(Attention{true, false}, qkv(false, 1, 8, 8, 1024, 1024, 128)));
  all.push_back(timed(Attention{true, true, 0, 0, 128, 0, 0}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(timed(Attention{true, true, 0, 0, 0, 256, 0}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(timed(Attention{true, true},
                      with(qkv(true, 1, 16, 4, 1024, 1024, 64), documents(1024, 200))));
  all.push_back(timed(Attention{true, true, 0, 4095}, qkv(true, 1, 32, 8, 1, 4096, 128)));
  all.push_back(
      bad(Attention{}, {arg({2, 3, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError"));
  all.push_back(
      bad(Attention{}, {arg({2, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError"));
  all.push_back(bad(Attention{},
                    {arg({2, 2, 5, 8}).as(DType::f32), arg({2, 2, 5, 8}).as(DType::bf16),
                     arg({2, 2, 5, 8}).as(DType::f32)},
                    "DTypeError"));
  const auto plain = qkv(false, 2, 2, 2, 7, 7, 8);
  all.push_back(bad(Attention{false, false, 0, 0, 5, 0, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{false, false, 0, 0, 0, 5, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{true, false, 0, 0, -5, 0, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{true, false, 0, 0, 0, -5, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{true, false, 0, 0, 0, 0, -5}, plain, "ValueError"));
  all.push_back(bad(Attention{}, with(plain, index_arg({2, 6}, 0, 1)), "ShapeError"));
  all.push_back(
      bad(Attention{}, with(plain, packed_positions(false).as(DType::i32)), "DTypeError"));
  all.push_back(bad(Attention{}, with(plain, packed_positions(true)), "ValueError"));
  all.push_back(bad(Attention{}, with(plain, index_arg({2, 7}, -3, 0)), "ValueError"));
  all.push_back(
      bad(Attention{}, with(plain, index_arg({2, 7}, 0, 1).listed({0, 1, 1, 2})), "ValueError"));
  all.push_back(bad(Attention{false, false, 0, 2, 0, 0, 0}, with(plain, packed_positions(false)),
                    "ValueError"));
  all.push_back(bad(Attention{false}, with(qkv(false, 2, 2, 2, 7, 8, 8), packed_positions(false)),
                    "ShapeError"));
  return all;
}

std::vector<Sample<AttentionBackward>> AttentionBackward::samples() {
  std::vector<Sample<AttentionBackward>> all;
  // An lse from 4 on keeps the probabilities below one for such scores.
  const auto operands = [](bool inner, int64_t b, int64_t h, int64_t hkv, int64_t t, int64_t s,
                           int64_t d, bool dlse, std::optional<Arg> positions = {}) {
    auto in = qkv(inner, b, h, hkv, t, s, d);
    in.push_back(in[0]);
    Arg rows = arg({b, h, t}).uniform(4, 5).statistic();
    in.push_back(rows);
    in.push_back(in[0]);
    in.push_back(dlse ? arg({b, h, t}).statistic() : no_arg());
    if (positions) in.push_back(*positions);
    return in;
  };
  using Op = AttentionBackward;
  for (const Op& v : variants<Op>()) {
    all.push_back({v, operands(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 6, 8, v.causal)});
    all.push_back({v, operands(v.heads_inner, 5, 2, 2, 5, 5, 5, !v.causal)});
    if (v.key_start > 0) continue;
    all.push_back({v, operands(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 7, 8, !v.causal,
                               packed_positions(v.offset > 1))});
    all.push_back({v, operands(v.heads_inner, 5, 2, 2, 5, 5, 5, v.causal, short_positions())});
  }
  all.push_back({Op{}, operands(false, 1, 2, 1, 131, 131, 24, false)});
  all.push_back({Op{true, false, 0, 0, 70, 100, 0}, operands(false, 1, 2, 1, 131, 131, 24, false)});
  all.push_back(timed(Op{true, true}, operands(true, 8, 16, 16, 512, 512, 16, false)));
  all.push_back(
      timed(Op{true, true, 0, 0, 128, 0, 0}, operands(true, 1, 16, 4, 1024, 1024, 64, false)));
  auto wrong = operands(false, 2, 2, 2, 5, 5, 8, false);
  wrong[5] = arg({2, 2, 4, 8});
  all.push_back(bad(Op{}, wrong, "ShapeError"));
  all.push_back(
      bad(Op{false, false, 0, 0, 5, 0, 0}, operands(false, 2, 2, 2, 5, 5, 8, false), "ValueError"));
  all.push_back(
      bad(Op{}, operands(false, 2, 2, 2, 7, 7, 8, true, index_arg({7, 2}, 0, 1)), "ShapeError"));
  return all;
}

}  // namespace tessera::op

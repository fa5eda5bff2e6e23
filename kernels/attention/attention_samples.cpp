// SPDX-License-Identifier: Apache-2.0
// Samples of attention and of its gradient: every mask with every form of its operands, and bad
// input.
#include "tessera/kernels/attention/attention.h"

namespace tessera::op {
namespace {

using Mask = AttentionMask;
using Args = std::vector<Arg>;

// Every condition alone, and with others.
std::vector<Mask> masks() {
  const Mask causal = Mask::causal(), document = Mask::document();
  return {Mask(),
          causal,
          document,
          Mask::window(3),
          Mask::chunk(4),
          Mask::prefix(3),
          causal & Mask::window(4) & Mask::chunk(5),
          causal & document,
          (causal | Mask::prefix(3)) & document,
          causal & (Mask::window(2) | Mask::chunk(4))};
}

struct Sizes {
  int64_t b, h, hkv, t, s, d, dv;
};
Args qkv(bool inner, const Sizes& z) {
  if (inner)
    return {arg({z.b, z.t, z.h, z.d}), arg({z.b, z.s, z.hkv, z.d}), arg({z.b, z.s, z.hkv, z.dv})};
  return {arg({z.b, z.h, z.t, z.d}), arg({z.b, z.hkv, z.s, z.d}), arg({z.b, z.hkv, z.s, z.dv})};
}
// What the gradient reads before the operands of masks. An lse from 4 on keeps the probabilities
// below one for such scores.
Args gradient_operands(bool inner, const Sizes& z, bool dlse) {
  Args in = qkv(inner, z);
  const Arg o = inner ? arg({z.b, z.t, z.h, z.dv}) : arg({z.b, z.h, z.t, z.dv});
  const Arg rows = arg({z.b, z.h, z.t});
  in.push_back(o);
  in.push_back(rows.uniform(4, 5).statistic());
  in.push_back(o);
  in.push_back(dlse ? rows.statistic() : no_arg());
  return in;
}
Args operator+(Args in, const Args& more) {
  in.insert(in.end(), more.begin(), more.end());
  return in;
}

Arg ids(Shape shape, std::vector<double> values) {
  return index_arg(shape, 0, 1).listed(std::move(values));
}
// Two batches of packed documents.
Args documents(int64_t t, int64_t s) {
  return {ids({2, t}, {0, 0, 0, 1, 1, 2, 2, 5, 5, 5, 5, 6, 6, 6}),
          ids({2, s}, {0, 0, 0, 1, 1, 1, 2, 2, 2, 4, 5, 5, 5, 5, 6, 6, 6, 8})};
}
// Two heads on one key head, of which the results are known.
Args known_qkv() {
  return {arg({1, 2, 2, 2}).listed({1, 0.5, -1, 2, 0, 1, 2, -0.5}),
          arg({1, 1, 2, 2}).listed({1, -1, 0.5, 2}), arg({1, 1, 2, 1}).listed({2, -1})};
}
constexpr Sizes kSmall{2, 4, 2, 7, 9, 6, 5};
constexpr Sizes kLong{1, 2, 1, 131, 140, 24, 16};
constexpr Sizes kWhole{1, 2, 2, 192, 192, 4, 4}, kUneven{2, 2, 1, 100, 130, 4, 4};

// The forms that positions and documents come in, for kSmall.
std::vector<Args> forms(const Mask& mask) {
  const Sizes z = kSmall;
  const bool packed = mask.has(Mask::Kind::document);
  const Args none{no_arg(), no_arg()}, apart = packed ? documents(z.t, z.s) : none;
  const Args mixed = packed ? Args{index_arg({z.t}, 0, 3), index_arg({z.s}, 0, 3)} : none;
  return {
      none + apart,                                               // in order
      Args{ids({z.t}, {8, 0, 3, 2, 5, 7, 1}), no_arg()} + apart,  // queries in any order
      Args{index_arg({2, z.t}, -2, 9), index_arg({2, z.s}, -2, 9)} + mixed};  // all in any order
}
// Block maps: every kind of block, one map for all batches, and one for each.
Args map_of(const Sizes& z, bool each) {
  const auto blocks = [](int64_t n) { return (n + kAttentionBlock - 1) / kAttentionBlock; };
  const Shape shape{each ? z.b : 1, blocks(z.t), blocks(z.s)};
  return {no_arg(),
          no_arg(),
          no_arg(),
          no_arg(),
          ids(shape, {1, 2, 3, 0, 4, 2, 1, 0, 3, 3, 1, 4, 0, 2}).as(DType::i32),
          index_arg({2, kAttentionBlock}, 0, int64_t{1} << 50)};
}
Args cycle(int64_t t, int64_t s) {
  std::vector<double> values;
  for (int64_t i = 0; i < std::max(t, s); ++i) values.push_back(static_cast<double>(i * 67 % 149));
  return {ids({t}, values), ids({s}, values)};
}

// `operands(inner, sizes, variant)`: the inputs before those of masks. `cached`: keys in a cache.
template <class Op, class F> std::vector<Sample<Op>> good_samples(int64_t cached, F&& operands) {
  std::vector<Sample<Op>> all;
  int variant = 0;
  for (const Mask& mask : masks()) {
    for (const Args& form : forms(mask)) {
      const bool inner = variant % 2 == 1, offset = !form[0].defined;
      all.push_back({Op{mask, inner, variant % 3 == 1 ? 0.3 : 0, offset ? variant % 4 : 0,
                        form[1].defined ? 0 : variant % 3},
                     operands(inner, kSmall, variant) + form});
      ++variant;
    }
  }
  const Mask causal = Mask::causal();
  const Args plain;
  const auto add = [&](const Op& op, const Sizes& z, const Args& form) {
    all.push_back({op, operands(op.heads_inner, z, variant++) + form});
  };
  add({causal}, {5, 2, 2, 5, 5, 5, 5}, plain);
  add({Mask(), true}, {5, 10, 5, 5, 6, 5, 8}, plain);
  add({causal}, kLong, plain);
  add({causal & Mask::window(70) & Mask::chunk(100)}, kLong, plain);
  add({causal}, kLong, cycle(kLong.t, kLong.s));
  add({causal & Mask::window(70), true}, kLong, cycle(kLong.t, kLong.s));
  for (const bool inner : {false, true}) add({causal, inner}, kWhole, map_of(kWhole, false));
  add({causal | Mask::prefix(30)}, kUneven, map_of(kUneven, true));
  add({causal, false, 0, -2}, {1, 1, 1, 5, 5, 4, 4}, plain);  // the first rows see nothing
  // One query against a cache: in order, in documents, in any order, and by a map.
  const Sizes one{2, 6, 2, 1, cached, 24, 16};
  const Mask nearest = causal & Mask::window(cached / 2 - 50);
  add({nearest, true, 0, cached - 2}, one, plain);
  add({causal & Mask::document(), false, 0, cached - 2}, one,
      {no_arg(), no_arg(), ids({2, 1}, {0, 3}), index_arg({cached}, 0, 1).value(3)});
  add({causal}, one, {ids({2, 1}, {90, 20}), cycle(1, cached)[1]});
  add({causal, true, 0, cached / 2 + 50}, one, map_of(one, true));
  // Caps far below the scores, near them and far above.
  const auto capped = [&](Op op, double cap, const Sizes& z, const Args& form) {
    op.soft_cap = cap;
    add(op, z, form);
  };
  for (const double cap : {0.5, 2., 50.}) {
    capped({causal}, cap, kSmall, plain);
    capped({Mask(), true, 0.3}, cap, kSmall, forms(Mask())[2]);
    capped({causal & Mask::document(), true}, cap, kSmall, forms(causal & Mask::document())[0]);
  }
  capped({causal & Mask::window(70)}, 1, kLong, plain);
  capped({causal}, 3, kLong, cycle(kLong.t, kLong.s));
  capped({causal, true}, 1.5, kWhole, map_of(kWhole, false));
  capped({causal, false, 0, -6}, 1, {1, 1, 1, 5, 5, 4, 4}, plain);  // no row sees anything
  capped({nearest, true, 0, cached - 2}, 1, one, plain);
  return all;
}

// What op::check refuses, after operands that are good for kSmall.
template <class Op> std::vector<Sample<Op>> bad_samples(const Args& good) {
  std::vector<Sample<Op>> all;
  const Op causal{Mask::causal()}, packed{Mask::document()};
  const Sizes z = kSmall;
  const Args none{no_arg(), no_arg()}, apart = documents(z.t, z.s);
  const Arg blocks = ids({1, 1, 1}, {1}).as(DType::i32);
  const auto add = [&](const Op& op, const Args& form, const char* error) {
    all.push_back(bad(op, good + form, error));
  };
  add(causal, {index_arg({2, 6}, 0, 1)}, "ShapeError");
  add(causal, {no_arg(), index_arg({8}, 0, 1)}, "ShapeError");
  add(causal, {index_arg({2, 7}, 0, 1).as(DType::i32)}, "DTypeError");
  add(packed, none, "ValueError");
  add(packed, none + Args{apart[0]}, "ValueError");
  add(causal, none + apart, "ValueError");
  add(packed, none + Args{apart[0], index_arg({2, 8}, 0, 1)}, "ShapeError");
  add(packed, none + Args{apart[0].as(DType::i32), apart[1]}, "DTypeError");
  add(causal, none + none + Args{ids({1, 2, 1}, {1}).as(DType::i32)}, "ShapeError");
  add(causal, none + none + Args{ids({1, 1, 1}, {1})}, "DTypeError");
  add(causal, none + none + Args{blocks.listed({-1})}, "ValueError");
  add(causal, none + none + Args{blocks.listed({3})}, "ValueError");
  add(causal, none + none + Args{blocks, index_arg({1, 32}, 0, 1)}, "ShapeError");
  add(causal, none + none + Args{blocks, index_arg({1, 64}, 0, 1).as(DType::i32)}, "DTypeError");
  add(causal, none + none + Args{no_arg(), index_arg({1, 64}, 0, 1)}, "ValueError");
  for (const double cap : {-1., 1e-31, 1e31}) {
    Op op = causal;
    op.soft_cap = cap;
    add(op, none, "ValueError");
  }
  return all;
}

}  // namespace

std::vector<Sample<Attention>> Attention::samples() {
  auto all =
      good_samples<Attention>(700, [](bool inner, const Sizes& z, int) { return qkv(inner, z); });
  const Mask causal = Mask::causal();
  const auto time = [&](const Attention& op, const Sizes& z, const Args& form = {}) {
    all.push_back(timed(op, qkv(op.heads_inner, z) + form));
  };
  const Sizes heads{1, 16, 4, 1024, 1024, 64, 64};
  std::vector<double> of_200;
  for (int64_t i = 0; i < heads.t; ++i) of_200.push_back(static_cast<double>(i / 200));
  const Arg packed = ids({1, heads.t}, of_200);
  time({causal, true}, {8, 16, 16, 512, 512, 16, 16});
  time({causal, true}, heads);
  time({causal, false}, {1, 8, 8, 1024, 1024, 128, 128});
  time({causal & Mask::window(128), true}, heads);
  time({causal & Mask::chunk(256), true}, heads);
  time({causal & Mask::document(), true}, heads, {no_arg(), no_arg(), packed, packed});
  time({causal, true, 0, 4095}, {1, 32, 8, 1, 4096, 128, 128});
  all.push_back(
      known(Attention{}, known_qkv(),
            {{-0.00928464797997075, -0.970031887771185, -0.6788745956044887, 1.562539250019142},
             {1.4614936982505236, 2.48491333344076, 1.5274290717257288, 1.9253805802066162}}));
  all.push_back(
      known(Attention{causal}, known_qkv(),
            {{2, -0.970031887771185, 2, 1.562539250019142},
             {0.35355339059327373, 2.48491333344076, -0.7071067811865475, 1.9253805802066162}}));
  all.push_back(
      known(Attention{causal, false, 0, 0, 0, 1.5}, known_qkv(),
            {{2, -0.8156041701347649, 2, 1.326938703036391},
             {0.3471484011201567, 1.4567045290186702, -0.6590001640442729, 1.4945311619693982}}));
  for (auto& sample : bad_samples<Attention>(qkv(false, kSmall))) all.push_back(std::move(sample));
  const auto add = [&](std::vector<Arg> in, const char* error) {
    all.push_back(bad(Attention{}, std::move(in), error));
  };
  add({arg({2, 3, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError");
  add({arg({2, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError");
  add({arg({2, 2, 5, 8}), arg({2, 2, 5, 6}), arg({2, 2, 5, 8})}, "ShapeError");
  add({arg({2, 2, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 6, 8})}, "ShapeError");
  add({arg({2, 2, 5, 8}), arg({2, 2, 5, 8}), arg({2, 1, 5, 8})}, "ShapeError");
  add({arg({2, 2, 5, 8}).as(DType::f32), arg({2, 2, 5, 8}).as(DType::bf16),
       arg({2, 2, 5, 8}).as(DType::f32)},
      "DTypeError");
  return all;
}

std::vector<Sample<AttentionBackward>> AttentionBackward::samples() {
  using Op = AttentionBackward;
  auto all = good_samples<Op>(170, [](bool inner, const Sizes& z, int variant) {
    return gradient_operands(inner, z, variant % 2 == 0);
  });
  for (size_t i = 0, n = all.size(); i < n; i += 3) {
    all.push_back(all[i]);
    all.back().op.all_keys = true;
  }
  const Mask causal = Mask::causal();
  const auto time = [&](const Op& op, const Sizes& z) {
    all.push_back(timed(op, gradient_operands(op.heads_inner, z, false)));
  };
  time({causal, true}, {8, 16, 16, 512, 512, 16, 16});
  time({causal & Mask::window(128), true}, {1, 16, 4, 1024, 1024, 64, 64});
  time({causal, true, 0, 0, 0, true}, {8, 16, 16, 512, 512, 16, 16});
  const Arg dout = arg({1, 2, 2, 1}).listed({1, 2, -1, 0.5}),
            dlse = arg({1, 2, 2}).listed({0.5, -1, 1, 2}).statistic();
  for (const bool all_keys : {false, true}) {
    all.push_back(
        known(Op{{}, false, 0, 0, 0, all_keys},
              known_qkv() + Args{arg({1, 2, 2, 1})
                                     .listed({-0.00928464797997075, -0.970031887771185,
                                              -0.6788745956044887, 1.562539250019142}),
                                 arg({1, 2, 2})
                                     .listed({1.4614936982505236, 2.48491333344076,
                                              1.5274290717257288, 1.9253805802066162})
                                     .statistic(),
                                 dout, dlse},
              {{0.46975305208421747, -1.0507513595389362, -0.33610619242581846, -1.518896751377827,
                0.2900163952168274, 1.7954355346317725, 1.3771592426622712, -1.191887644108151},
               {3.231268163143145, -0.43436130277121415, 0.657819133382867, -0.8030755643052441},
               {0.6702652656972397, 1.8297347343027601}}));
    all.push_back(known(
        Op{causal, false, 0, 0, 0, all_keys},
        known_qkv() + Args{arg({1, 2, 2, 1}).listed({2, -0.970031887771185, 2, 1.562539250019142}),
                           arg({1, 2, 2})
                               .listed({0.35355339059327373, 2.48491333344076, -0.7071067811865475,
                                        1.9253805802066162})
                               .statistic(),
                           dout, dlse},
        {{0.35355339059327373, -0.35355339059327373, -0.33610619242581846, -1.518896751377827,
          0.7071067811865475, -0.7071067811865475, 1.3771592426622712, -1.191887644108151},
         {2.9988688401612578, 0.28361980767728207, 0.8902184563647544, -1.5210566747537406},
         {0.44706861648906715, 2.0529313835109333}}));
    all.push_back(known(
        Op{causal, false, 0, 0, 0, all_keys, 1.5},
        known_qkv() + Args{arg({1, 2, 2, 1}).listed({2, -0.8156041701347649, 2, 1.326938703036391}),
                           arg({1, 2, 2})
                               .listed({0.3471484011201567, 1.4567045290186702, -0.6590001640442729,
                                        1.4945311619693982})
                               .statistic(),
                           dout, dlse},
        {{0.33461675477490127, -0.33461675477490127, -0.019911194210123814, -0.29176897580238176,
          0.5706253621090809, -0.5706253621090809, 0.4714398981278307, -0.13966751581982706},
         {1.102362758314984, 0.6202407082481711, 0.39008997385140515, -0.3156986124716052},
         {0.5107536704162218, 1.9892463295837781}}));
  }
  const Args good = gradient_operands(false, kSmall, true);
  for (auto& sample : bad_samples<Op>(good)) all.push_back(std::move(sample));
  for (const size_t i : {size_t{3}, size_t{5}}) {
    Args wrong = good;
    wrong[i] = arg({2, 4, 7, 6});  // as wide as q, not as v
    all.push_back(bad(Op{}, wrong, "ShapeError"));
    wrong[i] = good[i].as(DType::i64);
    all.push_back(bad(Op{}, wrong, "DTypeError"));
  }
  for (const size_t i : {size_t{4}, size_t{6}}) {
    Args wrong = good;
    wrong[i] = arg({2, 7, 4}).statistic();
    all.push_back(bad(Op{}, wrong, "ShapeError"));
  }
  return all;
}

}  // namespace tessera::op

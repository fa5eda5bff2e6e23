// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and gradient of rope; its CPU kernel is in rope_cpu.cpp, its tables in
// rope_tables.cpp.
#include "tessera/kernels/rope/rope.h"

namespace tessera::op {

MetaList Rope::meta(Metas in) const {
  const auto &x = in[0], &cos = in[1], &sin = in[2];
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "expected a dtype of ", dtypes, ": x is ", x);
  const DType table = compute_dtype(x.dtype);
  if (cos.dtype != table || sin.dtype != table) {
    fail<DTypeError>(name, "the tables must be ", table, " for x ", x, ": cos is ", cos,
                     ", sin is ", sin);
  }
  const int r = x.shape.rank();
  if (r < 3) fail<ShapeError>(name, "x must be (..., t, h, d): given ", x);
  const int64_t d = x.shape[r - 1], turned = rotary == 0 ? d : rotary;
  if (turned % 2 != 0 || turned < 0 || turned > d) {
    fail<ShapeError>(name, "rotary is ", rotary, " for heads of ", d,
                     ": values turn in pairs, expected an even number up to the head's (0: all): "
                     "x is ",
                     x);
  }
  const bool by_position = in.has(3);
  const int64_t rows = by_position && cos.shape.rank() == 2 ? cos.shape[0] : x.shape[r - 3];
  const Shape expected{rows, turned / 2};
  if (!(cos.shape == expected) || !(sin.shape == expected)) {
    fail<ShapeError>(name, "the tables must be (", by_position ? "rows" : "t", ", ",
                     rotary ? "rotary" : "d", "/2) = ", expected, " for x ", x, ": cos is ", cos,
                     ", sin is ", sin);
  }
  if (!by_position) return {x};
  const Shape tokens = x.shape.without(r - 1).without(r - 2);
  if (in[3].dtype != DType::i64)
    fail<DTypeError>(name, "positions must be i64: given ", in[3], "; cast them");
  if (!(in[3].shape == tokens)) {
    fail<ShapeError>(name, "positions must be (..., t) = ", tokens, " for x ", x, ": given ",
                     in[3]);
  }
  return {x};
}

ShardingRule Rope::sharding(Metas in) const {
  const Shape& x = in[0].shape;
  const int r = x.rank();
  // A cut of d at whole adjacent pairs is a cut of the tables: d holds two units of the factor.
  const bool cut_pairs = !halves && (rotary == 0 || rotary == x[r - 1]);
  ShardingRule rule;
  std::vector<DimFactor> dims, tokens, table(2);
  for (int d = 0; d < r; ++d) {
    const bool last = d == r - 1;
    const int f = rule.add_factor(last && cut_pairs ? x[d] / 2 : x[d]);
    dims.push_back({static_cast<int16_t>(f), last && cut_pairs ? 2 : 1});
    if (d < r - 2) tokens.push_back(dims.back());
  }
  table[1] = {dims.back().factor, 1};
  if (!cut_pairs) {
    rule.replicate_factor(dims.back().factor);
    table[1] = {static_cast<int16_t>(rule.add_factor(in[1].shape[1])), 1};
    rule.replicate_factor(table[1].factor);
  }
  table[0] = tokens.back();
  if (in.has(3)) {
    table[0] = {static_cast<int16_t>(rule.add_factor(in[1].shape[0])), 1};
    rule.replicate_factor(table[0].factor);
  }
  rule.operand(dims).operand(table).operand(table);
  if (in.size() > 3) rule.operand(in.has(3) ? tokens : std::vector<DimFactor>{});
  rule.outputs_from_here().operand(dims).linear({0});
  // Values that do not turn are copied whatever the tables are.
  return rotary == 0 || rotary == x[r - 1] ? rule.linear({1, 2}) : rule;
}

Grads Rope::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  if (needs[1] || needs[2])
    fail<AutogradError>(name, "cos and sin are constant tables and have no gradient; detach them");
  const Rope back{!inverse, halves, rotary};
  if (s.inputs() > 3 && s.has_input(3))
    return {call(back, {dy[0], s.input(1), s.input(2), s.input(3)}), Tensor(), Tensor(), Tensor()};
  return {call(back, {dy[0], s.input(1), s.input(2)}), Tensor(), Tensor()};
}

std::vector<Sample<Rope>> Rope::samples() {
  const auto operands = [](Shape x, int64_t turned = 0, int64_t rows = 0) {
    const Shape table{rows ? rows : x[x.rank() - 3], (turned ? turned : x.back()) / 2};
    Arg t = arg(table).uniform(-1, 1).statistic();
    t.differentiable = false;
    std::vector<Arg> in{arg(x), t, t};
    if (rows) in.push_back(index_arg(x.without(x.rank() - 1).without(x.rank() - 2), 0, rows));
    return in;
  };
  auto odd = operands({2, 5, 3, 8});
  odd[0] = arg({2, 5, 3, 7});
  auto short_tables = operands({2, 5, 3, 8}, 0, 4);
  short_tables[3] = index_arg({2, 5}, 4, 6);
  auto flat = operands({2, 5, 3, 8}, 0, 6);
  flat[3] = index_arg({5, 2}, 0, 6);
  auto narrow = operands({2, 5, 3, 8}, 0, 6);
  narrow[3] = index_arg({2, 5}, 0, 6).as(DType::i32);
  const Arg four = arg({1, 1, 4}).listed({1, 2, 3, 4});
  const Arg c = arg({1, 2}).listed({0.5, 1.25}).statistic(),
            s = arg({1, 2}).listed({0.5, 1}).statistic();
  return {
      {{false}, operands({5, 5, 6, 10})},
      {{true}, operands({2, 7, 2, 4})},
      {{false}, operands({5, 1, 2})},
      {{false}, operands({2, 5, 5, 34}, 0, 9)},
      {{false, true}, operands({5, 5, 6, 10})},
      {{true, true}, operands({2, 5, 5, 66}, 0, 6)},
      {{false, true, 4}, operands({2, 5, 2, 9}, 4)},
      {{false, false, 4}, operands({2, 6, 5, 7}, 4, 5)},
      known(Rope{}, {four, c, s}, {{-0.5, 1.5, -0.25, 8}}),
      known(Rope{true}, {four, c, s}, {{1.5, 0.5, 7.75, 2}}),
      known(Rope{false, true}, {four, c, s}, {{-1, -1.5, 2, 7}}),
      timed(Rope{false}, operands({8, 512, 16, 16})),
      timed(Rope{false}, operands({2, 1024, 32, 64})),
      timed(Rope{false, true}, operands({2, 1024, 32, 64})),
      timed(Rope{false, true}, operands({2, 1024, 8, 128}, 0, 4096)),
      bad(Rope{}, odd, "ShapeError"),
      bad(Rope{}, {arg({5, 2, 8}), arg({4, 4}).statistic(), arg({5, 4}).statistic()}, "ShapeError"),
      bad(Rope{false, false, 3}, operands({2, 5, 3, 8}), "ShapeError"),
      bad(Rope{false, false, 10}, operands({2, 5, 3, 8}), "ShapeError"),
      bad(Rope{false, false, -2}, operands({2, 5, 3, 8}), "ShapeError"),
      bad(Rope{}, flat, "ShapeError"),
      bad(Rope{}, narrow, "DTypeError"),
      bad(Rope{}, short_tables, "IndexError"),
  };
}

}  // namespace tessera::op

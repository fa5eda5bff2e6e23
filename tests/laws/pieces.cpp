// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/laws/pieces.h"

#include "tessera/tests/laws/lockstep.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

namespace tessera::laws {
namespace {

int64_t begin_of(const Cut& cut, size_t at) {
  int64_t begin = 0;
  for (size_t i = 0; i < at; ++i) begin += cut.sizes[i];
  return begin;
}

double joined(const Call& c, Join join, double a, double b) {
  if (c.subject.row->kind == OpKind::in_place)
    return a == b ? a : std::numeric_limits<double>::quiet_NaN();
  return join == Join::sum ? a + b : join == Join::max ? std::max(a, b) : std::min(a, b);
}

// Where the elements of one piece of an output stand in the whole output, in row-major order.
std::vector<size_t> places(const Shape& whole, const std::vector<Piece::Range>& ranges) {
  Shape local;
  for (const auto& r : ranges) local.push_back(r.size);
  std::vector<size_t> all;
  const Shape strides = contiguous_strides(whole);
  Shape at = Shape::filled(local.rank(), 0);
  for (int64_t i = 0, n = local.numel(); i < n; ++i) {
    int64_t where = 0;
    for (int d = 0; d < local.rank(); ++d)
      where += (ranges[static_cast<size_t>(d)].begin + at[d]) * strides[d];
    all.push_back(static_cast<size_t>(where));
    for (int d = local.rank() - 1; d >= 0 && ++at[d] == local[d]; --d) at[d] = 0;
  }
  return all;
}

}  // namespace

std::string Cut::text() const {
  std::ostringstream os;
  os << "factor " << factor << " cut into ";
  for (size_t i = 0; i < sizes.size(); ++i) os << (i ? "+" : "") << sizes[i];
  return os.str();
}

Call::Call(const Subject& s, const SampleRow& row, TensorVector inputs)
    : subject(s),
      sample(row),
      in(std::move(inputs)),
      out(output_metas(s, row.op.get(), in)),
      rule(s.sharding(row.op.get(), MetaArray(in))) {}

std::string whole_text(const ShardingRule& rule) {
  std::string text = rule.text();
  for (const auto& group : rule.linearities()) {
    text += ", linear";
    for (int i : group) text += concat(' ', i);
  }
  if (rule.monotone() != 0) text += rule.monotone() > 0 ? ", monotone up" : ", monotone down";
  for (const Factor& f : rule.factors()) {
    if (f.join == Join::sum) continue;
    return text + (f.join == Join::max ? ", join max" : ", join min");
  }
  return text;
}

std::optional<std::string> rule_problem(const Call& c) {
  const auto inputs = static_cast<int>(c.in.size()), outputs = static_cast<int>(c.out.size());
  if (c.rule.inputs() != inputs || c.rule.operands() != inputs + outputs) {
    return concat("rule ", c.rule.text(), " has ", c.rule.inputs(), " inputs and ",
                  c.rule.operands() - c.rule.inputs(), " outputs, the call ", inputs, " and ",
                  outputs);
  }
  for (int o = 0; o < c.rule.operands(); ++o) {
    const auto i = static_cast<size_t>(o);
    if (o < inputs && !c.in[i].defined()) continue;
    const Shape& shape =
        o < inputs ? c.in[i].shape() : c.out[static_cast<size_t>(o - inputs)].shape;
    const auto dims = c.rule.dims(o);
    if (static_cast<int>(dims.size()) != shape.rank())
      return concat("rule ", c.rule.text(), " gives operand ", o, " ", dims.size(),
                    " dims, its shape is ", shape);
    for (int d = 0; d < shape.rank(); ++d) {
      const DimFactor f = dims[static_cast<size_t>(d)];
      if (f.factor < 0) continue;
      const int64_t size = c.rule.factors()[static_cast<size_t>(f.factor)].size * f.scale;
      if (size != shape[d])
        return concat("rule ", c.rule.text(), " gives dim ", d, " of operand ", o, " size ", size,
                      ", its shape is ", shape);
    }
  }
  return {};
}

std::vector<Cut> cuts_of(const ShardingRule& rule, int factor) {
  const int64_t n = rule.factors()[static_cast<size_t>(factor)].size;
  const auto chunks = [&](int64_t pieces) {
    std::vector<int64_t> sizes;
    const int64_t chunk = (n + pieces - 1) / pieces;
    for (int64_t i = 0; i < pieces; ++i)
      sizes.push_back(std::clamp<int64_t>(n - i * chunk, 0, chunk));
    return sizes;
  };
  std::set<std::vector<int64_t>> ways{chunks(2), chunks(3), {1, n - 1}, {n, 0}};
  if (n >= 3) ways.insert({n - 2, 0, 2});
  std::vector<Cut> cuts;
  for (const auto& w : ways) cuts.push_back({factor, w});
  return cuts;
}

Piece piece_of(const Call& c, std::span<const Cut> cuts, std::span<const size_t> at) {
  Piece piece;
  for (int o = 0; o < c.rule.operands(); ++o) {
    auto& ranges = piece.operands.emplace_back();
    const auto i = static_cast<size_t>(o);
    if (i < c.in.size() && !c.in[i].defined()) continue;
    const Shape& shape = i < c.in.size() ? c.in[i].shape() : c.out[i - c.in.size()].shape;
    for (int d = 0; d < shape.rank(); ++d) {
      Piece::Range r{0, shape[d], shape[d]};
      const DimFactor f = c.rule.dims(o)[static_cast<size_t>(d)];
      for (size_t k = 0; k < cuts.size(); ++k) {
        if (f.factor != cuts[k].factor) continue;
        r.begin = begin_of(cuts[k], at[k]) * f.scale;
        r.size = cuts[k].sizes[at[k]] * f.scale;
      }
      ranges.push_back(r);
    }
  }
  return piece;
}

TensorVector cut_inputs(const Call& c, const Piece& piece) {
  TensorVector in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const Tensor& x = c.in[i];
    if (!x.defined()) {
      in.emplace_back();
      continue;
    }
    int64_t offset = x.offset();
    for (int d = 0; d < x.rank(); ++d) offset += piece.range(i, d).begin * x.strides()[d];
    in.push_back(clone(alias(x, piece.local_shape(i), x.strides(), offset)));
  }
  return in;
}

namespace {

using Place = std::array<size_t, 2>;

// The outputs of the piece at `at`, or, where a cut factor joins inside, of all pieces along that
// cut.
std::vector<TensorVector> run_together(const Call& c, std::span<const Cut> cuts, const Place& at,
                                       std::optional<size_t> inside, bool plain) {
  const auto run_one = [&](const Place& place, const TensorVector& in,
                           std::shared_ptr<Joiner> joiner) {
    Piece piece = piece_of(c, cuts, {place.data(), cuts.size()});
    piece.joiner = std::move(joiner);
    const auto op =
        plain ? c.sample.op : detail::local_op(*c.subject.row, c.sample.op.get(), piece);
    return run(c.subject, op.get(), in);
  };
  std::vector<Place> all;
  std::vector<TensorVector> in;
  for (size_t i = 0; i < (inside ? cuts[*inside].sizes.size() : 1); ++i) {
    Place& place = all.emplace_back(at);
    if (inside) place[*inside] = i;
    in.push_back(cut_inputs(c, piece_of(c, cuts, {place.data(), cuts.size()})));
  }
  if (!inside) return {run_one(at, in[0], nullptr)};
  return run_in_lockstep(all.size(), [&](size_t i, std::shared_ptr<Joiner> joiner) {
    return run_one(all[i], in[i], std::move(joiner));
  });
}

// Collects the pieces' outputs in the wholes.
class Joined {
 public:
  Joined(const Call& c, Join join) : call_(c), join_(join) {
    for (const TensorMeta& m : c.out) {
      whole.emplace_back(static_cast<size_t>(m.shape.numel()),
                         std::numeric_limits<double>::quiet_NaN());
      written_.emplace_back(whole.back().size(), false);
    }
  }
  // `again`: the output is complete on each of several pieces, and has been added from one.
  void add(const Piece& piece, size_t o, const Tensor& out, bool again) {
    const auto& ranges = piece.operands[call_.in.size() + o];
    if (out.shape() != piece.local_shape(call_.in.size() + o)) {
      fail<ShapeError>(call_.subject.row->name, "a piece's output ", o, " is ", out.meta(),
                       ", its range ", piece.local_shape(call_.in.size() + o));
    }
    if (again) return;
    const auto values = out.values();
    const auto to = places(call_.out[o].shape, ranges);
    for (size_t i = 0; i < to.size(); ++i) {
      double& w = whole[o][to[i]];
      w = written_[o][to[i]] ? joined(call_, join_, w, values[i]) : values[i];
      written_[o][to[i]] = true;
    }
  }
  std::vector<std::vector<double>> whole;

 private:
  const Call& call_;
  Join join_;
  std::vector<std::vector<bool>> written_;
};

}  // namespace

std::vector<std::vector<double>> run_pieces(const Call& c, std::span<const Cut> cuts,
                                            JoinOptions options) {
  const auto factor = [&](const Cut& cut) {
    return c.rule.factors()[static_cast<size_t>(cut.factor)];
  };
  Joined result(c, options.join.value_or(factor(cuts[0]).join));
  bool dropped = false;
  std::optional<size_t> inside;
  const auto lacks = [&](size_t o, const Cut& cut) {
    return !c.rule.has_factor(static_cast<int>(c.in.size() + o), cut.factor);
  };
  for (size_t k = 0; k < cuts.size(); ++k) {
    if (factor(cuts[k]).inside) {
      inside = k;
      continue;
    }
    for (size_t o = 0; o < c.out.size(); ++o) dropped |= lacks(o, cuts[k]);
  }
  Place at{};
  for (bool more = true; more;) {
    bool empty_piece = false;
    for (size_t k = 0; k < cuts.size(); ++k) empty_piece |= cuts[k].sizes[at[k]] == 0;
    std::vector<TensorVector> out;
    try {
      out = run_together(c, cuts, at, inside, options.plain);
    } catch (const Error& e) {
      if (!(empty_piece && dropped && (e.kind() == "ShapeError" || e.kind() == "ValueError")))
        throw;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      Place place = at;
      if (inside) place[*inside] = i;
      const Piece piece = piece_of(c, cuts, {place.data(), cuts.size()});
      for (size_t o = 0; o < out[i].size(); ++o) {
        const bool complete = inside && lacks(o, cuts[*inside]);
        if (complete && out[i][o].values() != out[0][o].values())
          fail<ValueError>(c.subject.row->name, "output ", o, " differs between joined pieces");
        result.add(piece, o, out[i][o], complete && i > 0);
      }
    }
    more = false;
    for (size_t k = cuts.size(); k-- > 0 && !more;) {
      if (k == inside) continue;
      more = ++at[k] < cuts[k].sizes.size();
      if (!more) at[k] = 0;
    }
  }
  return std::move(result.whole);
}

std::optional<std::string> pieces_problem(const Call& c, const TensorVector& whole,
                                          std::span<const Cut> cuts, JoinOptions options) {
  const auto got = run_pieces(c, cuts, options);
  for (size_t o = 0; o < whole.size(); ++o) {
    if (auto problem = difference(got[o], whole[o].values(), tolerance_of(whole[o].dtype())))
      return concat("output ", o, " ", *problem);
  }
  return {};
}

}  // namespace tessera::laws

// SPDX-License-Identifier: Apache-2.0
// The sharding law with the real planner on real ranks: every op, on meshes of one axis and two,
// under every choice that its rule allows an axis (cuts, also uneven and empty ones, partial
// inputs, plain constants beside them), gives the whole and leaves its inputs as they were. What
// the rule allows runs without sending, unless the mesh cuts a factor between its units or
// reductions would mix.
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/dist/planner/strategy.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/laws/laws.h"
#include "tessera/tests/support/all_layouts.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace tessera::laws {
namespace {

using Kind = Placement::Kind;

// The part of x that this rank holds under `layout`; partial axes hold random terms that make x up.
Tensor part_of(const Tensor& x, tessera::Layout layout, Random& random) {
  const auto [members, own, op, averaged] = trial::PartialTerm(layout);
  std::vector<double> values = x.values();
  for (double& v : values) {  // every rank draws all terms, and keeps its own
    const bool whole_numbers = !is_floating(x.dtype());
    if (op == ReduceOp::sum && members > 1) {
      double rest = v, mine = 0;
      for (int m = 0; m < members; ++m) {
        const double term = m + 1 == members ? rest
                            : whole_numbers  ? static_cast<double>(random.below(9) - 4)
                                             : random.normal() + 0.3 * m;
        rest -= term;
        if (m == own) mine = term;
      }
      v = mine * averaged;
    } else if (members > 1) {
      const int64_t winner = random.below(members);
      const double off = 1 + static_cast<double>(random.below(3));
      if (own != winner) v += op == ReduceOp::max ? -off : off;
    }
  }
  const Tensor whole = place(values, x.shape(), x.dtype());
  Shape begin, size;
  int64_t offset = whole.offset();
  for (int d = 0; d < x.rank(); ++d) {
    const Piece::Range r = layout.range(x.shape(), d);
    size.push_back(r.size);
    offset += r.begin * whole.strides()[d];
  }
  return clone(alias(whole, size, whole.strides(), offset));
}

// Whether the choices can stand: cuts fall on whole units of their factors, pending reductions
// commute.
bool can_stand(const ShardingRule& rule, Mesh mesh, const std::vector<AxisChoice>& choices) {
  const auto kinds = [&](int operand) {
    bool sums = false, maxima = false, minima = false;
    for (const AxisChoice& c : choices) {
      const Placement p = placement_under(c, rule, operand);
      if (p.kind != Kind::partial) continue;
      sums |= p.op == ReduceOp::sum || p.op == ReduceOp::avg;
      maxima |= p.op == ReduceOp::max;
      minima |= p.op == ReduceOp::min;
    }
    return sums + maxima + minima;
  };
  for (int o = 0; o < rule.operands(); ++o) {
    if (kinds(o) > 1) return false;
    for (const DimFactor& d : rule.dims(o)) {
      if (d.factor < 0) continue;
      const int64_t size = rule.factors()[static_cast<size_t>(d.factor)].size;
      // All parts at once: nested cuts of the factor and of the dim, side by side.
      std::vector<std::pair<Piece::Range, Piece::Range>> parts{
          {{0, size, size}, {0, size * d.scale, size * d.scale}}};
      for (size_t a = 0; a < choices.size(); ++a) {
        if (choices[a].kind != AxisChoice::Kind::factor || choices[a].index != d.factor) continue;
        std::vector<std::pair<Piece::Range, Piece::Range>> finer;
        for (const auto& [f, r] : parts) {
          for (int i = 0; i < mesh.size(static_cast<int>(a)); ++i)
            finer.emplace_back(chunk(f, mesh.size(static_cast<int>(a)), i),
                               chunk(r, mesh.size(static_cast<int>(a)), i));
        }
        parts = std::move(finer);
      }
      for (const auto& [f, r] : parts) {
        if (r.size != f.size * d.scale) return false;
      }
    }
  }
  return true;
}

struct Tally {
  std::atomic<int64_t> checked{0}, wrong{0};
  std::mutex mutex;
  std::string first;
};

// One call under one choice per axis; `constants`: 0-dim inputs stay plain.
void one_call(const Subject& s, const SampleRow& sample, const TensorVector& in,
              const TensorVector& whole, const ShardingRule& rule, Mesh mesh,
              const std::vector<AxisChoice>& choices, bool constants, Tally& tally, bool counts) {
  std::string text;
  TensorVector parts;
  Random random(concat(s.row->name, " distributed"));
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) {
      parts.emplace_back();
      continue;
    }
    AxisStates states{};
    std::array<int8_t, kMaxRank> cuts{};
    for (int a = 0; a < mesh.axes(); ++a) {
      AxisState& st = states[static_cast<size_t>(a)];
      st.placement = placement_under(choices[static_cast<size_t>(a)], rule, static_cast<int>(i));
      if (st.placement.kind == Kind::shard)
        st.position = cuts[static_cast<size_t>(st.placement.dim)]++;
    }
    const tessera::Layout layout = tessera::Layout::intern(mesh, states);
    if (!is_floating(in[i].dtype()) && std::ranges::any_of(states, [](const AxisState& st) {
          return st.placement == Partial(ReduceOp::avg);
        }))
      return;  // integers are never averaged
    const bool written = s.row->kind == OpKind::in_place && s.row->writes(i, in.size());
    if (constants && in[i].rank() == 0 && !written) {
      text += concat(i ? ", " : "", in[i].meta(), " plain");
      parts.push_back(in[i]);
      continue;
    }
    text += concat(i ? ", " : "", in[i].meta(), ' ', layout.placements_text());
    parts.push_back(make_distributed(part_of(in[i], layout, random), in[i].shape(), layout));
  }
  const auto wrong = [&](const std::string& why) {
    if (!counts) return;
    ++tally.wrong;
    const std::scoped_lock lock(tally.mutex);
    if (tally.first.empty())
      tally.first = concat(describe(*s.row, sample), " as ", text, " on ", mesh.text(), ": ", why);
  };
  if (std::ranges::none_of(parts,
                           [](const Tensor& t) { return t.defined() && t.is_distributed(); }))
    return;
  std::vector<std::vector<std::byte>> before;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool written = s.row->kind == OpKind::in_place && s.row->writes(i, parts.size());
    const bool given = parts[i].defined() && parts[i].is_distributed() && !written;
    before.push_back(given ? packed(local(parts[i])) : std::vector<std::byte>{});
  }
  TensorList made;
  try {
    detail::call(*s.row, sample.op.get(), Tensors(parts), made);
  } catch (const LayoutError& e) {
    const bool sends =
        std::string_view(e.what()).find("would have to communicate") != std::string_view::npos ||
        std::string_view(e.what()).find("writes in place") != std::string_view::npos;
    if (!sends || (!constants && can_stand(rule, mesh, choices))) wrong(e.what());
    return;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!before[i].empty() && before[i] != packed(local(parts[i])))
      wrong(concat("input ", i, " was written"));
  }
  TensorVector out;
  if (s.row->kind == OpKind::in_place) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (s.row->writes(i, parts.size())) out.push_back(parts[i]);
    }
  } else {
    out.assign(made.begin(), made.end());
  }
  if (counts) ++tally.checked;
  if (out.size() != whole.size()) return wrong("another number of outputs");
  for (size_t o = 0; o < out.size(); ++o) {
    const Tensor got = out[o].is_distributed() ? full_tensor(out[o]) : out[o];
    const double terms = terms_of(in, whole[o]);
    if (auto problem = difference(got, whole[o], 10 * tolerance_of(whole[o].dtype()), terms))
      wrong(concat("output ", o, ' ', *problem));
  }
}

// An op without inputs makes, on every layout, the bits that it makes whole.
void made_alike(const Subject& s, const SampleRow& sample, Mesh mesh, World& world, Tally& tally) {
  const TensorVector whole = run(s, sample.op.get(), {});
  if (output_metas(s, sample.op.get(), {})[0].device.is_meta()) return;  // no values to compare
  for (const AxisStates& states : trial::all_layouts(mesh, whole[0].rank(), {})) {
    const tessera::Layout layout = tessera::Layout::intern(mesh, states);
    TensorList out;
    world.planner().create(*s.row, sample.op.get(), layout, out);
    const auto problem = difference(full_tensor(out[0]), whole[0], 0);
    if (world.rank() != 0) continue;
    ++tally.checked;
    if (!problem) continue;
    ++tally.wrong;
    const std::scoped_lock lock(tally.mutex);
    tally.first = concat(describe(*s.row, sample), " on ", layout.text(), ": ", *problem);
  }
}

void judge_on(const std::vector<MeshAxis>& axes, const Subject& s, Tally& tally) {
  int ranks = 1;
  for (const MeshAxis& a : axes) ranks *= a.size;
  run_ranks(ranks, [&](World& world) {
    const Mesh mesh = Mesh::make(axes);
    const auto samples = good_samples(s);
    const DType integer = DType::i64;  // sums of parts are exact, so linearity must be too
    for (size_t at = 0; at < 2 * samples.size(); ++at) {
      const SampleRow& sample = samples[at / 2];
      if (at % 2 == 1 && (!s.row->dtypes.has(integer) || exact_dtype(*s.row) == integer)) continue;
      Random random(concat(s.row->name, " inputs"));
      const TensorVector in =
          inputs_of(sample, at % 2 == 1 ? integer : exact_dtype(*s.row), random);
      if (in.empty()) {
        made_alike(s, sample, mesh, world, tally);
        continue;
      }
      const TensorVector whole = run(s, sample.op.get(), in);
      const ShardingRule rule = s.sharding(sample.op.get(), MetaArray(in));
      std::vector<StrategyInput> inputs;
      for (const Tensor& t : in) inputs.push_back({t.defined() ? &t.meta() : nullptr, {}, false});
      const auto all = axis_choices(rule, inputs);
      Random pick(concat(s.row->name, " choices"));
      if (mesh.axes() == 1) {
        for (const AxisChoice& c : all) {
          for (const bool constants : {false, true})
            one_call(s, sample, in, whole, rule, mesh, {c}, constants, tally, world.rank() == 0);
        }
        continue;
      }
      for (const AxisChoice& a : all) {
        for (const AxisChoice& b : all) {
          if (!tessera::trial::exhaustive() && pick.below(8) != 0) continue;
          one_call(s, sample, in, whole, rule, mesh, {a, b}, false, tally, world.rank() == 0);
        }
      }
    }
  });
}

}  // namespace

Outcome distributed_law(const Subject& s) {
  Tally tally;
  for (const auto& axes : std::vector<std::vector<MeshAxis>>{
           {{"a", 2}}, {{"a", 3}}, {{"a", 8}}, {{"a", 1}}, {{"a", 2}, {"b", 2}}})
    judge_on(axes, s, tally);
  Outcome outcome;
  outcome.checks = tally.checked;
  if (tally.wrong > 0) {
    outcome.failures.push_back({std::string(s.row->name),
                                concat(tally.wrong.load(), " calls on ranks"),
                                concat("wrong, the first: ", tally.first)});
  }
  return outcome;
}

}  // namespace tessera::laws

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/laws/mutations.h"

#include "tessera/tests/laws/pieces.h"

#include <algorithm>
#include <bit>
#include <set>

namespace tessera::laws {
namespace {

// The law that must notice a formula that is wrong everywhere alike.
constexpr std::string_view kKnownLaw = "Known";

Tensor scaled(const Tensor& x, double by) {
  auto v = x.values();
  for (double& e : v) e *= by;
  return place(v, x.shape(), x.dtype());
}

// Writes elements first .. last - 1 anew, each changed by `off`.
template <class F> void change(const Tensor& y, int64_t first, int64_t last, F&& off) {
  auto v = y.values();
  for (int64_t i = first; i < last; ++i) {
    double& e = v[static_cast<size_t>(i)];
    e = y.dtype() == DType::bool_ ? 1 - e : is_floating(y.dtype()) ? off(e) : e + 1;
  }
  const auto item = item_size(y.dtype());
  const auto bytes = packed(from_values(v, y.shape(), y.dtype()));
  for (int64_t i = first; i < last; ++i) {
    int64_t rest = i, where = 0;
    for (int d = y.rank() - 1; d >= 0; --d) {
      where += rest % y.shape()[d] * y.strides()[d];
      rest /= y.shape()[d];
    }
    std::copy_n(&bytes[static_cast<size_t>(i * item)], item,
                static_cast<std::byte*>(y.raw_data()) + where * item);
  }
}

// One element in the middle, off by a little.
void spoil(const Tensor& y) {
  const int64_t n = y.numel();
  change(y, n / 2, std::min(n, n / 2 + 1), [](double e) { return e * 1.25 + 0.25; });
}

// Every element, by one factor: what a wrong constant in a formula does. Eighths are what 8 bits
// can tell apart.
void scale_all(const Tensor& y) {
  const double by = item_size(y.dtype()) == 1 ? 1.25 : 1.01;
  change(y, 0, y.numel(), [by](double e) { return e * by; });
}

// The rule without its linearities.
ShardingRule without_linearities(const ShardingRule& r) {
  ShardingRule copy;
  for (const Factor& f : r.factors()) {
    const int id = copy.add_factor(f.size, f.letter);
    if (f.replicate) copy.replicate_factor(id);
    copy.set_inside(id, f.inside);
  }
  if (!r.factors().empty()) copy.join(r.factors()[0].join);
  for (int o = 0; o < r.operands(); ++o) {
    if (o == r.inputs()) copy.outputs_from_here();
    copy.operand(r.dims(o));
  }
  if (r.inputs() == r.operands()) copy.outputs_from_here();
  if (r.monotone() > 0) copy.monotone_up();
  if (r.monotone() < 0) copy.monotone_down();
  return copy;
}

struct Seen {  // of all good samples
  size_t inputs = 0, outputs = 0;
  size_t known = 0;            // outputs of samples whose results are known
  std::set<size_t> gradients;  // inputs with a gradient that is not zero
  std::set<int> replicated;    // factors replicated with size >= 2
  std::set<int> inside;        // factors that join inside with size >= 2
  std::set<std::vector<int>>
      undeclared;  // groups of floating inputs that are nowhere declared linear
  bool linear = false, dropped = false, strict = false;
};

Seen look(const Subject& s) {
  Seen seen;
  std::set<std::vector<int>> candidates, declared;
  for (const SampleRow& sample : s.samples) seen.known = std::max(seen.known, sample.known.size());
  for (const SampleRow& sample : good_samples(s)) {
    Random random(concat(s.row->name, " mutations"));
    const TensorVector in = inputs_of(sample, exact_dtype(*s.row), random);
    const TensorVector out = run(s, sample.op.get(), in);
    seen.inputs = std::max(seen.inputs, in.size());
    seen.outputs = std::max(seen.outputs, out.size());
    if (s.vjp) {
      Needs needs(in.size(), false);
      for (size_t i = 0; i < in.size(); ++i)
        needs.set(i, in[i].defined() && is_floating(in[i].dtype()) && sample.in[i].differentiable);
      const MetaArray in_metas(in), out_metas(out);
      for (size_t o = 0; o < out.size(); ++o) {
        if (out[o].dtype() != DType::f64 && out[o].dtype() != DType::f32) continue;
        std::vector<double> v(static_cast<size_t>(out[o].numel()));
        for (double& e : v) e = random.normal();
        Grads dy(out.size()), g;
        dy[o] = place(v, out[o].shape(), out[o].dtype());
        try {
          g = s.vjp(sample.op.get(), Saved(in, out, in_metas, out_metas), dy, needs);
        } catch (const AutogradError&) {  // an output that only backward reads
        }
        for (size_t i = 0; i < g.size(); ++i) {
          if (needs[i] && g[i].defined() && norm(g[i]) > 0) seen.gradients.insert(i);
        }
      }
    }
    if (!s.sharding) continue;
    const Call call(s, sample, in);
    const auto factors = call.rule.factors();
    seen.strict |= !call.rule.strict_reason().empty();
    for (int f = 0; f < static_cast<int>(factors.size()); ++f) {
      const Factor& factor = factors[static_cast<size_t>(f)];
      if (factor.size < 2) continue;
      if (factor.replicate) {
        if (call.rule.strict_reason().empty()) seen.replicated.insert(f);
        continue;
      }
      if (factor.inside) {
        seen.inside.insert(f);
        continue;
      }
      bool used = false, kept = true;
      for (int o = 0; o < call.rule.operands(); ++o) {
        used |= call.rule.has_factor(o, f);
        kept &= o < call.rule.inputs() || call.rule.has_factor(o, f);
      }
      seen.dropped |= used && !kept &&
                      s.row->kind != OpKind::in_place;  // what is written in place is never joined
    }
    for (auto group : call.rule.linearities()) {
      std::ranges::sort(group);
      declared.insert(group);
      seen.linear = true;
    }
    std::vector<int> all;
    for (size_t i = 0; i < in.size(); ++i) {
      if (!in[i].defined() || !is_floating(in[i].dtype())) continue;
      all.push_back(static_cast<int>(i));
      if (in[i].numel() > 0) candidates.insert({static_cast<int>(i)});
    }
    if (all.size() > 1) candidates.insert(all);
  }
  if (!seen.strict) {
    for (const auto& group : candidates) {
      if (!declared.contains(group)) seen.undeclared.insert(group);
    }
  }
  return seen;
}

}  // namespace

std::vector<Mutant> mutants_of(const OpRow& row) {
  const Subject s = subject_of(row);
  const Seen seen = look(s);
  std::vector<Mutant> all;
  const auto add = [&](std::string what, std::string_view law, auto change) {
    Mutant m{std::move(what), s, law};
    change(m.subject);
    all.push_back(std::move(m));
  };
  const auto with_rule = [&](std::string what, std::string_view law, auto change) {
    add(std::move(what), law, [&](Subject& m) {
      m.sharding = [original = s.sharding, change](const void* op, Metas in) {
        ShardingRule r = original(op, in);
        change(r, in);
        return r;
      };
    });
  };

  for (const size_t i : seen.gradients) {
    for (const bool drop : {false, true}) {
      add(concat("gradient ", i, drop ? " dropped" : " x 1.01"), "Gradient", [&](Subject& m) {
        m.vjp = [original = s.vjp, i, drop](const void* op, const Saved& saved, const Grads& dy,
                                            Needs needs) {
          Grads g = original(op, saved, dy, needs);
          if (i < g.size() && g[i].defined()) g[i] = drop ? Tensor() : scaled(g[i], 1.01);
          return g;
        };
      });
    }
  }
  for (const int f : seen.replicated) {
    with_rule(concat("replicated factor ", f, " freed"), "Sharding", [f](ShardingRule& r, Metas) {
      if (f < static_cast<int>(r.factors().size())) r.set_replicate(f, false);
    });
  }
  for (const int f : seen.inside) {
    with_rule(concat("factor ", f, " no longer joined inside"), "Sharding",
              [f](ShardingRule& r, Metas) {
                if (f < static_cast<int>(r.factors().size())) r.set_inside(f, false);
              });
  }
  for (const auto& group : seen.undeclared) {
    with_rule(concat("linearity added in ", group.size(), " inputs from ", group[0]), "Linearity",
              [group](ShardingRule& r, Metas in) {
                for (int i : group) {
                  if (!in.has(static_cast<size_t>(i))) return;
                }
                if (group.size() == 1) r.linear({group[0]});
                else r.linear_all(group.front(), group.back() - group.front() + 1);
              });
  }
  if (seen.linear && !seen.strict) {
    with_rule("linearities forgotten", "Linearity",
              [](ShardingRule& r, Metas) { r = without_linearities(r); });
  }
  if (seen.dropped) {
    for (const Join to : {Join::sum, Join::max}) {
      bool differs = false;
      for (const SampleRow& sample : good_samples(s)) {
        Random random("mutations");
        const Call call(s, sample, inputs_of(sample, exact_dtype(row), random));
        for (const Factor& f : call.rule.factors()) differs |= f.join != to;
      }
      if (differs)
        with_rule(concat("joined by ", to == Join::sum ? "sum" : "max"), "Sharding",
                  [to](ShardingRule& r, Metas) { r.join(to); });
    }
  }
  for (size_t o = 0; o < seen.outputs; ++o) {
    if (row.kind != OpKind::view) {
      const auto spoils = [&](std::string what, std::string_view law, auto when, auto how) {
        add(concat("output ", o, ' ', what), law, [&](Subject& m) {
          m.cpu = [original = s.cpu, o, when, how](const void* op, Tensors in, Outputs y) {
            original(op, in, y);
            if (o < y.size() && when(in, y)) how(y[o]);
          };
        });
      };
      const auto always = [](Tensors, Outputs) { return true; };
      // The exact dtype stays right.
      const auto rounds = [t = exact_dtype(row)](Tensors in, Outputs y) {
        const auto narrower = [&](const Tensor& x) {
          return x.defined() && is_floating(x.dtype()) && x.dtype() != t;
        };
        return std::ranges::any_of(in, narrower) || std::ranges::any_of(y, narrower);
      };
      const bool several = !std::has_single_bit(row.dtypes.bits) && !good_samples(s)[0].in.empty();
      if (several) spoils("off in one element, rounded dtypes", "Reference", rounds, spoil);
      spoils("off in one element", "Sharding", always, spoil);
      // No law but this one can notice it where the gradient is wrong by the same factor. (An op of
      // lists has as many outputs as a sample has tensors.)
      if (o < std::max<size_t>(seen.known, 1)) spoils("scaled", kKnownLaw, always, scale_all);
    }
    if (row.kind != OpKind::compute) continue;
    add(concat("meta dtype of output ", o), "Meta", [&](Subject& m) {
      m.meta = [original = s.meta, o](const void* op, Metas in) {
        MetaList out = original(op, in);
        if (o < out.size()) out[o].dtype = out[o].dtype == DType::f32 ? DType::bf16 : DType::f32;
        return out;
      };
    });
    add(concat("meta shape of output ", o), "Meta", [&](Subject& m) {
      m.meta = [original = s.meta, o](const void* op, Metas in) {
        MetaList out = original(op, in);
        if (o >= out.size()) return out;
        Shape& shape = out[o].shape;
        if (shape.rank() == 0) shape = {1};
        else ++shape[shape.rank() - 1];
        return out;
      };
    });
  }
  if (row.kind == OpKind::view) {
    add("view begins one element late", kKnownLaw, [&](Subject& m) {
      m.view = [original = s.view](const void* op, const Geometry& g) {
        Geometry v = original(op, g);
        ++v.offset;
        return v;
      };
    });
    add("view is one element too short", "Meta", [&](Subject& m) {
      m.view = [original = s.view](const void* op, const Geometry& g) {
        Geometry v = original(op, g);
        if (v.shape.rank() > 0 && v.shape.back() > 0) --v.shape[v.shape.rank() - 1];
        return v;
      };
    });
  }
  return all;
}

std::string killed_by(const Mutant& m) {
  const auto kills = [&](const Law& law) {
    try {
      return !law.judge(m.subject).failures.empty();
    } catch (const std::exception&) {
      return true;
    }
  };
  for (const bool first : {true, false}) {
    for (const Law& law : laws()) {
      if ((law.name == m.first_law) == first && kills(law)) return std::string(law.name);
    }
  }
  return {};
}

MutationRun mutation_run(const OpRow& row) {
  MutationRun run;
  for (const Mutant& m : mutants_of(row)) {
    ++run.made;
    const std::string law = killed_by(m);
    if (law.empty() || (m.first_law == kKnownLaw && law != kKnownLaw))
      run.survivors.push_back(m.what);
  }
  return run;
}

}  // namespace tessera::laws

// SPDX-License-Identifier: Apache-2.0
// Determinism law. One thread and two give the same bits, on timed samples too where they are cheap
// (small ones never reach a second thread). Instruction sets agree: bit for bit where elements do
// not meet, else within rounding.
#include "tessera/core/context.h"
#include "tessera/core/process.h"
#include "tessera/tests/laws/laws.h"

#include <algorithm>

namespace tessera::laws {
namespace {

class Threads {
 public:
  explicit Threads(int n) : before_(Context::current().options.threads) {
    Context::current().options.threads = n;
  }
  ~Threads() { Context::current().options.threads = before_; }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

class LimitedIsa {
 public:
  explicit LimitedIsa(Isa isa) : before_(Process::get().isa()) { Process::get().limit_isa(isa); }
  ~LimitedIsa() { Process::get().limit_isa(before_); }
  LimitedIsa(const LimitedIsa&) = delete;
  LimitedIsa& operator=(const LimitedIsa&) = delete;

 private:
  Isa before_;
};

bool cheap(const Subject& s, const SampleRow& sample, DType t) {
  std::vector<TensorMeta> in;
  for (const Arg& a : sample.in) {
    if (!a.defined) return false;
    in.push_back({a.shape, a.type(t), kCpu});
  }
  double bytes = 0;
  for (const TensorMeta& m : in) bytes += static_cast<double>(m.shape.numel() * item_size(m.dtype));
  if (s.row->kind != OpKind::compute || bytes > 16e6) return false;
  MetaList out = s.meta(sample.op.get(), MetaArray(in));
  return s.row->cost(sample.op.get(), MetaArray(in), MetaArray(std::span<const TensorMeta>(out)))
             .flops < 5e8;
}

template <class Guard, class Setting>
void compare(const Subject& s, const SampleRow& sample, DType t, Setting one, Setting other,
             double tolerance, std::string_view what, Report& report) {
  report.attempt(sample, what, [&] {
    Random random(concat(s.row->name, " determinism ", t));
    const TensorVector in = inputs_of(sample, t, random);
    TensorVector a, b;
    {
      const Guard guard(one);
      a = run(s, sample.op.get(), in);
    }
    {
      const Guard guard(other);
      b = run(s, sample.op.get(), in);
    }
    for (size_t o = 0; o < a.size(); ++o) {
      const double allowed =
          tolerance == 0 || a[o].dtype() == DType::f32 || a[o].dtype() == DType::f64
              ? tolerance
              : tolerance_of(a[o].dtype()) / 2;
      report.check(sample, difference(b[o], a[o], allowed, terms_of(in, a[o])), what, " in ", t,
                   ", output ", o);
    }
  });
}

}  // namespace

Outcome determinism_law(const Subject& s) {
  Report report(s);
  if (s.row->kind == OpKind::view) return report.take();
  const bool alike = slice_law(s).checks > 0;
  const Isa machine = Process::get().isa();
  for (const SampleRow& sample : s.samples) {
    if (!sample.throws.empty() || !sample.known.empty()) continue;
    for (const DType t : run_dtypes(*s.row, sample)) {
      const bool floats = t == DType::f32 || t == DType::bf16;
      if (sample.bench ? floats && cheap(s, sample, t) : floats || t == exact_dtype(*s.row)) {
        compare<Threads>(s, sample, t, 1, 2, 0, "one thread and two", report);
      }
      if (sample.bench || !floats) continue;
      for (const Isa isa : {Isa::baseline, Isa::avx2}) {
        if (isa < machine)
          compare<LimitedIsa>(s, sample, t, machine, isa, alike ? 0 : 1e-5, "two instruction sets",
                              report);
      }
    }
  }
  return report.take();
}

}  // namespace tessera::laws

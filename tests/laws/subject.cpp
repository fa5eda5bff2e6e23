// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/laws/laws.h"

#include <algorithm>
#include <array>
#include <ostream>

namespace tessera::laws {

Subject subject_of(const OpRow& row) {
  Subject s;
  s.row = &row;
  s.samples = row.samples();
  if (row.meta) s.meta = row.meta;
  if (row.view) s.view = row.view;
  if (row.sharding) s.sharding = row.sharding;
  if (row.cpu) s.cpu = row.cpu;
  if (row.vjp) s.vjp = row.vjp;
  return s;
}

std::ostream& operator<<(std::ostream& os, const Failure& f) {
  return os << '[' << f.op << "] " << f.sample << ": " << f.what;
}

std::span<const Law> laws() {
  static constexpr auto kAny = [](const OpRow&) { return true; };
  static constexpr auto kDifferentiable = [](const OpRow& r) { return r.vjp != nullptr; };
  static constexpr auto kSharded = [](const OpRow& r) { return r.sharding != nullptr; };
  static constexpr auto kComputes = [](const OpRow& r) { return r.kind != OpKind::view; };
  static constexpr auto kSeldom = [](const OpRow&) { return false; };
  static constexpr std::array<Law, 12> kLaws{{
      {"Meta", meta_law, kAny},
      {"Known", known_law, kSeldom},  // the samples law asks for the values
      {"Gradient", gradient_law, kDifferentiable},
      {"SecondOrder", second_order_law, kDifferentiable},
      {"Reference", reference_law, kSeldom},
      {"Layout", layout_law, kAny},
      {"Errors", error_law, kAny},
      {"Sharding", sharding_law, kSharded},
      {"Linearity", linearity_law, kSeldom},
      {"Slices", slice_law, kSeldom},
      {"Samples", samples_law, kAny},
      {"Determinism", determinism_law, kComputes},
  }};
  return kLaws;
}

Outcome judged_by(const Law& law, const Subject& s) {
  Outcome outcome = law.judge(s);
  if (outcome.failures.empty() && outcome.checks == 0 && law.concerns(*s.row)) {
    outcome.failures.push_back({std::string(s.row->name), "all samples",
                                concat("the law ", law.name, " found nothing to check")});
  }
  return outcome;
}

void Report::add(const SampleRow& sample, std::string what) {
  outcome_.failures.push_back(
      {std::string(subject_.row->name), describe(*subject_.row, sample), std::move(what)});
}

std::string describe(const OpRow& row, const SampleRow& sample) {
  std::ostringstream os;
  os << '{';
  const auto attributes = row.attributes(sample.op.get());
  for (size_t i = 0; i < attributes.size(); ++i) os << (i ? ", " : "") << attributes[i];
  os << "}(";
  for (size_t i = 0; i < sample.in.size(); ++i) {
    const Arg& a = sample.in[i];
    os << (i ? ", " : "");
    if (!a.defined) os << "none";
    else if (a.dtype) os << *a.dtype << a.shape;
    else os << a.shape;
  }
  os << ')';
  return os.str();
}

std::vector<SampleRow> good_samples(const Subject& s) {
  std::vector<SampleRow> good;
  std::ranges::copy_if(s.samples, std::back_inserter(good), [](const SampleRow& r) {
    return r.throws.empty() && !r.bench && r.known.empty();
  });
  return good;
}

DType exact_dtype(const OpRow& row) {
  for (DType t : {DType::f64, DType::f32, DType::i64, DType::i32, DType::bf16}) {
    if (row.dtypes.has(t)) return t;
  }
  for (int i = 0; i < kDTypes; ++i) {
    if (row.dtypes.has(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return DType::f32;
}

std::vector<DType> run_dtypes(const OpRow& row, const SampleRow& sample) {
  const auto free = [](const Arg& a) { return a.defined && !a.dtype; };
  if (std::ranges::none_of(sample.in, free)) return {exact_dtype(row)};
  std::vector<DType> all;
  for (int i = 0; i < kDTypes; ++i) {
    if (row.dtypes.has(static_cast<DType>(i))) all.push_back(static_cast<DType>(i));
  }
  return all;
}

DType dtype_for(const Arg& arg, DType choice) { return arg.type(choice); }

TensorVector inputs_of(const SampleRow& sample, DType dtype, Random& random) {
  TensorVector in;
  for (const Arg& a : sample.in) {
    const DType t = a.type(dtype);
    in.push_back(a.defined ? place(values_for(a, t, random), a.shape, t) : Tensor());
  }
  return in;
}

TensorVector invoke(const Subject& s, const void* op, Tensors in, int poison) {
  const MetaArray metas(in);
  TensorVector out;
  switch (s.row->kind) {
    case OpKind::view: {
      (void)Metas(metas)[0];
      const Geometry g = s.view(op, {in[0].shape(), in[0].strides(), in[0].offset()});
      out.push_back(alias(in[0], g.shape, g.strides, g.offset));
      break;
    }
    case OpKind::compute:
      for (const TensorMeta& m : s.meta(op, metas)) out.push_back(poisoned(m, poison));
      s.cpu(op, in, out);
      break;
    case OpKind::in_place:
      (void)s.meta(op, metas);
      for (size_t i = 0; i < in.size(); ++i) {
        if (s.row->writes(i, in.size())) out.push_back(in[i]);
      }
      s.cpu(op, in, out);
      break;
  }
  return out;
}

TensorVector run(const Subject& s, const void* op, Tensors in, int poison) {
  TensorVector own(in.begin(), in.end());
  for (size_t i = 0; s.row->kind == OpKind::in_place && i < own.size(); ++i) {
    if (own[i].defined() && s.row->writes(i, own.size())) own[i] = clone(own[i]);
  }
  return invoke(s, op, own, poison);
}

std::vector<TensorMeta> output_metas(const Subject& s, const void* op, Tensors in) {
  std::vector<TensorMeta> out;
  const MetaArray metas(in);
  if (s.row->kind == OpKind::view) {
    out.push_back(
        {s.view(op, {in[0].shape(), in[0].strides(), in[0].offset()}).shape, in[0].dtype(), kCpu});
  } else if (s.row->kind == OpKind::in_place) {
    for (size_t i = 0; i < in.size(); ++i) {
      if (s.row->writes(i, in.size())) out.push_back(in[i].meta());
    }
  } else {
    for (const TensorMeta& m : s.meta(op, metas)) out.push_back(m);
  }
  return out;
}

}  // namespace tessera::laws

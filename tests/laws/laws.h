// SPDX-License-Identifier: Apache-2.0
// The laws that every op obeys, as pure functions of a Subject: an op's row whose parts can be
// swapped, so that the mutation run can spoil one part and see that some law notices. A law checks
// what its op claims against what it does; it knows no op by name.
#pragma once

#include "tessera/core/op_row.h"
#include "tessera/laws/judge.h"
#include "tessera/tests/laws/arguments.h"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::laws {

/// An op as the laws see it; its parts default to the row's.
struct Subject {
  const OpRow* row = nullptr;
  std::vector<SampleRow> samples;  // all of them: good, bad and timed
  std::function<MetaList(const void* op, Metas in)> meta;
  std::function<Geometry(const void* op, const Geometry& in)> view;
  std::function<ShardingRule(const void* op, Metas in)> sharding;
  std::function<void(const void* op, Tensors in, Outputs y)> cpu;
  std::function<Grads(const void* op, const Saved&, const Grads& dy, Needs)> vjp;
};
Subject subject_of(const OpRow& row);

/// What a law found, and how many things it compared: a law that compared nothing has not been
/// kept.
struct Outcome {
  std::vector<Failure> failures;
  int64_t checks = 0;
};

struct Law {
  std::string_view name;
  Outcome (*judge)(const Subject&);
  bool (*concerns)(const OpRow&);  // ops of which at least one check is expected
};
/// All laws that need neither GPU nor ranks.
std::span<const Law> laws();
/// What a law finds; a law that should have compared something and did not has failed.
Outcome judged_by(const Law&, const Subject&);

Outcome meta_law(
    const Subject&);  ///< meta is what the kernel wrote; all of it, and nothing else, is written
Outcome known_law(const Subject&);  ///< results are those that were worked out elsewhere
Outcome gradient_law(
    const Subject&);  ///< vjp against finite differences in f64, whole and in parts
Outcome second_order_law(
    const Subject&);  ///< the gradient of the gradient, or the sentence that there is none
Outcome reference_law(const Subject&);  ///< each dtype against f64 on the same rounded inputs
Outcome layout_law(const Subject&);     ///< strided, broadcast and zero-size inputs
Outcome error_law(const Subject&);      ///< bad samples throw what they say, with names and shapes
Outcome sharding_law(
    const Subject&);  ///< pieces joined are the whole; no factor is replicated without need
Outcome linearity_law(
    const Subject&);  ///< declared linearity and monotony hold; exact linearity is declared
Outcome slice_law(const Subject&);        ///< bits of an element do not depend on where it lies
Outcome samples_law(const Subject&);      ///< the samples are enough to judge by
Outcome determinism_law(const Subject&);  ///< thread counts and instruction sets agree
Outcome device_law(const Subject&);       ///< CUDA against CPU; needs a GPU
/// The sharding law with the real planner: on ranks (threads) and meshes, all layouts that the rule
/// allows. Needs a rule.
Outcome distributed_law(const Subject&);

// --- what laws are written with ------------------------------------------------------------------------------------

using TensorVector = std::vector<Tensor>;

/// Collects failures; a check that throws has failed.
class Report {
 public:
  explicit Report(const Subject& s) : subject_(s) {}
  template <class... Parts> void fail(const SampleRow& sample, const Parts&... parts) {
    add(sample, concat(parts...));
  }
  /// Counts a check; `problem` is why it failed.
  template <class... Parts>
  void check(const SampleRow& sample, const std::optional<std::string>& problem,
             const Parts&... what) {
    ++outcome_.checks;
    if (problem) add(sample, concat(what..., ": ", *problem));
  }
  template <class F> void attempt(const SampleRow& sample, std::string_view what, F&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      add(sample, concat(what, " threw: ", e.what()));
    }
  }
  [[nodiscard]] Outcome take() { return std::move(outcome_); }

 private:
  void add(const SampleRow& sample, std::string what);
  const Subject& subject_;
  Outcome outcome_;
};

/// Attributes and input shapes of a sample.
std::string describe(const OpRow& row, const SampleRow& sample);
std::vector<SampleRow> good_samples(const Subject&);
/// f64 where the room has it, else its most exact dtype.
DType exact_dtype(const OpRow& row);
/// The dtypes that a sample is run in: the room's, or the exact one where all inputs are fixed.
std::vector<DType> run_dtypes(const OpRow& row, const SampleRow& sample);
/// A sample's inputs; undefined where the sample leaves one out.
TensorVector inputs_of(const SampleRow& sample, DType dtype, Random& random);

/// What `call` does on the CPU, with the subject's parts: in-place ops write their operands, which
/// are returned.
TensorVector invoke(const Subject&, const void* op, Tensors in, int poison = 0x5a);
/// The same without side effects: in-place ops write copies.
TensorVector run(const Subject&, const void* op, Tensors in, int poison = 0x5a);
/// What `run` does, on CUDA and through the real call; the results are on the CPU. With `poison`
/// the kernel of an op that makes its outputs gets ones whose every byte is that.
TensorVector run_on_cuda(const Subject&, const void* op, const TensorVector& in,
                         std::optional<int> poison = {});
/// Shapes and dtypes of the outputs, of the written operands for in-place ops.
std::vector<TensorMeta> output_metas(const Subject&, const void* op, Tensors in);

}  // namespace tessera::laws

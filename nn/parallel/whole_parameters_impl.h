// SPDX-License-Identifier: Apache-2.0
// What a unit computes with in place of its parameters, and how gradients return: copies in another
// dtype (CastParameters), or whole tensors gathered by a bucket (BucketParameters). A unit has one
// of these per mesh, dtype and need of a gradient.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/dist/buckets/bucket.h"
#include "tessera/nn/parallel/policy.h"

#include <memory>
#include <optional>
#include <vector>

namespace tessera::nn::detail {

/// `layout` on `mesh`: axes of one name keep their placement and order; others are Replicate.
Layout carried_to(Mesh mesh, Layout layout);

class WholeParameters {
 public:
  WholeParameters() = default;
  WholeParameters(const WholeParameters&) = delete;
  WholeParameters& operator=(const WholeParameters&) = delete;
  virtual ~WholeParameters() = default;
  /// Starts to make them from the parameters' values of now; nothing if they are there.
  virtual void gather() = 0;
  /// Ends that: handles that autograd saved have their bytes again.
  virtual void finish() = 0;
  /// New handles of them, without a graph; finishes.
  [[nodiscard]] virtual TensorList whole() = 0;
  /// Frees their bytes, if gathering again gives them back.
  virtual void release() = 0;
  /// The same after forward, when backward will need them again: the policy may keep a part.
  virtual void release_after_forward() { release(); }
  /// Gradients of the parameters from those of whole(); undefined where they come with a later
  /// micro-batch, or have been added to the parameter's. `last`: no micro-batch follows.
  [[nodiscard]] virtual Grads reduce(const Grads& gradients, bool last) = 0;
  /// Whether reduce() runs in every backward, also where nobody used whole(): it is collective, or
  /// gives zeros as the collective would.
  [[nodiscard]] virtual bool always() const = 0;
  /// Bytes that they take now.
  [[nodiscard]] virtual int64_t bytes() const = 0;
};

/// Copies in `dtype`, made anew when the parameters have changed. They lie in one buffer, so that
/// adjacent ones are one matmul.
class CastParameters final : public WholeParameters {
 public:
  CastParameters(std::vector<Tensor> parameters, DType dtype);
  void gather() override;
  void finish() override {}
  TensorList whole() override;
  void release() override {}
  Grads reduce(const Grads& gradients, bool last) override;
  [[nodiscard]] bool always() const override { return false; }
  [[nodiscard]] int64_t bytes() const override;

 private:
  struct Slot {
    Tensor parameter, copy;
    Ref<Storage> seen = {};  // source of the copy, with its version
    uint32_t version = 0;
  };
  std::vector<Slot> slots_;
};

/// Whole tensors of parameters that lie on the axes of a bucket, on the mesh `compute`.
class BucketParameters final : public WholeParameters {
 public:
  BucketParameters(std::vector<Tensor> parameters, Mesh compute, const Bucket::Axes& axes,
                   Bucket::Policy policy, Accumulation accumulation);
  void gather() override;
  void finish() override;
  TensorList whole() override;
  void release() override;
  void release_after_forward() override;
  Grads reduce(const Grads& gradients, bool last) override;
  [[nodiscard]] bool always() const override { return true; }
  [[nodiscard]] int64_t bytes() const override { return bucket_->held_bytes(); }

 private:
  [[nodiscard]] std::vector<Tensor> accumulated() const;
  std::vector<Tensor> parameters_;
  std::vector<Layout> whole_, gradient_;  // of each, on the mesh of the computation
  std::shared_ptr<Bucket> bucket_;
  Accumulation accumulation_;
};

}  // namespace tessera::nn::detail

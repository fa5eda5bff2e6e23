// SPDX-License-Identifier: Apache-2.0
// Bucket: the parameters of one unit, gathered by one all_gather and reduced by one reduce_scatter
// (and one all_reduce over replicas). It moves local tensors; modules and autograd are its users'
// business. Every launch returns at once: a result is under way, and whatever reads its bytes waits
// (core/storage.h). Buffers live from launch to release, none between steps.
#pragma once

#include "tessera/dist/layout.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// How far a bucket reduces the gradients it is given.
enum class Reduce : uint8_t {
  none,     ///< not yet: whole gradients are added up on this rank
  scatter,  ///< over the shard axes; scattered parts are added up, the replicate axes come later
  all       ///< over all axes, with everything added up before: gives shards
};

class TESSERA_API Bucket {
 public:
  /// Names of axes of the parameters' mesh, outermost first. Either list may be empty.
  struct Axes {
    std::vector<std::string> shard, replicate;
  };
  /// `param`: dtype of whole tensors, and of what the gather sends. `reduce`: of sums of gradients.
  /// Both default to the parameters' own dtype, which shards of gradients always have. `ways`: into
  /// how many parts release_all_but_part() cuts the whole tensors, one for each of as many
  /// neighbouring ranks on the shard axes; 0: it keeps none.
  struct Policy {
    std::optional<DType> param = {}, reduce = {};
    int ways = 0;
  };

  /// `parameters`: distributed tensors, only looked at (meta tensors will do). Their layouts say
  /// which rows a rank holds: on each shard axis a Shard of one dim, innermost in that dim's list
  /// (axes of tensor parallelism come before it), on each replicate axis Replicate.
  /// LayoutError: otherwise, or plain tensors, or different meshes, or `ways` that do not divide
  /// the ranks of the shard axes. DTypeError: different dtypes. No communication; the groups are
  /// made (eagerly by the mesh, or here: called on all ranks).
  Bucket(std::span<const Tensor> parameters, Axes axes, Policy policy);
  Bucket(std::span<const Tensor> parameters, Axes axes) : Bucket(parameters, std::move(axes), {}) {}
  /// Makes the groups of buckets whose parameters lie on `mesh`, which they otherwise make
  /// themselves: called on all ranks. LayoutError as above.
  static void connect(Mesh mesh, const Axes& axes, int ways = 0);
  ~Bucket();
  Bucket(Bucket&&) noexcept;
  Bucket& operator=(Bucket&&) noexcept;

  [[nodiscard]] int size() const;           ///< number of parameters
  [[nodiscard]] DType param_dtype() const;  ///< of whole()
  [[nodiscard]] DType sum_dtype() const;    ///< of sums of gradients
  [[nodiscard]] bool gathers() const;       ///< whether other ranks hold parts of the parameters
  [[nodiscard]] const Shape& whole_shape(int i) const;  ///< of whole()[i]: a tp rank's own part
  /// Bytes of all whole tensors; of the padded buffer of gradients; of this rank's part of it.
  [[nodiscard]] int64_t gathered_bytes() const;
  [[nodiscard]] int64_t gradient_bytes() const;
  [[nodiscard]] int64_t reduced_bytes() const;
  /// Bytes of whole tensors, or of parts of them, that it holds now beside the shards.
  [[nodiscard]] int64_t held_bytes() const;

  /// Starts to gather `shards`, the local tensors of the parameters, in their order. Does nothing
  /// while the whole tensors are there, or under way, and the shards have not been written since.
  /// The same values again keep the version of the whole tensors, other values bump it. Without a
  /// collective (one rank on the shard axes) it casts, and where the dtype is right whole() is the
  /// shards themselves.
  void gather(std::span<const Tensor> shards);
  /// The whole tensors: new handles on one storage, which is the same in every gather. They lie one
  /// after another without gaps, so that neighbours of equal row length are one tensor too. Waits.
  /// UsageError: nothing was gathered, or it was released.
  [[nodiscard]] std::vector<Tensor> whole();
  /// Whether whole() would give tensors now.
  [[nodiscard]] bool gathered() const;
  /// Releases the bytes of the whole tensors (core/storage.h): their handles stay valid, and the
  /// next gather fills them again. Does nothing where whole() is the shards themselves.
  void release();
  /// Releases them but for this rank's part (Policy::ways): the next gather of the same values is
  /// among those neighbouring ranks alone. The part lives until then, or until release().
  void release_all_but_part();

  /// Reduces whole gradients (undefined: zeros), in param_dtype() or any floating dtype, as far as
  /// `how`. What calls add up has the parameters' own dtype, and is cast where a collective starts.
  /// Reduce::all gives this rank's shards: parts of one buffer, under way, each with a storage of
  /// its own, so that a leaf keeps it without a copy. Otherwise undefined tensors. `into`:
  /// gradients that the leaves hold already, contiguous and theirs alone, as those that an earlier
  /// call gave (undefined: none). Where one is given, the shard is added to its bytes, under way
  /// too, and the result is undefined. A call first completes the reduction of the call before it,
  /// so that a bucket has one buffer of gradients at most. After an error, what was added up before
  /// is gone.
  [[nodiscard]] std::vector<Tensor> reduce(std::span<const Tensor> gradients,
                                           Reduce how = Reduce::all,
                                           std::span<const Tensor> into = {});
  /// Forgets what earlier calls added up for parameter `i` and did not give. Without communication.
  void forget(int i);
  /// Completes everything under way; throws its errors.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera

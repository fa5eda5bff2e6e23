// SPDX-License-Identifier: Apache-2.0
// What the passes over modules that share data have in common: dtypes, when whole parameters are
// freed, how micro-batches add up, and the functions that work on a wrapped module.
#pragma once

#include "tessera/nn/parameters.h"

#include <optional>
#include <span>
#include <string_view>

namespace tessera::nn {

/// Dtypes of a unit. Parameters, their gradients and optimizer states keep their own dtype.
struct MixedPrecision {
  std::optional<DType> param = {};   ///< of computation, and of what is gathered
  std::optional<DType> reduce = {};  ///< of sums of gradients over ranks; default: as parameters
  std::optional<DType> output = {};  ///< of floating results of the unit; default: as computed
  bool cast_forward_inputs = true;   ///< floating inputs are cast to `param`
};

/// When the bytes of whole parameters are freed after forward. After backward they always are.
class TESSERA_API Reshard {
 public:
  static const Reshard automatic;  ///< unless backward needs them first: those of the root and of
                                   ///< the last unit stay
  static const Reshard always;     ///< least memory
  static const Reshard never;      ///< no second gather (ZeRO-2)
  /// Between never and always: after forward, each group of `ways` neighbouring ranks of the
  /// innermost shard axes keeps one copy of the whole parameters, and gathers it in backward
  /// without the others. 1 is `never`, all ranks of the shard axes `always`. ValueError: below 1.
  [[nodiscard]] static Reshard among(int ways);

  /// Into how many parts a copy is cut: 1 for `never`; 0 where nothing is kept by that rule.
  [[nodiscard]] constexpr int ways() const { return ways_; }
  constexpr bool operator==(const Reshard&) const = default;

 private:
  enum class Kind : uint8_t { automatic, always, among };
  constexpr Reshard(Kind kind, int ways) : kind_(kind), ways_(ways) {}
  Kind kind_;
  int ways_;
};
inline constexpr Reshard Reshard::automatic{Kind::automatic, 0};
inline constexpr Reshard Reshard::always{Kind::always, 0};
inline constexpr Reshard Reshard::never{Kind::among, 1};
/// Of `default`, `always`, `never` or a number for Reshard::among. ValueError of `who` about
/// another text, with what is offered.
[[nodiscard]] TESSERA_API Reshard parse_reshard(std::string_view text,
                                                std::string_view who = "reshard_after_forward");
/// The fault of a number that does not divide the ranks of the shard axes, a sentence; else empty.
[[nodiscard]] TESSERA_API std::string reshard_fault(Reshard reshard, int64_t ranks);

/// How the gradients of several micro-batches add up (see MicroBatch). Hooks of a parameter run
/// where a gradient over all ranks reaches it: by `shards` once in each micro-batch, as those of a
/// plain parameter do, otherwise in the last one with the sum of all. They see this rank's shard,
/// as a distributed tensor in the parameter's layout and dtype.
enum class Accumulation : uint8_t {
  shards,    ///< each is reduced at once; shards are added
  whole,     ///< whole gradients are added, and reduced with the last micro-batch
  replicas,  ///< each is reduced over the shards at once; over replicas with the last one
};

/// Says of the backward passes during its lifetime whether another micro-batch of the same step
/// follows. Without it, each is the last. zero_grad(), of a module or an optimizer, drops what was
/// kept for a later micro-batch too, so that a step that failed leaves nothing behind.
class TESSERA_API MicroBatch {
 public:
  explicit MicroBatch(bool last);
  ~MicroBatch();
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;

 private:
  bool before_;
};

/// Starts to gather the parameters of a wrapped module, so that its next forward need not wait.
/// Members stay as they are: only forward sees whole parameters. UsageError: it is not wrapped.
TESSERA_API void unshard(Module& module);
/// Starts to gather the parameters of a wrapped module and of all below it. They stay whole until
/// reshard(), whatever runs between: for several micro-batches with one gather. Written parameters
/// are gathered anew. UsageError: it is not wrapped.
TESSERA_API void hold(Module& module);
/// Frees the whole parameters of a wrapped module and of all below it, but for those that a forward
/// uses.
TESSERA_API void reshard(Module& module);
/// Bytes that the whole parameters (gathered, or copies in another dtype) of all wrapped modules
/// from `root` on take on this rank now.
[[nodiscard]] TESSERA_API int64_t whole_parameter_bytes(Module& root);
/// The wrapped modules whose gathers start when `module` begins its forward (backward), in place of
/// the next one in the order of the last forward (the one before it). Empty: none.
TESSERA_API void set_forward_prefetch(Module& module, std::span<Module* const> next);
TESSERA_API void set_backward_prefetch(Module& module, std::span<Module* const> next);

/// Layouts for initialize after passes that gave parameters their layouts: those; anything else is
/// replicated over `mesh`.
[[nodiscard]] TESSERA_API LayoutOf laid_out(Module& root, Mesh mesh);
/// The mesh on which a wrapped module computes; empty if it is not wrapped.
[[nodiscard]] TESSERA_API Mesh compute_mesh(const Module& module);

}  // namespace tessera::nn

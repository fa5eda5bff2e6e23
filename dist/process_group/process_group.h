// SPDX-License-Identifier: Apache-2.0
// ProcessGroup: collectives among an ordered list of ranks, one interface over every back end. This
// class checks arguments, numbers the operation, writes the flight record and passes one
// `Collective` to the back end; a back end only transfers bytes. Every operation returns a Work
// that owns its buffers and ends, at the latest by its deadline, with a result or a typed error
// that names rank, op, sequence number and peer.
#pragma once

#include "tessera/core/tensor.h"

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Reduction over ranks. avg is the sum divided by the group's size; floats only.
enum class ReduceOp : uint8_t { sum, avg, max, min };
TESSERA_API std::ostream& operator<<(std::ostream&, ReduceOp);

enum class CollectiveKind : uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  recv,
  barrier
};
TESSERA_API std::ostream& operator<<(std::ostream&, CollectiveKind);

using Counts = std::vector<int64_t>;  ///< elements per rank of the group; empty: equal counts

/// Bytes of host memory that a rank's messages in one group take at most until they are received,
/// where ranks are processes that share memory; what does not fit waits in the sender's tensors.
/// None elsewhere.
inline constexpr int64_t kMessagePool = int64_t{256} << 20;

class NcclGroup;
class CommState;       ///< state shared by the groups of a rank; comm_state_impl.h
class FlightRecorder;  ///< flight_recorder.h

/// The bytes of a tensor of a collective. They stay until its `use` ends, whatever becomes of the
/// tensor (core/pending.h), so an operation owns its buffers and yet is no owner of a storage.
struct Buffer {
  std::byte* data = nullptr;
  int64_t count = 0;  ///< elements
  Device device = kCpu;
  bool given = false;
  [[nodiscard]] bool defined() const { return given; }
  [[nodiscard]] int64_t numel() const { return count; }
};

/// One operation for back ends: checked, numbered, with counts filled in.
struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::u8;
  Buffer in = {}, out = {};        ///< undefined if this rank has none
  Counts send = {}, receive = {};  ///< elements to and from each rank, as the kind needs
  int root = -1;                   ///< root, or the peer of send and recv, as a rank of the group
  int tag = 0;                     ///< of send and recv
  int64_t count = 0;               ///< elements of the whole operation, equal on all ranks
  uint64_t sequence = 0;  ///< from 1, among the group's collectives or among its send and recv
  uint64_t record = 0;    ///< its entry in the flight recorder
  std::chrono::milliseconds timeout{0};
  Ref<PendingUse> use = {};  ///< of its buffers; the back end ends it when nobody touches them
  std::vector<Ref<PendingUse>> after = {};  ///< what it must not overtake on its buffers

  /// Whether nothing that it comes after is under way. Throws the error of what failed.
  bool may_start();
};

/// Prints as in errors: `all_reduce sum f32[10]`, `broadcast bf16[5] from 0`.
TESSERA_API std::ostream& operator<<(std::ostream&, const Collective&);

/// A pending operation. Keeps its buffers until it ends, when no rank touches them any more; may be
/// dropped before that. Used on the rank's own thread. Tensors whose bytes it reads or writes know
/// it: whatever needs them waits by itself, so waiting is needed only to end early or to see
/// errors.
class TESSERA_API Work : public RefCounted<Work> {
 public:
  virtual ~Work();
  /// Advances the operation; true when it is complete. Throws the errors of wait().
  virtual bool test() = 0;
  /// Waits until it is complete. CollectiveTimeout, CollectiveMismatch or PeerFailed otherwise.
  virtual void wait() = 0;
  /// Makes what is queued on `stream` from now on run after it, without stopping the rank where the
  /// back end can; on the CPU this is wait().
  virtual void wait_on(Stream stream);
};

class TESSERA_API ProcessGroup : public RefCounted<ProcessGroup> {
 public:
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }  ///< of the caller, in this group
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }  ///< members' world ranks
  [[nodiscard]] const std::string& name() const { return name_; }      ///< for messages and records
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// Deadline of a wait, counted from the first wait() or test() of an incomplete Work. One value
  /// for all groups of a rank.
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  void set_timeout(std::chrono::milliseconds timeout);
  /// The record of this rank's operations in all its groups.
  [[nodiscard]] FlightRecorder& recorder() const;

  // Tensors must be contiguous; dtype, sizes, op and root must be equal on all ranks; outputs must
  // be allocated. Bytes may be under way: the operation then starts after what stands in its way.
  // Sums follow one balanced binary tree over the group's
  // ranks on `threads` and `mpi`, floats narrower than f32 in f32 with one rounding at the end;
  // integers wrap. max and min give NaN if any rank has one. Errors: ShapeError (sizes or counts
  // that do not match), DTypeError, DeviceError, LayoutError (a distributed tensor), UsageError
  // (not contiguous).
  Ref<Work> all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum);        ///< in place
  Ref<Work> reduce(const Tensor& x, int root, ReduceOp op = ReduceOp::sum);  ///< in place at root
  Ref<Work> broadcast(const Tensor& x, int root);
  /// out: the concatenated inputs of all members; counts[i] elements of member i.
  Ref<Work> all_gather(const Tensor& in, const Tensor& out, const Counts& counts = {});
  /// out: this member's chunk of the reduced input; counts[i] elements go to member i.
  Ref<Work> reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op = ReduceOp::sum,
                           const Counts& counts = {});
  Ref<Work> all_to_all(const Tensor& in, const Tensor& out, const Counts& send = {},
                       const Counts& receive = {});
  Ref<Work> gather(const Tensor& in, const Tensor& out, int root, const Counts& counts = {});
  Ref<Work> scatter(const Tensor& in, const Tensor& out, int root, const Counts& counts = {});
  /// Messages of one pair of ranks and tag arrive in order. One that has been posted needs no call
  /// of its sender among ranks that share memory; elsewhere calls of both move it on. The Work may
  /// be dropped: x keeps its bytes until they have been sent, and a write to it waits for that.
  Ref<Work> send(const Tensor& x, int to, int tag = 0);
  Ref<Work> recv(const Tensor& x, int from, int tag = 0);
  Ref<Work> barrier();

  // Counts are those of all members and equal on all of them; for all_to_all, this rank's own.
  // in may be this rank's chunk of out in all_gather and gather, out this rank's chunk of in in
  // reduce_scatter and scatter; other overlaps are not allowed.

  /// The group of `members` (ranks of this group, in their new order). Called by exactly the
  /// members, in the same order; a mismatch is an error, never a hang.
  Ref<ProcessGroup> subgroup(std::span<const int> members, std::string name);
  /// Members of equal colour form a group, ordered by (key, rank); a negative colour gives null.
  /// Called by all.
  Ref<ProcessGroup> split(int color, int key = 0, std::string name = "split");
  /// Ends every operation of this group on every rank with PeerFailed and the message `why`.
  virtual void abort(std::string_view why) = 0;
  /// Throws the failure that ended this group or its world, if any.
  virtual void raise_failure(std::string_view /*where*/) {}

 protected:
  ProcessGroup(int rank, std::vector<int> ranks, std::string name, std::shared_ptr<CommState> comm);
  /// Whether this back end supports tensors of `device`.
  [[nodiscard]] virtual bool accepts(Device device) const { return device.is_cpu(); }
  /// c is already recorded and checked; the back end marks the result as done.
  virtual Ref<Work> start(Collective c) = 0;
  virtual Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) = 0;
  /// The group of the same ranks that moves tensors of the host: this one, or the one beside it.
  [[nodiscard]] virtual ProcessGroup& host() { return *this; }

  [[nodiscard]] CommState& comm() const { return *comm_; }
  [[nodiscard]] const std::shared_ptr<CommState>& shared_comm() const { return comm_; }
  /// That of a group which another one stands beside.
  [[nodiscard]] static const std::shared_ptr<CommState>& shared_comm_of(const ProcessGroup& group) {
    return group.comm_;
  }

 private:
  friend class World;
  void check(CollectiveKind kind, const Tensor& x, std::string_view what) const;
  void check_peer(CollectiveKind kind, int peer, std::string_view what) const;
  Ref<Work> launch(Collective c, const Tensor& in = {}, const Tensor& out = {});

  int rank_;
  std::vector<int> ranks_;
  std::string name_;
  std::shared_ptr<CommState> comm_;
  uint64_t sequence_ = 0, messages_ = 0;
};

/// All ranks of the calling rank's world, in order; UsageError on a thread that is not a rank.
[[nodiscard]] TESSERA_API ProcessGroup& current_group();

}  // namespace tessera

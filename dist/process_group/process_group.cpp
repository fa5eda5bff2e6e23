// SPDX-License-Identifier: Apache-2.0
// Code shared by all back ends: checks an operation's arguments, numbers and records it, and starts
// it; also the creation of subgroups.
#include "tessera/dist/process_group/process_group.h"

#include "tessera/core/message.h"
#include "tessera/dist/process_group/comm_state_impl.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <thread>

namespace tessera {
namespace {

using Kind = CollectiveKind;

bool reduces(Kind k) {
  return k == Kind::all_reduce || k == Kind::reduce || k == Kind::reduce_scatter;
}

int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::string list(const Counts& counts) {
  std::string text = "[";
  for (size_t i = 0; i < counts.size(); ++i) text += concat(i ? ", " : "", counts[i]);
  return text + "]";
}

// The counts of all members: as given, or equal counts of `whole` elements.
Counts fill_counts(Kind kind, const Counts& given, int n, int64_t whole, std::string_view what) {
  if (given.empty()) {
    if (whole % n != 0) {
      fail<ShapeError>(concat(kind), what, " has ", counted(whole, "element"),
                       ", which cannot be divided among ", counted(n, "rank"), "; give counts");
    }
    return Counts(static_cast<size_t>(n), whole / n);
  }
  if (given.size() != static_cast<size_t>(n)) {
    fail<ShapeError>(concat(kind), given.size(), " counts for a group of ", counted(n, "rank"),
                     ": give one per rank");
  }
  for (int64_t c : given) {
    if (c < 0) fail<ShapeError>(concat(kind), "counts ", list(given), " hold a negative one");
  }
  return given;
}

void check_size(Kind kind, const Tensor& x, std::string_view what, int64_t expected,
                const Counts& counts) {
  if (x.numel() == expected) return;
  fail<ShapeError>(concat(kind), what, " is ", x.meta(), " with ", counted(x.numel(), "element"),
                   "; counts ", list(counts), " ask for ", expected);
}

void check_op(Kind kind, ReduceOp op, DType dtype) {
  if (op == ReduceOp::avg && !is_floating(dtype)) {
    fail<DTypeError>(concat(kind), "avg of ", dtype, ": an average needs floats; reduce with sum");
  }
  if (op == ReduceOp::sum && dtype == DType::bool_) {
    fail<DTypeError>(concat(kind), "sum of bool: reduce with max (any) or min (all)");
  }
}

void check_pair(Kind kind, const Tensor& in, const Tensor& out) {
  if (in.device() != out.device()) {
    fail<DeviceError>(concat(kind), "in is ", in.meta(), " on ", in.device(), " and out is ",
                      out.meta(), " on ", out.device(), ": give both on one device");
  }
  if (in.dtype() == out.dtype()) return;
  fail<DTypeError>(concat(kind), "in is ", in.meta(), " and out is ", out.meta(),
                   ": dtypes must be equal");
}

// in and out must not overlap, unless one is this rank's chunk of the other, at `offset` elements.
void check_overlap(Kind kind, const Tensor& in, const Tensor& out, const Tensor& part,
                   int64_t offset) {
  const auto range = [](const Tensor& t) {
    const auto begin = reinterpret_cast<uintptr_t>(t.address());
    return std::pair(begin, begin + static_cast<uintptr_t>(t.numel() * item_size(t.dtype())));
  };
  if (!in.device().is_cpu() || in.numel() == 0 || out.numel() == 0) return;
  const auto [a, a_end] = range(in);
  const auto [b, b_end] = range(out);
  if (a_end <= b || b_end <= a) return;
  if (part.defined()) {
    const bool out_is_part = part.handle() == out.handle();
    const uintptr_t whole = out_is_part ? a : b, place = out_is_part ? b : a;
    if (place == whole + static_cast<uintptr_t>(offset * item_size(in.dtype()))) return;
  }
  fail<UsageError>(concat(kind), "in ", in.meta(), " and out ", out.meta(),
                   " overlap; give tensors apart",
                   part.defined() ? ", or this rank's own part of the whole" : "");
}

int64_t before(const Counts& counts, int part) {
  return std::accumulate(counts.begin(), counts.begin() + part, int64_t{0});
}

// The use of an operation's buffers, which storages list. It outlives the Work, but is no owner of
// it, so that work whose handle was dropped is known to have none. Only the thread of the rank may
// advance the Work; a tensor that ranks share may make another one wait.
class WorkUse final : public PendingUse {
 public:
  explicit WorkUse(const Collective& c) : text_(concat(c)), timeout_(c.timeout) {}
  ~WorkUse() override { expect_no_lock("a pending use is dropped"); }
  void is_of(Work& work) {
    const std::lock_guard guard(mutex_);
    if (!ended()) work_ = &work;
  }
  [[nodiscard]] std::string text() const override { return text_; }
  void wait_on(Stream stream) override {
    const Ref<Work> work = mine();
    if (work) work->wait_on(stream);
    else wait();
  }

 private:
  // It lives while its use has not ended.
  Ref<Work> mine() {
    const std::lock_guard guard(mutex_);
    return ended() || thread_ != std::this_thread::get_id() ? nullptr : Ref<Work>(work_);
  }
  bool advance() override {
    const Ref<Work> work = mine();
    return work ? work->test() : ended();
  }
  void block() override {
    expect_no_lock("bytes under way are waited for");
    if (const Ref<Work> work = mine()) return work->wait();
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (!ended()) {
      if (std::chrono::steady_clock::now() > deadline) {
        fail<CollectiveTimeout>("process_group", "another rank's ", text_,
                                " still uses the bytes of a shared tensor after ", timeout_.count(),
                                " ms");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  std::string text_;
  std::chrono::milliseconds timeout_;
  std::thread::id thread_ = std::this_thread::get_id();
  Work* work_ = nullptr;
};

}  // namespace

// They are dropped with the operation, which whoever asks here may not do.
bool Collective::may_start() {
  for (const Ref<PendingUse>& before : after) {
    if (!before->ended()) return false;
    if (before->failed()) before->wait();  // throws its error
  }
  return true;
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) {
  constexpr std::array<std::string_view, 4> kNames{"sum", "avg", "max", "min"};
  return out << kNames[static_cast<size_t>(op)];
}

const char* name_of(CollectiveKind kind) {
  constexpr std::array<const char*, 11> kNames{
      "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter", "all_to_all",
      "gather",     "scatter", "send",      "recv",       "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

std::ostream& operator<<(std::ostream& out, CollectiveKind kind) { return out << name_of(kind); }

std::ostream& operator<<(std::ostream& out, const Collective& c) {
  out << c.kind;
  if (c.kind == Kind::barrier) return out;
  if (reduces(c.kind)) out << ' ' << c.op;
  out << ' ' << c.dtype;
  if (c.kind != Kind::all_to_all || c.count >= 0) out << '[' << c.count << ']';
  switch (c.kind) {
    case Kind::broadcast:
    case Kind::scatter: out << " from " << c.root; break;
    case Kind::reduce:
    case Kind::gather: out << " to " << c.root; break;
    case Kind::send: out << " to " << c.root << " (tag " << c.tag << ')'; break;
    case Kind::recv: out << " from " << c.root << " (tag " << c.tag << ')'; break;
    default: break;
  }
  return out;
}

Work::~Work() { expect_no_lock("a work is dropped"); }
void Work::wait_on(Stream) { wait(); }
ProcessGroup::~ProcessGroup() { expect_no_lock("a group is dropped"); }

ProcessGroup::ProcessGroup(int rank, std::vector<int> ranks, std::string name,
                           std::shared_ptr<CommState> comm)
    : rank_(rank), ranks_(std::move(ranks)), name_(std::move(name)), comm_(std::move(comm)) {}

std::chrono::milliseconds ProcessGroup::timeout() const {
  return std::chrono::milliseconds(comm_->timeout_ms.load(std::memory_order_relaxed));
}

void ProcessGroup::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    fail<ValueError>("process_group", "a timeout of ", timeout.count(),
                     " ms: expected more than 0");
  comm_->timeout_ms.store(timeout.count(), std::memory_order_relaxed);
}

FlightRecorder& ProcessGroup::recorder() const { return comm_->recorder; }

void ProcessGroup::check(CollectiveKind kind, const Tensor& x, std::string_view what) const {
  const std::string_view fix = "; give an allocated, contiguous local tensor";
  if (!x.defined()) fail<UsageError>(concat(kind), what, " is undefined", fix);
  if (x.is_distributed()) {
    fail<LayoutError>(concat(kind), what, " is a distributed tensor ", x.meta(),
                      "; collectives of a group move local ones: give its local()");
  }
  if (!x.is_contiguous())
    fail<UsageError>(concat(kind), what, " ", x.meta(), " is not contiguous", fix);
  if (x.storage().released())
    fail<StorageError>(concat(kind), "the bytes of ", what, " ", x.meta(), " are released");
  // A group of the host has one for each device beside it.
  const bool has_another = accepts(kCpu) && x.device().is_cuda() && comm_->make_device_group;
  if (!accepts(x.device()) && !has_another) {
    fail<DeviceError>(concat(kind), what, " is on ", x.device(), ", which the back end ", backend(),
                      " does not move");
  }
}

void ProcessGroup::check_peer(CollectiveKind kind, int peer, std::string_view what) const {
  if (peer >= 0 && peer < size()) return;
  fail<IndexError>(concat(kind), what, " is ", peer, ", but group ", name_, " has ranks 0 to ",
                   size() - 1);
}

Ref<Work> ProcessGroup::launch(Collective c, const Tensor& in, const Tensor& out) {
  if (const Tensor& x = in.defined() ? in : out; x.defined() && !accepts(x.device())) {
    return comm_->device_group(Ref<ProcessGroup>(this), comm_, x.device())
        .launch(std::move(c), in, out);
  }
  const bool message = c.kind == Kind::send || c.kind == Kind::recv;
  const auto takes = [&](Buffer& buffer, const Tensor& x, Access access) {
    if (!x.defined()) return;
    buffer = {static_cast<std::byte*>(x.address()), x.numel(), x.device(), true};
    for (Ref<PendingUse>& before : x.storage().pending(access, x.byte_range())) {
      if (before->ended() || !before->advances()) before->wait();
      else c.after.push_back(std::move(before));
    }
  };
  takes(c.in, in, Access::read);
  takes(c.out, out, Access::write);
  c.sequence = message ? ++messages_ : ++sequence_;
  c.timeout = timeout();
  const auto use = make_ref<WorkUse>(c);
  c.use = use;
  if (in.defined()) in.storage().add_use(use, Access::read, in.byte_range());
  if (out.defined()) {
    out.storage().add_use(use, Access::write, out.byte_range());
    out.storage().bump_version();  // so that autograd detects the write to saved tensors
  }
  {
    const auto guard = comm_->lock();
    c.record = comm_->recorder.enter(*this, c);
    comm_->started(c);
  }
  try {
    Ref<Work> work = start(std::move(c));
    use->is_of(*work);
    return work;
  } catch (...) {
    use->end();  // it has not begun
    throw;
  }
}

Ref<Work> ProcessGroup::all_reduce(const Tensor& x, ReduceOp op) {
  check(Kind::all_reduce, x, "x");
  check_op(Kind::all_reduce, op, x.dtype());
  return launch({.kind = Kind::all_reduce, .op = op, .dtype = x.dtype(), .count = x.numel()}, x, x);
}

Ref<Work> ProcessGroup::reduce(const Tensor& x, int root, ReduceOp op) {
  check(Kind::reduce, x, "x");
  check_peer(Kind::reduce, root, "root");
  check_op(Kind::reduce, op, x.dtype());
  return launch(
      {.kind = Kind::reduce, .op = op, .dtype = x.dtype(), .root = root, .count = x.numel()}, x,
      rank_ == root ? x : Tensor());
}

Ref<Work> ProcessGroup::broadcast(const Tensor& x, int root) {
  check(Kind::broadcast, x, "x");
  check_peer(Kind::broadcast, root, "root");
  return launch({.kind = Kind::broadcast, .dtype = x.dtype(), .root = root, .count = x.numel()},
                rank_ == root ? x : Tensor(), rank_ == root ? Tensor() : x);
}

Ref<Work> ProcessGroup::all_gather(const Tensor& in, const Tensor& out, const Counts& counts) {
  check(Kind::all_gather, in, "in");
  check(Kind::all_gather, out, "out");
  check_pair(Kind::all_gather, in, out);
  Counts receive = fill_counts(Kind::all_gather, counts, size(), out.numel(), "out");
  check_size(Kind::all_gather, in, "in", receive[static_cast<size_t>(rank_)], receive);
  check_size(Kind::all_gather, out, "out", total(receive), receive);
  check_overlap(Kind::all_gather, in, out, in, before(receive, rank_));
  return launch({.kind = Kind::all_gather,
                 .dtype = in.dtype(),
                 .receive = std::move(receive),
                 .count = out.numel()},
                in, out);
}

Ref<Work> ProcessGroup::reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                       const Counts& counts) {
  check(Kind::reduce_scatter, in, "in");
  check(Kind::reduce_scatter, out, "out");
  check_pair(Kind::reduce_scatter, in, out);
  check_op(Kind::reduce_scatter, op, in.dtype());
  Counts send = fill_counts(Kind::reduce_scatter, counts, size(), in.numel(), "in");
  check_size(Kind::reduce_scatter, out, "out", send[static_cast<size_t>(rank_)], send);
  check_size(Kind::reduce_scatter, in, "in", total(send), send);
  check_overlap(Kind::reduce_scatter, in, out, out, before(send, rank_));
  return launch({.kind = Kind::reduce_scatter,
                 .op = op,
                 .dtype = in.dtype(),
                 .send = std::move(send),
                 .count = in.numel()},
                in, out);
}

Ref<Work> ProcessGroup::all_to_all(const Tensor& in, const Tensor& out, const Counts& send,
                                   const Counts& receive) {
  check(Kind::all_to_all, in, "in");
  check(Kind::all_to_all, out, "out");
  check_pair(Kind::all_to_all, in, out);
  Counts to = fill_counts(Kind::all_to_all, send, size(), in.numel(), "in");
  Counts from = fill_counts(Kind::all_to_all, receive, size(), out.numel(), "out");
  check_size(Kind::all_to_all, in, "in", total(to), to);
  check_size(Kind::all_to_all, out, "out", total(from), from);
  check_overlap(Kind::all_to_all, in, out, {}, 0);
  return launch({.kind = Kind::all_to_all,
                 .dtype = in.dtype(),
                 .send = std::move(to),
                 .receive = std::move(from),
                 .count = -1},
                in, out);  // each pair has its own; back ends compare them pair by pair
}

Ref<Work> ProcessGroup::gather(const Tensor& in, const Tensor& out, int root,
                               const Counts& counts) {
  check(Kind::gather, in, "in");
  check_peer(Kind::gather, root, "root");
  const bool is_root = rank_ == root;
  if (is_root) {
    check(Kind::gather, out, "out");
    check_pair(Kind::gather, in, out);
  }
  Counts receive =
      fill_counts(Kind::gather, counts, size(),
                  is_root && out.numel() % size() != 0 ? out.numel() : in.numel() * size(), "out");
  check_size(Kind::gather, in, "in", receive[static_cast<size_t>(rank_)], receive);
  const int64_t count = total(receive);
  if (is_root) {
    check_size(Kind::gather, out, "out", count, receive);
    check_overlap(Kind::gather, in, out, in, before(receive, rank_));
  }
  return launch({.kind = Kind::gather,
                 .dtype = in.dtype(),
                 .receive = std::move(receive),
                 .root = root,
                 .count = count},
                in, is_root ? out : Tensor());
}

Ref<Work> ProcessGroup::scatter(const Tensor& in, const Tensor& out, int root,
                                const Counts& counts) {
  check(Kind::scatter, out, "out");
  check_peer(Kind::scatter, root, "root");
  const bool is_root = rank_ == root;
  if (is_root) {
    check(Kind::scatter, in, "in");
    check_pair(Kind::scatter, in, out);
  }
  Counts send =
      fill_counts(Kind::scatter, counts, size(),
                  is_root && in.numel() % size() != 0 ? in.numel() : out.numel() * size(), "in");
  check_size(Kind::scatter, out, "out", send[static_cast<size_t>(rank_)], send);
  const int64_t count = total(send);
  if (is_root) {
    check_size(Kind::scatter, in, "in", count, send);
    check_overlap(Kind::scatter, in, out, out, before(send, rank_));
  }
  return launch({.kind = Kind::scatter,
                 .dtype = out.dtype(),
                 .send = std::move(send),
                 .root = root,
                 .count = count},
                is_root ? in : Tensor(), out);
}

Ref<Work> ProcessGroup::send(const Tensor& x, int to, int tag) {
  check(Kind::send, x, "x");
  check_peer(Kind::send, to, "the receiver");
  return launch(
      {.kind = Kind::send, .dtype = x.dtype(), .root = to, .tag = tag, .count = x.numel()}, x);
}

Ref<Work> ProcessGroup::recv(const Tensor& x, int from, int tag) {
  check(Kind::recv, x, "x");
  check_peer(Kind::recv, from, "the sender");
  return launch(
      {.kind = Kind::recv, .dtype = x.dtype(), .root = from, .tag = tag, .count = x.numel()},
      Tensor(), x);
}

Ref<Work> ProcessGroup::barrier() { return launch({.kind = Kind::barrier}); }

Ref<ProcessGroup> ProcessGroup::subgroup(std::span<const int> members, std::string name) {
  const std::string where = concat("subgroup ", name);
  std::vector<bool> seen(ranks_.size());
  for (int m : members) {
    if (m < 0 || m >= size()) {
      fail<IndexError>(where, "member ", m, " is not a rank of group ", name_, ", which has 0 to ",
                       size() - 1);
    }
    if (seen[static_cast<size_t>(m)]) fail<UsageError>(where, "member ", m, " is named twice");
    seen[static_cast<size_t>(m)] = true;
  }
  if (!seen[static_cast<size_t>(rank_)]) {
    fail<UsageError>(where, "rank ", rank_, " of group ", name_,
                     " makes a group that it is not in: only members call this");
  }
  return make_subgroup(members, std::move(name));
}

Ref<ProcessGroup> ProcessGroup::split(int color, int key, std::string name) {
  const Tensor mine = empty({2}, DType::i64), all = empty({size(), 2}, DType::i64);
  mine.data<int64_t>()[0] = color;
  mine.data<int64_t>()[1] = key;
  host().all_gather(mine, all)->wait();
  if (color < 0) return nullptr;
  const int64_t* colors = all.data<int64_t>();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (colors[2 * r] == color) members.push_back(r);
  }
  std::ranges::stable_sort(members, {}, [&](int r) { return colors[2 * r + 1]; });
  return subgroup(members, std::move(name));
}

ProcessGroup& current_group() {
  Context* context = Context::current_or_null();
  ProcessGroup* group = context ? context->state<CurrentGroup>().group : nullptr;
  if (!group) {
    fail<UsageError>(
        "process_group",
        "this thread is not a rank: call this inside run_ranks, or make a World first");
  }
  return *group;
}

}  // namespace tessera

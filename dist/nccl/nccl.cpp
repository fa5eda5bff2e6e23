// SPDX-License-Identifier: Apache-2.0
// NCCL calls are non-blocking; completion is polled. Errors and deadlines abort the communicator,
// and the host group notifies the other members.
#include "tessera/dist/nccl/nccl.h"

#include "tessera/dist/library/open_library_impl.h"
#include "tessera/dist/nccl/nccl_group_impl.h"
#include "tessera/dist/process_group/signature_impl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tessera {
namespace {

using Kind = CollectiveKind;
using Clock = std::chrono::steady_clock;

const TesseraNcclApi& nccl_api() {
  static const OpenedLibrary opened = open_library("libtessera_nccl.so", "tessera_nccl_api");
  return table_of<TesseraNcclApi>(opened, kTesseraNcclVersion, "libtessera_nccl.so",
                                  "install NVIDIA's CUDA toolkit and NCCL (nccl.h, libnccl.so) and "
                                  "build again");
}

constexpr auto kPoll = std::chrono::microseconds(50);
constexpr auto kFarewell = std::chrono::seconds(5);

int type_of(DType t) {
  switch (t) {
    case DType::f64: return kNcclF64;
    case DType::f32: return kNcclF32;
    case DType::bf16: return kNcclBf16;
    case DType::f16: return kNcclF16;
    case DType::i64: return kNcclI64;
    case DType::i32: return kNcclI32;
    case DType::u8:
    case DType::bool_: return kNcclU8;
    default:
      fail<DTypeError>("nccl", "reductions of ", t, " are not NCCL's: reduce in bf16 or f32");
  }
}

int op_of(ReduceOp op) {
  constexpr std::array<int, 4> kOps{kNcclSum, kNcclAvg, kNcclMax, kNcclMin};
  return kOps[static_cast<size_t>(op)];
}

bool even(const Counts& counts) {
  return std::ranges::all_of(counts, [&](int64_t n) { return n == counts[0]; });
}

}  // namespace

NcclWork::NcclWork(Collective collective, Ref<NcclGroup> owner, Stream s)
    : c(std::move(collective)), group(std::move(owner)), stream(s) {}
// Dropped before its end: its stream orders it before whatever comes to use the bytes.
NcclWork::~NcclWork() {
  if (event) nccl_api().event_free(event);
  if (!done) c.use->end();
}
bool NcclWork::test() { return group->poll(*this); }
void NcclWork::wait() {
  for (int turns = 0; !group->poll(*this); ++turns) {
    if (turns < 1000) std::this_thread::yield();
    else std::this_thread::sleep_for(kPoll);
  }
}

void NcclWork::wait_on(Stream s) {
  if (done || s.handle == stream.handle) return;
  if (!s.device.is_cuda()) return wait();
  group->order(*this, s);
}

Ref<ProcessGroup> make_nccl_group(const Ref<ProcessGroup>& host, Device device) {
  if (!device.is_cuda()) fail<DeviceError>("nccl", "device ", device, ": expected a CUDA device");
  return NcclGroup::make(host, device, host->name());
}

Ref<ProcessGroup> NcclGroup::make(const Ref<ProcessGroup>& host, Device device, std::string name) {
  return make_ref<NcclGroup>(host, device, host->shared_comm(), std::move(name));
}

NcclGroup::NcclGroup(Ref<ProcessGroup> host, Device device, std::shared_ptr<CommState> comm,
                     std::string name)
    : ProcessGroup(host->rank(), {host->ranks().begin(), host->ranks().end()}, std::move(name),
                   std::move(comm)),
      api_(nccl_api()),
      host_(std::move(host)),
      device_(device) {
  const char* value = std::getenv("TESSERA_NCCL_CHECK");
  check_signatures_ = value && std::string_view(value) == "1";
  connect();
}

NcclGroup::~NcclGroup() {
  if (!communicator_) return;
  // Finalising waits for the peers, so it has an end too.
  const auto end = Clock::now() + kFarewell;
  if (api_.finish(communicator_) != 0) {
    abort_communicator();
    return;
  }
  int state = api_.state(communicator_);
  for (; state == kNcclPending && Clock::now() < end; state = api_.state(communicator_))
    std::this_thread::sleep_for(kPoll);
  if (state == 0) (void)api_.destroy(communicator_);
  else abort_communicator();
}

std::string NcclGroup::where(const Collective& c) const {
  return concat(c, " #", c.sequence, " in group ", name());
}

void NcclGroup::connect() {
  TesseraNcclId id{};
  const Tensor bytes = empty({static_cast<int64_t>(sizeof(id))}, DType::u8);
  if (rank() == 0) check(api_.make_id(&id), nullptr);
  std::memcpy(bytes.raw_data(), &id, sizeof(id));
  host_->broadcast(bytes, 0)->wait();
  std::memcpy(&id, bytes.raw_data(), sizeof(id));
  check(api_.start(&id, rank(), size(), device_.index, &communicator_), nullptr);
  settle(nullptr, Clock::now() + timeout());
}

void NcclGroup::check(int code, const Collective* c) {
  if (code == 0) return;
  std::array<char, 1024> text{};
  api_.error_text(code, communicator_, text.data(), text.size());
  const std::string at = c ? where(*c) : concat("starting group ", name());
  abort(concat(text.data(), " in ", at));
  if (!c) fail<LaunchError>("nccl", at, " on ", device_, ": ", text.data());
  fail<PeerFailed>(at, "NCCL stopped: ", text.data());
}

void NcclGroup::settle(const Collective* c, Clock::time_point deadline) {
  while (true) {
    raise_failure(c ? where(*c) : concat("starting group ", name()));
    const int state = api_.state(communicator_);
    if (state == 0) return;
    if (state != kNcclPending) check(state, c);
    if (Clock::now() > deadline) {
      const std::string text =
          concat("rank ", comm().world_rank, " gave up after ", timeout().count(), " ms ",
                 c ? "queueing " + where(*c) : concat("starting group ", name(), " over NCCL"));
      abort(text);
      fail<CollectiveTimeout>("nccl", text);
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void NcclGroup::abort_communicator() {
  if (communicator_) (void)api_.abort(std::exchange(communicator_, nullptr));
}

void NcclGroup::abort(std::string_view why) {
  abort_communicator();
  host_->abort(why);
}

void NcclGroup::raise_failure(std::string_view at) {
  if (comm().watch) comm().watch->look();
  try {
    host_->raise_failure(at);
  } catch (const Error&) {
    abort_communicator();
    throw;
  }
}

Ref<ProcessGroup> NcclGroup::make_subgroup(std::span<const int> members, std::string name) {
  return make(host_->subgroup(members, concat(name, " (host)")), device_, std::move(name));
}

Ref<Work> NcclGroup::start(Collective c) {
  const std::string at = where(c);
  raise_failure(at);
  if (check_signatures_ && c.kind != Kind::send && c.kind != Kind::recv) compare_signatures(c);
  const auto w =
      make_ref<NcclWork>(std::move(c), Ref<NcclGroup>(this), Context::current().stream(device_));
  for (const Ref<PendingUse>& before : std::exchange(w->c.after, {})) before->wait_on(w->stream);
  queue(*w);
  settle(&w->c, Clock::now() + w->c.timeout);
  check(api_.event_record(device_.index, w->stream.handle, &w->event), &w->c);
  recorder().started(w->c.record);
  return w;
}

void NcclGroup::compare_signatures(const Collective& c) {
  const Signature mine(c);
  const auto bytes = static_cast<int64_t>(sizeof(Signature));
  const Tensor own = empty({bytes}, DType::u8), all = empty({bytes * size()}, DType::u8);
  std::memcpy(own.raw_data(), &mine, sizeof(Signature));
  host_->all_gather(own, all)->wait();
  for (int p = 0; p < size(); ++p) {
    Signature theirs;
    std::memcpy(&theirs, all.data<uint8_t>() + p * bytes, sizeof(Signature));
    if (theirs == mine) continue;
    fail<CollectiveMismatch>(where(c), "members of group ", name(), " disagree: rank ",
                             comm().world_rank, ": ", mine.text(), ", rank ",
                             ranks()[static_cast<size_t>(p)], ": ", theirs.text());
  }
}

void NcclGroup::queue(NcclWork& w) {
  Collective& c = w.c;
  void *const to = c.out.data, *const stream = w.stream.handle;
  const void* from = c.in.data;
  const int64_t item = item_size(c.dtype);
  const auto n = static_cast<size_t>(c.count);
  switch (c.kind) {
    case Kind::all_reduce:
      return check(
          api_.all_reduce(from, to, n, type_of(c.dtype), op_of(c.op), communicator_, stream), &c);
    case Kind::reduce:
      return check(
          api_.reduce(from, to, n, type_of(c.dtype), op_of(c.op), c.root, communicator_, stream),
          &c);
    case Kind::broadcast: {
      void* const data = from ? const_cast<void*>(from) : to;
      return check(api_.broadcast(data, data, n * static_cast<size_t>(item), kNcclU8, c.root,
                                  communicator_, stream),
                   &c);
    }
    case Kind::all_gather:
      if (!even(c.receive)) return queue_pairs(w);
      return check(api_.all_gather(from, to, static_cast<size_t>(c.receive[0] * item), kNcclU8,
                                   communicator_, stream),
                   &c);
    case Kind::reduce_scatter: {
      if (even(c.send)) {
        return check(api_.reduce_scatter(from, to, static_cast<size_t>(c.send[0]), type_of(c.dtype),
                                         op_of(c.op), communicator_, stream),
                     &c);
      }
      const auto* part = static_cast<const std::byte*>(from);
      check(api_.group_start(), &c);
      for (int p = 0; p < size(); ++p) {
        const int64_t count = c.send[static_cast<size_t>(p)];
        if (count > 0)
          check(api_.reduce(part, p == rank() ? to : nullptr, static_cast<size_t>(count),
                            type_of(c.dtype), op_of(c.op), p, communicator_, stream),
                &c);
        part += count * item;
      }
      return check(api_.group_end(), &c);
    }
    case Kind::barrier: {
      w.scratch = empty({1}, DType::u8, device_);
      void* const data = w.scratch.raw_device_data();
      return check(api_.all_reduce(data, data, 1, kNcclU8, kNcclMax, communicator_, stream), &c);
    }
    default: return queue_pairs(w);
  }
}

// Collectives made of messages between pairs, in one group of calls.
void NcclGroup::queue_pairs(NcclWork& w) {
  Collective& c = w.c;
  const int me = rank();
  const int64_t item = item_size(c.dtype);
  void* const stream = w.stream.handle;
  const bool rooted = c.kind == Kind::gather || c.kind == Kind::scatter;
  const auto message = [&](bool sends, std::byte* data, int64_t count, int peer) {
    if (count == 0) return;
    const auto bytes = static_cast<size_t>(count * item);
    check(sends ? api_.send(data, bytes, kNcclU8, peer, communicator_, stream)
                : api_.receive(data, bytes, kNcclU8, peer, communicator_, stream),
          &c);
  };
  if (c.kind == Kind::send) return message(true, c.in.data, c.count, c.root);
  if (c.kind == Kind::recv) return message(false, c.out.data, c.count, c.root);
  const auto part = [](const Counts& counts, int p) {
    return counts.empty() ? 0 : counts[static_cast<size_t>(p)];
  };
  check(api_.group_start(), &c);
  std::byte *from = c.in.data, *to = c.out.data;
  std::byte* own_from = from;
  std::byte* own_to = to;
  int64_t own = 0;
  for (int p = 0; p < size(); ++p) {
    // What this rank sends to p, and receives from it.
    int64_t sends = 0, receives = 0;
    switch (c.kind) {
      case Kind::all_to_all: sends = part(c.send, p), receives = part(c.receive, p); break;
      case Kind::all_gather: sends = part(c.receive, me), receives = part(c.receive, p); break;
      case Kind::gather:
        sends = p == c.root ? part(c.receive, me) : 0;
        receives = me == c.root ? part(c.receive, p) : 0;
        break;
      default:
        sends = me == c.root ? part(c.send, p) : 0;
        receives = p == c.root ? part(c.send, me) : 0;
    }
    if (p == me) {
      own_from = from, own_to = to, own = receives;
    } else {
      message(true, from, sends, p);
      message(false, to, receives, p);
    }
    if (c.kind == Kind::all_to_all || (c.kind == Kind::scatter && me == c.root))
      from += sends * item;
    if (c.kind != Kind::scatter) to += receives * item;
  }
  check(api_.group_end(), &c);
  if (own > 0 && own_from != own_to && (!rooted || me == c.root))
    check(api_.copy(own_to, own_from, static_cast<size_t>(own * item), stream), &c);
}

void NcclGroup::order(const NcclWork& w, Stream s) {
  check(api_.stream_wait(s.handle, w.event), &w.c);
}

bool NcclGroup::poll(NcclWork& w) {
  if (w.done) return true;
  raise_failure(where(w.c));
  if (communicator_) {
    const int state = api_.state(communicator_);
    if (state != 0 && state != kNcclPending) check(state, &w.c);
  }
  const int code = api_.event_done(w.event);
  if (code == 0) {
    w.done = true;
    recorder().ended(w.c.record, false);
    comm().waits_for(-1);
    w.c.in = w.c.out = {};
    w.scratch = {};
    w.c.use->end();
    return true;
  }
  if (code != kNcclPending) check(code, &w.c);
  const auto now = Clock::now();
  if (w.deadline == Clock::time_point()) w.deadline = now + w.c.timeout;
  else if (now > w.deadline) give_up(w);
  return false;
}

// NCCL does not say who is missing: the side channel tells who has started less than this rank.
void NcclGroup::give_up(const NcclWork& w) {
  std::string late;
  for (int member : ranks()) {
    if (member == comm().world_rank) continue;
    const std::string seen = comm().describe(member);
    late += concat(late.empty() ? "" : "; ", seen.empty() ? concat("rank ", member) : seen);
  }
  const std::string text =
      concat("rank ", comm().world_rank, " gave up after ", w.c.timeout.count(), " ms in ",
             where(w.c), ". The others: ", late, "; flight record: ", recorder().path());
  recorder().ended(w.c.record, true);
  recorder().dump(text);
  abort(text);
  fail<CollectiveTimeout>(where(w.c), text);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// NCCL calls are non-blocking; completion is polled. Errors and deadlines abort the communicators,
// and the host group notifies the other members.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/dist/library/open_library_impl.h"
#include "tessera/dist/nccl/group_impl.h"
#include "tessera/dist/nccl/nccl.h"
#include "tessera/dist/process_group/signature_impl.h"
#include "tessera/dist/rendezvous/place_impl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

const TesseraNcclApi& nccl_api() {
  static const OpenedLibrary opened = open_library("libtessera_nccl.so", "tessera_nccl_api");
  return table_of<TesseraNcclApi>(opened, kTesseraNcclVersion, "libtessera_nccl.so",
                                  "install NVIDIA's CUDA toolkit and NCCL (nccl.h, libnccl.so) and "
                                  "build again");
}

constexpr auto kPoll = std::chrono::microseconds(50);
constexpr auto kFarewell = std::chrono::seconds(5);

// Between two polls. Most calls end soon, so it yields at first: a sleep would take longer than
// the call.
void pause(int turns) {
  if (turns < 1000) std::this_thread::yield();
  else std::this_thread::sleep_for(kPoll);
}

}  // namespace

NcclWork::NcclWork(Collective collective, Ref<NcclGroup> owner)
    : c(std::move(collective)), group(std::move(owner)), place(group->where(c)) {}
// Events go back when it ends; one that could not be queued has them still.
NcclWork::~NcclWork() {
  for (void* event : {ready, end})
    if (event) group->api_.event_free(event);
}
bool NcclWork::test() { return group->poll(*this); }
void NcclWork::wait() {
  expect_no_lock("a rank waits for others");
  std::optional<WaitWatch::Wait> watched;
  Clock::time_point until{};  // of a message, another once its ranks are connected
  for (int turns = 0; !group->poll(*this); ++turns) {
    if (until != deadline)
      watched.emplace(group->comm().waits, name_of(c.kind), c.sequence, until = deadline);
    watched->check();
    pause(turns);
  }
}

void NcclWork::wait_on(Stream s) {
  if (!s.device.is_cuda()) return wait();
  group->order(*this, s);
}

NcclChannel::NcclChannel(const TesseraNcclApi& api, Device device, const TesseraNcclId& id,
                         int rank, int size)
    : stream(Process::get().cuda().take_stream(device.index)), api_(api) {
  code = api_.start(&id, rank, size, &communicator);
}

NcclChannel::~NcclChannel() {
  expect_no_lock("a communicator is dropped");
  // Finalising waits for the peers, so it has an end too.
  const auto end = Clock::now() + kFarewell;
  while (communicator && state() == kNcclPending && Clock::now() < end)
    std::this_thread::sleep_for(kPoll);
  if (communicator && state() == 0) (void)api_.destroy(communicator);
  else abort();
  Process::get().cuda().give_stream(stream);
}

void NcclChannel::leave() {
  if (!communicator) return;
  if (state() != 0 || api_.finish(communicator) != 0) abort();
}

int NcclChannel::state() const { return communicator ? api_.state(communicator) : 0; }

void NcclChannel::abort() {
  if (communicator) (void)api_.abort(std::exchange(communicator, nullptr));
}

Ref<ProcessGroup> make_nccl_group(const Ref<ProcessGroup>& host, Device device) {
  if (!device.is_cuda()) fail<DeviceError>("nccl", "device ", device, ": expected a CUDA device");
  return NcclGroup::make(host, device, host->name());
}

NcclConnections nccl_connections() { return Context::current().state<NcclConnections>(); }

Ref<ProcessGroup> NcclGroup::make(const Ref<ProcessGroup>& host, Device device, std::string name) {
  return make_ref<NcclGroup>(host, device, shared_comm_of(*host), std::move(name));
}

NcclGroup::NcclGroup(Ref<ProcessGroup> host, Device device, std::shared_ptr<CommState> comm_state,
                     std::string name)
    : ProcessGroup(host->rank(), {host->ranks().begin(), host->ranks().end()}, std::move(name),
                   std::move(comm_state)),
      api_(nccl_api()),
      host_(std::move(host)),
      device_(device),
      connect_timeout_(timeout()) {
  const char* value = std::getenv("TESSERA_NCCL_CHECK");
  check_signatures_ = value && std::string_view(value) == "1";
  (void)Context::current().stream(device_);  // makes the device the thread's current one
  refuse_shared_devices();
  connect();
  watchdog_ = NcclWatchdog::of_rank();
  watchdog_->add(this);
}

NcclGroup::~NcclGroup() {
  expect_no_lock("a group is dropped");
  if (watchdog_) watchdog_->remove(this);
  if (channel_) channel_->leave();
  for (auto& [ranks, pipe] : pipes_)
    if (pipe.channel) pipe.channel->leave();
  for (void* event : idle_events_) api_.event_free(event);
  if (gate_) Process::get().cuda().give_stream(*gate_);
}

std::string NcclGroup::where(const Collective& c) const {
  return concat(c, " #", c.sequence, " in group ", name());
}

// NCCL would refuse it too, in words that name neither rank. As it does, NCCL_HOSTID makes a host
// of one process.
void NcclGroup::refuse_shared_devices() {
  struct Place {
    std::array<char, 160> gpu{};
    int32_t index = 0;
  };
  Place mine;
  mine.index = device_.index;
  std::array<char, 64> bus{};
  check(api_.device_text(device_.index, bus.data(), bus.size()), nullptr);
  const char* host_id = std::getenv("NCCL_HOSTID");
  const std::string gpu =
      concat(bus.data(), " of host ", host_id ? host_id : RankPlace::own().host);
  std::copy_n(gpu.data(), std::min(gpu.size(), mine.gpu.size() - 1), mine.gpu.data());
  const auto bytes = static_cast<int64_t>(sizeof(Place));
  const Tensor own = empty({bytes}, DType::u8), all = empty({bytes * size()}, DType::u8);
  std::memcpy(own.data<uint8_t>(), &mine, sizeof mine);
  host_->all_gather(own, all)->wait();
  std::vector<Place> places(static_cast<size_t>(size()));
  std::memcpy(places.data(), all.data<uint8_t>(), places.size() * sizeof(Place));
  for (size_t b = 0; b < places.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (places[a].gpu != places[b].gpu) continue;
      fail<LaunchError>("nccl", "ranks ", ranks()[a], " (cuda:", places[a].index, ") and ",
                        ranks()[b], " (cuda:", places[b].index, ") of group ", name(),
                        " have the same GPU, ", places[a].gpu.data(),
                        ": NCCL needs one for each rank. Start fewer ranks, or give each ",
                        "rank of a host a device of its own, as rank_device and --device cuda do");
    }
  }
}

int64_t NcclGroup::free_memory() {
  size_t bytes = 0;
  check(api_.free_memory(&bytes), nullptr);
  return static_cast<int64_t>(bytes);
}

void NcclGroup::connect() {
  const auto begin = Clock::now();
  const int64_t free = free_memory();
  TesseraNcclId id{};
  const Tensor bytes = empty({static_cast<int64_t>(sizeof(id))}, DType::u8);
  if (rank() == 0) check(api_.make_id(&id), nullptr);
  std::memcpy(bytes.data<uint8_t>(), &id, sizeof(id));
  host_->broadcast(bytes, 0)->wait();
  std::memcpy(&id, bytes.data<uint8_t>(), sizeof(id));
  channel_ = std::make_unique<NcclChannel>(api_, device_, id, rank(), size());
  check(channel_->code, nullptr);
  settle(nullptr, connect_timeout_);
  auto& made = Context::current().state<NcclConnections>();
  ++made.communicators;
  made.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  made.bytes += std::max<int64_t>(0, free - free_memory());  // others may have freed some meanwhile
}

void NcclGroup::check(int code, const NcclWork* w) {
  if (code == 0) return;
  {
    const auto guard = comm().lock();
    const std::string text = text_of(code);
    if (w) stop<PeerFailed>(w->place, "NCCL stopped: " + text);
    else stop<LaunchError>("nccl", concat("starting group ", name(), " on ", device_, ": ", text));
  }
  raise_failure("");
}

void NcclGroup::settle(const NcclWork* w, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string place = w ? w->place : concat("starting group ", name(), " over NCCL");
  const WaitWatch::Wait watched(comm().waits, "a call of NCCL", 0, deadline);
  for (int turns = 0;; ++turns) {
    watched.check();
    raise_failure(place);
    const int state = [&] {
      const auto guard = comm().lock();
      return channel_->state();
    }();
    if (state == 0) return;
    if (state != kNcclPending) check(state, w);
    if (Clock::now() > deadline) {
      const std::string seen = others();
      {
        const auto guard = comm().lock();
        stop<CollectiveTimeout>(
            "nccl", concat("rank ", comm().world_rank, " gave up after ", timeout.count(), " ms ",
                           w ? "queueing " : "", place, ". The others: ", seen));
      }
      raise_failure(place);
    }
    pause(turns);
  }
}

// --- failures --------------------------------------------------------------------------------------

std::string NcclGroup::text_of(int code) const {
  std::array<char, 1024> text{};
  api_.error_text(code, channel_ ? channel_->communicator : nullptr, text.data(), text.size());
  return text.data();
}

// The first reason counts.
void NcclGroup::end_group(const std::exception_ptr& error, std::string_view for_host) {
  if (failure_) return;
  failure_ = error;
  untold_ = for_host;
  const auto drop = [&](const Ref<NcclWork>& w) {
    recorder().ended(w->c.record, true);
    w->error = error;
    finish(w);
  };
  for (const Ref<NcclWork>& w : std::exchange(in_flight_, {})) drop(w);
  for (const Ref<NcclWork>& w : std::exchange(messages_, {})) drop(w);
  comm().lost(error, nullptr);
  if (channel_) channel_->abort();
  for (auto& [ranks, pipe] : pipes_) {
    if (pipe.channel) pipe.channel->abort();
    pipe.steps.clear();
    pipe.waiting.clear();
  }
}

void NcclGroup::tell_host() {
  const std::string why = [&] {
    const auto guard = comm().lock();
    return std::exchange(untold_, "");
  }();
  if (!why.empty()) host_->abort(why);
}

void NcclGroup::raise(const std::exception_ptr& error) {
  tell_host();
  comm().tell(error);
}

void NcclGroup::abort(std::string_view why) {
  {
    const auto guard = comm().lock();
    const std::string text =
        concat("group ", name(), " was aborted by rank ", comm().world_rank, ": ", why);
    end_group(std::make_exception_ptr(PeerFailed(concat("[abort] ", text))), "");
  }
  host_->abort(why);
}

void NcclGroup::abandon(std::string_view why) {
  end_group(std::make_exception_ptr(
                PeerFailed(concat("[nccl] rank ", comm().world_rank, " failed: ", why))),
            "");
}

void NcclGroup::raise_failure(std::string_view at) {
  const std::exception_ptr failure = [&] {
    const auto guard = comm().lock();
    if (!failure_ && comm().watch) comm().watch->look();
    return failure_;
  }();
  if (failure) raise(failure);
  try {
    host_->raise_failure(at);
  } catch (const Error&) {
    const std::exception_ptr error = std::current_exception();
    {
      const auto guard = comm().lock();
      end_group(error, "");
    }
    comm().tell(error);
  }
}

// What is known of the other members' hosts: those of this host share a board.
std::string NcclGroup::others() const {
  std::string text;
  for (const int member : ranks()) {
    if (member == comm().world_rank) continue;
    std::string seen = comm().describe(member);
    if (seen.empty() && comm().board()) {
      const uint64_t last = comm().board()->rank(member).operation.load(std::memory_order_relaxed);
      seen = last == 0 ? concat("rank ", member, " has started nothing")
                       : concat("rank ", member, " last started ",
                                static_cast<CollectiveKind>(last & 0xff), " #", last >> 8);
    }
    text += concat(text.empty() ? "" : "; ", seen.empty() ? concat("rank ", member) : seen);
  }
  return text;
}

void NcclGroup::give_up(const NcclWork& w) {
  const std::string seen = others();
  {
    const auto guard = comm().lock();
    const std::string why =
        w.connecting ? concat("could not connect within ", connect_timeout_.count(), " ms")
                     : concat("gave up after ", w.c.timeout.count(), " ms");
    stop<CollectiveTimeout>(w.place, concat("rank ", comm().world_rank, ' ', why, ". The others: ",
                                            seen, "; flight record: ", recorder().path()));
  }
  raise_failure(w.place);
  fail<CollectiveTimeout>(w.place, "gave up");
}

// --- operations ------------------------------------------------------------------------------------

Ref<ProcessGroup> NcclGroup::make_subgroup(std::span<const int> members, std::string name) {
  return make(host_->subgroup(members, concat(name, " (host)")), device_, std::move(name));
}

Ref<Work> NcclGroup::start(Collective c) {
  const bool message = c.kind == CollectiveKind::send || c.kind == CollectiveKind::recv;
  const auto w = make_ref<NcclWork>(std::move(c), Ref<NcclGroup>(this));
  raise_failure(w->place);
  const Stream compute = Context::current().stream(device_);
  if (check_signatures_ && !message) compare_signatures(w->c);
  const Stream own = channel_->stream;
  const Stream begins = message ? begins_after(*w, compute) : compute;
  for (const Ref<PendingUse>& before : std::exchange(w->c.after, {}))
    before->wait_on(message ? begins : own);
  if (w->c.kind == CollectiveKind::barrier) w->scratch = empty({1}, DType::u8, device_);
  const int code = [&] {
    const auto guard = comm().lock();
    if (failure_) return 0;  // thrown below
    if (const int made = make_events(*w, begins)) return made;
    if (message) return 0;
    const int ordered = api_.stream_wait(own.handle, w->ready);
    return ordered ? ordered : queue(*w);
  }();
  check(code, w.get());
  if (message) {
    post(w);
    return w;
  }
  // NCCL connects two ranks by the first message between them, for which both must come.
  settle(w.get(), w->pairs ? std::max(connect_timeout_, w->c.timeout) : w->c.timeout);
  const int marked = [&] {
    const auto guard = comm().lock();
    if (failure_) return 0;
    recorder().started(w->c.record);
    in_flight_.push_back(w);
    comm().add(Ref<ProcessGroup>(this), this);
    return mark_end(*w, own.handle);
  }();
  check(marked, w.get());
  return w;
}

int NcclGroup::take_event(void** event) {
  if (idle_events_.empty()) return api_.event_make(event);
  *event = idle_events_.back();
  idle_events_.pop_back();
  return 0;
}

// What a message begins after in this rank: its stream, or, where bytes are under way, another one
// that comes after both, so that neither the host nor the rank's stream waits.
Stream NcclGroup::begins_after(const NcclWork& w, Stream compute) {
  if (w.c.after.empty()) return compute;
  if (!gate_) gate_ = Process::get().cuda().take_stream(device_.index);
  const int code = [&] {
    const auto guard = comm().lock();
    return order_after(*gate_, compute);
  }();
  check(code, &w);
  return *gate_;
}

int NcclGroup::order_after(Stream later, Stream before) {
  void* event = nullptr;
  int code = take_event(&event);
  if (code == 0) code = api_.event_record(event, before.handle);
  if (code == 0) code = api_.stream_wait(later.handle, event);
  if (event) idle_events_.push_back(event);
  return code;
}

int NcclGroup::make_events(NcclWork& w, Stream begins) {
  if (const int code = take_event(&w.ready)) return code;
  if (const int code = take_event(&w.end)) return code;
  return api_.event_record(w.ready, begins.handle);
}

int NcclGroup::mark_end(NcclWork& w, void* stream) {
  w.queued = true;
  return api_.event_record(w.end, stream);
}

void NcclGroup::finish(const Ref<NcclWork>& w) {
  w->done = true;
  if (w.get() == watched_.first) watched_.first = nullptr;
  for (void** event : {&w->ready, &w->end})
    if (*event) idle_events_.push_back(std::exchange(*event, nullptr));
  w->c.in = w->c.out = {};
  if (w->scratch.defined()) comm().later([scratch = std::exchange(w->scratch, {})] {});
  comm().end(w, w->c.use, w->error);
}

// Ends what has ended. True where nothing is in flight.
bool NcclGroup::advance_all() {
  int code = 0;
  const auto ended = [&](const Ref<NcclWork>& w) {
    if (code != 0 || !w->queued) return false;
    const int now = api_.event_done(w->end);
    if (now != 0 && now != kNcclPending) code = now;
    if (now != 0) return false;
    recorder().ended(w->c.record, false);
    finish(w);
    return true;
  };
  while (!in_flight_.empty() && ended(in_flight_.front())) in_flight_.pop_front();
  for (auto& [ranks, pipe] : pipes_)
    if (code == 0) code = run_steps(pipe, ranks.first == rank());
  std::erase_if(messages_, ended);
  if (code == 0) code = states();
  if (code != 0 && code != kNcclPending) stop<PeerFailed>("nccl", "NCCL stopped: " + text_of(code));
  return in_flight_.empty() && messages_.empty();
}

int NcclGroup::states() const {
  int code = channel_->state();
  for (const auto& [ranks, pipe] : pipes_) {
    const int own = pipe.channel ? pipe.channel->state() : 0;
    if (own != 0 && own != kNcclPending) code = own;
  }
  return code;
}

// Between ops, so not at each of them.
bool NcclGroup::advance() {
  const auto now = Clock::now();
  if (now - looked_ < kPoll) return false;
  looked_ = now;
  return advance_all();
}

bool NcclGroup::poll(NcclWork& w) {
  const auto done = [&] {
    const auto guard = comm().lock();
    if (!w.done) (void)advance_all();
    return w.done;
  };
  if (!done()) {
    raise_failure(w.place);
    comm().poll();  // what the rank's other groups wait for
    listen();
  }
  if (done()) {
    if (w.error) {
      w.c.use->told();
      raise(w.error);
    }
    return true;
  }
  const auto now = Clock::now();
  const NcclPipe* const pipe = [&] {
    const auto guard = comm().lock();
    return connecting_pipe(w);
  }();
  if (pipe && !w.connecting) w.deadline = pipe->connect_by;
  else if (!pipe && (w.connecting || w.deadline == Clock::time_point()))
    w.deadline = now + w.c.timeout;
  w.connecting = pipe != nullptr;
  if (now > w.deadline) give_up(w);
  return false;
}

// From here on the rank's own stream comes after it, and so does what its allocator gives out next.
void NcclGroup::order(NcclWork& w, Stream s) {
  const auto queued = [&] {
    const auto guard = comm().lock();
    return w.queued;
  };
  while (!queued()) {
    if (poll(w)) return;
    std::this_thread::yield();
  }
  const bool own = s.handle == Context::current().stream(device_).handle;
  bool done = false;
  const int code = [&] {
    const auto guard = comm().lock();
    done = w.done;
    const int ordered = done ? 0 : api_.stream_wait(s.handle, w.end);
    if (!done && ordered == 0 && own) comm().end(nullptr, w.c.use, nullptr);
    return ordered;
  }();
  check(code, &w);
  if (done) (void)poll(w);  // throws its error
}

// The time of an operation runs from when nothing of this rank stands in its way.
std::optional<NcclGroup::Late> NcclGroup::overdue() {
  const NcclWork* first = nullptr;
  if (!in_flight_.empty()) first = in_flight_.front().get();
  else if (!messages_.empty()) first = messages_.front().get();
  if (!first) return {};
  const auto now = Clock::now();
  const NcclPipe* const pipe = connecting_pipe(*first);
  if (pipe && now > pipe->connect_by) return Late{first->place, connect_timeout_};
  if (pipe || first != watched_.first || api_.event_done(first->ready) == kNcclPending) {
    watched_.first = first;
    watched_.since = now;
    return {};
  }
  if (now - watched_.since < first->c.timeout) return {};
  return Late{first->place, first->c.timeout};
}

std::vector<Ref<Work>> NcclGroup::watch() noexcept {
  std::vector<Ref<Work>> kept;
  try {
    (void)api_.use_device(device_.index);
    std::optional<Late> late;
    {
      const auto guard = comm().lock();
      kept.assign(in_flight_.begin(), in_flight_.end());
      kept.insert(kept.end(), messages_.begin(), messages_.end());
      if (failure_ ? untold_.empty() : (advance_all() && !failure_)) return kept;
      if (!failure_) late = overdue();
      if (!failure_ && !late && comm().watch) comm().watch->look();
    }
    if (late) {
      const std::string seen = others();
      const auto guard = comm().lock();
      stop<CollectiveTimeout>(
          late->place, concat("rank ", comm().world_rank, " gave up after ", late->timeout.count(),
                              " ms, though nobody waited for it. The others: ", seen,
                              "; flight record: ", recorder().path()));
    }
    tell_host();
    host_->raise_failure(name());
  } catch (const std::exception&) {  // a peer failed: what this rank's device waits for never comes
    const auto error = std::current_exception();
    try {
      const auto guard = comm().lock();
      end_group(error, "");
    } catch (const CollectiveTimeout&) {  // the rank keeps its lock for good, and tells
    }
  }
  return kept;
}

void NcclGroup::compare_signatures(const Collective& c) {
  const Signature mine(c);
  const auto bytes = static_cast<int64_t>(sizeof(Signature));
  const Tensor own = empty({bytes}, DType::u8), all = empty({bytes * size()}, DType::u8);
  std::memcpy(own.data<uint8_t>(), &mine, sizeof(Signature));
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

}  // namespace tessera

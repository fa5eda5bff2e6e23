// SPDX-License-Identifier: Apache-2.0
// send and recv. NCCL pairs the messages of two ranks in their order and knows no tags, so the
// sender tells the receiver of each message through the host group: a recv takes the first of its
// tag, and what comes before it stays on the device until its recv comes. Nothing blocks: a rank
// that waits or starts an operation takes the steps that have become possible.
#include "tessera/dist/nccl/group_impl.h"
#include "tessera/dist/process_group/queued_group_impl.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tessera {
namespace {

constexpr int kNoticeTag = std::numeric_limits<int>::min();  // of the host group, for this alone

// What the sender tells of a message.
struct Notice {
  TesseraNcclId id;  // of the communicator from this sender to this receiver
  int64_t count;
  int32_t tag;
  DType dtype;
};

Tensor blank_notice() { return empty({static_cast<int64_t>(sizeof(Notice))}, DType::u8); }

}  // namespace

void NcclGroup::post(const Ref<NcclWork>& w) {
  {
    const auto guard = comm().lock();
    recorder().started(w->c.record);
    if (!failure_) messages_.push_back(w);
  }
  if (w->c.kind == CollectiveKind::send) post_send(w);
  else post_receive(w);
  listen();
}

NcclPipe& NcclGroup::pipe_of(int from, int to) {
  const auto guard = comm().lock();
  return pipes_[{from, to}];
}

void NcclGroup::open_channel(NcclPipe& pipe, int rank) {
  auto channel = std::make_unique<NcclChannel>(api_, device_, pipe.id, rank, 2);
  const auto guard = comm().lock();
  pipe.channel = std::move(channel);
  pipe.connect_by = Clock::now() + connect_timeout_;
}

const NcclPipe* NcclGroup::connecting_pipe(const NcclWork& w) const {
  const bool sends = w.c.kind == CollectiveKind::send;
  if (w.queued || (!sends && w.c.kind != CollectiveKind::recv)) return nullptr;
  const auto pipe = sends ? pipes_.find({rank(), w.c.root}) : pipes_.find({w.c.root, rank()});
  const bool connecting = pipe != pipes_.end() && pipe->second.channel && !pipe->second.connected;
  return connecting ? &pipe->second : nullptr;
}

void NcclGroup::post_send(const Ref<NcclWork>& w) {
  const Collective& c = w->c;
  NcclPipe& pipe = pipe_of(rank(), c.root);
  if (!pipe.channel) {
    check(api_.make_id(&pipe.id), w.get());
    open_channel(pipe, 0);
  }
  check(pipe.channel->code, w.get());
  const Tensor bytes = blank_notice();
  const Notice notice{pipe.id, c.count, c.tag, c.dtype};
  std::memcpy(bytes.data<uint8_t>(), &notice, sizeof notice);
  (void)host_->send(bytes, c.root, kNoticeTag);
  const auto guard = comm().lock();
  add_step(pipe, {w, c.in.data, nullptr, c.count * item_size(c.dtype)});
}

void NcclGroup::post_receive(const Ref<NcclWork>& w) {
  NcclPipe& pipe = pipe_of(w->c.root, rank());
  const auto early = std::ranges::find(pipe.early, w->c.tag, &NcclPipe::Early::tag);
  if (early != pipe.early.end()) check_pair(*early, *w);
  const auto guard = comm().lock();
  if (failure_) return;
  if (early == pipe.early.end()) {
    pipe.waiting.push_back(w);
    comm().add(Ref<ProcessGroup>(this), this);
    return;
  }
  w->scratch = early->kept;
  add_step(pipe, {w, w->c.out.data, static_cast<std::byte*>(early->kept.address()),
                  w->c.count * item_size(w->c.dtype)});
  pipe.early.erase(early);
}

void NcclGroup::check_pair(const NcclPipe::Early& message, const NcclWork& w) {
  if (message.count == w.c.count && message.dtype == w.c.dtype) return;
  const int from = ranks()[static_cast<size_t>(w.c.root)];
  {
    const auto guard = comm().lock();
    stop<CollectiveMismatch>(
        w.place, concat("members of group ", name(), " disagree on a message: rank ", from, ": ",
                        message_text(CollectiveKind::send, rank(), message.dtype, message.count,
                                     message.tag),
                        ", rank ", comm().world_rank, ": ", w.c));
  }
  raise_failure(w.place);
}

void NcclGroup::add_step(NcclPipe& pipe, NcclPipe::Step step) {
  if (failure_) return;  // which the work has, or the next wait throws
  pipe.steps.push_back(std::move(step));
  comm().add(Ref<ProcessGroup>(this), this);
}

// What senders have told, while a recv waits for it. The recv has the deadline, not the notice.
void NcclGroup::listen() {
  for (auto& [ranks, pipe] : pipes_) {
    const auto waits = [&, &waiting = pipe.waiting] {
      const auto guard = comm().lock();
      return !waiting.empty();
    };
    while (waits()) {
      if (!pipe.told) {
        pipe.notice = blank_notice();
        pipe.told = host_->recv(pipe.notice, ranks.first, kNoticeTag);
      }
      const auto uses = pipe.notice.storage().pending(Access::read, pipe.notice.byte_range());
      if (!uses.empty() && !uses[0]->ended()) break;
      std::exchange(pipe.told, nullptr)->wait();
      hear(pipe);
    }
  }
}

void NcclGroup::hear(NcclPipe& pipe) {
  Notice notice;
  std::memcpy(&notice, pipe.notice.data<uint8_t>(), sizeof notice);
  NcclPipe::Early message{notice.tag, notice.count, notice.dtype};
  if (!pipe.channel) {
    pipe.id = notice.id;
    open_channel(pipe, 1);
  }
  check(pipe.channel->code, nullptr);
  const int64_t bytes = notice.count * item_size(notice.dtype);
  const Ref<NcclWork> w = [&]() -> Ref<NcclWork> {
    const auto guard = comm().lock();
    const auto found = std::ranges::find_if(
        pipe.waiting, [&](const Ref<NcclWork>& waiting) { return waiting->c.tag == notice.tag; });
    if (found == pipe.waiting.end()) return nullptr;
    Ref<NcclWork> first = *found;
    pipe.waiting.erase(found);
    return first;
  }();
  if (w) {
    check_pair(message, *w);
    const auto guard = comm().lock();
    return add_step(pipe, {w, w->c.out.data, nullptr, bytes});
  }
  message.kept = empty({bytes}, DType::u8, device_);
  const Stream compute = Context::current().stream(device_);
  int code = 0;
  {
    const auto guard = comm().lock();
    code = order_after(pipe.channel->stream, compute);
    add_step(pipe, {nullptr, static_cast<std::byte*>(message.kept.address()), nullptr, bytes});
    pipe.early.push_back(std::move(message));
  }
  check(code, nullptr);
}

// A step is complete when NCCL has taken its call: only then an event comes after it.
int NcclGroup::run_steps(NcclPipe& pipe, bool sends) {
  while (!pipe.steps.empty() && pipe.channel->communicator) {
    if (const int state = pipe.channel->state()) return state == kNcclPending ? 0 : state;
    const NcclPipe::Step& step = pipe.steps.front();
    void *const to = pipe.channel->stream.handle, *const communicator = pipe.channel->communicator;
    const auto bytes = static_cast<size_t>(step.bytes);
    if (!std::exchange(pipe.called, true)) {
      if (step.work) {
        if (const int code = api_.stream_wait(to, step.work->ready)) return code;
      }
      const int code = bytes == 0  ? 0
                       : step.kept ? api_.copy(step.data, step.kept, bytes, to)
                       : sends     ? api_.send(step.data, bytes, kNcclU8, 1, communicator, to)
                                   : api_.receive(step.data, bytes, kNcclU8, 0, communicator, to);
      if (code != 0) return code;
      continue;
    }
    pipe.called = false;
    pipe.connected = true;
    const Ref<NcclWork> work = step.work;
    pipe.steps.pop_front();
    if (work) {
      if (const int code = mark_end(*work, to)) return code;
    }
  }
  return 0;
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Bytes come from the allocator when a storage is made or regained, and go back to it. On the meta
// device an allocator counts, and its block is null. Uses have a lock, because ranks that are
// threads may pass a tensor that they share to their collectives.
#include "tessera/core/storage.h"

#include "tessera/core/borrowed_impl.h"
#include "tessera/core/error.h"

#include <algorithm>

namespace tessera {

PendingUse::~PendingUse() = default;

bool PendingUse::test() {
  if (!ended() && !advance()) return false;
  if (failed()) raise();
  return true;
}

void PendingUse::wait() {
  if (!ended()) block();
  if (failed()) raise();
}

void PendingUse::raise() {
  told();
  std::rethrow_exception(error_);
}

void PendingUse::wait_on(Stream) { wait(); }

void PendingUse::keep(Ref<detail::Block> block) {
  const std::lock_guard guard(mutex_);
  if (!ended()) kept_.push_back(std::move(block));
}

void PendingUse::end(std::exception_ptr error) noexcept {
  std::vector<Ref<detail::Block>> kept;
  const std::lock_guard guard(mutex_);
  kept.swap(kept_);
  error_ = std::move(error);
  ended_.store(true, std::memory_order_release);
}

namespace {

// Gives out a range of another storage, and keeps that alive.
class PartOf final : public detail::Borrowed {
 public:
  PartOf(Ref<Storage> whole, int64_t begin)
      : Borrowed(whole->data() ? static_cast<std::byte*>(whole->data()) + begin : nullptr),
        whole_(std::move(whole)) {}

 private:
  Ref<Storage> whole_;
};

}  // namespace

Storage::Storage(Ref<Allocator> allocator, int64_t bytes, Device device)
    : allocator_(std::move(allocator)), bytes_(bytes), device_(device) {
  if (bytes_ > 0 && allocator_) data_ = allocator_->allocate(bytes_);
}

Storage::~Storage() {
  if (!released()) give_up_block();
  delete uses_.load(std::memory_order_acquire);
}

Ref<Storage> Storage::part(const Ref<Storage>& whole, ByteRange range) {
  const int64_t bytes = range.end - range.begin;
  if (bytes == 0) return make_ref<Storage>(nullptr, bytes, whole->device());
  if (whole->released())
    fail<StorageError>("storage", "a part of released bytes: regain them before");
  auto part = make_ref<Storage>(Ref<Allocator>(make_ref<PartOf>(whole, range.begin)), bytes,
                                whole->device());
  if (Uses* uses = whole->uses_.load(std::memory_order_acquire)) {
    const std::lock_guard guard(uses->mutex);
    for (const Use& u : uses->list) {
      const bool matters = u.range.overlaps(range) && (!u.use->ended() || u.use->failed());
      if (matters)
        part->add_use(u.use, u.access, {u.range.begin - range.begin, u.range.end - range.begin});
    }
  }
  return part;
}

void Storage::give_up_block() noexcept {
  if (!allocator_ || bytes_ == 0) return;
  if (state() & kInUse) {
    Uses& uses = *uses_.load(std::memory_order_acquire);
    const auto block = make_ref<detail::Block>(allocator_, data_, bytes_);
    const std::lock_guard guard(uses.mutex);
    for (const Use& u : uses.list) u.use->keep(block);
    uses.list.clear();
    state_.fetch_and(static_cast<uint8_t>(~kInUse), std::memory_order_relaxed);
  } else {
    allocator_->free(data_, bytes_);
  }
}

void Storage::release_bytes() noexcept {
  if (released()) return;
  give_up_block();
  data_ = nullptr;
  state_.fetch_or(kReleased, std::memory_order_relaxed);
}

void Storage::regain_bytes() {
  if (!released()) return;
  if (bytes_ > 0 && allocator_) data_ = allocator_->allocate(bytes_);
  state_.fetch_and(static_cast<uint8_t>(~kReleased), std::memory_order_relaxed);
}

Storage::Refill::Refill(Storage& storage)
    : storage_(&storage), exceptions_(std::uncaught_exceptions()) {
  if (!storage.released()) {
    fail<StorageError>("refill", "the bytes of the storage, ", storage.bytes(),
                       ", are not released: only released bytes are filled again; write others "
                       "with an op, so that autograd sees it");
  }
  storage.regain_bytes();
  storage.state_.fetch_or(kRefilling, std::memory_order_relaxed);
}

Storage::Refill::~Refill() {
  storage_->state_.fetch_and(static_cast<uint8_t>(~kRefilling), std::memory_order_relaxed);
  if (std::uncaught_exceptions() > exceptions_) storage_->release_bytes();
}

void Storage::add_use(Ref<PendingUse> use, Access access, ByteRange range) {
  if (range.begin >= range.end) return;
  Uses* uses = uses_.load(std::memory_order_acquire);
  if (!uses) {
    auto made = std::make_unique<Uses>();
    if (uses_.compare_exchange_strong(uses, made.get(), std::memory_order_acq_rel))
      uses = made.release();
  }
  const std::lock_guard guard(uses->mutex);
  std::erase_if(uses->list, [](const Use& u) { return u.use->ended() && !u.use->failed(); });
  uses->list.push_back({std::move(use), access, range});
  state_.fetch_or(kInUse, std::memory_order_relaxed);
}

std::vector<Ref<PendingUse>> Storage::pending(Access access, ByteRange range) const {
  std::vector<Ref<PendingUse>> found;
  if (!(state() & kInUse)) return found;
  Uses& uses = *uses_.load(std::memory_order_acquire);
  const std::lock_guard guard(uses.mutex);
  // A failed read has changed nothing.
  std::erase_if(uses.list, [](const Use& u) {
    return u.use->ended() && (!u.use->failed() || u.access == Access::read);
  });
  if (uses.list.empty()) {
    state_.fetch_and(static_cast<uint8_t>(~kInUse), std::memory_order_relaxed);
    return found;
  }
  for (const Use& u : uses.list) {
    const bool conflict = access == Access::write || u.access == Access::write;
    if (conflict && u.range.overlaps(range)) found.push_back(u.use);
  }
  return found;
}

void Storage::wait(Access access, ByteRange range, Stream stream) {
  for (const Ref<PendingUse>& use : pending(access, range)) {
    if (stream.device.is_cuda()) use->wait_on(stream);
    else use->wait();
  }
}

}  // namespace tessera

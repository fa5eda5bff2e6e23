// SPDX-License-Identifier: Apache-2.0
// The first thread of a group allocates its segment. A table under a lock records which rank
// creates which group, so that members that create different groups get an error instead of waiting
// for each other.
#include "tessera/core/message.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/launch/threads_impl.h"

#include <algorithm>
#include <sys/mman.h>

namespace tessera {
namespace {

std::string list(std::span<const int> ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i ? ", " : "", ranks[i]);
  return text + "]";
}

SegmentHeader& header_of(const std::shared_ptr<std::byte>& memory) {
  return *reinterpret_cast<SegmentHeader*>(memory.get());
}

bool has(std::span<const int> ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

}  // namespace

std::shared_ptr<std::byte> HeapSegments::allocate(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail<StorageError>("process_group", "no memory for the ", counted(bytes, "byte"),
                       " that a group shares");
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
}

std::shared_ptr<std::byte> HeapSegments::segment(std::span<const int> world_ranks,
                                                 const std::string& name, int world_rank,
                                                 size_t bytes, std::chrono::milliseconds) {
  const std::lock_guard guard(mutex_);
  Key key(world_ranks.begin(), world_ranks.end());
  const Key members = key;
  key.push_back(made_[{members, world_rank}]++);
  Forming& mine = forming_[key];
  if (!mine.memory) {
    mine.memory = allocate(bytes);
    mine.name = name;
    mine.first = world_rank;
  }
  const std::shared_ptr<std::byte> memory = mine.memory;
  if (mine.name != name) {
    header_of(memory).failure.claim(
        FailureKind::mismatch, world_rank,
        concat("ranks disagree on a group of ranks ", list(members), ": rank ", mine.first,
               " makes '", mine.name, "', rank ", world_rank, " makes '", name, "'"));
  }
  // A member that is making another group with this rank in it waits there for this rank, and this
  // rank would wait for it here.
  for (int m : members) {
    const auto other = making_.find(m);
    if (m == world_rank || other == making_.end() || other->second == key) continue;
    const std::span<const int> theirs(other->second.data(), other->second.size() - 1);
    if (!has(theirs, world_rank)) continue;
    const auto forming = forming_.find(other->second);
    if (forming == forming_.end()) continue;  // all have come; it only waits for the last word
    const std::string text = concat("ranks disagree on the group they make: rank ", m, ": '",
                                    forming->second.name, "' of ranks ", list(theirs), ", rank ",
                                    world_rank, ": '", name, "' of ranks ", list(members));
    header_of(memory).failure.claim(FailureKind::mismatch, world_rank, text);
    header_of(forming->second.memory).failure.claim(FailureKind::mismatch, world_rank, text);
  }
  making_[world_rank] = key;
  if (++mine.joined == members.size()) forming_.erase(key);
  return memory;
}

void HeapSegments::settled(int world_rank) {
  const std::lock_guard guard(mutex_);
  making_.erase(world_rank);
}

void run_threads(int n, const std::function<void(World&)>& fn, const WorldOptions& options,
                 PayloadMode mode, size_t pool) {
  if (n < 1) fail<LaunchError>("run_ranks", counted(n, "rank"), ": expected 1 or more");
  const auto segments = std::make_shared<HeapSegments>();
  if (mode == PayloadMode::direct) pool = 0;
  const auto segment = HeapSegments::allocate(shared_group_bytes(n, pool));
  const auto memory = HeapSegments::allocate(WorldBoard::bytes(n));
  const std::shared_ptr<WorldBoard> board(memory, reinterpret_cast<WorldBoard*>(memory.get()));
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) ranks[static_cast<size_t>(r)] = r;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(n));

  const auto run_rank = [&](int rank) {
    const auto comm = std::make_shared<CommState>(rank, board);
    try {
      World world(make_shared_group({.rank = rank,
                                     .ranks = ranks,
                                     .name = "world",
                                     .backend = mode == PayloadMode::direct ? "threads" : "shared",
                                     .mode = mode,
                                     .pool = pool,
                                     .segment = segment,
                                     .source = segments,
                                     .comm = comm}),
                  options, n, rank);
      try {
        fn(world);
        world.finish();
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        comm->fail_world(e.what());
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        comm->fail_world("an exception that is not a std::exception");
      }
    } catch (const std::exception& e) {  // no World could be made
      errors[static_cast<size_t>(rank)] = std::current_exception();
      comm->fail_world(e.what());
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int r = 0; r < n; ++r) threads.emplace_back(run_rank, r);
  } catch (const std::system_error& e) {
    board->failure.claim(FailureKind::peer, static_cast<int>(threads.size()),
                         concat("rank ", threads.size(), " failed: no thread: ", e.what()));
    for (auto& t : threads) t.join();
    fail<LaunchError>("run_ranks", "the system gave ", threads.size(), " of ", counted(n, "thread"),
                      ": ", e.what());
  }
  for (auto& t : threads) t.join();
  if (board->failure.happened()) {
    if (const auto& first = errors[static_cast<size_t>(board->failure.rank)])
      std::rethrow_exception(first);
  }
  for (const auto& e : errors) {
    if (e) std::rethrow_exception(e);
  }
}

void run_ranks(int n, const std::function<void(World&)>& fn, const WorldOptions& options) {
  run_threads(n, fn, options, PayloadMode::direct);
}

}  // namespace tessera

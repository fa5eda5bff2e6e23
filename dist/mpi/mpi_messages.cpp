// SPDX-License-Identifier: Apache-2.0
// MPI counts in int, so a message above 1 GiB goes in pieces. The bootstrap's exchanges are
// messages of a tag of their own.
#include "tessera/core/error.h"
#include "tessera/dist/library/open_library_impl.h"
#include "tessera/dist/mpi/mpi_messages_impl.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace tessera {
namespace {

constexpr size_t kPiece = size_t{1} << 30;
constexpr size_t kInline = 1024;

// The first message of an exchange: always of this size, so that what comes can be read even if the
// sender means another exchange.
struct Opening {
  uint64_t bytes = 0;
  uint32_t key_bytes = 0;
  std::array<char, 244> key{};
  std::array<char, kInline> start{};
};

const TesseraMpiApi& mpi_api() {
  static const OpenedLibrary opened = open_library("libtessera_mpi.so", "tessera_mpi_api");
  return table_of<TesseraMpiApi>(opened, kTesseraMpiVersion, "libtessera_mpi.so",
                                 "install MPI (Debian: libopenmpi-dev openmpi-bin) and build "
                                 "again, or start without mpirun (`--ranks N`, torchrun, srun)");
}

}  // namespace

MpiThread::MpiThread(const TesseraMpiApi& api) {
  std::promise<Start> started;
  std::promise<void> ended;
  started_ = started.get_future().share();
  ended_ = ended.get_future();
  std::thread([&api, asked = ask_.get_future(), started = std::move(started),
               ended = std::move(ended)]() mutable {
    Start start;
    start.code = api.start(&start.rank, &start.size, &start.largest_tag);
    started.set_value(start);
    try {
      asked.get();
    } catch (const std::future_error&) {  // the process ends without MPI's end
      return;
    }
    (void)api.finish();
    ended.set_value();
  }).detach();
}

std::optional<MpiThread::Start> MpiThread::start(Deadline deadline) {
  if (started_.wait_until(deadline) != std::future_status::ready) return {};
  return started_.get();
}

bool MpiThread::finish(Deadline deadline) {
  ask_.set_value();
  return ended_.wait_until(deadline) == std::future_status::ready;
}

std::shared_ptr<MpiMessages> MpiMessages::get(const HostFolder& here, Deadline deadline) {
  here.come();
  // MPI can be started once in a process, so these objects live as long as the process.
  static MpiThread thread(mpi_api());
  const std::optional<MpiThread::Start> start = thread.start(deadline);
  if (!start) {
    fail<LaunchError>(
        "mpi",
        "MPI_Init, which waits for all ranks, has not ended by init_timeout "
        "(--comm.init_timeout_seconds): ",
        here.who_came(),
        "; start all ranks by the same command (with --help or --estimate a rank ends before), and "
        "look whether one is stopped");
  }
  static const std::shared_ptr<MpiMessages> instance(new MpiMessages(thread, *start));
  if (instance->finished_) {
    fail<LaunchError>(
        "launch",
        "MPI has ended in this process and cannot start again: run everything inside one "
        "run_launched");
  }
  return instance;
}

MpiMessages::MpiMessages(MpiThread& thread, const MpiThread::Start& start)
    : api_(mpi_api()),
      thread_(thread),
      rank_(start.rank),
      size_(start.size),
      largest_tag_(start.largest_tag) {
  check(start.code, "MPI_Init_thread", -1);
  std::array<char, 256> text{};
  api_.library_name(text.data(), text.size());
  name_ = text.data();
}

MpiMessages::~MpiMessages() = default;

void MpiMessages::check(int code, const char* what, int peer) const {
  if (code == 0) return;
  std::array<char, 512> text{};
  api_.error_text(code, text.data(), text.size());
  if (peer < 0) fail<LaunchError>("mpi", what, " failed: ", text.data());
  fail<PeerFailed>("mpi", what, " with rank ", peer, " failed: ", text.data());
}

Messages::Handle MpiMessages::send(int to, int tag, const void* data, size_t bytes) {
  auto message = std::make_unique<Message>();
  message->peer = to;
  const std::lock_guard lock(mutex_);
  for (size_t at = 0; at == 0 || at < bytes; at += kPiece) {
    void* piece = nullptr;
    check(api_.send(static_cast<const char*>(data) + at,
                    static_cast<int>(std::min(kPiece, bytes - at)), to, tag, &piece),
          "sending", to);
    message->pieces.push_back(piece);
  }
  return message.release();
}

Messages::Handle MpiMessages::receive(int from, int tag, void* data, size_t bytes) {
  auto message = std::make_unique<Message>();
  message->peer = from;
  message->receives = true;
  const std::lock_guard lock(mutex_);
  for (size_t at = 0; at == 0 || at < bytes; at += kPiece) {
    void* piece = nullptr;
    check(api_.receive(static_cast<char*>(data) + at,
                       static_cast<int>(std::min(kPiece, bytes - at)), from, tag, &piece),
          "receiving", from);
    message->pieces.push_back(piece);
  }
  return message.release();
}

bool MpiMessages::test(Message& message) {
  while (!message.pieces.empty()) {
    int done = 0;
    const int code = api_.test(&message.pieces.back(), &done);
    if (!done) return false;
    message.pieces.pop_back();
    check(code, message.receives ? "receiving" : "sending", message.peer);
  }
  return true;
}

bool MpiMessages::done(Handle& handle) {
  if (!handle) return true;
  const std::lock_guard lock(mutex_);
  auto* message = static_cast<Message*>(handle);
  if (!test(*message)) return false;
  delete message;
  handle = nullptr;
  return true;
}

void MpiMessages::abandon(Handle& handle, std::shared_ptr<const void> owner) {
  if (!handle) return;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Message> message(static_cast<Message*>(handle));
  handle = nullptr;
  if (message->receives) {
    for (void* piece : message->pieces) (void)api_.cancel(piece);
  }
  abandoned_.push_back({std::move(message), std::move(owner)});
  some_abandoned_.store(true, std::memory_order_relaxed);
}

std::vector<std::shared_ptr<const void>> MpiMessages::let_go() {
  std::vector<std::shared_ptr<const void>> owners;
  if (!some_abandoned_.load(std::memory_order_relaxed)) return owners;
  const std::lock_guard lock(mutex_);
  const auto ended = [&](Abandoned& a) {
    try {
      return test(*a.message);
    } catch (const PeerFailed&) {  // given up already
      return a.message->pieces.empty();
    }
  };
  std::erase_if(abandoned_, [&](Abandoned& a) {
    if (!ended(a)) return false;
    owners.push_back(std::move(a.owner));
    return true;
  });
  some_abandoned_.store(!abandoned_.empty(), std::memory_order_relaxed);
  return owners;
}

std::vector<std::string> MpiMessages::all_gather(std::span<const int> members, std::string_view key,
                                                 std::string_view mine, Deadline deadline) {
  expect_no_lock("a rank waits for an exchange");
  struct Side {
    Opening opening;
    std::string rest;
    Handle handle = nullptr;
    bool opened = false;
  };
  struct State {  // outlives the call if it fails with messages under way
    std::vector<Side> from;
    Opening own;
    std::string rest;
    std::vector<Handle> sends;
  };
  if (broken_)
    fail<PeerFailed>("mpi", "exchange '", key, "': an earlier exchange failed, the world is over");
  const size_t n = members.size();
  std::string full(key);
  full += " of ranks";
  for (int member : members) full += concat(' ', member);
  auto state = std::make_shared<State>();
  state->from.resize(n);
  state->own.bytes = mine.size();
  state->own.key_bytes = static_cast<uint32_t>(std::min(full.size(), state->own.key.size()));
  std::copy_n(full.data(), state->own.key_bytes, state->own.key.data());
  std::copy_n(mine.data(), std::min(mine.size(), kInline), state->own.start.data());
  if (mine.size() > kInline) state->rest = mine.substr(kInline);

  const auto give_up = [&] {
    broken_ = true;
    for (Side& side : state->from) abandon(side.handle, state);
    for (Handle& handle : state->sends) abandon(handle, state);
  };
  try {
    for (size_t i = 0; i < n; ++i) {
      if (members[i] == rank_) continue;
      Side& side = state->from[i];
      side.handle = receive(members[i], kBootstrapTag, &side.opening, sizeof(Opening));
      state->sends.push_back(send(members[i], kBootstrapTag, &state->own, sizeof(Opening)));
      if (!state->rest.empty()) {
        state->sends.push_back(
            send(members[i], kBootstrapTag, state->rest.data(), state->rest.size()));
      }
    }
    const auto all_done = [&] {
      bool all = true;
      for (size_t i = 0; i < n; ++i) {
        Side& side = state->from[i];
        if (!done(side.handle)) {
          all = false;
          continue;
        }
        if (side.opened || members[i] == rank_) continue;
        side.opened = true;
        const std::string_view theirs(side.opening.key.data(), side.opening.key_bytes);
        if (theirs != std::string_view(state->own.key.data(), state->own.key_bytes)) {
          fail<CollectiveMismatch>("mpi", "rank ", rank_, " is in exchange '", full, "', rank ",
                                   members[i], " in '", theirs,
                                   "': make groups in the same order on all ranks");
        }
        if (side.opening.bytes > kInline) {
          side.rest.resize(side.opening.bytes - kInline);
          side.handle = receive(members[i], kBootstrapTag, side.rest.data(), side.rest.size());
          all = false;
        }
      }
      for (Handle& handle : state->sends) all &= done(handle);
      return all;
    };
    for (int turns = 0; !all_done(); ++turns) {
      if (std::chrono::steady_clock::now() >= deadline) {
        std::string missing;
        for (size_t i = 0; i < n; ++i) {
          if (state->from[i].handle)
            missing += concat(missing.empty() ? "rank " : ", rank ", members[i]);
        }
        fail<CollectiveTimeout>("mpi", "exchange '", key, "': got no answer from ",
                                missing.empty() ? "its messages to leave" : missing);
      }
      if (gone && turns % 512 == 511) {
        for (size_t i = 0; i < n; ++i) {
          if (state->from[i].handle && gone(members[i]))
            fail<PeerFailed>("mpi", "exchange '", key, "': rank ", members[i], " died");
        }
      }
      if (interrupted && turns % 128 == 127) interrupted();
      if (turns < 100) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (...) {
    give_up();
    throw;
  }
  std::vector<std::string> parts(n);
  for (size_t i = 0; i < n; ++i) {
    const Side& side = state->from[i];
    if (members[i] == rank_) parts[i] = mine;
    else
      parts[i] =
          std::string(side.opening.start.data(), std::min<size_t>(side.opening.bytes, kInline)) +
          side.rest;
  }
  return parts;
}

bool MpiMessages::finish(bool clean, Deadline deadline) noexcept {
  (void)let_go();
  const std::lock_guard lock(mutex_);
  if (finished_ || !clean || broken_ || !abandoned_.empty()) return true;
  finished_ = true;
  return thread_.finish(deadline);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/process_group/launch_world.h"

#include "tessera/dist/process_group/mpi_group_impl.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <set>
#include <thread>

namespace tessera {
namespace {

// One rank's way into a world of processes, and out of it.
class ProcessWorld {
 public:
  ProcessWorld(const Launch& launch, const WorldOptions& options);
  ~ProcessWorld() {
    // Before the connections that it uses.
    if (comm_) comm_->watch = nullptr;
    side_ = nullptr;
    bootstrap_->finish(clean_);
    if (remote_ && remote_ != bootstrap_) remote_->finish(clean_);
  }

  [[nodiscard]] const Ref<ProcessGroup>& group() const { return group_; }
  [[nodiscard]] CommState& comm() { return *comm_; }
  [[nodiscard]] int local_ranks() const { return local_ranks_; }
  [[nodiscard]] int local_rank() const { return local_rank_; }
  /// `4 ranks by mpirun (Open MPI 4.1.4), 1 host, shared memory`
  [[nodiscard]] std::string text() const { return text_; }
  /// After this rank's farewell: waits until all have said theirs, or one has failed.
  void wait_for_all(std::chrono::milliseconds timeout);

 private:
  void make_shared();
  void make_messages();

  const Launch& launch_;
  Deadline deadline_;
  std::vector<int> all_;
  std::vector<RankPlace> places_;
  std::shared_ptr<MpiMessages> mpi_;  // null where MPI did not start the ranks
  std::shared_ptr<RendezvousClient> remote_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::shared_ptr<SideChannel> side_;
  std::shared_ptr<CommState> comm_;
  std::shared_ptr<WorldBoard> board_;
  Ref<ProcessGroup> group_;
  std::string text_;
  int local_ranks_ = 0, local_rank_ = 0;
  bool clean_ = false;
};

bool wants_messages() {
  const char* transport = std::getenv("TESSERA_TRANSPORT");
  const std::string_view value = transport ? transport : "";
  if (value.empty() || value == "shared") return false;
  if (value == "messages") return true;
  fail<LaunchError>("launch", "TESSERA_TRANSPORT='", value, "': expected shared or messages");
}

std::shared_ptr<WorldBoard> board_in(const std::shared_ptr<std::byte>& memory) {
  return {memory, reinterpret_cast<WorldBoard*>(memory.get())};
}

ProcessWorld::ProcessWorld(const Launch& launch, const WorldOptions& options)
    : launch_(launch),
      deadline_(deadline_after(options.init_timeout)),
      all_(static_cast<size_t>(launch.size)) {
  std::iota(all_.begin(), all_.end(), 0);
  const bool messages = wants_messages();
  std::string by;
  if (launch.by_mpi()) {
    mpi_ = MpiMessages::get();
    bootstrap_ = mpi_;
    if (mpi_->size() != launch.size || mpi_->rank() != launch.rank) {
      fail<LaunchError>("launch", launch.launcher, " says rank ", launch.rank, " of ", launch.size,
                        ", MPI says rank ", mpi_->rank(), " of ", mpi_->size(), ": ", mpi_->name(),
                        " is not the MPI of this launcher; use its own mpirun");
    }
    by = concat("mpirun (", mpi_->name(), ')');
  } else {
    const std::string remedy =
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, the same on "
        "all ranks";
    remote_ = std::make_shared<RendezvousClient>(
        RendezvousClient::Options{launch.rank, launch.size, launch.master_address, launch.job,
                                  launch.master_port, remedy},
        deadline_);
    bootstrap_ = remote_;
    by = concat(launch.launcher);
  }
  std::set<std::string> hosts;
  const std::string mine = PackedWriter().put(messages).text(RankPlace::own().pack()).bytes();
  for (const std::string& bytes : bootstrap_->all_gather(all_, "join", mine, deadline_)) {
    PackedReader in(bytes);
    if (in.get<bool>() != messages) {
      fail<LaunchError>("launch", "TESSERA_TRANSPORT is not the same on all ranks: rank ",
                        places_.size(), " differs from rank ", launch.rank);
    }
    places_.push_back(RankPlace::unpack(in.text()));
    hosts.insert(places_.back().host);
  }
  const std::string& host = places_[static_cast<size_t>(launch.rank)].host;
  for (int rank : all_) {
    if (places_[static_cast<size_t>(rank)].host != host) continue;
    if (rank < launch.rank) ++local_rank_;
    ++local_ranks_;
  }
  const bool shared = hosts.size() == 1 && !messages;
  if (shared) make_shared();
  else make_messages();
  text_ = concat(launch.size, launch.size == 1 ? " rank by " : " ranks by ", by, ", ", hosts.size(),
                 hosts.size() == 1 ? " host, " : " hosts, ", shared ? "shared memory" : "messages");
}

void ProcessWorld::make_shared() {
  board_ = board_in(shared_memory(*bootstrap_, all_, "board", "board",
                                  WorldBoard::bytes(launch_.size), deadline_));
  const auto segment = shared_memory(*bootstrap_, all_, "segment", "world",
                                     shared_group_bytes(launch_.size), deadline_);
  comm_ = std::make_shared<CommState>(launch_.rank, board_);
  side_ = std::make_shared<SideChannel>(launch_.rank, places_, board_, nullptr);
  comm_->watch = side_;
  group_ = make_shared_group({.rank = launch_.rank,
                              .ranks = all_,
                              .name = "world",
                              .backend = "mpi",
                              .mode = PayloadMode::staged,
                              .segment = segment,
                              .source = std::make_shared<MappedSegments>(bootstrap_),
                              .comm = comm_});
}

void ProcessWorld::make_messages() {
  if (!mpi_) {
    fail<LaunchError>("launch",
                      "ranks of several hosts need MPI on the CPU: start them by mpirun "
                      "(",
                      launch_.launcher, " started ", launch_.size, " ranks)");
  }
  // The side channel: a rendezvous of its own, at whatever port is free on the host of rank 0.
  const auto options = [&](const std::string& host, int port) {
    return RendezvousClient::Options{
        launch_.rank, launch_.size, host, "side channel", port, "open the ports between the hosts"};
  };
  if (launch_.rank == 0) remote_ = std::make_shared<RendezvousClient>(options("", 0), deadline_);
  const auto ports = bootstrap_->all_gather(
      all_, "side channel", std::to_string(remote_ ? remote_->port() : 0), deadline_);
  if (launch_.rank != 0) {
    const bool here = places_[0].host == places_[static_cast<size_t>(launch_.rank)].host;
    remote_ = std::make_shared<RendezvousClient>(
        options(here ? "localhost" : places_[0].hostname, std::atoi(ports[0].c_str())), deadline_);
  }
  const size_t bytes = WorldBoard::bytes(launch_.size);
  const std::shared_ptr<std::byte> memory(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})),
      [](std::byte* p) { ::operator delete (p, std::align_val_t{64}); });
  std::fill_n(memory.get(), bytes, std::byte{0});
  board_ = board_in(memory);
  comm_ = std::make_shared<CommState>(launch_.rank, board_);
  side_ = std::make_shared<SideChannel>(launch_.rank, places_, board_, remote_);
  comm_->watch = side_;
  auto world = std::make_shared<MessageWorld>();
  world->messages = mpi_;
  world->bootstrap = bootstrap_;
  world->side = side_;
  world->comm = comm_;
  world->backend = "mpi";
  group_ = make_message_group(std::move(world), all_, launch_.rank, "world", deadline_);
}

void ProcessWorld::wait_for_all(std::chrono::milliseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  while (!board_->failure.happened()) {
    side_->look();
    clean_ = std::ranges::all_of(all_, [&](int rank) {
      return board_->rank(rank).left.load(std::memory_order_seq_cst) != 0;
    });
    if (clean_ || std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

void run_launched(const Launch& launch, const std::function<void(World&)>& fn,
                  const WorldOptions& options) {
  if (launch.launcher == Launcher::single || launch.launcher == Launcher::threads) {
    return run_ranks(
        launch.size,
        [&](World& world) {
          if (world.rank() == 0 && launch.launcher == Launcher::threads) {
            std::cerr << concat("world: ", launch.size, " ranks as threads, 1 host, ",
                                world.session().context().options.threads,
                                " kernel thread(s) each\n");
          }
          fn(world);
        },
        options);
  }
  ProcessWorld process(launch, options);
  {
    World world(process.group(), options, process.local_ranks(), process.local_rank());
    if (launch.rank == 0) {
      std::cerr << concat("world: ", process.text(), ", ",
                          world.session().context().options.threads, " kernel thread(s) each\n");
    }
    try {
      fn(world);
      world.finish();
    } catch (const std::exception& e) {
      process.comm().fail_world(e.what());
      throw;
    } catch (...) {
      process.comm().fail_world("an exception that is no std::exception");
      throw;
    }
  }
  process.wait_for_all(options.init_timeout);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// A process connects to the others once, by MPI or by the rendezvous; each world then gets its own
// board, transport and side channel.
#include "tessera/core/message.h"
#include "tessera/dist/launch/launched_process_impl.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/messages/tcp_impl.h"
#include "tessera/dist/shared_memory/mapped_segments_impl.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <set>
#include <thread>

namespace tessera {
namespace {

// Transport between ranks of one host. The last two are for tests of several hosts on one.
enum class Transport : uint8_t { shared, messages, pairs };

Transport transport() {
  const char* variable = std::getenv("TESSERA_TRANSPORT");
  const std::string_view value = variable ? variable : "";
  if (value.empty() || value == "shared") return Transport::shared;
  if (value == "messages") return Transport::messages;
  if (value == "pairs") return Transport::pairs;
  fail<LaunchError>("launch", "TESSERA_TRANSPORT='", value,
                    "': expected shared, messages, or pairs (every two ranks count as a host)");
}

// What ranks prove to know: with a token, restarts and steps of one job still differ.
std::string secret_of(const Launch& launch) { return concat(launch.token, '\n', launch.job); }

std::shared_ptr<WorldBoard> board_in(const std::shared_ptr<std::byte>& memory) {
  return {memory, reinterpret_cast<WorldBoard*>(memory.get())};
}

}  // namespace

struct LaunchedProcess::Member {
  std::shared_ptr<WorldBoard> board;
  std::shared_ptr<SideChannel> side;
  std::shared_ptr<CommState> comm;
  Ref<ProcessGroup> group;
  void look() const {
    const auto guard = comm->lock();
    side->look();
  }
  ~Member() {
    if (comm) comm->watch = nullptr;  // groups may outlive the world, its side channel does not
  }
};

LaunchedProcess::LaunchedProcess(const Launch& launch, std::chrono::milliseconds timeout)
    : launch_(launch), timeout_(timeout), all_(static_cast<size_t>(launch.size)) {
  std::iota(all_.begin(), all_.end(), 0);
  const Deadline deadline = deadline_after(timeout);
  const Transport wanted = transport();
  const std::string by = connect(deadline, static_cast<int>(wanted));
  std::set<std::string> hosts;
  for (const RankPlace& place : places_) hosts.insert(place.host);
  const bool messages = wanted == Transport::messages || hosts.size() > 1;
  if (messages) {
    join_side_channel(deadline);
    messages_->may_share = wanted != Transport::messages;
  }
  text_ =
      concat(counted(launch.size, "rank"), " by ", by, ", ", counted(hosts.size(), "host"), ", ",
             !messages              ? "shared memory"
             : messages_->may_share ? "messages and shared memory"
                                    : "messages");
}

LaunchedProcess::~LaunchedProcess() {
  if (mpi_) mpi_->gone = nullptr;
  try {
    finish(timeout_);
  } catch (const CollectiveTimeout&) {
  }
}

void LaunchedProcess::finish(std::chrono::milliseconds timeout) {
  if (std::exchange(finished_, true)) return;
  const Deadline deadline = deadline_after(timeout);
  const bool ended = bootstrap_->finish(clean_, deadline);
  if (remote_) remote_->finish(clean_, deadline);
  if (ended) return;
  std::vector<int> others = all_;
  std::erase(others, rank());
  fail<CollectiveTimeout>("mpi", "rank ", rank(),
                          " has ended, and MPI_Finalize, which waits for all ranks, has not ended "
                          "within init_timeout (",
                          timeout.count(), " ms): ", states_of(others));
}

std::string LaunchedProcess::connect(Deadline deadline, int wanted) {
  std::string by;
  if (launch_.by_mpi()) {
    mpi_ = MpiMessages::get(HostFolder({.path = launch_.host_folder,
                                        .rank = launch_.rank,
                                        .size = launch_.size,
                                        .local_rank = launch_.local_rank,
                                        .local_size = launch_.local_size}),
                            deadline);
    bootstrap_ = mpi_;
    if (mpi_->size() != launch_.size || mpi_->rank() != launch_.rank) {
      fail<LaunchError>("launch", launch_.launcher, " says rank ", launch_.rank, " of ",
                        launch_.size, ", MPI says rank ", mpi_->rank(), " of ", mpi_->size(), ": ",
                        mpi_->name(), " is not the MPI of this launcher; use its own mpirun");
    }
    by = concat("mpirun (", mpi_->name(), ')');
  } else {
    const std::string remedy =
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, the same on "
        "all ranks";
    remote_ = std::make_shared<RendezvousClient>(
        RendezvousClient::Options{.rank = launch_.rank,
                                  .size = launch_.size,
                                  .host = launch_.master_address,
                                  .secret = secret_of(launch_),
                                  .port = launch_.master_port,
                                  .remedy = remedy,
                                  .bind = launch_.bind_address,
                                  .one_host = launch_.local_size == launch_.size},
        deadline);
    bootstrap_ = remote_;
    warn_of_open_port();
    by = concat(launch_.launcher);
  }
  RankPlace own = RankPlace::own();
  if (wanted == static_cast<int>(Transport::pairs)) own.host += concat('/', launch_.rank / 2);
  const std::string mine = PackedWriter().put(wanted).text(own.pack()).bytes();
  for (const std::string& bytes : bootstrap_->all_gather(all_, "join", mine, deadline)) {
    PackedReader in(bytes);
    if (in.get<int>() != wanted) {
      fail<LaunchError>("launch", "TESSERA_TRANSPORT is not the same on all ranks: rank ",
                        places_.size(), " differs from rank ", launch_.rank);
    }
    places_.push_back(RankPlace::unpack(in.text()));
  }
  if (mpi_) {
    mpi_->gone = [this](int rank) {
      const RankPlace &theirs = places_[static_cast<size_t>(rank)],
                      &ours = places_[static_cast<size_t>(launch_.rank)];
      return theirs.host == ours.host &&
             process_state(theirs.pid, theirs.started) == ProcessState::gone;
    };
  }
  return by;
}

// Without a token the secret is the job's id, which others may know.
void LaunchedProcess::warn_of_open_port() const {
  if (rank() != 0 || size() == 1 || !launch_.token.empty() || is_loopback(remote_->address()))
    return;
  std::cerr << concat("warning: whoever reaches port ", remote_->port(), " of ",
                      remote_->address().empty() ? "this host" : remote_->address(),
                      " and knows or guesses the id of this job can join it: set TESSERA_JOB_TOKEN "
                      "to one random text on all ranks, for example "
                      "export TESSERA_JOB_TOKEN=$(openssl rand -hex 32)\n");
}

// Ways for messages, and a side channel. Without MPI the rendezvous is both bootstrap and side
// channel; with MPI one is made, at whatever port is free on the host of rank 0, with a secret that
// MPI carries.
void LaunchedProcess::join_side_channel(Deadline deadline) {
  messages_ = std::make_shared<MessageWorld>();
  messages_->bootstrap = bootstrap_;
  messages_->next_id = std::make_shared<int>(0);
  messages_->places = places_;
  const std::string& own_name = places_[static_cast<size_t>(rank())].hostname;
  const bool one_host = std::ranges::all_of(
      places_, [&](const RankPlace& place) { return place.hostname == own_name; });
  if (!mpi_) {
    // Where rank 0's host meets rank 0 at a loopback address, other hosts need another one.
    const bool reachable = one_host || !is_loopback(remote_->address());
    messages_->messages = std::make_shared<TcpMessages>(
        *bootstrap_,
        TcpMessages::Options{.address = reachable ? remote_->address() : "",
                             .hostname = own_name,
                             .secret = secret_of(launch_)},
        deadline);
    messages_->backend = "tcp";
    return;
  }
  messages_->messages = mpi_;
  messages_->backend = "mpi";
  RendezvousClient::Options options{.rank = launch_.rank,
                                    .size = launch_.size,
                                    .host = one_host ? "localhost" : places_[0].hostname,
                                    .secret = random_secret(),
                                    .remedy = "open the ports between hosts",
                                    .bind = launch_.bind_address,
                                    .one_host = one_host};
  PackedWriter mine;
  if (rank() == 0) {
    remote_ = std::make_shared<RendezvousClient>(options, deadline);
    mine.put(remote_->port()).text(remote_->address()).text(options.secret);
  }
  const auto theirs = bootstrap_->all_gather(all_, "side channel", mine.bytes(), deadline);
  if (rank() == 0) return;
  PackedReader in(theirs[0]);
  options.port = in.get<int>();
  const std::string address = in.text();
  options.secret = in.text();
  const bool with_zero = own_name == places_[0].hostname;
  if (!address.empty()) options.host = address;
  else if (with_zero) options.host = "localhost";
  remote_ = std::make_shared<RendezvousClient>(options, deadline);
}

LaunchedProcess::Member LaunchedProcess::make_shared(int n, Deadline deadline) {
  const std::span<const int> members(all_.data(), static_cast<size_t>(n));
  Member member;
  member.board = board_in(
      shared_memory(*bootstrap_, members, "board", "board", WorldBoard::bytes(n), deadline));
  const auto segment = shared_memory(*bootstrap_, members, "segment", "world",
                                     shared_group_bytes(n, kMessagePool), deadline);
  member.comm = std::make_shared<CommState>(rank(), member.board);
  member.side =
      std::make_shared<SideChannel>(rank(), std::vector(places_.begin(), places_.begin() + n),
                                    member.board, nullptr, nullptr, worlds_);
  member.comm->watch = member.side;
  member.group = make_shared_group({.rank = rank(),
                                    .ranks = {members.begin(), members.end()},
                                    .name = "world",
                                    .backend = mpi_ ? "mpi" : "shared",
                                    .mode = PayloadMode::staged,
                                    .pool = kMessagePool,
                                    .segment = segment,
                                    .source = std::make_shared<MappedSegments>(bootstrap_),
                                    .comm = member.comm});
  return member;
}

LaunchedProcess::Member LaunchedProcess::make_messages(int n, Deadline deadline) {
  const size_t bytes = WorldBoard::bytes(n);
  const std::shared_ptr<std::byte> memory(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})),
      [](std::byte* p) { ::operator delete (p, std::align_val_t{64}); });
  std::fill_n(memory.get(), bytes, std::byte{0});
  Member member;
  member.board = board_in(memory);
  member.comm = std::make_shared<CommState>(rank(), member.board);
  member.side =
      std::make_shared<SideChannel>(rank(), std::vector(places_.begin(), places_.begin() + n),
                                    member.board, remote_, messages_->messages, worlds_);
  member.comm->watch = member.side;
  // Ids of groups go on from world to world: messages of an earlier one may still be on their way.
  auto world = std::make_shared<MessageWorld>(*messages_);
  world->side = member.side;
  world->comm = member.comm;
  member.group = make_message_group(std::move(world), {all_.begin(), all_.begin() + n}, rank(),
                                    "world", deadline);
  return member;
}

std::string LaunchedProcess::states_of(std::span<const int> ranks) const {
  std::string text;
  for (const int rank : ranks) {
    const RankPlace &place = places_[static_cast<size_t>(rank)],
                    &own = places_[static_cast<size_t>(launch_.rank)];
    const ProcessState state = process_state(place.pid, place.started);
    text += concat(text.empty() ? "rank " : ", rank ", rank, " (",
                   place.host != own.host           ? concat("on ", place.hostname)
                   : state == ProcessState::gone    ? "it has died"
                   : state == ProcessState::stopped ? "stopped"
                                                    : "it runs",
                   ')');
  }
  return text;
}

void LaunchedProcess::wait_for_all(Member& member, std::chrono::milliseconds timeout) {
  expect_no_lock("a rank waits for the end of its world");
  const Deadline deadline = deadline_after(timeout);
  while (!member.board->failure.happened()) {
    member.look();
    std::vector<int> missing;
    for (int r = 0; r < member.group->size(); ++r) {
      if (member.board->rank(r).left.load(std::memory_order_seq_cst) == 0) missing.push_back(r);
    }
    clean_ = missing.empty() && member.side->farewells_done();
    if (clean_) return;
    if (std::chrono::steady_clock::now() > deadline) {
      if (missing.empty()) return;  // only the answers to its farewell are lost
      fail<CollectiveTimeout>("launch", "rank ", rank(), " has ended, and others have not within ",
                              "init_timeout (", timeout.count(), " ms): ", states_of(missing));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void LaunchedProcess::run(int n, const std::function<void(World&)>& fn, const WorldOptions& options,
                          const std::function<void(World&)>& ready) {
  ++worlds_;
  clean_ = false;
  if (rank() >= n) return;
  const Deadline deadline = deadline_after(options.init_timeout);
  Member member = messages_ ? make_messages(n, deadline) : make_shared(n, deadline);
  int local_ranks = 0, local_rank = 0;
  for (int r = 0; r < n; ++r) {
    const bool here =
        places_[static_cast<size_t>(r)].host == places_[static_cast<size_t>(rank())].host;
    local_ranks += here;
    local_rank += here && r < rank();
  }
  // Who waits for a group to form learns that the world has failed.
  bootstrap_->interrupted = [&member] {
    member.look();
    if (member.board->failure.happened()) member.board->failure.raise("launch");
  };
  struct Reset {
    Bootstrap& bootstrap;
    ~Reset() { bootstrap.interrupted = nullptr; }
  } const reset{*bootstrap_};
  {
    World world(member.group, options, local_ranks, local_rank);
    try {
      if (ready) ready(world);
      fn(world);
      world.finish();
    } catch (const std::exception& e) {
      member.comm->fail_world(e.what());
      throw;
    } catch (...) {
      member.comm->fail_world("an exception that is not a std::exception");
      throw;
    }
  }
  wait_for_all(member, options.init_timeout);
}

std::vector<std::string> LaunchedProcess::exchange(std::string_view mine,
                                                   std::chrono::milliseconds timeout) {
  clean_ = false;
  auto all =
      bootstrap_->all_gather(all_, concat("exchange ", worlds_), mine, deadline_after(timeout));
  clean_ = true;
  return all;
}

void run_launched(const Launch& launch, const std::function<void(World&)>& fn,
                  const WorldOptions& options) {
  const auto say = [&](World& world, const std::string& text) {
    if (world.rank() != 0) return;
    const int threads = world.session().context().options.threads;
    std::cerr << concat("world: ", text, ", ", counted(threads, "thread"), " each\n");
  };
  if (launch.launcher == Launcher::single) return run_ranks(1, fn, options);
  if (launch.launcher == Launcher::threads) {
    return run_ranks(
        launch.size,
        [&](World& world) {
          say(world, concat(counted(launch.size, "rank"), " as threads, 1 host"));
          fn(world);
        },
        options);
  }
  LaunchedProcess process(launch, options.init_timeout);
  process.run(launch.size, fn, options, [&](World& world) { say(world, process.text()); });
  process.finish(options.init_timeout);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// One reader per launcher. If variables of several launchers are set (torchrun inside srun, a
// wrapper that copies mpirun's), mpirun takes precedence, then torchrun, then Slurm; they must
// agree, unless srun only started the other launcher.
#include "tessera/dist/launch/launch.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/dist/rendezvous/host_folder_impl.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ostream>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

constexpr int kMaxRanks = 1 << 20;

class Reader {
 public:
  Reader(const EnvironmentLookup& lookup, const char* launcher)
      : lookup_(lookup), launcher_(launcher) {}

  [[nodiscard]] bool has(const char* name) const {
    const char* value = lookup_(name);
    return value && *value;
  }
  [[nodiscard]] std::string text(const char* name) const { return has(name) ? lookup_(name) : ""; }

  [[nodiscard]] int number(const char* name, int low, int high, const char* partner) const {
    if (!has(name)) {
      fail<LaunchError>("launch", partner, " is set by ", launcher_, ", but ", name,
                        " is not: start every rank by the launcher, or unset ", partner);
    }
    const std::string value = lookup_(name);
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc{} || stop != end || number < low || number > high) {
      fail<LaunchError>("launch", name, "='", value, "' (", launcher_,
                        "): expected an integer from ", low, " to ", high,
                        ": correct it, or unset the launcher's variables to run one rank");
    }
    return number;
  }
  [[nodiscard]] int number_or(const char* name, int low, int high, int absent) const {
    return has(name) ? number(name, low, high, name) : absent;
  }

  /// Rank and size from a pair of variables of which at least one is set.
  void place(Launch& launch, const char* rank, const char* size) const {
    launch.size = number(size, 1, kMaxRanks, rank);
    launch.rank = number(rank, 0, kMaxRanks, size);
    if (launch.rank >= launch.size) {
      fail<LaunchError>("launch", rank, "=", launch.rank, " but ", size, "=", launch.size, " (",
                        launcher_, "): expected a rank below ", launch.size,
                        "; start as many ranks as the size says");
    }
  }
  void local_place(Launch& launch, const char* rank, const char* size) const {
    launch.local_rank = number_or(rank, 0, kMaxRanks, -1);
    launch.local_size = size ? number_or(size, 1, kMaxRanks, -1) : -1;
    if (launch.local_size > launch.size) {
      fail<LaunchError>("launch", size, "=", launch.local_size, " (", launcher_,
                        "): expected at most the ", counted(launch.size, "rank"),
                        " of the whole world");
    }
    if (launch.local_size > 0 && launch.local_rank >= launch.local_size) {
      fail<LaunchError>("launch", rank, "=", launch.local_rank, " but ", size, "=",
                        launch.local_size, " (", launcher_, "): expected a local rank below ",
                        launch.local_size);
    }
  }

 private:
  const EnvironmentLookup& lookup_;
  const char* launcher_;
};

Launch read_open_mpi(const EnvironmentLookup& lookup) {
  const Reader reader(lookup, "mpirun");
  Launch launch;
  launch.launcher = Launcher::open_mpi;
  reader.place(launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  reader.local_place(launch, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  launch.host_folder = reader.text("PMIX_SERVER_TMPDIR");
  return launch;
}

Launch read_mpich(const EnvironmentLookup& lookup) {
  const Reader reader(lookup, "MPICH's mpiexec");
  Launch launch;
  launch.launcher = Launcher::mpich;
  reader.place(launch, "PMI_RANK", "PMI_SIZE");
  reader.local_place(launch, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  return launch;
}

Launch read_torchrun(const EnvironmentLookup& lookup) {
  const Reader reader(lookup, "torchrun");
  Launch launch;
  launch.launcher = Launcher::torchrun;
  reader.place(launch, "RANK", "WORLD_SIZE");
  reader.local_place(launch, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  launch.master_address = reader.text("MASTER_ADDR");
  if (launch.master_address.empty()) {
    if (launch.size > 1) {
      fail<LaunchError>("launch",
                        "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: set "
                        "MASTER_ADDR to the host of rank 0 (and MASTER_PORT to a free port there), "
                        "or start by torchrun");
    }
    launch.master_address = "127.0.0.1";
  }
  if (launch.size > 1 || reader.has("MASTER_PORT"))
    launch.master_port = reader.number("MASTER_PORT", 1, 65535, "MASTER_ADDR");
  // torchrun's agent itself listens at MASTER_PORT then, speaking PyTorch's protocol.
  if (reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True")
    launch.master_port += launch.master_port < 65535 ? 1 : -1;
  launch.job =
      concat(reader.text("TORCHELASTIC_RUN_ID"), '/', reader.text("TORCHELASTIC_RESTART_COUNT"));
  return launch;
}

Launch read_slurm(const EnvironmentLookup& lookup) {
  const Reader reader(lookup, "srun");
  Launch launch;
  launch.launcher = Launcher::slurm;
  reader.place(launch, "SLURM_PROCID",
               reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  reader.local_place(launch, "SLURM_LOCALID", nullptr);
  if (reader.text("SLURM_STEP_NUM_NODES") == "1") launch.local_size = launch.size;
  const int job = reader.number("SLURM_JOB_ID", 0, 2'147'483'647, "SLURM_PROCID");
  launch.job = concat(job, '.', reader.text("SLURM_STEP_ID"));
  // A job's own port: ephemeral range, so that jobs that share a node rarely share it.
  launch.master_port = reader.number_or("MASTER_PORT", 1, 65535, 61440 + job % 4096);
  launch.master_address = reader.text("MASTER_ADDR");
  if (launch.master_address.empty())
    launch.master_address = first_slurm_host(reader.text("SLURM_STEP_NODELIST"));
  return launch;
}

void agree(const Launch& chosen, const Launch& other) {
  if (chosen.rank == other.rank && chosen.size == other.size) return;
  // srun with one task, or one per node, that started the launcher which started this process.
  if (other.launcher == Launcher::slurm && (other.size < chosen.size || other.size == 1)) return;
  fail<LaunchError>("launch", "two launchers disagree: by ", chosen.launcher, " this is rank ",
                    chosen.rank, " of ", chosen.size, ", by ", other.launcher, " rank ", other.rank,
                    " of ", other.size, "; start the ranks by one launcher, or unset the ",
                    "variables of the other");
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Launcher launcher) {
  switch (launcher) {
    case Launcher::single: return out << "no launcher";
    case Launcher::threads: return out << "--ranks (threads)";
    case Launcher::open_mpi: return out << "mpirun (Open MPI)";
    case Launcher::mpich: return out << "mpiexec (MPICH)";
    case Launcher::slurm: return out << "srun";
    case Launcher::torchrun: return out << "torchrun";
  }
  return out;
}

std::string first_slurm_host(const std::string& list) {
  const size_t stop = list.find_first_of(",[");
  if (stop == std::string::npos || list[stop] == ',') return list.substr(0, stop);
  const size_t end = list.find_first_of("-,]", stop + 1);
  if (end == std::string::npos) {
    fail<LaunchError>("launch", "SLURM_STEP_NODELIST='", list,
                      "' has no closing bracket: set MASTER_ADDR to the host of rank 0");
  }
  const size_t close = list.find(']', end);
  const std::string suffix =
      close == std::string::npos
          ? ""
          : list.substr(close + 1, list.find(',', close) - std::min(close + 1, list.size()));
  return list.substr(0, stop) + list.substr(stop + 1, end - stop - 1) + suffix;
}

void say_once(std::string_view text, const std::function<void()>& say) {
  HostFolder::Place place;
  try {
    const Launch launch = detect_launch();
    place = {.path = launch.host_folder, .local_rank = launch.local_rank};
  } catch (const LaunchError&) {  // the ranks' environments may differ
  }
  HostFolder(place).say_once(text, say);
}

Launch detect_launch(int ranks) {
  return detect_launch(ranks, [](const char* name) { return std::getenv(name); });
}

Launch detect_launch(int ranks, const EnvironmentLookup& lookup) {
  const auto has = [&](const char* name) {
    const char* value = lookup(name);
    return value && *value;
  };
  std::vector<Launch> found;
  if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE"))
    found.push_back(read_open_mpi(lookup));
  // Slurm's PMI sets these too: there the process is srun's.
  const bool srun = has("SLURM_PROCID") && has("SLURM_STEP_NODELIST");
  if (!srun && (has("PMI_RANK") || has("PMI_SIZE"))) found.push_back(read_mpich(lookup));
  if (has("RANK") || has("WORLD_SIZE")) found.push_back(read_torchrun(lookup));
  // Without a step's node list this is the batch script itself, which runs once whatever NTASKS is.
  if (srun) found.push_back(read_slurm(lookup));

  if (ranks < 0 || ranks > kMaxRanks) {
    fail<LaunchError>("launch", "--ranks ", ranks, ": expected a number from 1 to ", kMaxRanks);
  }
  if (ranks > 0 && !found.empty()) {
    fail<LaunchError>("launch", "--ranks ", ranks, " makes ranks of threads, but ",
                      found[0].launcher, " already started ", counted(found[0].size, "process"),
                      ": leave --ranks out, or start the program without the launcher");
  }
  if (found.empty()) {
    Launch launch;
    if (ranks > 0) {
      launch.launcher = Launcher::threads;
      launch.size = launch.local_size = ranks;
    }
    return launch;
  }
  for (size_t i = 1; i < found.size(); ++i) agree(found[0], found[i]);
  if (has("TESSERA_JOB_TOKEN")) found[0].token = lookup("TESSERA_JOB_TOKEN");
  if (has("TESSERA_BIND_ADDR")) found[0].bind_address = lookup("TESSERA_BIND_ADDR");
  return found[0];
}

}  // namespace tessera

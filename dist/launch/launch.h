// SPDX-License-Identifier: Apache-2.0
// Detects the launcher and the rank of this process from the environment, once, before anything is
// opened. An invalid value is a LaunchError that names the variable, its value and the fix, so that
// a bad job script fails at once instead of waiting for ranks that never start.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace tessera {

enum class Launcher : uint8_t { single, threads, open_mpi, mpich, slurm, torchrun };
/// Name of the launcher: "mpirun (Open MPI)", "torchrun", ...
TESSERA_API std::ostream& operator<<(std::ostream&, Launcher);

/// The rank of a process (or, with `threads`, all ranks of the program).
struct Launch {
  Launcher launcher = Launcher::single;
  int rank = 0;
  int size = 1;
  int local_rank = -1;         ///< among the ranks of this host; -1: the launcher does not say
  int local_size = -1;         ///< ranks of this host; -1: the launcher does not say
  std::string master_address;  ///< host of rank 0's rendezvous; empty under MPI
  int master_port = 0;
  std::string job;           ///< distinguishes jobs that use the same port
  std::string token;         ///< TESSERA_JOB_TOKEN, a secret: never printed or sent
  std::string bind_address;  ///< TESSERA_BIND_ADDR: where rank 0 listens; empty: master_address
  std::string host_folder;   ///< of the job on this host, removed by the launcher; empty: none
  [[nodiscard]] bool by_mpi() const {
    return launcher == Launcher::open_mpi || launcher == Launcher::mpich;
  }
};

/// Value of an environment variable, or null.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads `--ranks N` (0: not given) and the variables of mpirun, srun and torchrun.
/// LaunchError: a rank outside the world, a variable that is missing or not a number, two launchers
/// that disagree, `--ranks` under a launcher.
TESSERA_API Launch detect_launch(int ranks = 0);
TESSERA_API Launch detect_launch(int ranks, const EnvironmentLookup& lookup);

/// Calls `say`, which says this text, unless another rank of this host has said it: so that an
/// error that all ranks have is printed once. Without a launcher, or if it makes no folder for the
/// ranks of a host, it is called.
TESSERA_API void say_once(std::string_view text, const std::function<void()>& say);

/// First host of a Slurm node list: `gpu[03-07,12],login1` gives `gpu03`.
TESSERA_API std::string first_slurm_host(const std::string& list);

}  // namespace tessera

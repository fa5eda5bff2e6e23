// SPDX-License-Identifier: Apache-2.0
// Launch detection over injected environments: what each launcher sets, and what must be refused.
#include "tessera/dist/launch/launch.h"

#include "tessera/core/error.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera {
namespace {

using Environment = std::map<std::string, std::string>;

Launch detect(const Environment& environment, int ranks = 0) {
  return detect_launch(ranks, [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

// The message of the LaunchError that detection must end in.
std::string refusal(const Environment& environment, int ranks = 0) {
  try {
    detect(environment, ranks);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
}

const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Environment kTorchrun{{"RANK", "3"},          {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}};
const Environment kSlurm{{"SLURM_PROCID", "2"},    {"SLURM_NTASKS", "6"},
                         {"SLURM_LOCALID", "0"},   {"SLURM_STEP_NODELIST", "gpu[03-05]"},
                         {"SLURM_JOB_ID", "4100"}, {"SLURM_STEP_ID", "1"}};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

TEST(Launch, NothingSetIsOneRank) {
  const Launch launch = detect({});
  EXPECT_EQ(launch.launcher, Launcher::single);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(detect({{"RANK", ""}, {"WORLD_SIZE", ""}}).launcher, Launcher::single);
}

TEST(Launch, RanksAreThreads) {
  const Launch launch = detect({}, 4);
  EXPECT_EQ(launch.launcher, Launcher::threads);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_size, 4);
  expect_says(refusal({}, -1), {"--ranks -1", "from 1"});
}

TEST(Launch, OpenMpi) {
  const Launch launch = detect(kOpenMpi);
  EXPECT_EQ(launch.launcher, Launcher::open_mpi);
  EXPECT_TRUE(launch.by_mpi());
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
}

TEST(Launch, Mpich) {
  const Launch launch = detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}});
  EXPECT_EQ(launch.launcher, Launcher::mpich);
  EXPECT_EQ(launch.size, 2);
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.local_size, -1);
}

TEST(Launch, Torchrun) {
  const Launch launch = detect(kTorchrun);
  EXPECT_EQ(launch.launcher, Launcher::torchrun);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.master_address, "n01");
  EXPECT_EQ(launch.master_port, 29500);
  const Launch agent = detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(agent.master_port, 29501) << "torchrun itself listens at MASTER_PORT";
  const Launch first = detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "a"}}));
  const Launch again = detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "b"}}));
  EXPECT_NE(first.job, again.job);
  EXPECT_EQ(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1) << "one rank needs no master";
}

TEST(Launch, Slurm) {
  const Launch launch = detect(kSlurm);
  EXPECT_EQ(launch.launcher, Launcher::slurm);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.size, 6);
  EXPECT_EQ(launch.master_address, "gpu03");
  EXPECT_EQ(launch.master_port, 61440 + 4100 % 4096);
  EXPECT_EQ(launch.job, "4100.1");
  const Launch chosen = detect(with(kSlurm, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "5000"}}));
  EXPECT_EQ(chosen.master_address, "h");
  EXPECT_EQ(chosen.master_port, 5000);
  EXPECT_EQ(detect(with(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "6"}})).launcher, Launcher::slurm);
}

TEST(Launch, SlurmSaysWhetherThereIsOneHost) {
  EXPECT_EQ(detect(kSlurm).local_size, -1);
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "3"}})).local_size, -1);
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}})).local_size, 6);
}

TEST(Launch, TokenAndBindAddressAreOfAnyLauncher) {
  const Environment more{{"TESSERA_JOB_TOKEN", "secret"}, {"TESSERA_BIND_ADDR", "10.0.0.7"}};
  for (const Environment& environment : {kOpenMpi, kTorchrun, kSlurm}) {
    EXPECT_EQ(detect(environment).token, "");
    EXPECT_EQ(detect(environment).bind_address, "");
    EXPECT_EQ(detect(with(environment, more)).token, "secret");
    EXPECT_EQ(detect(with(environment, more)).bind_address, "10.0.0.7");
  }
}

TEST(Launch, BatchScriptIsOneRank) {
  EXPECT_EQ(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).launcher,
            Launcher::single);
}

TEST(Launch, SlurmHostLists) {
  EXPECT_EQ(first_slurm_host("login1"), "login1");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[03-07,12],login1"), "gpu03");
  EXPECT_EQ(first_slurm_host("n[2,5]-ib,x"), "n2-ib");
  EXPECT_THROW(first_slurm_host("n[2"), LaunchError);
}

TEST(Launch, RefusesNonsense) {
  expect_says(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "8"}})),
              {"OMPI_COMM_WORLD_RANK=8", "OMPI_COMM_WORLD_SIZE=8", "below 8"});
  expect_says(refusal(with(kTorchrun, {{"WORLD_SIZE", "0"}})), {"WORLD_SIZE='0'", "from 1"});
  expect_says(refusal(with(kTorchrun, {{"RANK", "one"}})), {"RANK='one'", "expected an integer"});
  expect_says(refusal(with(kTorchrun, {{"RANK", "1x"}})), {"RANK='1x'"});
  expect_says(refusal(with(kTorchrun, {{"RANK", "-1"}})), {"RANK='-1'"});
  expect_says(refusal(with(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}})),
              {"WORLD_SIZE='99999999999999999999'"});
  expect_says(refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}})), {"MASTER_PORT='70000'"});
  expect_says(refusal(with(kTorchrun, {{"LOCAL_RANK", "2"}})), {"LOCAL_RANK=2", "local rank"});
  expect_says(refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), {"LOCAL_WORLD_SIZE=9"});
  expect_says(refusal(with(kSlurm, {{"SLURM_PROCID", "6"}})), {"SLURM_PROCID=6", "SLURM_NTASKS=6"});
}

TEST(Launch, RefusesAMissingPartner) {
  expect_says(refusal({{"RANK", "0"}}), {"RANK is set", "WORLD_SIZE is not"});
  expect_says(refusal({{"WORLD_SIZE", "2"}}), {"WORLD_SIZE is set", "RANK is not"});
  expect_says(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), {"MASTER_ADDR"});
  expect_says(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}),
              {"MASTER_PORT is not"});
  expect_says(refusal({{"OMPI_COMM_WORLD_SIZE", "2"}}), {"OMPI_COMM_WORLD_RANK is not"});
  expect_says(refusal({{"PMI_RANK", "2"}}), {"PMI_SIZE is not"});
}

TEST(Launch, RefusesRanksUnderALauncher) {
  expect_says(refusal(kOpenMpi, 4), {"--ranks 4", "mpirun", "8 processes", "leave --ranks out"});
  expect_says(refusal(kTorchrun, 4), {"--ranks 4", "torchrun"});
}

TEST(Launch, TwoLaunchersMustAgree) {
  expect_says(refusal(with(kOpenMpi, kTorchrun)),
              {"disagree", "rank 5 of 8", "rank 3 of 4", "mpirun", "torchrun"});
  const Environment same{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_EQ(detect(with(kTorchrun, same)).launcher, Launcher::open_mpi);
  // srun started mpirun once, or once per node.
  const Environment outer{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  EXPECT_EQ(detect(with(with(kSlurm, outer), kOpenMpi)).launcher, Launcher::open_mpi);
  expect_says(refusal(with(with(kSlurm, {{"SLURM_NTASKS", "8"}}), kOpenMpi)), {"disagree", "srun"});
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// A dump folder holds the results of one run: another run is refused and changes nothing, unless it
// resumes or is told to overwrite.
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/trainer.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <sys/stat.h>
#include <thread>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class DumpFolderTest : public TinyRunTest {
 protected:
  /// A run of two steps without checkpoints; later words win.
  [[nodiscard]] Words plain(const Words& more = {}) const {
    return train("a", joined({"--training.steps", "2", "--checkpoint.enable", "false"}, more));
  }
  [[nodiscard]] std::map<std::string, std::string> contents(const std::string& dump) const {
    std::map<std::string, std::string> files;
    for (const auto& file : fs::recursive_directory_iterator(path(dump)))
      if (file.is_regular_file() && file.path().filename() != ".lock")
        files[file.path().string()] = io::read_file(file.path().string());
    return files;
  }
  void expect_refused(const Words& words, const std::string& error) {
    const auto before = contents("a");
    EXPECT_EQ(run(words), 2);
    EXPECT_EQ(err_.str(), "error: [--dump_folder] " + path("a") +
                              " holds the results of another run (" + error + "\n");
    EXPECT_TRUE(contents("a") == before);
  }
};

constexpr const char* kHelp =
    "which are kept: give another --dump_folder, or --overwrite to remove them";

TEST_F(DumpFolderTest, ASecondRunKeepsTheResultsOfTheFirst) {
  ASSERT_EQ(run(plain()), 0) << err_.str();
  const std::string files = "metrics.jsonl, loss.svg, model.safetensors), ";
  expect_refused(plain(), files + kHelp);
  expect_refused(plain({"--ranks", "2", "--training.local_batch_size", "1"}),
                 "config.json, " + files + kHelp);
  expect_refused(plain({"--checkpoint.enable", "true"}), "config.json, " + files + kHelp);
}

TEST_F(DumpFolderTest, OverwriteStartsAnew) {
  ASSERT_EQ(run(train("a", {"--training.steps", "4", "--checkpoint.interval", "1"})), 0)
      << err_.str();
  ASSERT_EQ(run(plain({"--overwrite"})), 0) << err_.str();
  const auto after = contents("a");
  ASSERT_EQ(run(train("a", {"--training.steps", "2", "--checkpoint.enable", "false",
                            "--dump_folder", path("b")})),
            0)
      << err_.str();
  EXPECT_EQ(after.size(), contents("b").size());
  EXPECT_EQ(after.at(path("a/model.safetensors")), contents("b").at(path("b/model.safetensors")));
  // The run's own record does not repeat it.
  TESSERA_EXPECT_HOLDS(after.at(path("a/config.json")), "\"overwrite\": false");
  ASSERT_EQ(run(train("a", {"--overwrite", "--training.steps", "3"})), 0) << err_.str();
  EXPECT_EQ(CheckpointFolder(path("a/checkpoint")).steps(), std::vector<int64_t>{3});
}

TEST_F(DumpFolderTest, ARunsOwnConfigIsOfTheFolderWhereItLies) {
  ASSERT_EQ(run(train("a", {"--training.steps", "2"})), 0) << err_.str();
  fs::rename(path("a"), path("moved"));
  const std::string config = path("moved/config.json");
  ASSERT_EQ(run({"train", "--config", config, "--training.steps", "4"}), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "dump_folder: " + path("moved") + ", where --config " + config +
                                       " lies: goes on with the run there");
  TESSERA_EXPECT_HOLDS(out_.str(), "training resumes after step 2");
  EXPECT_FALSE(fs::exists(path("a")));
  ASSERT_EQ(run({"train", "--config", config, "--dump_folder", path("b")}), 0) << err_.str();
  EXPECT_EQ(out_.str().find("dump_folder: "), std::string::npos) << out_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "weights: random, of debug.seed 7");
  // A file elsewhere is of no run, and says where its own goes.
  fs::create_directories(path("configs"));
  fs::copy(config, path("configs/config.json"));
  EXPECT_EQ(parse_config(Words{"--config", path("configs/config.json")}).dump_folder,
            path("moved"));
}

TEST_F(DumpFolderTest, ABadRunOverwritesNothing) {
  ASSERT_EQ(run(plain()), 0) << err_.str();
  const auto before = contents("a");
  EXPECT_EQ(run(plain({"--overwrite", "--dataloader.path", path("none")})), 2);
  EXPECT_TRUE(contents("a") == before);
}

TEST_F(DumpFolderTest, OverwriteKeepsTheCheckpointThatTheRunBeginsWith) {
  ASSERT_EQ(run(train("a", {"--training.steps", "2"})), 0) << err_.str();
  fs::create_directory_symlink(path("a"), path("link"));
  for (const char* from : {"a", "a/checkpoint/step-2", "link/checkpoint"}) {
    EXPECT_EQ(run(train("a", {"--overwrite", "--checkpoint.initial_load_path", path(from)})), 2);
    TESSERA_EXPECT_HOLDS(err_.str(), "[--dump_folder] --overwrite would remove " + path(from));
  }
  EXPECT_EQ(CheckpointFolder(path("a/checkpoint")).steps(), std::vector<int64_t>{2});
  EXPECT_EQ(run(train("ab", {"--overwrite", "--checkpoint.initial_load_path", path("a")})), 0)
      << err_.str();
}

// Not files that only look alike, which may be another program's.
TEST_F(DumpFolderTest, WhatAKilledRunLeftGoesWithTheNext) {
  for (const char* name : {"metrics.jsonl.tmp.12", "model.safetensors.tmp.4194303", "notes.tmp.12",
                           "metrics.jsonl.tmp.old", "metrics.jsonl.tmp."})
    (void)put(concat("a/", name), "x");
  ASSERT_EQ(run(plain()), 0) << err_.str();
  std::set<std::string> left;
  for (const auto& file : fs::directory_iterator(path("a"))) {
    const std::string name = file.path().filename().string();
    if (name.find(".tmp.") != name.npos) left.insert(name);
  }
  EXPECT_EQ(left,
            (std::set<std::string>{"metrics.jsonl.tmp.", "metrics.jsonl.tmp.old", "notes.tmp.12"}));
}

TEST_F(DumpFolderTest, FilesOfModelsHaveTheModeOfTheField) {
  const auto mode = [&](const fs::path& file) {
    return fmt::format("{:o}", static_cast<unsigned>(fs::status(file).permissions()));
  };
  const Words steps{"--training.steps", "2", "--checkpoint.interval", "1"};
  for (const auto& [field, file, folder] :
       {std::tuple("0600", "600", "700"), std::tuple("0640", "640", "750")}) {
    ASSERT_EQ(run(train("a", joined(steps, {"--checkpoint.file_mode", field, "--ranks", "2",
                                            "--training.local_batch_size", "1", "--overwrite",
                                            "--checkpoint.last_save_in_hf"}))),
              0)
        << err_.str();
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path("a/checkpoint"))) {
      if (entry.path().filename() == ".lock") continue;
      EXPECT_EQ(mode(entry.path()), entry.is_directory() ? folder : file) << entry.path();
      files += entry.is_regular_file();
    }
    EXPECT_GE(files, 6u);
    ASSERT_EQ(run(plain({"--checkpoint.file_mode", field, "--overwrite"})), 0) << err_.str();
    EXPECT_EQ(mode(path("a/model.safetensors")), file);
  }
  for (const char* wrong : {"600x", "9", "0400", "0700", "rw-------"}) {
    EXPECT_EQ(run(plain({"--checkpoint.file_mode", wrong})), 2);
    TESSERA_EXPECT_HOLDS(err_.str(), concat("[--checkpoint.file_mode] '", wrong, "'"));
  }
}

// Rank 1 does not come to the save of rank 0, which waits as long as the field says.
TEST_F(DumpFolderTest, WaitsForDisksHaveTheDeadlineOfTheField) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<bool> over{false};
  EXPECT_THROW(run_ranks(2,
                         [&](World& world) {
                           set_storage_timeout(std::chrono::milliseconds(300));
                           if (world.rank() == 0) {
                             struct Over {
                               std::atomic<bool>& over;
                               ~Over() { over = true; }
                             } const end{over};
                             save(CheckpointFolder(path("late")), {.model = {}});
                           }
                           while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                         }),
               CollectiveTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(DumpFolderTest, CheckpointsAreKeptOrResumed) {
  ASSERT_EQ(run(train("a", {"--training.steps", "2", "--checkpoint.interval", "1"})), 0)
      << err_.str();
  expect_refused(plain(), "config.json, metrics.jsonl, loss.svg, 2 checkpoints up to " +
                              path("a/checkpoint/step-2") + "), " + kHelp +
                              ", or --checkpoint.enable to resume from the latest checkpoint");
  ASSERT_EQ(run(train("a", {"--training.steps", "3"})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "training resumes after step 2");
}

TEST_F(DumpFolderTest, ARunThatEndedBeforeItsFirstCheckpointStartsAgain) {
  run_ranks(1, [&](World&) { Trainer(config("a")).step(); });
  ASSERT_EQ(run(train("a")), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), path("a") + " has no checkpoint yet: the run starts again");
  run_ranks(1, [&](World&) { Trainer(config("b")).step(); });
  EXPECT_EQ(run(train("b", {"--debug.seed", "8"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "(config.json, metrics.jsonl), which are kept");
}

TEST_F(DumpFolderTest, FilesOfOthersInTheFolderDoNotMatter) {
  (void)put("a/notes.txt", "mine");
  ASSERT_EQ(run(plain()), 0) << err_.str();
  ASSERT_EQ(run(plain({"--overwrite"})), 0) << err_.str();
  EXPECT_EQ(io::read_file(path("a/notes.txt")), "mine");
}

TEST_F(DumpFolderTest, FlightRecordsAreWrittenThere) {
  const Config c = config("a");
  run_ranks(
      2, [&](World& w) { EXPECT_TRUE(w.group().recorder().dump("test")); }, world_options(c));
  int records = 0;
  for (const auto& file : fs::directory_iterator(path("a")))
    records += file.path().filename().string().starts_with("tessera_flight_");
  EXPECT_EQ(records, 2);
}

TEST_F(DumpFolderTest, TheFilesOfADataFolderAreListed) {
  (void)put("data/b.txt", fox_text(20));
  (void)put("data/c.bin", "x");
  fs::create_symlink("b.txt", path("data/link.txt"));
  ASSERT_EQ(run(plain({"--dataloader.path", path("data"), "--validation.enable",
                       "--validation.dataset_path", path("data")})),
            0)
      << err_.str();
  for (const char* what : {"\ndata files: ", "\nvalidation files: "}) {
    TESSERA_EXPECT_HOLDS(out_.str(), what + std::string("1 taken (b.txt); passed over: 1 links "
                                                        "(link.txt), 1 of other suffixes (c.bin)"));
  }
}

TEST_F(DumpFolderTest, ASaveRequestWithoutCheckpointsSaysSo) {
  for (const char* ranks : {"1", "2"}) {
    Child child(plain({"--training.steps", "1000000", "--metrics.log_freq", "1000000", "--ranks",
                       ranks, "--overwrite"}),
                path("log"));
    const auto logged = [&](const std::string& text) {
      return child.wait_for(
          [&] { return io::read_file(path("log")).find(text) != std::string::npos; });
    };
    ASSERT_TRUE(logged("step:  1")) << io::read_file(path("log"));
    child.signal(SIGUSR1);
    EXPECT_TRUE(logged(": nothing is saved without --checkpoint.enable"))
        << io::read_file(path("log"));
    EXPECT_TRUE(child.running());
    child.signal(SIGTERM);
    EXPECT_EQ(child.wait(), 0) << io::read_file(path("log"));
  }
}

TEST_F(DumpFolderTest, AStopWithoutCheckpointsKeepsTheModel) {
  for (const auto& [signal, status] : {std::pair{SIGTERM, 0}, {SIGINT, 130}}) {
    Child child(plain({"--training.steps", "1000000", "--overwrite"}), path("log"));
    const auto log = [&] { return io::read_file(path("log")); };
    ASSERT_TRUE(child.wait_for([&] { return log().find("step:  2") != std::string::npos; }));
    child.signal(signal);
    EXPECT_EQ(child.wait(), status) << log();
    TESSERA_EXPECT_HOLDS(log(), "only the model is kept; with --checkpoint.enable a run can be");
    TESSERA_EXPECT_HOLDS(log(), "wrote " + path("a/model.safetensors"));
    EXPECT_EQ(log().find("SIGINT: the run ends after this step") != std::string::npos,
              signal == SIGINT);
    EXPECT_EQ(run({"generate", "--checkpoint", path("a"), "--prompt", "t", "--tokens", "1"}), 0)
        << err_.str();
  }
}

// A step of a million micro-batches, which nothing but the second Ctrl-C ends.
TEST_F(DumpFolderTest, ASecondCtrlCEndsARunAtOnce) {
  Child child(plain({"--training.global_batch_size", "1000000"}), path("log"));
  ASSERT_TRUE(child.wait_for([&] { return child.handles(SIGINT); }));
  child.signal(SIGINT);
  ASSERT_TRUE(child.wait_for([&] {
    return io::read_file(path("log")).find("a second one ends it at once") != std::string::npos;
  }));
  EXPECT_TRUE(child.running());
  child.signal(SIGTERM);  // as torchrun adds
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), -SIGINT);
}

TEST_F(DumpFolderTest, AConfigurationThatNobodyWritesIsRefused) {
  ASSERT_EQ(::mkfifo(path("fifo.json").c_str(), 0600), 0);
  EXPECT_EQ(run({"config", "--config", path("fifo.json")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), path("fifo.json") + " is a FIFO that nobody writes to");
  EXPECT_EQ(run({"config", "--config", path(".")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), " is a folder, expected a file");
}

}  // namespace
}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/run_folder.h"

#include "tessera/dist/launch/run.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/step/run_parts.h"

#include <filesystem>

namespace tessera::train {
namespace {

class RunFolderTest : public TinyRunTest {
 protected:
  template <class F> static void on_two_ranks(const Config& c, F&& use) {
    run_ranks(
        2, [&](World&) { use(); }, world_options(c));
  }
  static void nothing(const std::string&) {}
};

TEST_F(RunFolderTest, ResultsOfAnotherRunAreAnErrorOnAllRanks) {
  const Config c = config("run");
  on_two_ranks(c, [&] {
    const RunFolder folder(c, nothing);
    EXPECT_FALSE(folder.overwrites());
  });
  io::write_file_atomically(path("run/loss.svg"), "a plot");
  on_two_ranks(c, [&] {
    TESSERA_EXPECT_HOLDS(test::error_of<ConfigError>([&] { const RunFolder folder(c, nothing); }),
                         "holds the results of another run (loss.svg)");
  });
  EXPECT_EQ(io::read_file(path("run/loss.svg")), "a plot");
}

TEST_F(RunFolderTest, OverwritingRemovesResultsAndNothingElse) {
  const Config c = config("run", {"--overwrite"});
  std::filesystem::create_directories(path("run"));
  io::write_file_atomically(path("run/metrics.jsonl"), "{}");
  io::write_file_atomically(path("run/notes.txt"), "mine");
  on_two_ranks(c, [&] {
    RunFolder folder(c, nothing);
    EXPECT_EQ(folder.file("x"), path("run/x"));
    World::current().group().barrier()->wait();
    folder.remove_old_results();
  });
  EXPECT_FALSE(std::filesystem::exists(path("run/metrics.jsonl")));
  EXPECT_TRUE(std::filesystem::exists(path("run/notes.txt")));
}

TEST_F(RunFolderTest, AnotherProcessMayNotHaveItMeanwhile) {
  const Config c = config("run");
  run_ranks(1, [&](World&) {
    const RunFolder folder(c, nothing);
    EXPECT_THROW(const RunFolder second(c, nothing), IoError);
  });
}

}  // namespace
}  // namespace tessera::train

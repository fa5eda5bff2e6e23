// SPDX-License-Identifier: Apache-2.0
// Imports and exports whose system calls fail, that meet a limit on the size of files, or that are
// killed: the folder is whole or not there, and the next run is as if nothing had been.
#include "tessera/tests/support/io_faults.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <map>
#include <sys/resource.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using test::IoFault;
using test::IoFaults;

const std::string kModel = "tests/goldens/hugging_face/llama3";

// Of one of the two commands, whose folder is always `out`.
class HuggingFaceFaults : public TinyRunTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("export-hf")) {
      ASSERT_EQ(run({"import-hf", kModel, "--out", path("a")}), 0) << err_.str();
      words_ = {"export-hf", "--checkpoint", path("a"), "--max_shard_bytes", "20000"};
    } else {
      words_ = {"import-hf", kModel};
    }
    words_ = joined(words_, {"--out", path("out")});
    ASSERT_EQ(run(words_), 0) << err_.str();
    whole_ = contents();
    ASSERT_GT(whole_.size(), 2u);
    fs::remove_all(path("out"));
  }
  // Bytes of files by their paths.
  [[nodiscard]] std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path("out"))) {
      if (entry.is_regular_file())
        files[entry.path().string()] = io::read_file(entry.path().string());
    }
    return files;
  }
  [[nodiscard]] bool nothing_is_left() const {
    return !fs::exists(path("out")) && !fs::exists(path("out.partial"));
  }
  // Whatever the last run left.
  void expect_the_next_run_is_whole() {
    EXPECT_EQ(run(words_), 0) << err_.str();
    EXPECT_TRUE(contents() == whole_);
    EXPECT_FALSE(fs::exists(path("out.partial")));
    fs::remove_all(path("out"));
  }

  Words words_;
  std::map<std::string, std::string> whole_;
};

TEST_P(HuggingFaceFaults, AFailedCallLeavesNothing) {
  IoFaults& faults = IoFaults::get();
  faults.arm(IoFault::io_error, -1, false);
  ASSERT_EQ(run(words_), 0) << err_.str();
  const int64_t calls = faults.disarm(), stride = test::long_form() ? 1 : 13;
  fs::remove_all(path("out"));
  int failed = 0, done = 0;
  for (const IoFault fault : {IoFault::io_error, IoFault::no_space, IoFault::short_write}) {
    for (const bool stays : {false, true}) {
      const int64_t first = test::long_form() ? 0 : 2 * static_cast<int64_t>(fault) + stays;
      for (int64_t at = first; at < calls; at += stride) {
        SCOPED_TRACE(concat("fault ", static_cast<int>(fault), stays ? " from call " : " at call ",
                            at, " of ", calls));
        faults.arm(fault, at, stays);
        const int status = run(words_);
        faults.disarm();
        (status == 0 ? done : failed)++;
        if (status != 0) {
          EXPECT_EQ(status, 1);
          EXPECT_TRUE(err_.str().starts_with("error: [")) << err_.str();
        }
        // The last call makes the new name lasting: the folder is whole by then.
        if (status == 0 || at + 1 == calls) {
          EXPECT_TRUE(contents() == whole_);
          fs::remove_all(path("out"));
        }
        EXPECT_TRUE(nothing_is_left());
      }
    }
  }
  EXPECT_GT(failed, 3);
  EXPECT_GT(done, 1);
  expect_the_next_run_is_whole();
  std::cout << calls << " calls; " << failed << " runs failed, " << done << " succeeded\n";
}

// As the program itself, since the limit and its signal are those of a process.
TEST_P(HuggingFaceFaults, ALimitOnTheSizeOfFilesLeavesNothing) {
  for (const rlim_t most : {rlim_t{100}, rlim_t{8000}}) {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    Child child(words_, path("log"));
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(child.wait(), 1);
    const std::string said = io::read_file(path("log"));  // which has the same limit
    TESSERA_EXPECT_HOLDS(said, "error: [");
    if (said.size() < most) {
      TESSERA_EXPECT_HOLDS(said, "File too large");
    }
    EXPECT_TRUE(nothing_is_left());
  }
  expect_the_next_run_is_whole();
}

TEST_P(HuggingFaceFaults, AKillAtAnyCallLeavesAPartialFolderAtMost) {
  int kills = 0;
  for (const int signal : {SIGKILL, SIGTERM}) {
    for (int64_t at = 0;; at += test::long_form() ? 1 : 17) {
      SCOPED_TRACE(concat("signal ", signal, " at call ", at));
      const int status =
          Child(words_, path("log"),
                {concat("TESSERA_TEST_KILL_AT=", at), concat("TESSERA_TEST_KILL_SIGNAL=", signal)})
              .wait();
      if (status == 0) break;  // it has no more calls
      ASSERT_EQ(status, -signal) << io::read_file(path("log"));
      ++kills;
      if (fs::exists(path("out"))) {  // killed after its renaming
        EXPECT_TRUE(contents() == whole_);
        fs::remove_all(path("out"));
      } else {
        expect_the_next_run_is_whole();
      }
    }
    fs::remove_all(path("out"));
  }
  EXPECT_GE(kills, 4);
  std::cout << kills << " kills\n";
}

// It ends between two tensors; after the last one the command comes to its end.
TEST_P(HuggingFaceFaults, CtrlCLeavesNothing) {
  int ended = 0;
  for (int64_t at = 0;; at += test::long_form() ? 1 : 7) {
    SCOPED_TRACE(concat("at call ", at));
    const int status =
        Child(words_, path("log"),
              {concat("TESSERA_TEST_KILL_AT=", at), concat("TESSERA_TEST_KILL_SIGNAL=", SIGINT)})
            .wait();
    if (status == 0) break;
    ASSERT_EQ(status, 130) << io::read_file(path("log"));
    TESSERA_EXPECT_HOLDS(io::read_file(path("log")),
                         "error: [SIGINT] interrupted: nothing was written");
    ASSERT_TRUE(nothing_is_left());
    ++ended;
  }
  EXPECT_TRUE(contents() == whole_);
  EXPECT_GE(ended, 2);
}

TEST_P(HuggingFaceFaults, AFolderThatCannotBeMadeIsNamed) {
  for (const std::string& place : {path("text.txt"), std::string("/proc")}) {
    words_.back() = place + "/none/out";
    EXPECT_EQ(run(words_), 1);
    TESSERA_EXPECT_HOLDS(err_.str(),
                         "error: [--out] cannot create " + place + "/none/out.partial: ");
    EXPECT_FALSE(fs::exists(place + "/none"));
  }
}

INSTANTIATE_TEST_SUITE_P(BothWays, HuggingFaceFaults, testing::Values("import-hf", "export-hf"),
                         [](const auto& of) { return std::string(of.param).substr(0, 6); });

}  // namespace
}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Outputs that are full, closed or not read: what a command then does, as a process of its own.
#include "tessera/train/cli/standard_output.h"

#include "tessera/nn/io/files.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/monitor/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <sys/stat.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// A pipe of 4 KiB whose ends are closed with it.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    ::fcntl(ends_[1], F_SETPIPE_SZ, 4096);
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  [[nodiscard]] int end(size_t i) const { return ends_[i]; }
  /// A file name that opens it for writing.
  [[nodiscard]] std::string path() const { return concat("/proc/", ::getpid(), "/fd/", ends_[1]); }
  void close_end(size_t i) {
    if (ends_[i] >= 0) ::close(std::exchange(ends_[i], -1));
  }
  /// Until all writers are gone.
  [[nodiscard]] std::string read_all() const {
    std::string text;
    std::array<char, 4096> block;
    for (ssize_t n; (n = ::read(ends_[0], block.data(), block.size())) > 0;)
      text.append(block.data(), static_cast<size_t>(n));
    return text;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// In tests of this process a closed pipe is an error, as in the program.
class StandardOutputTest : public TinyRunTest {
 protected:
  StandardOutputTest() : before_(std::signal(SIGPIPE, SIG_IGN)) {}
  ~StandardOutputTest() override { std::signal(SIGPIPE, before_); }

  [[nodiscard]] std::string errors() const { return io::read_file(path("errors")); }
  /// A run of 60 steps whose lines are more than a small pipe holds.
  [[nodiscard]] Words long_train() const {
    return train("run", {"--checkpoint.enable", "false", "--training.steps", "60",
                         "--metrics.log_freq", "1", "--metrics.measure_ceiling", "false"});
  }
  [[nodiscard]] Child started(const Words& words, const std::string& output) const {
    return Child(words, output, {}, "", path("errors"));
  }
  void expect_complete_run() const {
    EXPECT_EQ(read_metrics(path("run/metrics.jsonl"), "loss").steps.size(), 60u);
    EXPECT_TRUE(fs::exists(path("run/model.safetensors")));
    EXPECT_TRUE(fs::exists(path("run/loss.svg")));
  }

 private:
  sighandler_t before_;
};

TEST_F(StandardOutputTest, AFullDiskIsAnErrorOfTheFlush) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  {
    StandardOutput output(full);
    EXPECT_THROW(std::cout << "text" << std::flush, IoError);
    EXPECT_FALSE(output.finish());
  }
  EXPECT_FALSE(std::cout.bad());  // the former buffer is back
  ::close(full);
}

TEST_F(StandardOutputTest, AClosedPipeEndsACommandButNotTraining) {
  Pipe pipe;
  pipe.close_end(0);
  {
    StandardOutput output(pipe.end(1));
    EXPECT_THROW(std::cout << "text" << std::flush, ClosedPipe);
  }
  testing::internal::CaptureStderr();
  {
    StandardOutput output(pipe.end(1));
    output.write_in_background();
    for (int i = 0; i < 100; ++i) std::cout << "line " << i << std::endl;
    EXPECT_TRUE(output.finish());
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "error: [output] cannot write to the standard output: Broken pipe; training goes on\n");
}

TEST_F(StandardOutputTest, LinesThatNobodyReadsAreDroppedWithANote) {
  constexpr int kLines = 10000;  // far more than the pipe and the queue hold
  Pipe pipe;
  std::string read;
  std::thread reader;
  {
    StandardOutput output(pipe.end(1));
    output.write_in_background(8192);
    for (int i = 0; i < kLines; ++i) std::cout << "line " << i << std::endl;  // never waits
    reader = std::thread([&] { read = pipe.read_all(); });
    std::cout << "the end\n";
    EXPECT_TRUE(output.finish());
  }
  pipe.close_end(1);
  reader.join();
  EXPECT_TRUE(read.starts_with("line 0\nline 1\n")) << read.substr(0, 100);
  EXPECT_TRUE(read.ends_with(" lines here, because nobody read]\nthe end\n"))
      << read.substr(read.size() - 100);
  constexpr std::string_view kNote = "[dropped ";
  const int64_t dropped = std::stoll(read.substr(read.find(kNote) + kNote.size()));
  EXPECT_EQ(std::ranges::count(read, '\n') + dropped, kLines + 2);
}

TEST_F(StandardOutputTest, AnErrorComesAfterTheLinesBeforeIt) {
  Child child(train("run", {"--optimizer.lr", "1e6", "--checkpoint.enable", "false"}), path("log"));
  EXPECT_EQ(child.wait(), 1);
  const std::string log = io::read_file(path("log"));
  EXPECT_LT(log.rfind("step:  1  loss: "), log.find("error: [train] step ")) << log;
  EXPECT_EQ(log.find('\n', log.find("error: ")), log.size() - 1) << log;
}

TEST_F(StandardOutputTest, AFullDiskIsAStatusAndALineOfEveryCommand) {
  ASSERT_EQ(run(train("run", {"--checkpoint.enable", "false"})), 0) << err_.str();
  const std::vector<Words> commands{
      {"--help"},
      {"recipes"},
      {"config"},
      {"train", "--help"},
      {"plot", path("run")},
      {"eval", "--checkpoint", path("run"), "--ranks", "2"},
      {"generate", "--checkpoint", path("run"), "--tokens", "1000000", "--threads", "1"}};
  for (const Words& words : commands) {
    Child child = started(words, "/dev/full");
    EXPECT_EQ(child.wait(), 1) << words[0];
    const std::string text = errors();
    EXPECT_TRUE(
        text.ends_with("[output] cannot write to the standard output: No space left on device\n"))
        << words[0] << ": " << text;
    EXPECT_EQ(text.find("error: "), text.rfind("error: ")) << text;
  }
}

TEST_F(StandardOutputTest, TrainingGoesOnWithoutRoomForItsOutput) {
  Child child = started(long_train(), "/dev/full");
  EXPECT_EQ(child.wait(), 1);
  EXPECT_EQ(
      errors(),
      "error: [output] cannot write to the standard output: No space left on device; training "
      "goes on\n");
  expect_complete_run();
}

// Its number would be that of the next file opened, which would then get the lines.
TEST_F(StandardOutputTest, AClosedOutputIsNotWrittenToAnotherFile) {
  std::string command = fs::read_symlink("/proc/self/exe").string() + " --as-tessera";
  for (const std::string& word : long_train()) command += concat(" '", word, "'");
  const int status = std::system(concat(command, " >&- 2>'", path("errors"), "'").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(errors(),
            "error: [output] cannot write to the standard output: Bad file descriptor; training "
            "goes on\n");
  expect_complete_run();
}

TEST_F(StandardOutputTest, TrainingGoesOnWhenItsReaderLeaves) {
  Pipe pipe;
  Child child = started(long_train(), pipe.path());
  std::array<char, 16> head;
  EXPECT_GT(::read(pipe.end(0), head.data(), head.size()), 0);
  pipe.close_end(0);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(errors(),
            "error: [output] cannot write to the standard output: Broken pipe; training goes on\n");
  expect_complete_run();
}

TEST_F(StandardOutputTest, TrainingDoesNotWaitForItsReader) {
  Pipe pipe;
  Child child = started(long_train(), pipe.path());
  EXPECT_TRUE(child.wait_for([&] { return fs::exists(path("run/model.safetensors")); }));
  expect_complete_run();
  pipe.close_end(1);
  const std::string text = pipe.read_all();  // only now
  EXPECT_EQ(child.wait(), 0);
  EXPECT_NE(text.find("step:  1  loss: "), text.npos);
  EXPECT_NE(text.find("training completed in "), text.npos);
  EXPECT_EQ(errors(), "");
}

TEST_F(StandardOutputTest, GenerationEndsQuietlyWhenItsReaderLeaves) {
  ASSERT_EQ(run(train("run", {"--checkpoint.enable", "false"})), 0) << err_.str();
  Pipe pipe;
  Child child =
      started({"generate", "--checkpoint", path("run"), "--tokens", "1000000", "--threads", "1"},
              pipe.path());
  std::array<char, 16> head;
  EXPECT_GT(::read(pipe.end(0), head.data(), head.size()), 0);
  pipe.close_end(0);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(errors(), "");
}

}  // namespace
}  // namespace tessera::train

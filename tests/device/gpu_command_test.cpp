// SPDX-License-Identifier: Apache-2.0
// The command for an hour with a GPU (bench/gpu/run.sh), and the one for some minutes (lease.py),
// over programs that do nothing: what they keep, what they take up again, what they say of faults.
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <sys/wait.h>

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class GpuCommand : public test::FolderTest {
 protected:
  GpuCommand() {
    fs::create_directory(folder_ + "/bin");
    for (const std::string name :
         {"bench_ceilings", "bench_ops", "bench_train_step", "bench_host_cost", "bench_moe",
          "bench_kernels", "tessera_law_tests", "tessera_device_tests", "tessera_nccl_tests",
          "nvidia-smi", "compute-sanitizer", "tessera", "unshare"}) {
      fs::create_symlink(fs::absolute("tests/device/fake_program.sh"), folder_ + "/bin/" + name);
    }
  }
  // Exit status of the command with these options.
  int run(const std::string& options, const std::string& device = "NVIDIA Fake 80GB",
          const std::string& python = "false") {
    const std::string command = "PATH=" + folder_ + "/bin:$PATH FAKE_DEVICE='" + device +
                                "' FAKE_FAULTS='" + faults_ + "' TESSERA_PYTHON=" + python +
                                " bench/gpu/run.sh --bin " + folder_ + "/bin " + options + " >" +
                                folder_ + "/said 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));
  }
  int run_all() { return run("--out " + folder_ + "/out"); }
  int run_only(const std::string& piece, const std::string& more = "") {
    return run("--out " + folder_ + "/out --only " + piece + " " + more);
  }
  int lease(int seconds, const std::string& more = "",
            const std::string& device = "NVIDIA Fake 80GB") {
    return run(
        "--out " + folder_ + "/out --limit 3 --lease " + std::to_string(seconds) + " " + more,
        device, "python3");
  }
  // The line of a piece in the summary; empty if it has none.
  [[nodiscard]] std::string line_of(const std::string& piece) const {
    std::istringstream summary(io::read_file(folder_ + "/out/summary.txt"));
    for (std::string line; std::getline(summary, line);)
      if (line.find("] " + piece + " ") != std::string::npos) return line;
    return "";
  }
  [[nodiscard]] std::string said() const { return io::read_file(folder_ + "/said"); }
  [[nodiscard]] Json result(const std::string& piece) const {
    return Json::parse(io::read_file(folder_ + "/out/" + piece + ".json"));
  }

  std::string faults_;
};

TEST_F(GpuCommand, GoesOnAfterFaultsAndKeepsWhatWasDone) {
  faults_ = "tessera_law_tests/Fake.Two=fails tessera_law_tests/Fake.Three=dies bench_ops=fails";
  EXPECT_EQ(run_all(), 1) << said();
  const Json laws = result("laws");
  EXPECT_EQ(laws["status"], "failed");
  EXPECT_EQ(laws["device"], "NVIDIA Fake 80GB");
  EXPECT_EQ(laws["driver"], "580.1");
  EXPECT_EQ(laws["note"], "Fake.Two Fake.Three");
  EXPECT_EQ(laws["results"],
            Json::parse(R"([{"passed": 2, "failed": ["Fake.Two", "Fake.Three"], "left": 0}])"));
  EXPECT_EQ(result("ops")["note"], "[bench] a \"broken\" line");
  EXPECT_EQ(result("ops")["results"], Json::array());
  for (const std::string piece : {"ceilings", "runs", "nccl", "train_124M", "golden_1B"})
    EXPECT_EQ(result(piece)["status"], "passed") << piece;
  EXPECT_EQ(result("golden_1B")["commands"].size(), 2u);  // on the CPU and on the device
  EXPECT_NE(said().find("skipped: no Python with PyTorch"), std::string::npos) << said();
  EXPECT_FALSE(fs::exists(folder_ + "/out/peer_124M.json"));

  // All have their marks, those that failed too: nothing but what was skipped is tried again.
  faults_ = "";
  EXPECT_EQ(run_all(), 0) << said();
  EXPECT_EQ(result("ops")["status"], "failed");
  EXPECT_EQ(run_only("ops"), 0) << said();
  EXPECT_EQ(result("ops")["status"], "passed");
  EXPECT_EQ(result("ops")["results"], Json::parse(R"([{"name": "measured"}])"));
}

TEST_F(GpuCommand, TakesUpTestsThatWereCutOff) {
  faults_ = "tessera_law_tests/Fake.Three=sleeps";
  EXPECT_EQ(run("--out " + folder_ + "/out --limit 3 --only laws"), 0) << said();
  EXPECT_EQ(result("laws")["status"], "unfinished");
  EXPECT_EQ(result("laws")["results"][0], Json::parse(R"({"passed": 2, "failed": [], "left": 2})"));
  // A test that passed is not run again, but by the sanitizer, which has marks of its own.
  faults_ = "tessera_law_tests/Fake.One=dies";
  EXPECT_EQ(run_all(), 1) << said();
  EXPECT_EQ(result("memcheck")["note"], "Fake.One");
  EXPECT_EQ(result("laws")["status"], "passed");
  EXPECT_EQ(result("laws")["results"][0], Json::parse(R"({"passed": 4, "failed": [], "left": 0})"));
}

TEST_F(GpuCommand, FiguresOfNoRealDeviceNeedAFolder) {
  EXPECT_EQ(run("", "emulated on the CPU"), 2);
  EXPECT_NE(said().find("nvidia-smi lists no 'emulated on the CPU'"), std::string::npos) << said();
  EXPECT_EQ(run("--only nonsense"), 2);
  EXPECT_NE(said().find("there is no piece 'nonsense'"), std::string::npos) << said();
  EXPECT_EQ(run("--minutes soon"), 2);
  EXPECT_EQ(run("--nonsense"), 2);
}

TEST_F(GpuCommand, ALeaseGoesOnAfterFaultsAndTakesThemUpFirst) {
  if (std::system("command -v python3 >/dev/null") != 0) GTEST_SKIP() << "no python3";
  faults_ =
      "tessera_law_tests/Fake.Two=fails tessera_nccl_tests/Fake.One=dies "
      "tessera_device_tests/Fake.Three=fails_once bench_moe=fails "
      "bench_kernels=no_cupti unshare=fails";
  EXPECT_EQ(lease(60), 1) << said();
  const std::string head = io::read_file(folder_ + "/out/summary.txt");
  TESSERA_EXPECT_HOLDS(head, "NVIDIA Fake 80GB, driver 580.1, ");
  TESSERA_EXPECT_HOLDS(line_of("laws"), "failed");
  TESSERA_EXPECT_HOLDS(line_of("laws"), "3 of 4 passed");
  TESSERA_EXPECT_HOLDS(line_of("laws"), "Fake.Two: ");
  TESSERA_EXPECT_HOLDS(line_of("nccl"), "Fake.One: status 139");
  TESSERA_EXPECT_HOLDS(line_of("device"), "4 of 4 passed");  // one at the second try
  TESSERA_EXPECT_HOLDS(line_of("moe"), "failed");
  TESSERA_EXPECT_HOLDS(line_of("moe"), "[bench] a \"broken\" line");
  TESSERA_EXPECT_HOLDS(line_of("sweep"), "skipped");
  TESSERA_EXPECT_HOLDS(line_of("sweep"), "need CUPTI");
  TESSERA_EXPECT_HOLDS(line_of("meshes"), "skipped");
  TESSERA_EXPECT_HOLDS(line_of("meshes"), "Operation not permitted");
  TESSERA_EXPECT_HOLDS(line_of("job"), "passed");
  TESSERA_EXPECT_HOLDS(line_of("memcheck"), "3 of 4 passed");  // the same tests
  EXPECT_GT(fs::file_size(folder_ + "/out/results.tgz"), 1000u);

  // What failed comes first, then what was skipped; what passed is left alone.
  faults_ = "";
  EXPECT_EQ(lease(60), 0) << said();
  const std::string second = io::read_file(folder_ + "/out/summary.txt");
  EXPECT_LT(second.find("] moe "), second.find("] meshes ")) << second;
  TESSERA_EXPECT_HOLDS(line_of("laws"), "4 of 4 passed");
  TESSERA_EXPECT_HOLDS(line_of("sweep"), "passed");
  TESSERA_EXPECT_HOLDS(line_of("meshes"), "8 of 8 have the CPU's losses and norms");
  EXPECT_EQ(line_of("job"), "");
  EXPECT_EQ(line_of("step_1B"), "");
  // Another commit or device has nothing yet; a piece can be asked for by name.
  EXPECT_EQ(lease(60, "--only ceilings --only job", "NVIDIA Other Fake"), 0) << said();
  TESSERA_EXPECT_HOLDS(line_of("ceilings"), "passed");
  TESSERA_EXPECT_HOLDS(line_of("job"), "passed");
  EXPECT_EQ(lease(60, "--only nonsense"), 2);
  TESSERA_EXPECT_HOLDS(said(), "there is no piece nonsense");
}

TEST_F(GpuCommand, ALeaseEndsInTimeAndGoesOnWithin) {
  if (std::system("command -v python3 >/dev/null") != 0) GTEST_SKIP() << "no python3";
  // One hangs: it costs itself alone, twice three seconds. Another piece eats the rest.
  faults_ = "tessera_law_tests/Fake.Three=sleeps bench_ceilings=sleeps";
  EXPECT_EQ(lease(20, "--only laws --only ceilings --only job"), 1) << said();
  TESSERA_EXPECT_HOLDS(line_of("laws"), "3 of 4 passed");
  TESSERA_EXPECT_HOLDS(line_of("laws"), "Fake.Three: no end: ");
  TESSERA_EXPECT_HOLDS(line_of("ceilings"), "cut off");
  TESSERA_EXPECT_HOLDS(line_of("job"), "cut off");
  TESSERA_EXPECT_HOLDS(line_of("job"), "no time was left");
  faults_ = "";
  EXPECT_EQ(lease(40), 0) << said();
  TESSERA_EXPECT_HOLDS(line_of("laws"), "4 of 4 passed");
  TESSERA_EXPECT_HOLDS(line_of("ceilings"), "passed");
  TESSERA_EXPECT_HOLDS(line_of("job"), "passed");
}

}  // namespace
}  // namespace tessera

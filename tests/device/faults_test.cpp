// SPDX-License-Identifier: Apache-2.0
// Devices that are lost, libraries that do not fit, and runs that want none: by the variables of
// library/host_device.cpp.
#include "tessera/tests/device/counts.h"
#include "tessera/tests/support/logged_losses.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"

#include <algorithm>

namespace tessera::train {
namespace {

class HostDeviceFaults : public TinyRunTest {
 protected:
  [[nodiscard]] Words steps(const std::string& dump, const std::string& device, int count) const {
    return train(dump, {"--device", device, "--training.steps", std::to_string(count),
                        "--checkpoint.interval", "2", "--metrics.measure_ceiling", "false"});
  }
  // Exit status of a process; its outputs are in out.log and err.log.
  int in_process(const Words& words, const Words& environment = {}) const {
    Child child(words, path("out.log"), environment, "", path("err.log"));
    return child.wait();
  }
  [[nodiscard]] std::string errors() const { return io::read_file(path("err.log")); }
  [[nodiscard]] std::vector<double> losses(const std::string& dump) const {
    return test::logged_losses(path(dump));
  }
  // Kernels of a run of so many steps.
  int64_t kernels_of(int count) {
    const int64_t before = test::host_device_counts()->kernels;
    EXPECT_EQ(run(steps(concat("of_", count), "cuda", count)), 0) << err_.str();
    return test::host_device_counts()->kernels - before;
  }
};

TEST_F(HostDeviceFaults, ADeviceLostInMidStepLeavesTheCheckpointWhole) {
  const int64_t two = kernels_of(2), three = kernels_of(3);
  const std::string lost = concat("TESSERA_HOST_DEVICE_LOST=", (two + three) / 2);
  EXPECT_NE(in_process(steps("a", "cuda", 4), {lost}), 0);
  EXPECT_NE(errors().find("[cuda] cuda:0 is lost"), std::string::npos) << errors();
  EXPECT_EQ(std::ranges::count(errors(), '\n'), 1) << errors();
  // Goes on after step 2, here on the CPU, as a run that was never stopped.
  ASSERT_EQ(run(steps("a", "cpu", 4)), 0) << err_.str();
  ASSERT_EQ(run(steps("b", "cpu", 4)), 0) << err_.str();
  const std::vector<double> both = losses("a"), expected = losses("b");
  ASSERT_GE(both.size(), 2u);
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_TRUE(std::equal(expected.end() - 2, expected.end(), both.end() - 2));
}

TEST_F(HostDeviceFaults, ADeviceOutOfMemorySaysWhatHoldsItAndLeavesTheCheckpointWhole) {
  ASSERT_EQ(run(steps("a", "cuda", 2)), 0) << err_.str();
  const auto fails_with = [&](const std::string& memory, const Words& parts,
                              const Words& more = {"--memory.check", "false"}) {
    EXPECT_EQ(
        in_process(joined(steps("a", "cuda", 4), more), {"TESSERA_HOST_DEVICE_MEMORY=" + memory}),
        1);
    EXPECT_EQ(std::ranges::count(errors(), '\n'), 1) << errors();
    for (const std::string& part : parts) TESSERA_EXPECT_HOLDS(errors(), part);
  };
  fails_with("100000",
             {"[memory] cuda:0 has 97.7 KiB, and the tensors of a rank need about ",
              ", the largest parts: optimizer states ", "; less need --",
              "; --memory.check false trains anyway"},
             {});
  const Words advice{"[allocate] cuda:0 is out of memory: ", " bytes asked, ",
                     "; the tensors of a rank need about ",
                     ", the largest parts: ", "; less need --"};
  fails_with("100000", advice);  // the model does not fit
  const Words held{"; memory at its peak ", ": parameters ", ", optimizer ", ", activations ",
                   "; gradients "};
  fails_with("600000", joined(advice, held));
  ASSERT_EQ(run(steps("a", "cpu", 4)), 0) << err_.str();
  for (const int count : {2, 4}) ASSERT_EQ(run(steps("b", "cpu", count)), 0) << err_.str();
  ASSERT_EQ(losses("a").size(), 4u);
  EXPECT_EQ(losses("a"), losses("b"));
}

TEST_F(HostDeviceFaults, ALibraryOfAnotherVersionIsNamed) {
  EXPECT_EQ(in_process(steps("a", "cuda", 1), {"TESSERA_HOST_DEVICE_VERSION=999"}), 2);
  for (const std::string part :
       {"[--device] cuda: CUDA cannot be used: ", TESSERA_HOST_DEVICE,
        " is of another version of Tessera (its interface is 999, expected "})
    EXPECT_NE(errors().find(part), std::string::npos) << errors();
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

// By what the dynamic linker opens, which is all that a process maps.
TEST_F(HostDeviceFaults, ARunOnTheCpuOpensNoCudaLibrary) {
  const auto opened = [&](const std::string& device) {
    const std::string name = path("opened_" + device);
    EXPECT_EQ(
        in_process(steps("on_" + device, device, 1), {"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + name}),
        0)
        << errors();
    std::string text;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      if (file.path().string().starts_with(name)) text += io::read_file(file.path().string());
    }
    return text;
  };
  const std::string cpu = opened("cpu");
  EXPECT_NE(cpu.find("libtessera.so"), std::string::npos);
  for (const std::string library :
       {"libtessera_host_device", "libtessera_cuda", "libcuda", "libcublas", "libnccl", "libcudnn"})
    EXPECT_EQ(cpu.find(library), std::string::npos) << library;
  EXPECT_NE(opened("cuda").find("libtessera_host_device"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train

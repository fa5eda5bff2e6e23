// SPDX-License-Identifier: Apache-2.0
// Runs under mpirun. Some of torchtitan's integration tests, over shared memory, messages or both:
// the bits of thread ranks. A third of the meshes of decoders with experts: the losses of one rank.
#include "tessera/tests/mesh/experts.h"
#include "tessera/tests/mesh/integration.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/run/compare.h"

#include <cstdlib>

namespace tessera::mesh_tests {
namespace {

std::vector<Item> chosen() {
  std::vector<Item> some = items();
  std::erase_if(some, [](const Item& item) { return !item.transport; });
  return some;
}

class UnderMpirun : public IntegrationTest {
 protected:
  void run_on_processes(int ranks, const Words& words, const std::string& transport = "") const {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    std::string line = transport.empty() ? "" : concat("TESSERA_TRANSPORT=", transport, ' ');
    line += concat("./dev mpirun -n ", ranks, " '", program, "' --as-tessera");
    for (const std::string& word : words) line += concat(" '", word, "'");
    line += concat(" >'", path("log"), "' 2>&1");
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
    const std::string log = io::read_file(path("log"));
    TESSERA_EXPECT_HOLDS(log, concat("world: ", ranks, " ranks by mpirun"));
    TESSERA_EXPECT_HOLDS(log, concat(", ", transport.empty() ? "shared memory" : "messages"));
  }
};

class IntegrationUnderMpirun : public UnderMpirun, public testing::WithParamInterface<Item> {};

TEST_P(IntegrationUnderMpirun, HasTheBitsOfThreads) {
  const Item& item = GetParam();
  run_on_threads(item, "threads");
  for (const Words& words : commands(item, "processes"))
    run_on_processes(item.ranks, words, item.transport);
  EXPECT_EQ(figures("processes"), figures("threads"));
  expect_results(item, "processes");
}

INSTANTIATE_TEST_SUITE_P(Torchtitan, IntegrationUnderMpirun, testing::ValuesIn(chosen()),
                         [](const auto& test) { return test_name(test.param); });

class ExpertsUnderMpirun : public UnderMpirun,
                           public testing::WithParamInterface<std::tuple<const char*, int>> {
 protected:
  // In f64, so that rounding changes no choice.
  [[nodiscard]] Words command(const Degrees& degrees) const {
    const auto& [family, experts] = GetParam();
    train::Config c = with_experts({family, experts}, degrees, DType::f64);
    const std::string file = put(degrees.text() + ".json", c.fields().dump());
    return {"train",
            "--config",
            file,
            "--model.vocab_size",
            "260",
            "--dataloader.path",
            path("text.txt"),
            "--dump_folder",
            path(degrees.text()),
            "--checkpoint.no-enable"};
  }
  void expect_one_rank(const Degrees& degrees) const {
    const std::string metrics = "/metrics.jsonl";
    for (const auto& [name, limit] : {std::pair("loss", 1e-10), std::pair("grad_norm", 1e-6)}) {
      const auto got = train::read_metrics(path(degrees.text() + metrics), name).values,
                 want = train::read_metrics(path("single" + metrics), name).values;
      ASSERT_EQ(got.size(), want.size());
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i)
        worst = std::max(worst, train::relative_difference(got[i], want[i]));
      EXPECT_LE(worst, limit) << name << " on " << degrees;
      std::cout << degrees << ": " << name << ' ' << worst << '\n';
    }
  }
};

TEST_P(ExpertsUnderMpirun, TrainAsOneRank) {
  const auto& [family, experts] = GetParam();
  ASSERT_EQ(run(joined(command({}), {"--ranks", "1"})), 0) << err_.str();
  std::vector<Degrees> third;
  const uint64_t seed = fresh_seed();
  const auto all = every_mesh_of(experts, experts);
  for (size_t i = seed % 3; i < all.size(); i += 3) third.push_back(all[i]);
  for (const Degrees& degrees : some_of(third, third.size(), seed)) {
    run_on_processes(degrees.ranks(), command(degrees));
    expect_one_rank(degrees);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertsUnderMpirun,
                         testing::Values(std::tuple("qwen3", 8), std::tuple("llama4", 6)),
                         [](const auto& test) {
                           return concat(std::get<0>(test.param), '_', std::get<1>(test.param));
                         });

}  // namespace
}  // namespace tessera::mesh_tests

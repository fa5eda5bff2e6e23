// SPDX-License-Identifier: Apache-2.0
// Ranks that differ: as threads, and as processes of which one is another build.
#include "tessera/train/run/rank_check.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/free_port.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/trainer.h"

#include <array>
#include <mutex>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// What each of `n` ranks says when `fn` fails there; empty if it does not.
std::vector<std::string> errors(int n, const std::function<void(World&)>& fn) {
  std::vector<std::string> all(static_cast<size_t>(n));
  run_ranks(n, [&](World& world) {
    try {
      fn(world);
    } catch (const CollectiveMismatch& error) {
      all[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  return all;
}
std::vector<std::string> on_all(int n, const std::string& error) {
  return std::vector<std::string>(static_cast<size_t>(n), error);
}

std::vector<std::string> differences(int n, const std::function<std::vector<RankFact>(int)>& of) {
  std::vector<std::string> found;
  run_ranks(n, [&](World& world) {
    const auto here = rank_differences(of(world.rank()));
    if (world.rank() == n - 1) found = here;
  });
  return found;
}

TEST(RankFacts, RanksAreListedAndLongRunsAreRanges) {
  EXPECT_EQ(ranks_text({1}), "rank 1");
  EXPECT_EQ(ranks_text({0, 2, 3}), "ranks 0, 2, 3");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 4, 6, 8, 9}), "ranks 0 to 4, 6, 8, 9");
}

TEST(RankFacts, EqualOnesGiveNoDifference) {
  for (const int n : {1, 3}) {
    EXPECT_EQ(differences(n,
                          [](int) {
                            return std::vector<RankFact>{{"a", "1"}, {"b", ""}};
                          }),
              Words{});
  }
}

TEST(RankFacts, RanksDifferInTheKindOfDeviceNotInItsNumber) {
  const auto on = [](bool mixed) {
    return differences(3, [mixed](int rank) {
      RankFacts facts;
      facts.add_device(mixed && rank == 1 ? kCpu : cuda(rank));
      return facts.all();
    });
  };
  EXPECT_EQ(on(false), Words{});
  EXPECT_EQ(on(true), Words{"kind of device is cuda on ranks 0, 2 and cpu on rank 1"});
}

TEST(RankFacts, EachDifferenceHasItsValuesAndRanks) {
  const auto of = [](int rank) {
    std::vector<RankFact> facts{{"lr", rank == 1 ? "0.05" : "0.001"}, {"same", "1:x\n"}};
    if (rank > 1) facts.push_back({"more", rank == 2 ? "" : "a\nb"});
    return facts;
  };
  EXPECT_EQ(differences(4, of),
            (Words{"lr is 0.001 on ranks 0, 2, 3 and 0.05 on rank 1",
                   "more is absent on ranks 0, 1, empty on rank 2 and a\\nb on rank 3"}));
}

TEST(RankFacts, ManyValuesAndLongOnesAreCut) {
  const auto of = [](int rank) {
    return std::vector<RankFact>{{"seed", std::to_string(rank)},
                                 {"path", std::string(300, 'x') + (rank < 5 ? "a" : "b")}};
  };
  const auto found = differences(6, of);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0],
            "seed is 0 on rank 0, 1 on rank 1, 2 on rank 2 and other values on ranks 3, "
            "4, 5");
  const std::string cut = std::string(200, 'x') + "... (checksum ";
  TESSERA_EXPECT_HOLDS(found[1], "path is " + cut);
  TESSERA_EXPECT_HOLDS(found[1], ") on ranks 0 to 4 and " + cut);
  EXPECT_LT(found[1].size(), 500u);
  EXPECT_EQ(first_few(Words(14, "x is 1")).substr(11 * 8), "x is 1; and 2 more");
}

class RankCheck : public TinyRunTest {
 protected:
  // Builds a Trainer on each rank, with these words more on rank 1.
  std::vector<std::string> with_other_rank1(int n, const Words& words) {
    return errors(n, [&](World& world) {
      const Trainer trainer(config("run", world.rank() == 1 ? words : Words{}));
    });
  }
};

TEST_F(RankCheck, AnotherFieldOnOneRankIsAnErrorOnAllRanks) {
  const std::string same = "; start all ranks with the same program, configuration and data";
  EXPECT_EQ(with_other_rank1(4, {"--optimizer.lr", "0.05"}),
            on_all(4,
                   "[train] ranks differ: optimizer.lr is 0.01 on ranks 0, 2, 3 and 0.05 on "
                   "rank 1" +
                       same));
  EXPECT_EQ(with_other_rank1(2, {"--debug.seed", "8", "--dataloader.packing", "concat"}),
            on_all(2,
                   "[train] ranks differ: dataloader.packing is documents on rank 0 and concat "
                   "on rank 1; debug.seed is 7 on rank 0 and 8 on rank 1" +
                       same));
}

// Sizes of tensors differ, and the batch on rank 1 fits no mesh: nothing of that is reached.
TEST_F(RankCheck, AnotherModelDoesNotHang) {
  const auto all = with_other_rank1(
      2, {"--model.n_layers", "3", "--model.dim", "64", "--training.global_batch_size", "3"});
  ASSERT_EQ(all[0], all[1]);
  for (const char* part : {"training.global_batch_size is -1 on rank 0 and 3 on rank 1",
                           "model.dim is 32 on rank 0 and 64 on rank 1",
                           "model.n_layers is 2 on rank 0 and 3 on rank 1"})
    TESSERA_EXPECT_HOLDS(all[0], part);
}

TEST_F(RankCheck, OtherDataUnderTheSamePathIsAnError) {
  // As if the path were a local disk of each host.
  std::array<std::string, 2> texts{io::read_file(path("text.txt")), "another text"};
  std::vector<std::string> all = errors(2, [&](World& world) {
    RankFacts facts;
    const std::string own = put(concat(world.rank(), "/text.txt"), texts[world.rank() == 1]);
    EXPECT_EQ(facts.add_data(own, "dataloader.path").size(), 1u);
    require_equal_ranks("train", facts);
  });
  EXPECT_EQ(all[0], all[1]);
  TESSERA_EXPECT_HOLDS(all[0], concat("[train] ranks differ: text.txt of dataloader.path is ",
                                      texts[0].size(), " bytes, checksum "));
  TESSERA_EXPECT_HOLDS(all[0], " on rank 0 and 12 bytes, checksum ");
}

TEST_F(RankCheck, DataThatOneRankCannotReadIsNamed) {
  const auto all = errors(2, [&](World& world) {
    RankFacts facts;
    facts.add_data(world.rank() == 1 ? path("none") : path("text.txt"), "dataloader.path");
    require_equal_ranks("eval", facts);
  });
  EXPECT_EQ(all[0], all[1]);
  TESSERA_EXPECT_HOLDS(
      all[0], "data of dataloader.path is absent on rank 0 and [dataloader.path] " + path("none") +
                  " does not exist on rank 1");
}

TEST_F(RankCheck, TheNumberOfThreadsMayDiffer) {
  EXPECT_EQ(with_other_rank1(2, {"--threads", "2"}), on_all(2, ""));
}

TEST_F(RankCheck, ReplicasThatDifferInOneBitAreNamed) {
  const auto all = errors(3, [&](World& world) {
    Trainer trainer(config("run", {"--debug.replica_check_freq", "2",
                                   "--parallelism.data_parallel_replicate_degree", "3"}));
    for (int step = 1; step <= 4; ++step) {
      if (step == 3 && world.rank() == 1) {  // after the check of step 2
        const Tensor weight =
            local(test::parameter_of(trainer.model(), "layers.1.ffn_norm.weight"));
        auto* bits = static_cast<uint32_t*>(weight.raw_data());
        bits[5] ^= 1u;
      }
      try {
        trainer.step();
      } catch (const CollectiveMismatch&) {
        EXPECT_EQ(step, 4);
        throw;
      }
    }
  });
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
  TESSERA_EXPECT_HOLDS(
      all[0], "[train] replicas differ after step 4: layers.1.ffn_norm.weight has the checksum ");
  TESSERA_EXPECT_HOLDS(all[0], " on ranks 0, 2 and ");
}

TEST_F(RankCheck, AFrequencyOf0ComparesOnlyAtTheStart) {
  const auto all = errors(2, [&](World& world) {
    Trainer trainer(config("run", {"--debug.replica_check_freq", "0"}));
    const Tensor weight = local(test::parameter_of(trainer.model(), "norm.weight"));
    if (world.rank() == 1) weight.data<float>()[0] += 1;
    for (int i = 0; i < 3; ++i) trainer.step();
  });
  EXPECT_EQ(all, on_all(2, ""));
}

// Of four ranks as dp=2, tp=2, those with one coordinate of tp hold one shard.
TEST(Replicas, ShardsAreComparedWhereTheyAreReplicated) {
  const auto flipped_on = [](int bad) {
    return errors(4, [&](World& world) {
      const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
      const Tensor values = from_values({1, 2, 3, 4, 5}, {5});
      const Tensor x = distribute(values, Layout::of(mesh, {Replicate(), Shard(0)}));
      const Tensor each =
          from_local(full({2}, world.rank()), Layout::of(mesh, {Shard(0), Shard(0)}));
      const Tensor partial =
          from_local(full({2}, world.rank()), Layout::of(mesh, {Partial(), Partial()}));
      if (world.rank() == bad) local(x).data<float>()[1] = 7;
      check_replicas("train",
                     {{"x", x}, {"each", each}, {"partial", partial}, {"none", zeros({0})}},
                     "before step 1");
    });
  };
  EXPECT_EQ(flipped_on(-1), on_all(4, ""));
  const auto all = flipped_on(3);
  TESSERA_EXPECT_HOLDS(all[0], "[train] replicas differ before step 1: x has the checksum ");
  TESSERA_EXPECT_HOLDS(all[0], " on rank 1 and ");
  TESSERA_EXPECT_HOLDS(all[0], " on rank 3; one of these ranks");
  EXPECT_EQ(all, on_all(4, all[0]));
}

// A copy of this program whose linker's build id differs in one bit.
std::string other_build(const std::string& to) {
  std::string bytes = io::read_file("/proc/self/exe");
  const std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);
  const size_t at = bytes.find(note);
  EXPECT_NE(at, bytes.npos);
  bytes[at + note.size()] ^= 1;
  io::write_file_atomically(to, bytes);
  fs::permissions(to, fs::perms::owner_all);
  return to;
}

// Two processes; what both have written, after both ended with status 1.
class TwoProcesses : public TinyRunTest {
 protected:
  void expect_both_say(const Words& rank0, const Words& rank1, const Words& parts,
                       const std::string& program1 = "") const {
    const std::string port = concat("MASTER_PORT=", test::free_port());
    const auto environment = [&](int rank) {
      return Words{concat("RANK=", rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port};
    };
    Child first(rank0, path("log0"), environment(0));
    Child second(rank1, path("log1"), environment(1), program1);
    EXPECT_EQ(first.wait(), 1);
    EXPECT_EQ(second.wait(), 1);
    for (const char* name : {"log0", "log1"}) {
      const std::string log = io::read_file(path(name));
      for (const std::string& part : parts) TESSERA_EXPECT_HOLDS(log, part);
    }
  }
};

TEST_F(TwoProcesses, AnotherBuildAndConfigurationAreErrorsOnBoth) {
  (void)put("other/text.txt", "some other text, long enough for a window of the run");
  const Words of_rank1{"--optimizer.lr",      "0.05", "--debug.seed", "8", "--dataloader.path",
                       path("other/text.txt")};
  expect_both_say(train("run"), train("run", of_rank1),
                  {"error: [train] ranks differ: build is tessera ",
                   "optimizer.lr is 0.01 on rank 0 and 0.05 on rank 1",
                   "debug.seed is 7 on rank 0 and 8 on rank 1",
                   concat("dataloader.path is ", path("text.txt"), " on rank 0 and ",
                          path("other/text.txt"), " on rank 1"),
                   "text.txt of dataloader.path is "},
                  other_build(path("program")));
  EXPECT_FALSE(fs::exists(path("run")));  // no work was done
}

TEST_F(TwoProcesses, EvaluationsOfOtherStepsOrModelsAreErrorsOnBoth) {
  for (const char* seed : {"1", "2"})
    ASSERT_EQ(run(train(seed, {"--training.steps", "1", "--debug.seed", seed})), 0) << err_.str();
  const auto eval = [&](const char* model, const char* steps) {
    return Words{"eval", "--checkpoint", path(model), "--steps", steps, "--threads", "1"};
  };
  expect_both_say(
      eval("1", "1"), eval("2", "2"),
      {"error: [eval] ranks differ: checkpoint is ", "steps is 1 on rank 0 and 2 on rank 1",
       "the checkpoint's debug.seed is 1 on rank 0 and 2 on rank 1"});
}

}  // namespace
}  // namespace tessera::train

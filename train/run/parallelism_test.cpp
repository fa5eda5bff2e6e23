// SPDX-License-Identifier: Apache-2.0
// Degrees, the mesh that they make, and runs on it: the numbers are those of one rank.
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

namespace tessera::train {
namespace {

std::string text_of(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& a : axes) text += concat(text.empty() ? "" : " ", a.name, '=', a.size);
  return text;
}

TEST(Parallelism, DegreesMakeAMesh) {
  EXPECT_EQ(text_of(ParallelismConfig().axes(1)), "dp_replicate=1 dp_shard=1 cp=1 tp=1");
  EXPECT_EQ(text_of(ParallelismConfig().axes(6)), "dp_replicate=1 dp_shard=6 cp=1 tp=1");
  ParallelismConfig c;
  c.data_parallel_replicate_degree = 2;
  c.tensor_parallel_degree = 3;
  EXPECT_EQ(text_of(c.axes(12)), "dp_replicate=2 dp_shard=2 cp=1 tp=3");
  EXPECT_EQ(c.data_parts(12), 4);
  c.data_parallel_shard_degree = 1;
  EXPECT_EQ(text_of(c.axes(6)), "dp_replicate=2 dp_shard=1 cp=1 tp=3");
  c.context_parallel_degree = 4;
  EXPECT_EQ(text_of(c.axes(24)), "dp_replicate=2 dp_shard=1 cp=4 tp=3");
  EXPECT_EQ(c.data_parts(24), 2);
  c.context_parallel_ulysses_degree = 4;
  EXPECT_EQ(text_of(c.axes(24)), "dp_replicate=2 dp_shard=1 cp=4 tp=3");
  c.context_parallel_ulysses_degree = 2;
  EXPECT_EQ(text_of(c.axes(24)), "dp_replicate=2 dp_shard=1 cp_ring=2 cp_heads=2 tp=3");
  EXPECT_EQ(c.data_parts(24), 2);
}

TEST(Parallelism, DegreesThatDoNotFitTheRanksSaySo) {
  ParallelismConfig c;
  c.data_parallel_replicate_degree = 3;
  c.tensor_parallel_degree = 2;
  EXPECT_EQ(test::error_of<ConfigError>([&] { (void)c.axes(8); }),
            "[--parallelism] data_parallel_replicate_degree 3 x context_parallel_degree 1 x "
            "tensor_parallel_degree 2 = 6, which does not divide the 8 ranks: give degrees that "
            "do, or start another number of ranks");
  c.data_parallel_shard_degree = 2;
  EXPECT_EQ(test::error_of<ConfigError>([&] { (void)c.axes(8); }),
            "[--parallelism] data_parallel_replicate_degree 3 x data_parallel_shard_degree 2 x "
            "context_parallel_degree 1 x tensor_parallel_degree 2 = 12, but there are 8 ranks: "
            "give degrees that multiply to 8, "
            "or data_parallel_shard_degree -1 for the rest, or start another number of ranks");
}

TEST(Parallelism, ReshardingIsByNameOrByRanksThatDivideTheShards) {
  ParallelismConfig c;
  c.data_parallel_replicate_degree = 2;
  c.fsdp_reshard_after_forward = "2";
  EXPECT_EQ(reshard_policy(c, 8), nn::Reshard::among(2));
  EXPECT_EQ(reshard_policy({}, 8), nn::Reshard::automatic);
  c.fsdp_reshard_after_forward = "3";
  EXPECT_EQ(test::error_of([&] { (void)reshard_policy(c, 8); }),
            "[--parallelism.fsdp_reshard_after_forward] 3 ranks cannot keep the gathered "
            "parameters of 4 ranks between forward and backward: give a divisor of 4, always or "
            "never");
}

TEST(Parallelism, ExpertsBorrowTheRanksOfShardsOfContextAndOfTensorParallelism) {
  ParallelismConfig c;
  c.tensor_parallel_degree = 2;
  c.expert_parallel_degree = 8;
  EXPECT_EQ(expert_degrees(c, 8).degree, 8);
  EXPECT_EQ(expert_degrees(c, 8).tensor_degree, 1);
  const auto error = [&c] {
    return test::error_of<ConfigError>([&c] { (void)expert_degrees(c, 8); });
  };
  c.expert_tensor_parallel_degree = 2;
  EXPECT_EQ(error(),
            "[--parallelism] expert_parallel_degree 8 does not divide the 4 ranks of "
            "data_parallel_shard_degree x context_parallel_degree: give a degree that does");
  c.expert_tensor_parallel_degree = 4;
  EXPECT_EQ(error(),
            "[--parallelism] expert_tensor_parallel_degree 4: expected 1, or "
            "tensor_parallel_degree 2");
  c = {};
  c.tensor_parallel_degree = 2, c.expert_parallel_degree = 3;
  EXPECT_EQ(error(),
            "[--parallelism] expert_parallel_degree 3 does not divide the 8 ranks of "
            "data_parallel_shard_degree x context_parallel_degree x tensor_parallel_degree: give "
            "a degree that does");
  c.context_parallel_degree = 2, c.expert_parallel_degree = 8;
  EXPECT_EQ(expert_degrees(c, 8).degree, 8);
  // Without expert parallelism experts are always cut over the tensor ranks.
  c.expert_parallel_degree = 1;
  EXPECT_EQ(expert_degrees(c, 8).tensor_degree, 2);
}

class ParallelismTest : public TinyRunTest {};

// With other faults, before any rank starts, and once.
TEST_F(ParallelismTest, FaultsAreFoundTogetherBeforeAnyRankStarts) {
  const Words words = train("a", {"--ranks", "4", "--parallelism.data_parallel_replicate_degree",
                                  "3", "--training.seq_len", "1000000"});
  EXPECT_EQ(run(words), 2);
  EXPECT_EQ(std::ranges::count(err_.str(), '\n'), 2) << err_.str();
  TESSERA_EXPECT_HOLDS(err_.str(), "[--training.seq_len] 1000000 is above");
  TESSERA_EXPECT_HOLDS(err_.str(), "= 3, which does not divide the 4 ranks: ");
  EXPECT_EQ(run(train("a", {"--parallelism.data_parallel_shard_degree", "0"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--parallelism.data_parallel_shard_degree] 0: expected");
  EXPECT_EQ(run(train("a", {"--ranks", "4", "--parallelism.fsdp_reshard_after_forward", "3",
                            "--training.global_batch_size", "6"})),
            2);
  EXPECT_EQ(std::ranges::count(err_.str(), '\n'), 2) << err_.str();
  TESSERA_EXPECT_HOLDS(err_.str(), "fsdp_reshard_after_forward] 3 ranks cannot keep");
  EXPECT_EQ(run(train("a", {"--parallelism.fsdp_reshard_after_forward", "zero1"})), 2);
  EXPECT_EQ(std::ranges::count(err_.str(), '\n'), 1) << err_.str();
  TESSERA_EXPECT_HOLDS(err_.str(),
                       "[--parallelism.fsdp_reshard_after_forward] 'zero1' is not one of default | "
                       "always | never, nor a number of ranks");
  TESSERA_EXPECT_HOLDS(err_.str(), "ZeRO-1, which shards optimizer states alone, is not offered");
  EXPECT_EQ(
      run(train("a", {"--ranks", "4", "--parallelism.tensor_parallel_degree", "2",
                      "--training.local_batch_size", "2", "--training.global_batch_size", "6"})),
      2);
  TESSERA_EXPECT_HOLDS(err_.str(),
                       "6 is not a multiple of --training.local_batch_size 2 x 2 ranks");
}

TEST_F(ParallelismTest, ExpertDegreesOfAModelThatTheyDoNotFitAreFaultsOfTheConfiguration) {
  const Words ep{"--ranks", "4", "--memory.check", "false", "--parallelism.expert_parallel_degree",
                 "4"};
  EXPECT_EQ(run(train("a", ep)), 2);
  TESSERA_EXPECT_HOLDS(err_.str(),
                       "[--parallelism.expert_parallel_degree] 4: the model has no experts");
  EXPECT_EQ(run(train("a", joined(ep, {"--recipe", "qwen3_debugmodel_moe_small",
                                       "--model.num_experts", "6"}))),
            2);
  TESSERA_EXPECT_HOLDS(err_.str(),
                       "[--parallelism.expert_parallel_degree] 4 does not divide the 6 experts of "
                       "a layer: give a degree that does");
  EXPECT_EQ(run(train("a", {"--parallelism.expert_parallel_padding", "1.5"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(),
                       "[--parallelism.expert_parallel_padding] 1.5: no tokens travel with "
                       "expert_parallel_degree 1; leave it out");
}

// They are those of the family's plan for tensor parallelism.
TEST_F(ParallelismTest, HeadsThatTheDegreeDoesNotDivideAreAFaultOfTheConfiguration) {
  EXPECT_EQ(run(train("a", {"--ranks", "3", "--parallelism.tensor_parallel_degree", "3",
                            "--memory.check", "false", "--optimizer.lr", "-1"})),
            2);
  EXPECT_EQ(std::ranges::count(err_.str(), '\n'), 3) << err_.str();
  TESSERA_EXPECT_HOLDS(err_.str(), "[--optimizer.lr]");
  for (const char* heads : {"n_heads 4", "n_kv_heads 2 and is no multiple of it"})
    TESSERA_EXPECT_HOLDS(err_.str(),
                         concat("[--parallelism.tensor_parallel_degree] 3 does not divide --model.",
                                heads, ": give a degree that does"));
  EXPECT_EQ(out_.str(), "");
}

// Ranks of one group of cp and tp read the same rows, whose position on the data axes counts and
// not their rank; each row is read by one part.
TEST_F(ParallelismTest, TheBatchIsSaidWithTheRanksThatMakeIt) {
  const Words one{"--training.steps", "1", "--checkpoint.enable", "false", "--ranks", "2"};
  const std::string batch = "batch: 2 rows x 2 data-parallel ranks x ";
  ASSERT_EQ(run(train("a", one)), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), batch +
                                       "1 micro-batch = 4 rows of 16 = 64 tokens a step; it "
                                       "grows with the ranks unless training.global_batch_size");
  ASSERT_EQ(run(train("b", joined(one, {"--training.global_batch_size", "8"}))), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), batch + "2 micro-batches = 8 rows of 16 = 128 tokens a step\n");
}

TEST_F(ParallelismTest, RowsFollowTheCoordinatesOnTheMesh) {
  std::map<int64_t, int> readers;
  std::mutex mutex;
  const auto source = [&](int64_t first, int64_t count) -> Batch {
    const std::scoped_lock lock(mutex);
    for (int64_t r = first; r < first + count; ++r) ++readers[r];
    return {full({count, 16}, 1, DType::i64), full({count, 16}, 2, DType::i64)};
  };
  const Config c = config(
      "a", {"--parallelism.data_parallel_replicate_degree", "2",
            "--parallelism.context_parallel_degree", "2", "--parallelism.tensor_parallel_degree",
            "2", "--training.global_batch_size", "8", "--training.steps", "1"});
  run_ranks(8, [&](World& world) {
    Trainer trainer(c, {}, nullptr, source);
    trainer.step();
    const DataShare share = data_share(trainer.model().placement().mesh);
    EXPECT_EQ(share.parts, 2);
    EXPECT_EQ(share.part, world.rank() / 4);
  });
  std::map<int64_t, int> expected;
  for (int64_t r = 0; r < 8; ++r) expected[r] = 4;
  EXPECT_EQ(readers, expected);
}

// Making a group ends with a barrier of it.
TEST_F(ParallelismTest, GroupsAreMadeBeforeTheFirstStep) {
  const std::string replicate = "--parallelism.data_parallel_replicate_degree",
                    tp = "--parallelism.tensor_parallel_degree",
                    cp = "--parallelism.context_parallel_degree",
                    rotate = "--parallelism.context_parallel_rotate_method",
                    heads = "--parallelism.context_parallel_ulysses_degree",
                    reshard = "--parallelism.fsdp_reshard_after_forward";
  const auto made_in_a_step = [&](int ranks, const Words& words) {
    const Config c = config(concat("groups", ranks, words.back(), words.size()),
                            joined(words, {"--metrics.measure_ceiling", "false"}));
    std::set<std::string> names;
    run_ranks(ranks, [&](World& world) {
      Trainer trainer(c);
      uint64_t first = world.group().recorder().count();
      (void)trainer.step();
      if (world.rank() != 0) return;
      for (const auto& op : world.group().recorder().ended_since(first)) {
        if (op.kind == CollectiveKind::barrier) names.insert(op.group);
      }
    });
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(made_in_a_step(8, {replicate, "2", tp, "2"}), Names{});
  EXPECT_EQ(made_in_a_step(4, {tp, "2", replicate, "2"}), Names{});
  EXPECT_EQ(made_in_a_step(4, {reshard, "2"}), Names{});
  EXPECT_EQ(made_in_a_step(8, {replicate, "2", tp, "2", cp, "2"}), Names{});
  EXPECT_EQ(made_in_a_step(4, {reshard, "2", cp, "2", rotate, "alltoall"}), Names{});
  EXPECT_EQ(made_in_a_step(8, {cp, "4", heads, "2", rotate, "alltoall"}), Names{});
}

// Validation and samples too; tests/mesh trains on every mesh.
TEST_F(ParallelismTest, ARunOnAMeshHasTheNumbersOfOneRank) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += fox_text(1);
  (void)put("held.txt", text);
  const auto figures = [&](const std::string& dump, int ranks, int64_t rows, const Words& more) {
    const Config c = config(
        dump, joined({"--training.local_batch_size", std::to_string(rows),
                      "--training.global_batch_size", "8", "--validation.enable",
                      "--validation.dataset_path", path("held.txt"), "--validation.steps", "-1",
                      "--sample.tokens", "12", "--training.mixed_precision_param", "float32"},
                     more));
    std::vector<double> all;
    std::string printed;
    run_ranks(ranks, [&](World& world) {
      Trainer trainer(c, [&](const std::string& line) { printed += line + '\n'; });
      std::vector<double> own;
      for (int i = 0; i < 3; ++i) {
        const StepRecord r = trainer.step();
        own.insert(own.end(), {r.loss, r.grad_norm});
      }
      own.push_back(trainer.validate().loss);
      trainer.print_samples();
      if (world.rank() == 0) all = own;
    });
    return std::pair(all, printed);
  };
  const auto whole = figures("one", 1, 8, {});
  const std::vector<double>& one = whole.first;
  const std::string& lines = whole.second;
  TESSERA_EXPECT_HOLDS(lines, "mesh: mesh(dp_replicate=1, dp_shard=1, cp=1, tp=1), ");
  const std::string samples = lines.substr(lines.find("greedy text:"));
  const auto expect_alike = [&](const std::string& dump, int ranks, int64_t rows, const Words& more,
                                const std::string& mesh) {
    const auto [figured, printed] = figures(dump, ranks, rows, more);
    ASSERT_EQ(figured.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_LE(relative_difference(figured[i], one[i]), 1e-5) << dump << ", " << i;
    TESSERA_EXPECT_HOLDS(printed, mesh);
    TESSERA_EXPECT_HOLDS(printed, samples);
  };
  const std::string replicate = "--parallelism.data_parallel_replicate_degree",
                    shard = "--parallelism.data_parallel_shard_degree",
                    tp = "--parallelism.tensor_parallel_degree";
  expect_alike("hybrid", 4, 1, {replicate, "2"}, "mesh(dp_replicate=2, dp_shard=2, cp=1, tp=1)");
  expect_alike("all", 4, 2, {shard, "2", tp, "2"}, "mesh(dp_replicate=1, dp_shard=2, cp=1, tp=2)");
  expect_alike("cut", 4, 4, {shard, "2", "--parallelism.context_parallel_degree", "2"},
               "mesh(dp_replicate=1, dp_shard=2, cp=2, tp=1)");
}

// The model runs on all ranks of any mesh, and the first one prints.
TEST_F(ParallelismTest, EvalAndGenerateRunOnRanks) {
  ASSERT_EQ(run(train("a", {"--training.steps", "3"})), 0) << err_.str();
  const auto output = [&](const Words& words) {
    EXPECT_EQ(run(words), 0) << err_.str();
    return out_.str();
  };
  const std::string replicate = "--parallelism.data_parallel_replicate_degree",
                    shard = "--parallelism.data_parallel_shard_degree",
                    cp = "--parallelism.context_parallel_degree",
                    tp = "--parallelism.tensor_parallel_degree";
  const std::vector<Words> meshes{{"--ranks", "3"},
                                  {"--ranks", "2", replicate, "2"},
                                  {"--ranks", "4", shard, "2", tp, "2"},
                                  {"--ranks", "4", cp, "2", tp, "2"},
                                  {"--ranks", "2", tp, "2", "--parallelism.disable_loss_parallel",
                                   "--parallelism.no-enable_sequence_parallel"}};
  const Words generate{"generate", "--checkpoint",  path("a"), "--prompt", "the ", "--prompt",
                       "fox",      "--temperature", "0",       "--tokens", "9"};
  const Words eval{"eval",           "--checkpoint", path("a"), "--dataset_path",
                   path("text.txt"), "--steps",      "2",       "--local_batch_size"};
  const std::string texts = output(generate);
  for (const Words& mesh : meshes) EXPECT_EQ(output(joined(generate, mesh)), texts) << mesh.back();
  // 12 rows a batch, whatever the mesh.
  const auto loss = [&](const Words& more) {
    const std::string line = output(joined(eval, more));
    TESSERA_EXPECT_HOLDS(line, "tokens: 384  rows: 24 of seq_len 16  data: ");
    return std::stod(line.substr(line.find(' ')));
  };
  const double alone = loss({"12"});
  const std::vector<std::string> rows{"4", "6", "6", "12", "12"};
  for (size_t i = 0; i < meshes.size(); ++i)
    EXPECT_LE(relative_difference(loss(joined({rows[i]}, meshes[i])), alone), 1e-5) << i;
}

TEST_F(ParallelismTest, EvalAndGenerateRefuseDegreesThatDoNotFit) {
  for (const char* command : {"eval", "generate"}) {
    // Before the checkpoint is looked for.
    EXPECT_EQ(run({command, "--checkpoint", path("none"), "--ranks", "2",
                   "--parallelism.tensor_parallel_degree", "3"}),
              2);
    TESSERA_EXPECT_HOLDS(err_.str(), "[--parallelism]");
    EXPECT_EQ(run({command, "--parallelism.tensor_parallel_degree", "0"}), 2);
    TESSERA_EXPECT_HOLDS(err_.str(), "[--parallelism.tensor_parallel_degree]");
    TESSERA_EXPECT_HOLDS(err_.str(), "[--checkpoint] is missing");
    EXPECT_EQ(run({command, "--checkpoint", path("none"), "--ranks", "4",
                   "--parallelism.fsdp_reshard_after_forward", "3"}),
              2);
    TESSERA_EXPECT_HOLDS(err_.str(), "fsdp_reshard_after_forward] 3 ranks cannot keep");
    EXPECT_EQ(run({command, "--parallelism.fsdp_reshard_after_forward", "zero1"}), 2);
    EXPECT_EQ(std::ranges::count(err_.str(), '\n'), 2) << err_.str();
    TESSERA_EXPECT_HOLDS(err_.str(), "'zero1' is not one of default | always");
  }
  // What the model does not fit is known from its checkpoint.
  ASSERT_EQ(run(train("a", {"--training.steps", "1"})), 0) << err_.str();
  for (const char* command : {"eval", "generate"}) {
    EXPECT_EQ(run({command, "--checkpoint", path("a"), "--ranks", "3",
                   "--parallelism.tensor_parallel_degree", "3"}),
              2);
    TESSERA_EXPECT_HOLDS(err_.str(), "3 does not divide --model.n_heads 4");
    EXPECT_EQ(out_.str(), "");
  }
}

TEST_F(ParallelismTest, GradientsMayBeReducedInBf16) {
  std::vector<double> norms;
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Config c = config(dtype, {"--training.mixed_precision_reduce", dtype});
    run_ranks(2, [&](World& world) {
      Trainer trainer(c);
      const double norm = trainer.step().grad_norm;
      if (world.rank() == 0) norms.push_back(norm);
    });
  }
  EXPECT_NE(norms[1], norms[0]);
  EXPECT_LE(relative_difference(norms[1], norms[0]), 1e-3);
}

// Whatever the dtype of the parameters; only gradients of f64 stay as they are.
TEST_F(ParallelismTest, GradientsAreReducedInTheDtypeThatTheFieldNames) {
  const auto reduced_in = [&](const char* own, const char* reduce, bool replicas) {
    Words words{"--training.dtype", own, "--training.mixed_precision_reduce", reduce};
    if (std::string_view(own) == "float64")
      words = joined(words, {"--training.mixed_precision_param", own});
    if (replicas) words = joined(words, {"--parallelism.data_parallel_replicate_degree", "2"});
    const Config c = config(concat(own, reduce, replicas), words);
    std::set<DType> dtypes;
    run_ranks(2, [&](World& world) {
      Trainer trainer(c);
      const CommTrace trace;
      (void)trainer.step();
      if (world.rank() != 0) return;
      for (const CommEntry& e : trace.entries()) {
        // Losses and norms are of no dims; a list of gradients is longer.
        if (e.op == (replicas ? "all_reduce" : "reduce_scatter") && e.tag == "grad" && e.bytes > 64)
          dtypes.insert(e.dtype);
      }
    });
    return dtypes;
  };
  using Only = std::set<DType>;
  for (const bool replicas : {false, true}) {
    EXPECT_EQ(reduced_in("float32", "float32", replicas), Only{DType::f32});
    EXPECT_EQ(reduced_in("float32", "bfloat16", replicas), Only{DType::bf16});
    EXPECT_EQ(reduced_in("bfloat16", "float32", replicas), Only{DType::f32});
    EXPECT_EQ(reduced_in("bfloat16", "bfloat16", replicas), Only{DType::bf16});
    EXPECT_EQ(reduced_in("float64", "bfloat16", replicas), Only{DType::f64});
  }
}

}  // namespace
}  // namespace tessera::train

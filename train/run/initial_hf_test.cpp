// SPDX-License-Identifier: Apache-2.0
// Runs that start from a folder of Hugging Face and leave one, on one rank and on meshes. The
// learning rate is so small that parameters stay as they were loaded.
#include "tessera/nn/io/json_impl.h"
#include "tessera/tests/support/hf_weights.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/monitor/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = "tests/goldens/hugging_face/";

class InitialHuggingFace : public TinyRunTest {
 protected:
  [[nodiscard]] Words still(const std::string& dump, int rows, const Words& more) const {
    return joined({"train",
                   "--dump_folder",
                   path(dump),
                   "--dataloader.path",
                   path("text.txt"),
                   "--hf_assets_path",
                   "bytes",
                   "--training.steps",
                   "1",
                   "--training.seq_len",
                   "16",
                   "--optimizer.lr",
                   "1e-30",
                   "--training.mixed_precision_param",
                   "float32",
                   "--training.local_batch_size",
                   std::to_string(rows),
                   "--threads",
                   "1",
                   "--sample.tokens",
                   "0",
                   "--metrics.measure_ceiling",
                   "false",
                   "--checkpoint.enable",
                   "--checkpoint.last_save_model_only",
                   "true"},
                  more);
  }
};

struct Start {
  const char* model;
  const char* dtype;
  Words mesh;  // of 4 ranks
  int rows;    // of a rank, so that all meshes have 4
};

class OnMeshes : public InitialHuggingFace, public testing::WithParamInterface<Start> {};

// Every tensor of theirs comes back bit for bit, and the files are those of one rank.
TEST_P(OnMeshes, AModelComesInAndGoesOutAsOnOneRank) {
  const auto& [model, dtype, mesh, rows] = GetParam();
  const std::string theirs = kGoldens + model;
  const Words both{"--model.initial_hf", theirs, "--checkpoint.last_save_in_hf",
                   "--checkpoint.export_dtype", dtype};
  ASSERT_EQ(run(still("one", 4, both)), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "loaded " + theirs);
  ASSERT_EQ(run(still("mesh", rows, joined(both, joined({"--ranks", "4"}, mesh)))), 0)
      << err_.str();
  const std::string one = path("one/checkpoint/step-1/hugging_face/"),
                    all = path("mesh/checkpoint/step-1/hugging_face/");
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors"})
    EXPECT_EQ(io::read_file(one + file), io::read_file(all + file)) << file;
  const Session session;
  expect_equal_weights(theirs, one);
}

const Words kTp2{"--parallelism.tensor_parallel_degree", "2"},
    kEp2{"--parallelism.expert_parallel_degree", "2"}, kTp2Ep2 = joined(kTp2, kEp2);

INSTANTIATE_TEST_SUITE_P(InitialHuggingFace, OnMeshes,
                         testing::Values(Start{"llama3", "float32", {}, 1},
                                         Start{"llama3_tied", "bfloat16", kTp2, 2},
                                         Start{"gpt2", "float32", {}, 1},
                                         Start{"qwen3_moe", "float32", kEp2, 1},
                                         Start{"llama4", "float32", kTp2Ep2, 2}),
                         [](const auto& of) { return std::string(of.param.model); });

TEST_F(InitialHuggingFace, ItsFolderMayBeThatOfTheFirstCheckpoint) {
  const std::string theirs = kGoldens + "llama3";
  const Words in_hf{"--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", theirs};
  const Words shape{"--model.name",         "llama3", "--model.flavor",     "debugmodel",
                    "--model.dim",          "32",     "--model.n_layers",   "2",
                    "--model.n_heads",      "4",      "--model.n_kv_heads", "2",
                    "--model.ffn_dim",      "48",     "--model.vocab_size", "272",
                    "--model.max_seq_len",  "64",     "--model.rope_theta", "10000",
                    "--model.rope_scaling", "none"};
  ASSERT_EQ(run(still("a", 1, joined(in_hf, shape))), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "loaded " + theirs);
  // Its own checkpoint comes first.
  ASSERT_EQ(run(still("a", 1, joined(in_hf, joined(shape, {"--training.steps", "2"})))), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), "contains only the model");

  const Words other = joined(shape, {"--model.dim", "64", "--model.rope_theta", "20000"});
  EXPECT_EQ(run(still("b", 1, joined(in_hf, other))), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.dim] 64, but config.json of " + theirs + " says 32");
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.rope_theta] 20000, but");
  EXPECT_EQ(
      run(still("c", 1, joined(in_hf, {"--model.name", "gpt2", "--model.flavor", "debugmodel"}))),
      1);
  TESSERA_EXPECT_HOLDS(err_.str(), "model_type is \"llama\", expected \"gpt2\"");
}

// Their folders have none: it begins at zero, where it changes nothing.
TEST_F(InitialHuggingFace, RoutersMayGetABias) {
  const std::string theirs = kGoldens + "qwen3_moe";
  const Words recipe{"--recipe", "qwen3_debugmodel_moe_small"},
      folder{"--model.initial_hf", theirs}, bias{"--model.load_balance_coeff", "0.25"};
  Words in_hf{"--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", theirs};
  std::istringstream shape(
      "--model.dim 24 --model.n_layers 2 --model.n_heads 4 --model.n_kv_heads 2 --model.head_dim 8 "
      "--model.ffn_dim 40 --model.vocab_size 272 --model.max_seq_len 64 --model.rope_theta 10000 "
      "--model.num_experts 6 --model.top_k 2 --model.moe_inter_dim 20 "
      "--model.decoder_sparse_step 2");
  for (std::string word; shape >> word;) in_hf.push_back(word);
  const auto loss = [&](const std::string& dump, const Words& more) {
    EXPECT_EQ(run(still(dump, 2, joined(recipe, more))), 0) << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), "loaded " + theirs);
    EXPECT_EQ(run({"checkpoint", "inspect", path(dump)}), 0) << err_.str();
    return read_metrics(path(dump) + "/metrics.jsonl", "loss").values;
  };
  const std::string buffer = "layers.1.moe.expert_bias";
  const std::vector<double> without = loss("a", folder);
  EXPECT_EQ(out_.str().find(buffer), std::string::npos);
  EXPECT_EQ(loss("b", joined(folder, bias)), without);
  TESSERA_EXPECT_HOLDS(out_.str(), buffer);
  EXPECT_EQ(loss("c", joined(in_hf, bias)), without);
  TESSERA_EXPECT_HOLDS(out_.str(), buffer);
  EXPECT_EQ(loss("d", joined(joined(folder, bias), {"--ranks", "2"})).size(), 1u);
  EXPECT_EQ(run(still("e", 2, joined(joined(recipe, folder), {"--model.top_k", "1"}))), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.top_k] 1, but config.json of " + theirs + " says 2");
}

TEST_F(InitialHuggingFace, ARunResumesFromItsOwnFilesWhenTheFolderIsAway) {
  const std::string theirs = path("theirs");
  fs::copy(kGoldens + "llama3", theirs, fs::copy_options::recursive);
  ASSERT_EQ(
      run({"tokenizer", "train", "--vocab_size", "259", "--out", path("tok"), path("text.txt")}), 0)
      << err_.str();
  fs::copy(path("tok/tokenizer.json"), theirs);
  const Words first{"--model.initial_hf",
                    theirs,
                    "--hf_assets_path",
                    theirs,
                    "--checkpoint.last_save_model_only",
                    "false"};
  ASSERT_EQ(run(still("a", 1, first)), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "loaded " + theirs);
  fs::rename(theirs, path("elsewhere"));
  const Words again{"train", "--config", path("a/config.json"), "--training.steps", "2"};
  EXPECT_EQ(run(joined(again, {"--dump_folder", path("b")})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), theirs + " does not exist");
  EXPECT_EQ(run(joined(again, {"--overwrite"})), 2);
  EXPECT_EQ(run(joined(again, {"--hf_assets_path", path("none")})), 2);
  ASSERT_EQ(run(joined(again, {"--ranks", "2"})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "training resumes after step 1");
  EXPECT_EQ(out_.str().find("warning: the tokenizer"), std::string::npos) << out_.str();
  EXPECT_EQ(io::read_file(path("a/checkpoint/step-2/tokenizer.json")),
            io::read_file(path("elsewhere/tokenizer.json")));
  fs::create_directory(theirs);  // as a mount point is without its mount
  ASSERT_EQ(run(joined(again, {"--training.steps", "3"})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "training resumes after step 2");
}

TEST_F(InitialHuggingFace, FieldsThatContradictTheFolderAreNamed) {
  const std::string theirs = kGoldens + "gpt2";
  const Words from{"config", "--model.initial_hf", theirs};
  ASSERT_EQ(run(from), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "\"initial_hf\": \"" + theirs);
  TESSERA_EXPECT_HOLDS(out_.str(), "\"dim\": 24");
  TESSERA_EXPECT_HOLDS(out_.str(), "\"seq_len\": 64");
  io::write_file_atomically(path("run.json"), out_.str());
  EXPECT_EQ(run({"config", "--config", path("run.json")}), 0) << err_.str();
  auto of_no_folder = nlohmann::json::parse(io::read_file(path("run.json")));
  of_no_folder["model"]["initial_hf"] = "";
  io::write_file_atomically(path("run.json"), of_no_folder.dump());
  EXPECT_EQ(run(joined(from, {"--config", path("run.json")})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "\"initial_hf\": \"" + theirs);
  EXPECT_EQ(run(joined(from, {"--model.residual_dropout", "0", "--model.n_heads", "3"})), 0)
      << err_.str();
  EXPECT_EQ(run(joined(from, {"--model.n_heads", "4", "--model.vocab_size", "300"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.n_heads] 4, but config.json of " + theirs + " says 3");
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.vocab_size] 300, but");
  EXPECT_EQ(run(joined(from, {"--model.name", "llama3", "--model.flavor", "debugmodel"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.name] llama3, but " + theirs + " holds a gpt2");
  EXPECT_EQ(run(joined(from, {"--recipe", "llama3_debugmodel", "--training.seq_len", "32"})), 0)
      << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "\"name\": \"gpt2\"");
  EXPECT_EQ(run(joined(from, {"--checkpoint.initial_load_path", "x"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "both name a model to start from");
  EXPECT_EQ(run({"config", "--model.initial_hf", path("none")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "none does not exist");
}

TEST_F(InitialHuggingFace, FieldsThatAreNotKnownMayBePassedOver) {
  const std::string theirs = path("theirs");
  fs::copy(kGoldens + "llama3", theirs, fs::copy_options::recursive);
  auto json = nlohmann::ordered_json::parse(io::read_file(theirs + "/config.json"));
  json["window"] = 5;
  json["clip"] = "hard";
  io::write_file_atomically(theirs + "/config.json", json.dump());
  const Words from{"--model.initial_hf", theirs}, ignore{"--model.ignore_hf_fields", "window,clip"};
  EXPECT_EQ(run(still("a", 1, from)), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), "window is 5, which this family does not compute");
  TESSERA_EXPECT_HOLDS(err_.str(), "--model.ignore_hf_fields clip");
  EXPECT_EQ(run(still("a", 1, joined(from, {"--model.ignore_hf_fields=clip"}))), 1);
  EXPECT_EQ(err_.str().find("clip is"), std::string::npos) << err_.str();

  ASSERT_EQ(run(still("a", 1, joined(from, ignore))), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "without effect here: window 5");
  TESSERA_EXPECT_HOLDS(out_.str(), "clip \"hard\"");
  // The file of a run names them too.
  const std::string own = path("a/config.json");
  ASSERT_EQ(run({"config", "--config", own}), 0) << err_.str();
  EXPECT_EQ(run({"config", "--config", own, "--model.ignore_hf_fields", "window"}), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), "clip is \"hard\"");

  EXPECT_EQ(run({"import-hf", theirs, "--out", path("b")}), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), "--model.ignore_hf_fields window");
  EXPECT_EQ(run(joined({"import-hf", theirs, "--out", path("b")}, ignore)), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "without effect here: window 5");
}

// Words that set RoPE stretch the model to longer texts; without them it is the folder's.
TEST_F(InitialHuggingFace, RopeMayBeStretched) {
  const std::string theirs = kGoldens + "llama3";
  const Words from{"--model.initial_hf", theirs};
  const Words longer{"--model.max_seq_len", "256", "--training.seq_len", "128"};
  EXPECT_EQ(run(still("a", 1, joined(from, longer))), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.max_seq_len] 256, but");
  for (const std::string kind : {"yarn", "linear"}) {
    const Words stretch{"--model.rope_scaling",
                        kind,
                        "--model.rope_scaling_factor",
                        "4",
                        "--model.rope_original_max_position_embeddings",
                        "64",
                        "--checkpoint.last_save_in_hf"};
    ASSERT_EQ(run(still(kind, 1, joined(from, joined(longer, stretch)))), 0) << err_.str();
    const auto saved = nlohmann::json::parse(
        io::read_file(path(kind + "/checkpoint/step-1/hugging_face/config.json")));
    EXPECT_EQ(saved["rope_scaling"]["rope_type"], kind);
    EXPECT_EQ(saved["rope_scaling"]["factor"], 4.0);
    EXPECT_EQ(saved["max_position_embeddings"], 256);
    // And a run goes on with it.
    EXPECT_EQ(run({"config", "--config", path(kind + "/config.json")}), 0) << err_.str();
  }
}

// The losses of PyTorch: the model of transformers, torch.optim.AdamW, the same rows.
TEST_F(InitialHuggingFace, TrainsAsTorchDoes) {
  const auto golden = nlohmann::json::parse(io::read_file(kGoldens + "losses.json"));
  for (const auto& [model, losses] : golden.items()) {
    Words words = still(model, 2, {"--model.initial_hf", kGoldens + model});
    words = joined(words, {"--dataloader.path", kGoldens + "tokens.npy", "--training.steps", "20",
                           "--training.seq_len", "24", "--dataloader.no-shuffle", "--optimizer.lr",
                           "1e-3", "--lr_scheduler.warmup_steps", "0",
                           "--lr_scheduler.min_lr_factor", "1", "--training.max_norm", "inf"});
    if (model == "gpt2")
      words = joined(words, {"--model.embedding_dropout", "0", "--model.residual_dropout", "0"});
    ASSERT_EQ(run(words), 0) << err_.str();
    std::istringstream lines(io::read_file(path(model + "/metrics.jsonl")));
    size_t step = 0;
    double worst = 0;
    for (std::string line; std::getline(lines, line); ++step) {
      ASSERT_LT(step, losses.size());
      worst = std::max(worst, std::abs(nlohmann::json::parse(line)["loss"].get<double>() -
                                       losses[step].get<double>()));
    }
    EXPECT_EQ(step, losses.size());
    EXPECT_LE(worst, 1e-4) << model;
    RecordProperty(model, std::to_string(worst));
  }
}

}  // namespace
}  // namespace tessera::train

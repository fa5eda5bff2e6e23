// SPDX-License-Identifier: Apache-2.0
// Models of transformers, as tests/goldens/hugging_face.py wrote them: read, run, and written
// again.
#include "tessera/train/convert/convert.h"

#include "tessera/models/hugging_face.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/goldens/golden.h"
#include "tessera/tests/support/expect_golden.h"
#include "tessera/tests/support/hf_weights.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/exchange/weights.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/trained_model.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kGoldens = "tests/goldens/hugging_face/";

class HuggingFaceTest : public TinyRunTest {
 protected:
  /// A copy of a golden model, to be changed.
  [[nodiscard]] std::string copy_of(const std::string& name) const {
    const std::string to = path("theirs");
    fs::remove_all(to);
    fs::copy(kGoldens + name, to, fs::copy_options::recursive);
    return to;
  }
  /// Changes a JSON file by `change`.
  static void edit(const std::string& file, const std::function<void(Json&)>& change) {
    Json json = Json::parse(io::read_file(file));
    change(json);
    io::write_file_atomically(file, json.dump());
  }
  /// What import-hf says of the folder; it must fail and leave nothing.
  std::string refusal(const std::string& folder) {
    EXPECT_EQ(run({"import-hf", folder, "--out", path("refused")}), 1) << err_.str();
    EXPECT_FALSE(fs::exists(path("refused")) || fs::exists(path("refused.partial")));
    return err_.str();
  }
};

class GoldenModels : public HuggingFaceTest, public testing::WithParamInterface<const char*> {};
class GgufModels : public GoldenModels {};

// How far the logits of an imported model are from those of transformers.
double distance_of_logits(const std::string& imported, const std::string& name) {
  const Session session;
  const NoGrad guard;
  const io::SafetensorsFile golden(kGoldens + name + ".safetensors");
  const TrainedModel trained = open_trained_model(imported, {});
  const auto model = trained.config.model.make();
  trained.fill(*model, [](const auto&, const auto&) { return Layout(); }, kCpu, {});
  model->eval();
  return distance(model->forward(golden.read("tokens")), golden.read("logits"));
}

TEST_P(GoldenModels, GiveTheLogitsOfTransformers) {
  ASSERT_EQ(run({"import-hf", kGoldens + GetParam(), "--out", path("a")}), 0) << err_.str();
  EXPECT_LE(distance_of_logits(path("a"), GetParam()), 2e-5);
}

// Files whose every tensor tests/goldens/hugging_face.py compared with what llama.cpp's own package
// makes of the model.
TEST_P(GgufModels, GoToGguf) {
  ASSERT_EQ(run({"import-hf", kGoldens + GetParam(), "--out", path("a")}), 0) << err_.str();
  std::string sums;
  for (const std::string type : {"f32", "bf16", "q8_0"}) {
    const Words words{"export-gguf", "--checkpoint", path("a"), "--out",
                      path(type),    "--type",       type};
    ASSERT_EQ(run(words), 0) << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), "the file has no tokenizer");
    const io::FileSum sum = io::sum_of_file(path(type));
    sums += concat(type, ' ', sum.bytes, ' ', sum.crc32c, '\n');
    EXPECT_EQ(run(words), 2);
    TESSERA_EXPECT_HOLDS(err_.str(), "exists already");
  }
  test::expect_golden(concat(kGoldens, GetParam(), "_gguf.txt"), sums);
}

TEST_F(HuggingFaceTest, AModelThatLlamaCppHasNoNamesForIsRefused) {
  ASSERT_EQ(run({"import-hf", kGoldens + "llama4", "--out", path("a")}), 0) << err_.str();
  EXPECT_EQ(run({"export-gguf", "--checkpoint", path("a"), "--out", path("b")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "holds a model of the type llama4_text, which has no names");
}

TEST_F(HuggingFaceTest, WeightsInBlocksOfF8AreRead) {
  ASSERT_EQ(run({"import-hf", kGoldens + "llama3_fp8", "--out", path("a")}), 0) << err_.str();
  EXPECT_LE(distance_of_logits(path("a"), "llama3_fp8"), 2e-5);
}

TEST_P(GoldenModels, ComeBackEqualInEveryByte) {
  const std::string theirs = kGoldens + GetParam();
  const std::string dtype = Json::parse(io::read_file(theirs + "/config.json"))["dtype"];
  ASSERT_EQ(run({"import-hf", theirs, "--out", path("a")}), 0) << err_.str();
  const std::string most = "20000";  // bytes of a file: less than a tensor
  for (const Words& more : {Words{}, Words{"--max_shard_bytes", most}}) {
    const std::string out = path(more.empty() ? "whole" : "cut");
    ASSERT_EQ(
        run(joined({"export-hf", "--checkpoint", path("a"), "--out", out, "--dtype", dtype}, more)),
        0)
        << err_.str();
    EXPECT_EQ(fs::exists(out + "/model.safetensors"), more.empty());
    {
      const Session session;
      expect_equal_weights(theirs, out);
    }
    test::expect_golden(concat(kGoldens, GetParam(), "_exported.json"),
                        io::read_file(out + "/config.json"));
  }
}

constexpr auto kName = [](const auto& of) { return std::string(of.param); };
INSTANTIATE_TEST_SUITE_P(HuggingFace, GoldenModels,
                         testing::Values("llama3", "llama3_tied", "gpt2", "qwen3", "qwen3_moe",
                                         "llama4"),
                         kName);
INSTANTIATE_TEST_SUITE_P(HuggingFace, GgufModels,
                         testing::Values("llama3", "llama3_tied", "gpt2", "qwen3"), kName);

// The other parts are named once, and are not in what is written again.
TEST_F(HuggingFaceTest, TheTextOfAModelThatSeesImagesIsRead) {
  const std::string theirs = kGoldens + "llama4_images", ours = "language_model.";
  ASSERT_EQ(run({"import-hf", theirs, "--out", path("a")}), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "the tensors vision_model.*");
  EXPECT_LE(distance_of_logits(path("a"), "llama4_images"), 2e-5);
  ASSERT_EQ(run({"export-hf", "--checkpoint", path("a"), "--out", path("b")}), 0) << err_.str();
  const Session session;
  const HfWeights before(theirs), after(path("b"));
  const auto values = [](const HfWeights& weights, const std::string& name) {
    const Shape shape(weights.tensors().at(name).shape);
    return weights.read(name, Shape::filled(shape.rank(), 0), shape).values();
  };
  size_t parts = 0;
  for (const auto& [name, stored] : before.tensors()) {
    if (!name.starts_with(ours)) continue;
    ++parts;
    EXPECT_EQ(values(after, name.substr(ours.size())), values(before, name)) << name;
  }
  EXPECT_EQ(after.tensors().size(), parts);
  edit(copy_of("llama4_images") + "/config.json", [](Json& json) {
    json["text_config"]["moe_layers"] = {0, 2};
  });
  TESSERA_EXPECT_HOLDS(refusal(path("theirs")),
                       "moe_layers is [0,2], but the one that follows from "
                       "interleave_moe_layer_step 2 is [1]");
}

TEST_F(HuggingFaceTest, AnImportedModelIsGeneratedFromEvaluatedAndTrained) {
  for (const std::string name : {"llama3_tied", "llama4"}) {
    const std::string a = path(name), b = path(name + "_trained");
    ASSERT_EQ(run({"import-hf", kGoldens + name, "--out", a}), 0) << err_.str();
    EXPECT_EQ(run({"generate", "--checkpoint", a, "--prompt", "the", "--tokens", "3",
                   "--hf_assets_path", "bytes"}),
              0)
        << err_.str();
    EXPECT_EQ(run({"eval", "--checkpoint", a, "--dataset_path", path("text.txt"),
                   "--hf_assets_path", "bytes"}),
              0)
        << err_.str();
    ASSERT_EQ(run({"train", "--config", a + "/config.json", "--dump_folder", b, "--dataloader.path",
                   path("text.txt"), "--training.steps", "1", "--training.local_batch_size", "1",
                   "--threads", "1", "--hf_assets_path", "bytes"}),
              0)
        << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), "loaded " + a + "/checkpoint/step-0");
  }
}

TEST_F(HuggingFaceTest, AShardedCheckpointWithATokenizerGoesOutAndComesBack) {
  ASSERT_EQ(
      run({"tokenizer", "train", "--vocab_size", "259", "--out", path("tok"), path("text.txt")}), 0)
      << err_.str();
  ASSERT_EQ(
      run(train("a", {"--training.steps", "2", "--ranks", "2", "--hf_assets_path", path("tok")})),
      0)
      << err_.str();
  ASSERT_EQ(run({"export-hf", "--checkpoint", path("a"), "--out", path("out/b")}), 0) << err_.str();
  const Json config = Json::parse(io::read_file(path("out/b/config.json")));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_TRUE(config["bos_token_id"].is_number_integer());
  EXPECT_EQ(Json::parse(io::read_file(path("out/b/generation_config.json")))["eos_token_id"],
            config["eos_token_id"]);
  EXPECT_EQ(io::read_file(path("out/b/tokenizer.json")), io::read_file(path("tok/tokenizer.json")));
  ASSERT_EQ(run({"export-gguf", "--checkpoint", path("a"), "--out", path("gguf")}), 0)
      << err_.str();
  EXPECT_EQ(out_.str().find("no tokenizer"), std::string::npos) << out_.str();
  const std::string file = io::read_file(path("gguf"));
  for (const char* part : {"tokenizer.ggml.merges", "llama-bpe", "[PAD259]"})
    EXPECT_NE(file.find(part), std::string::npos) << part;
  ASSERT_EQ(run({"import-hf", path("out/b"), "--out", path("c")}), 0) << err_.str();
  const Session session;
  const TrainedModel before = open_trained_model(path("a"), {}),
                     after = open_trained_model(path("c"), {});
  EXPECT_EQ(after.config.hf_assets_path, path("c"));
  EXPECT_EQ(open_tokenizer(after.config)->vocabulary(), 259);
  ASSERT_TRUE(after.tokenizer);
  EXPECT_EQ(after.tokenizer->files()[0].bytes, io::read_file(path("tok/tokenizer.json")));
  fs::remove(path("c/tokenizer.json"));  // the checkpoint has its own
  EXPECT_EQ(run({"generate", "--checkpoint", path("c"), "--prompt", "the", "--tokens", "1"}), 0)
      << err_.str();
  const auto model = before.config.model.make();
  for (const auto& [name, tensor] : nn::named_parameters(*model))
    EXPECT_EQ(after.reader().read(name).values(), before.reader().read(name).values()) << name;
}

TEST_F(HuggingFaceTest, AFolderThatExistsIsKept) {
  const std::string mine = put("mine/file", "x");
  EXPECT_EQ(run({"import-hf", kGoldens + "gpt2", "--out", path("mine/")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--out] " + path("mine") + " exists already");
  ASSERT_EQ(run({"import-hf", kGoldens + "gpt2", "--out", path("a")}), 0) << err_.str();
  EXPECT_EQ(run({"export-hf", "--checkpoint", path("a"), "--out", path("mine")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "exists already");
  EXPECT_EQ(io::read_file(mine), "x");
  fs::create_symlink("nowhere", path("link"));
  EXPECT_EQ(run({"import-hf", kGoldens + "gpt2", "--out", path("link")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "exists already");
}

TEST_F(HuggingFaceTest, AnInterruptedImportLeavesNothingInTheWay) {
  (void)put("a.partial/checkpoint/step-0.partial/rank-00000.safetensors", "half");
  ASSERT_EQ(run({"import-hf", kGoldens + "gpt2", "--out", path("a")}), 0) << err_.str();
  EXPECT_FALSE(fs::exists(path("a.partial")));
  EXPECT_EQ(run({"checkpoint", "verify", path("a")}), 0) << out_.str();
}

TEST_F(HuggingFaceTest, EveryFaultOfAConfigurationIsNamed) {
  const std::string folder = copy_of("llama3"), file = folder + "/config.json";
  edit(file, [](Json& json) {
    json.erase("hidden_size");
    json["num_attention_heads"] = "four";
    json["vocab_size"] = -1;
    json["hidden_act"] = "gelu";
    json["attention_bias"] = "yes";
    json["quantization_config"] = {{"quant_method", "fp8"}};
    json["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}};
    json["dtype"] = "int8";
  });
  const std::string error = refusal(folder);
  for (const char* fault :
       {"hidden_size is missing", "num_attention_heads \"four\": ", "vocab_size -1: ",
        "hidden_act is \"gelu\", which cannot be expressed: expected \"silu\"",
        "attention_bias \"yes\": ", "quantization_config is {\"quant_method\":\"fp8\"}",
        "is of type \"dynamic\"", "dtype is \"int8\""})
    TESSERA_EXPECT_HOLDS(error, fault);

  const auto with = [&](const std::function<void(Json&)>& change) {
    edit(copy_of("llama3") + "/config.json", change);
    return refusal(folder);
  };
  TESSERA_EXPECT_HOLDS(with([](Json& j) { j["model_type"] = "bert"; }),
                       "model_type is \"bert\", expected one of llama, gpt2, qwen3, qwen3_moe, "
                       "llama4_text, llama4");
  TESSERA_EXPECT_HOLDS(with([](Json& j) { j.erase("model_type"); }), "model_type is missing");
  TESSERA_EXPECT_HOLDS(with([](Json& j) { j["head_dim"] = 7; }),
                       "[--model.head_dim] 7 is not even, but RoPE rotates pairs");
  TESSERA_EXPECT_HOLDS(with([](Json& j) { j["num_key_value_heads"] = 3; }),
                       "is not a multiple of --model.n_kv_heads 3");
  TESSERA_EXPECT_HOLDS(with([](Json& j) {
                         j["rope_parameters"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
                       }),
                       "rope_parameters has no low_freq_factor");
  TESSERA_EXPECT_HOLDS(with([](Json& j) { j["rope_parameters"]["partial_rotary_factor"] = 0.5; }),
                       "partial_rotary_factor is 0.5");
  TESSERA_EXPECT_HOLDS(with([](Json& j) { j["rope_parameters"] = 7; }),
                       "rope_parameters 7: expected an object");
  io::write_file_atomically(file, "[1,");
  TESSERA_EXPECT_HOLDS(refusal(folder), "is not a JSON object");
  fs::remove(file);
  TESSERA_EXPECT_HOLDS(refusal(folder), "has no config.json");
}

TEST_F(HuggingFaceTest, EveryTensorThatDoesNotFitIsNamed) {
  const std::string folder = copy_of("llama3");
  edit(folder + "/config.json", [](Json& j) {
    j["num_hidden_layers"] = 3;
    j["intermediate_size"] = 40;
  });
  const std::string larger = refusal(folder);
  TESSERA_EXPECT_HOLDS(larger, "model.layers.2.self_attn.q_proj.weight is missing");
  TESSERA_EXPECT_HOLDS(
      larger, "model.layers.0.mlp.gate_proj.weight has the shape [48, 32], expected [40, 32]");
  edit(copy_of("llama3") + "/config.json", [](Json& j) { j["num_hidden_layers"] = 1; });
  TESSERA_EXPECT_HOLDS(refusal(folder),
                       "model.layers.1.self_attn.q_proj.weight is not a tensor of such a model");
  const std::string file = folder + "/model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  TESSERA_EXPECT_HOLDS(refusal(folder), "is not a complete safetensors file");
  fs::remove(file);
  TESSERA_EXPECT_HOLDS(refusal(folder),
                       "has no model.safetensors and no model.safetensors.index.json");
}

TEST_F(HuggingFaceTest, WhatAFolderSaysTwiceAgrees) {
  edit(copy_of("llama3") + "/config.json", [](Json& j) { j["tie_word_embeddings"] = true; });
  TESSERA_EXPECT_HOLDS(refusal(path("theirs")),
                       "tie_word_embeddings of config.json is true, but lm_head.weight has other "
                       "values than model.embed_tokens.weight: set tie_word_embeddings to false");
  const Json f8 = Json::parse(io::read_file(kGoldens + "llama3_fp8/config.json"));
  edit(copy_of("llama3") + "/config.json",
       [&](Json& j) { j["quantization_config"] = f8["quantization_config"]; });
  TESSERA_EXPECT_HOLDS(refusal(path("theirs")),
                       "but all weights are F32: remove quantization_config");
  const std::string folder = copy_of("llama3_tied"),
                    index = folder + "/model.safetensors.index.json";
  fs::copy(kGoldens + "llama3/model.safetensors", folder);
  TESSERA_EXPECT_HOLDS(refusal(folder),
                       folder +
                           " has model.safetensors, but also model.safetensors.index.json, "
                           "which names other files");
  edit(copy_of("llama3_tied") + "/model.safetensors.index.json",
       [](Json& j) { std::swap(j["weight_map"].front(), j["weight_map"].back()); });
  TESSERA_EXPECT_HOLDS(refusal(folder), index + ": model-0000");
  TESSERA_EXPECT_HOLDS(err_.str(), "-of-00002.safetensors has no tensor model.");
}

TEST_F(HuggingFaceTest, NoNameLeadsOutOfTheFolder) {
  const std::string folder = copy_of("llama3_tied"),
                    index = folder + "/model.safetensors.index.json";
  const auto pointing_to = [&](const Json& to) {
    (void)copy_of("llama3_tied");
    edit(index, [&](Json& json) { json["weight_map"].front() = to; });
    return refusal(folder);
  };
  const std::string one = fs::absolute(kGoldens + "llama3/model.safetensors").string();
  TESSERA_EXPECT_HOLDS(pointing_to(one), "expected the name of a file in the folder itself");
  TESSERA_EXPECT_HOLDS(pointing_to("../a.safetensors"),
                       "expected the name of a file in the folder itself");
  TESSERA_EXPECT_HOLDS(pointing_to("a.bin"), "'a.bin' is no safetensors file");
  TESSERA_EXPECT_HOLDS(pointing_to("none.safetensors"), "there is no file none.safetensors");
  TESSERA_EXPECT_HOLDS(pointing_to(3), "is not text");
  fs::create_symlink(one, copy_of("llama3_tied") + "/link.safetensors");
  edit(index, [&](Json& json) { json["weight_map"].front() = "link.safetensors"; });
  TESSERA_EXPECT_HOLDS(refusal(folder), "which is not in the folder");
  io::write_file_atomically(index, "{\"weight_map\": []}");
  TESSERA_EXPECT_HOLDS(refusal(folder), "it has no weight_map, an object");

  // A hub's cache: links to blobs two folders above.
  fs::create_directories(path("hub/snapshots/main"));
  fs::create_directories(path("hub/blobs"));
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy(kGoldens + "llama3/" + file, path("hub/blobs/") + file);
    fs::create_symlink(fs::path("../../blobs") / file, path("hub/snapshots/main/") + file);
  }
  EXPECT_EQ(run({"import-hf", path("hub/snapshots/main"), "--out", path("hubs")}), 0) << err_.str();
}

TEST_F(HuggingFaceTest, WrongUsageIsNamed) {
  EXPECT_EQ(run({"import-hf", kGoldens + "gpt2"}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--out] is missing");
  EXPECT_EQ(run({"import-hf", "--out", path("a")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--folder] is missing");
  EXPECT_EQ(run({"export-hf"}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--checkpoint] is missing");
  TESSERA_EXPECT_HOLDS(err_.str(), "[--out] is missing");
  EXPECT_EQ(run({"export-hf", "--checkpoint", path("none"), "--out", path("a"), "--dataset_path",
                 path("text.txt")}),
            2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--dataset_path] " + path("text.txt") +
                                       " is given, but it shows what --drop changes; give that "
                                       "too, or leave it out");
  EXPECT_EQ(run({"export-hf", "--checkpoint", path("none"), "--out", path("a")}), 2);
  EXPECT_FALSE(fs::exists(path("a")));
}

}  // namespace
}  // namespace tessera::train

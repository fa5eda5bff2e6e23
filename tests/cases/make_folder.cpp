// SPDX-License-Identifier: Apache-2.0
// make_folder DIR [key=JSON]...: a folder of Hugging Face with a Llama of one layer and a fixed,
// small width. A key changes a field of config.json; head=1 adds an lm_head of its own, file=NAME
// names the weights, prefix=NAME begins the names of tensors in place of `model.`, seed=N draws
// other weights. make_folder --tokenizer NAME: a byte-level tokenizer with two special tokens, as
// slow files in NAME/ and as NAME.json. The weights are those that Python's
// random.Random(seed).gauss(0, 0.5) draws, so that a peer can make the same folder.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numbers>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;

// How Python seeds its generator with a number below 2^32.
struct PythonSeed {
  using result_type = std::uint32_t;
  std::uint32_t seed;

  template <class Iterator> void generate(Iterator first, Iterator last) const {
    const auto n = static_cast<std::size_t>(last - first);
    std::vector<std::uint32_t> x(n);
    x[0] = 19650218U;
    for (std::size_t i = 1; i < n; ++i)
      x[i] = 1812433253U * (x[i - 1] ^ (x[i - 1] >> 30U)) + static_cast<std::uint32_t>(i);
    std::size_t i = 1;
    const auto next = [&] {
      if (++i < n) return;
      x[0] = x[n - 1];
      i = 1;
    };
    for (std::size_t k = 0; k < n; ++k, next())
      x[i] = (x[i] ^ ((x[i - 1] ^ (x[i - 1] >> 30U)) * 1664525U)) + seed;
    for (std::size_t k = 0; k + 1 < n; ++k, next())
      x[i] =
          (x[i] ^ ((x[i - 1] ^ (x[i - 1] >> 30U)) * 1566083941U)) - static_cast<std::uint32_t>(i);
    x[0] = 0x80000000U;
    std::copy(x.begin(), x.end(), first);
  }
};

class Normal {
 public:
  explicit Normal(std::uint32_t seed) : seed_{seed}, bits_(seed_) {}

  double operator()() {  // pairs, by Box and Muller
    if (has_second_) {
      has_second_ = false;
      return second_;
    }
    const double angle = uniform() * 2 * std::numbers::pi;
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    second_ = std::sin(angle) * radius;
    has_second_ = true;
    return std::cos(angle) * radius;
  }

 private:
  double uniform() {
    const double high = bits_() >> 5U, low = bits_() >> 6U;
    return (high * 67108864 + low) / 9007199254740992;
  }

  PythonSeed seed_;
  std::mt19937 bits_;
  double second_ = 0;
  bool has_second_ = false;
};

void write(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + file.string());
}

void make_model(const std::filesystem::path& folder, std::span<char*> fields) {
  Json config = {{"model_type", "llama"},       {"vocab_size", 300},
                 {"hidden_size", 32},           {"intermediate_size", 32},
                 {"num_hidden_layers", 1},      {"num_attention_heads", 2},
                 {"num_key_value_heads", 2},    {"max_position_embeddings", 512},
                 {"rms_norm_eps", 1e-5},        {"rope_theta", 10000.0},
                 {"tie_word_embeddings", true}, {"hidden_act", "silu"}};
  std::string name = "model.safetensors", prefix = "model.";
  bool head = false;
  std::uint32_t seed = 1;
  for (const std::string field : fields) {
    const auto equals = field.find('=');
    const std::string key = field.substr(0, equals), value = field.substr(equals + 1);
    if (key == "head") head = value != "0";
    else if (key == "file") name = value;
    else if (key == "prefix") prefix = value;
    else if (key == "seed") seed = static_cast<std::uint32_t>(std::stoul(value));
    else config[key] = Json::parse(value);
  }
  constexpr std::int64_t kDim = 32;
  const std::int64_t vocabulary = config["vocab_size"];
  const std::string layer = prefix + "layers.0.";
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors = {
      {prefix + "embed_tokens.weight", {vocabulary, kDim}},
      {prefix + "norm.weight", {kDim}},
      {layer + "input_layernorm.weight", {kDim}},
      {layer + "post_attention_layernorm.weight", {kDim}}};
  for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    tensors.push_back({layer + part + ".weight", {kDim, kDim}});
  if (head) tensors.push_back({"lm_head.weight", {vocabulary, kDim}});

  Normal normal(seed);
  Json header = Json::object();
  std::string data;
  for (const auto& [tensor, shape] : tensors) {
    const std::size_t begin = data.size();
    const std::int64_t count = shape.size() > 1 ? shape[0] * shape[1] : shape[0];
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(shape.size() > 1 ? normal() * 0.5 : 1.0);
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header[tensor] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::filesystem::create_directories(folder);
  write(folder / name,
        std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
  write(folder / "config.json", config.dump());
}

std::string utf8(unsigned code) {  // below 0x800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
}

void make_tokenizer(const std::filesystem::path& name) {
  Json vocabulary =
      Json::object();  // each byte by the character that byte-level tokenizers write for it
  for (unsigned byte = 0, next = 256; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 255 && byte != 173);
    vocabulary[utf8(plain ? byte : next++)] = byte;
  }
  const std::string begin = "<|im_start|>", end = "<|im_end|>";
  std::filesystem::create_directories(name);
  write(name / "vocab.json", vocabulary.dump());
  write(name / "merges.txt", "#version: 0.2\n");
  write(name / "added_tokens.json", Json({{begin, 256}, {end, 257}}).dump());
  write(name / "tokenizer_config.json", Json({{"tokenizer_class", "Qwen2Tokenizer"},
                                              {"eos_token", end},
                                              {"added_tokens_decoder",
                                               {{"256", {{"content", begin}, {"special", true}}},
                                                {"257", {{"content", end}, {"special", true}}}}}})
                                            .dump());
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", true}};
  const auto added = [](int id, const std::string& content) {
    return Json({{"special", true},
                 {"single_word", false},
                 {"lstrip", false},
                 {"rstrip", false},
                 {"normalized", false},
                 {"id", id},
                 {"content", content}});
  };
  write(name.string() + ".json",
        Json({{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
              {"pre_tokenizer", bytes},
              {"decoder", bytes},
              {"added_tokens", Json::array({added(256, begin), added(257, end)})}})
            .dump());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::span<char*> arguments(argv + 1, static_cast<std::size_t>(argc - 1));
  if (arguments.size() == 2 && arguments[0] == std::string("--tokenizer"))
    make_tokenizer(arguments[1]);
  else if (!arguments.empty()) make_model(arguments[0], arguments.subspan(1));
  else throw std::runtime_error("usage: make_folder DIR [key=JSON]... | --tokenizer NAME");
  return 0;
} catch (const std::exception& e) {
  std::cerr << "make_folder: " << e.what() << '\n';
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// What each type of transformers becomes in a GGUF file: keys, names, shapes, and a CRC-32C of each
// tensor, of the tiny models of types/, changed where llama.cpp has no place for a part of them
// (types_gguf.json). types_gguf.py compares such files with what other programs make of them.
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gguf.h"
#include "tessera/models/models.h"
#include "tessera/models/type.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/expect_golden.h"
#include "tessera/tests/support/formula_weights.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <map>

namespace tessera {
namespace {

using Json = nlohmann::json;

const std::string kFolder = "tests/goldens/";

class TypesGguf : public testing::Test {
 protected:
  // The tiny model of a case, whose first word is a file's, with these fields of its config.json
  // changed; null takes one out.
  [[nodiscard]] models::HfModel read(const std::string& name, const Json& changes) const {
    const std::string file = name.substr(0, name.find(' '));
    Json config = Json::parse(std::ifstream(kFolder + "types/" + file + ".json"))["config"][0];
    for (const auto& [field, value] : changes.items()) {
      config.erase(field);
      if (!value.is_null()) config[field] = value;
    }
    return models::parse_hf_config(config.dump(), "config.json", models::families());
  }
  [[nodiscard]] std::string refusal(const std::string& name, const Json& changes) const {
    const models::HfModel m = read(name, changes);
    return test::error_of<ValueError>([&] { (void)m.names->gguf->values(m.config); });
  }

  Session session_;
  Json changes_ = Json::parse(std::ifstream(kFolder + "types_gguf.json"));
};

// Their tensors have values by the formula of their names.
Tensor formula(const models::HfTensor& t, bool one_more) {
  const double scale =
      t.shape.rank() > 1 ? 3 / std::sqrt(static_cast<double>(t.shape[t.shape.rank() - 1])) : 0.3;
  const bool centred = t.name.ends_with("norm.weight") && !one_more;
  return test::formula_tensor(t.name, t.shape, scale, centred ? 1 : 0);
}

std::map<std::string, Tensor> weights_of(const models::HfModel& m) {
  const models::HfTensors theirs(*m.names, m.config);
  const bool one_more = m.names->model_type.starts_with("gemma");
  std::map<std::string, const models::HfTensor*> by_name;
  for (const models::HfTensor& t : theirs.all()) by_name[t.name] = &t;
  const auto read = [&](const std::string& name, const Shape& begin, const Shape& size) {
    Tensor part = formula(*by_name.at(name), one_more);
    for (int i = 0; i < part.rank(); ++i) part = narrow(part, i, begin[i], size[i]);
    return contiguous(part);
  };
  std::map<std::string, Tensor> ours;
  for (const auto& [name, shape] : theirs.ours())
    ours[name] = cast(theirs.read(name, Shape::filled(shape.rank(), 0), shape, read), DType::f32);
  return ours;
}

std::string text_of(const std::variant<int64_t, double, bool, std::string>& value) {
  return std::visit([](const auto& v) { return concat(v); }, value);
}

uint32_t crc(const Tensor& x, uint32_t before = 0) {
  return io::crc32c({static_cast<const char*>(x.read_data()),
                     static_cast<size_t>(x.numel() * item_size(x.dtype()))},
                    before);
}

// All layers but the first are one line.
std::string tensors_text(const models::Gguf& gguf, const models::HfModel& m) {
  const std::map<std::string, Tensor> ours = weights_of(m);
  std::string text;
  uint32_t others = 0;
  int64_t count = 0;
  const models::HfTensors tensors = models::gguf_tensors(gguf, m.config);
  for (const models::HfTensor& t : tensors.all()) {
    std::vector<Tensor> parts;
    for (const models::NamedShape& part : t.ours) parts.push_back(ours.at(part.name));
    const double plus = models::gguf_plus(gguf, t.name);
    const Tensor x = contiguous(plus == 0 ? t.join(parts) : t.join(parts) + plus);
    if (t.name.starts_with("blk.") && !t.name.starts_with("blk.0.")) {
      others = crc(x, others);
      ++count;
    } else {
      text += concat("  ", t.name, ' ', models::gguf_shape(t.shape), ' ', crc(x), '\n');
    }
  }
  for (const models::GgufTable& t : gguf.tables(m.config)) {
    text += concat("  ", t.name);
    for (const float value : t.values) text += concat(' ', value);
    text += '\n';
  }
  return text + concat("  and ", count, " more ", others, '\n');
}

TEST_F(TypesGguf, AreAsCompared) {
  std::string text;
  for (const auto& [name, changes] : changes_.items()) {
    const models::HfModel m = read(name, changes);
    ASSERT_TRUE(m.names->gguf) << name;
    const models::Gguf& gguf = *m.names->gguf;
    text += concat(name, ": ", gguf.architecture, '\n');
    for (const auto& [key, value] : gguf.values(m.config))
      text += concat("  ", key, " = ", text_of(value), '\n');
    text += tensors_text(gguf, m);
  }
  test::expect_golden(kFolder + "types_gguf.txt", text);
}

// Fields that config.json does not say.
TEST_F(TypesGguf, WhatOnlyOurModelsHaveIsRefused) {
  const auto refusal_with = [&](const std::string& name, auto change) {
    models::HfModel m = read(name, changes_[name]);
    change(m.config.as<models::TypeConfig>());
    return test::error_of<ValueError>([&] { (void)m.names->gguf->values(m.config); });
  };
  const std::string biases = "[gguf] llama.cpp's llama has no biases and no capacity of experts";
  EXPECT_EQ(refusal_with("mixtral", [](auto& c) { c.experts.moe.load_balance_coeff = 1e-3; }),
            biases);
  EXPECT_EQ(refusal_with("mixtral", [](auto& c) { c.experts.moe.capacity_factor = 1; }), biases);
  EXPECT_EQ(refusal_with("gemma3_text", [](auto& c) { c.positions.local_theta = 0; }),
            "[gguf] llama.cpp's gemma3 has no rope_scaling in layers with a window");
}

TEST_F(TypesGguf, WhatLlamaCppHasNoPlaceForIsRefused) {
  const auto changed = [&](const std::string& name, const Json& more) {
    Json changes = changes_[name];
    changes.update(more);
    return refusal(name, changes);
  };
  EXPECT_EQ(changed("gemma2", {{"attention_bias", true}}),
            "[gguf] llama.cpp's gemma2 has no bias of queries, keys and values");
  EXPECT_EQ(changed("gemma2", {{"tie_word_embeddings", false}}),
            "[gguf] llama.cpp's gemma2 has no weight of the head beside that of the embedding");
  EXPECT_EQ(changed("olmo2", {{"tie_word_embeddings", true}}),
            "[gguf] llama.cpp's olmo2 needs a weight of the head beside that of the embedding");
  EXPECT_EQ(changed("gemma2", {{"query_pre_attn_scalar", 7}}),
            "[gguf] llama.cpp's gemma2 expects attention scores over the root of head_dim, in its "
            "largest model of dim / n_heads");
  EXPECT_EQ(
      changed("gemma2",
              {{"layer_types", {"sliding_attention", "full_attention", "full_attention"}}}),
      "[gguf] llama.cpp's gemma2 expects windows in all but the last of every so many layers");
  EXPECT_EQ(changed("qwen2_moe", {{"mlp_only_layers", {1}}}),
            "[gguf] llama.cpp's qwen2moe expects experts in all layers");
  EXPECT_EQ(changed("qwen2_moe", {{"norm_topk_prob", true}}),
            "[gguf] llama.cpp's qwen2moe expects route_norm false");
  EXPECT_EQ(
      changed("qwen2", {{"rope_parameters",
                         {{"rope_type", "llama3"},
                          {"rope_theta", 100.0},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 32}}}}),
      "[gguf] this rope_scaling cannot be expressed: llama.cpp's qwen2 has none, linear, plain "
      "yarn");
  EXPECT_EQ(changed("smollm3", {{"no_rope_layer_interval", 3}}),
            "[gguf] llama.cpp's smollm3 expects RoPE in all but every fourth layer");
}

}  // namespace
}  // namespace tessera

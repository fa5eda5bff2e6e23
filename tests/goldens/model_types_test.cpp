// SPDX-License-Identifier: Apache-2.0
// Each type of transformers against transformers: a tiny odd-sized model of it, with weights that
// both sides compute by a formula (tests/support/formula_weights.h), whose soft caps, biases and
// norms are large enough to be seen. Both spellings of config.json, logits, gradients, training,
// greedy tokens, and generation with a cache.
#include "tessera/autograd/autograd.h"
#include "tessera/models/config/fields.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/tests/goldens/golden.h"
#include "tessera/tests/support/golden_type.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kFolder = "tests/goldens/types";

std::vector<std::string> cases() {
  std::vector<std::string> all;
  for (const auto& file : std::filesystem::directory_iterator(kFolder))
    all.push_back(file.path().stem().string());
  std::ranges::sort(all);
  return all;
}

std::string text_of(models::ModelConfig config) {
  config::Fields fields;
  fields.section("model", config);
  return fields.dump();
}

class ModelTypes : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] Tensor tokens() const { return type_.ids("tokens"); }
  [[nodiscard]] std::unique_ptr<models::LanguageModel> make(DType dtype) const {
    return type_.make(dtype);
  }
  [[nodiscard]] Tensor loss_of(models::LanguageModel& model) const {
    const Tensor in = tokens();
    const models::Loss loss = model.loss(in, type_.ids("targets"), model.metadata(in.size(1)));
    return loss.sum / loss.count.item();
  }

  Session session_;
  test::GoldenType type_{GetParam()};
  const Json& golden_ = type_.golden;
  const models::HfModel& theirs_ = type_.theirs;
};

std::string name_of(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Goldens, ModelTypes, testing::ValuesIn(cases()), name_of);

TEST_P(ModelTypes, ReadsBothSpellings) {
  const models::HfModel other = test::read_type(golden_["config"][1]);
  EXPECT_EQ(text_of(other.config), text_of(theirs_.config));
  EXPECT_EQ(other.names, theirs_.names);
  EXPECT_EQ(theirs_.names->model_type, golden_["type"].get<std::string>());
  // What is written is read again.
  const models::HfModel again = test::read_type(
      Json::parse(models::hf_config(*theirs_.names, theirs_.config, DType::f32, {})));
  EXPECT_EQ(text_of(again.config), text_of(theirs_.config));
}

TEST_P(ModelTypes, HasTheirTensors) {
  const models::HfTensors tensors(*theirs_.names, theirs_.config);
  std::map<std::string, std::vector<int64_t>> ours, expected;
  for (const models::HfTensor& t : tensors.all())
    ours[t.name] = std::vector<int64_t>(t.shape.begin(), t.shape.end());
  for (const auto& [name, t] : golden_["tensors"].items())
    expected[name] = t["shape"].get<std::vector<int64_t>>();
  EXPECT_EQ(ours, expected);
}

// The number of a tensor's layer, or nothing.
std::string layer_of(const std::string& name) {
  const size_t at = name.find_first_of("0123456789");
  return at == name.npos ? "" : name.substr(at, name.find('.', at) - at);
}

TEST_P(ModelTypes, HasTheirLogitsAndGradients) {
  const auto model = make(DType::f64);
  const Tensor logits = model->forward(tokens());
  EXPECT_LE(distance(logits, from_values(golden_["logits"].get<std::vector<double>>(),
                                         logits.shape(), DType::f64)),
            1e-9);
  const Tensor loss = loss_of(*model);
  EXPECT_NEAR(loss.item(), golden_["loss"].get<double>(), 1e-9);
  backward(loss);

  const Json& gradients = golden_["gradients"];
  std::map<std::string, double> largest;  // of each layer
  for (const auto& [name, g] : gradients.items())
    largest[layer_of(name)] = std::max(largest[layer_of(name)], g[0].get<double>());
  std::map<std::string, Tensor> grads;
  for (const auto& p : nn::named_parameters(*model)) grads[p.name] = p.tensor.grad();
  const models::HfTensors tensors(*theirs_.names, theirs_.config);
  for (const models::HfTensor& t : tensors.all()) {
    std::vector<Tensor> parts;
    for (const models::NamedShape& part : t.ours) {
      const Tensor grad = grads.at(part.name);
      ASSERT_TRUE(grad.defined()) << part.name;
      parts.push_back(t.expert < 0 ? grad : contiguous(select(grad, 0, t.expert)));
    }
    const std::vector<double> values = t.join(parts).values();
    const uint64_t direction = test::name_hash(concat(t.name, ".direction"));
    double squares = 0, product = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += values[i] * values[i];
      product += values[i] * test::formula_value(direction, static_cast<int64_t>(i));
    }
    const double tolerance = 1e-9 * largest[layer_of(t.name)];
    EXPECT_NEAR(std::sqrt(squares), gradients.at(t.name)[0].get<double>(), tolerance) << t.name;
    EXPECT_NEAR(product, gradients.at(t.name)[1].get<double>(), tolerance) << t.name;
  }
}

TEST_P(ModelTypes, TrainsAsTheirs) {
  // Adam makes much of gradients that are zero but for rounding, so that f32 may drift.
  for (const auto& [dtype, tolerance] :
       {std::pair(DType::f64, 1e-6), std::pair(DType::f32, 5e-3)}) {
    const auto model = make(dtype);
    optim::AdamW optimizer(nn::named_parameters(*model),
                           {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
    for (const double expected : golden_["losses"]) {
      const Tensor loss = loss_of(*model);
      EXPECT_NEAR(loss.item(), expected, tolerance * expected) << dtype;
      backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
}

TEST_P(ModelTypes, GeneratesTheirTokens) {
  const NoGrad guard;
  const auto model = make(DType::f64);
  const Json& greedy = golden_["greedy"]["tokens"];
  const Tensor prompt = contiguous(narrow(tokens(), 0, 0, 1));  // (1, T)
  models::Cache cache = model->make_cache(prompt.size(1) + static_cast<int64_t>(greedy.size()));
  Tensor next = prompt;
  for (const int64_t expected : greedy) {
    const std::vector<double> logits = model->next_logits(next, cache).values();
    const auto best = std::ranges::max_element(logits) - logits.begin();
    ASSERT_EQ(best, expected);
    next = from_values({static_cast<double>(best)}, {1, 1}, DType::i64);
  }
}

TEST_P(ModelTypes, CachedLogitsAreTheUncached) {
  const NoGrad guard;
  const auto model = make(DType::f32);
  const int64_t length = 48, vocabulary = model->vocab_size();
  std::vector<double> values;
  for (int64_t i = 0; i < length; ++i)
    values.push_back(static_cast<double>(test::split_mix(static_cast<uint64_t>(i)) %
                                         static_cast<uint64_t>(vocabulary)));
  const Tensor text = from_values(values, {1, length}, DType::i64);
  const Tensor whole = model->forward(text, model->metadata(length));
  models::Cache cache = model->make_cache(length);
  for (int64_t at = 0, next; at < length; at = next) {
    next = at == 0 ? 3 : at + 1;
    const Tensor last = model->next_logits(contiguous(narrow(text, 1, at, next - at)), cache);
    EXPECT_LE(distance(last, contiguous(narrow(whole, 1, next - 1, 1))), 2e-5) << next;
  }
}

}  // namespace
}  // namespace tessera

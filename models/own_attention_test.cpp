// SPDX-License-Identifier: Apache-2.0
// A family as a user writes it, with attention of its own: it says how its tables are computed, and
// the base of all families brings them to the mesh. So it trains on ranks as on one.
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/data_parallel.h"
#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/ranks.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::models {
namespace {

constexpr int64_t kDim = 16, kHeads = 2, kHeadDim = kDim / kHeads, kVocabulary = 13, kLength = 6;

// One head of keys and values for all queries, and a temperature of the queries.
class OneKeyAttention final : public nn::Layer<OneKeyAttention> {
 public:
  void visit(nn::Visitor& v) override {
    v.child("queries", queries);
    v.child("keys_values", keys_values);
    v.child("out", out);
  }
  nn::Linear queries{kDim, kDim}, keys_values{kDim, 2 * kHeadDim}, out{kDim, kDim};

 private:
  friend class nn::Layer<OneKeyAttention>;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& m) const {
    const int64_t b = x.size(0), t = x.size(1);
    const std::vector<Tensor> kv = split(keys_values(x), kHeadDim, -1);
    const auto turned = [&](const Tensor& y, int64_t heads) {
      return rope(reshape(y, {b, t, heads, kHeadDim}), m.cos, m.sin, {.positions = m.position_ids});
    };
    const Tensor q = turned(queries(x), kHeads) * unsqueeze(unsqueeze(m.query_scale, -1), -1);
    const Tensor y =
        scaled_dot_product_attention(q, turned(kv[0], 1), reshape(kv[1], {b, t, 1, kHeadDim}),
                                     {.mask = m.whole_mask(),
                                      .heads_inner = true,
                                      .query_documents = m.documents,
                                      .key_documents = m.documents});  // (B, T, H, D)
    return out(reshape(y, {b, t, kDim}));
  }
};

class OwnBlock final : public nn::Layer<OwnBlock> {
 public:
  void visit(nn::Visitor& v) override { v.child("attention", attention); }
  OneKeyAttention attention;

 private:
  friend class nn::Layer<OwnBlock>;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& m,
                               nn::KvCache* /*cache*/) const {
    return x + attention(x, m);
  }
};

class Own final : public UniformDecoder<OwnBlock, nn::RmsNorm> {
 public:
  struct Config {
    int64_t vocab_size = kVocabulary, max_seq_len = 32;
    DType dtype = DType::f32;
    void fields(config::Fields& f) { f.add("vocab_size", vocab_size, "vocabulary", {.min = 1}); }
    [[nodiscard]] std::vector<std::string> conflicts() const { return {}; }
  };
  explicit Own(const Config& c)
      : UniformDecoder({.family = "own",
                        .vocab_size = c.vocab_size,
                        .max_seq_len = c.max_seq_len,
                        .n_layers = 2}),
        output(kDim, c.vocab_size, nn::Init::normal(0.2)) {
    tok_embeddings.emplace(c.vocab_size, kDim, nn::Init::normal(1));
    for (int i = 0; i < 2; ++i) layers.emplace_back();
  }
  void visit(nn::Visitor& v) override {
    v.child("tok_embeddings", *tok_embeddings);
    v.children("layers", layers);
    v.child("output", output);
  }
  nn::Linear output;

 private:
  [[nodiscard]] Metadata plain_metadata(int64_t length, int64_t start) const override {
    nn::AttentionMetadata m = nn::causal_metadata(length, kHeadDim, 1e4, start);
    m.query_scale = nn::query_temperature(length, start, 2, 0.5);
    return {{m}};
  }
  [[nodiscard]] Tensor embed(const Tensor& tokens, const Metadata&) const override {
    return (*tok_embeddings)(tokens);
  }
  [[nodiscard]] Head head() const override { return {&output, output.weight}; }
};

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
};

Result step_on(int ranks) {
  const Family own =
      family<Own>("own", "one head of keys", std::array{std::pair{"", Own::Config()}});
  Result result;
  test::on_ranks(ranks, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp", ranks}});
    const std::unique_ptr<LanguageModel> model = own.flavor("").make();
    fully_shard(*model, mesh, {.shard = {"dp"}});
    nn::initialize(*model, 3, nn::laid_out(*model, mesh));
    std::vector<double> ids(4 * kLength);
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<double>((i * i + 2 * i) % kVocabulary);
    const Tensor tokens =
        distribute(from_values(ids, {4, kLength}, DType::i64), Layout::of(mesh, {Shard(0)}));
    const Loss loss = model->loss(tokens, tokens, model->metadata(kLength));
    backward(loss.sum);
    Result mine{{full_tensor(loss.sum).item()}, {}};
    for (const auto& p : nn::named_parameters(*model))
      mine.gradients[p.name] = full_tensor(p.tensor.grad()).values();
    if (world.rank() == 0) result = mine;
  });
  return result;
}

TEST(OwnAttention, TrainsOnRanksAsOnOne) {
  const Result alone = step_on(1);
  for (const int ranks : {2, 4}) {
    const Result together = step_on(ranks);
    EXPECT_NEAR(together.losses[0], alone.losses[0], 1e-5 * alone.losses[0]) << ranks;
    ASSERT_EQ(together.gradients.size(), alone.gradients.size());
    for (const auto& [name, want] : alone.gradients) {
      const std::vector<double>& got = together.gradients.at(name);
      ASSERT_EQ(got.size(), want.size()) << name;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-5) << name << ' ' << i;
    }
  }
}

TEST(OwnAttention, PositionsBeyondTheModelAreTheBasesError) {
  const Session session;
  const Own model{Own::Config()};
  EXPECT_THROW((void)model.metadata(33), ValueError);
  EXPECT_THROW((void)model.metadata(1, 32), ValueError);
  EXPECT_THROW((void)model.metadata(0), ValueError);
  EXPECT_EQ(model.metadata(4, 28).of().cos.shape(), (Shape{4, kHeadDim / 2}));
}

}  // namespace
}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Masked attention, attention sinks and rope as Hugging Face has it, against PyTorch and
// transformers.
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/rope/rope.h"

#include "golden.h"
#include <gtest/gtest.h>

namespace tessera {
namespace {

class AttentionGolden : public Golden {
 protected:
  [[nodiscard]] AttentionOptions mask(bool heads_inner) const {
    AttentionMask mask = flag("causal") ? AttentionMask::causal() : AttentionMask();
    if (integer("window")) mask = mask & AttentionMask::window(integer("window"));
    if (integer("chunk")) mask = mask & AttentionMask::chunk(integer("chunk"));
    if (integer("prefix")) mask = mask | AttentionMask::prefix(integer("prefix"));
    AttentionOptions o{.mask = mask, .heads_inner = heads_inner, .query_start = integer("offset")};
    for (const auto& [name, tensor] : {std::pair{"query_positions", &o.query_positions},
                                       {"key_positions", &o.key_positions},
                                       {"query_documents", &o.query_documents},
                                       {"key_documents", &o.key_documents}}) {
      if (has(name)) *tensor = get(name);
    }
    if (o.query_documents.defined()) o.mask = mask & AttentionMask::document();
    return o;
  }
};

// The first output feels the gradient of o and of lse.
TEST_F(AttentionGolden, Masks) {
  for (const bool heads_inner : {false, true}) {
    each("attention_masks", {"q", "k", "v"}, [&](const X& x) -> Results {
      const auto ordered = [&](const Tensor& t) { return heads_inner ? transpose(t, 1, 2) : t; };
      const auto [o, lse] = scaled_dot_product_attention_with_lse(ordered(x[0]), ordered(x[1]),
                                                                  ordered(x[2]), mask(heads_inner));
      const Tensor y = ordered(o);  // (B, H, T, D)
      Shape rows = lse.shape();
      rows.push_back(1);
      return {{"z", y + cast(reshape(lse, rows), y.dtype())}, {"y", y}, {"lse", lse}};
    });
  }
}

TEST_F(AttentionGolden, Sink) {
  for (const bool heads_inner : {false, true}) {
    each("attention_sink", {"q", "k", "v", "sink"}, [&](const X& x) -> Results {
      const auto ordered = [&](const Tensor& t) { return heads_inner ? transpose(t, 1, 2) : t; };
      AttentionMask mask = AttentionMask::causal();
      if (integer("window")) mask = mask & AttentionMask::window(integer("window"));
      const auto [o, lse] = scaled_dot_product_attention_with_lse(
          ordered(x[0]), ordered(x[1]), ordered(x[2]), {.mask = mask, .heads_inner = heads_inner});
      return {{"y", ordered(attention_sink(o, lse, x[3], heads_inner))}};
    });
  }
}

TEST_F(AttentionGolden, RopeByPositions) {
  each("rope_positions", {"x"}, [&](const X& x) -> Results {
    return {{"y", rope(x[0], get("cos"), get("sin"),
                       {.halves = flag("halves"),
                        .rotary = integer("rotary"),
                        .positions = get("positions")})}};
  });
}

TEST_F(AttentionGolden, RopeScaling) {
  open("rope_scaling");
  for (const auto& name : cases_) {
    case_ = name;
    RopeScaling s{.factor = number("factor"),
                  .original_max_position = integer("original_max_position_embeddings")};
    const auto given = [&](const char* key) {
      return file_->metadata().contains(case_ + '/' + key) ? number(key) : 0;
    };
    const std::string type = attribute("rope_type");
    s.attention_factor = given("attention_factor");
    if (type == "llama3") {
      s.kind = RopeScaling::Kind::llama3;
      s.low_freq_factor = number("low_freq_factor");
      s.high_freq_factor = number("high_freq_factor");
    } else if (type == "linear") {
      s.kind = RopeScaling::Kind::linear;
    } else if (type == "longrope") {
      s.kind = RopeScaling::Kind::longrope;
      s.short_factors = get("short_factor").values();
      s.long_factors = get("long_factor").values();
      s.is_long = flag("is_long");
    } else {
      s.kind = RopeScaling::Kind::yarn;
      s.beta_fast = number("beta_fast");
      s.beta_slow = number("beta_slow");
      s.truncate = flag("truncate");
      s.mscale = given("mscale");
      s.mscale_all_dim = given("mscale_all_dim");
    }
    const int64_t dim = integer("dim");
    EXPECT_NEAR(rope_attention_factor(s), number("result"), 1e-12) << name;
    const auto frequencies = rope_frequencies(dim, number("theta"), s),
               expected = get("frequencies").values();
    ASSERT_EQ(frequencies.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(frequencies[i], expected[i], 1e-6 * expected[i]) << name << ", pair " << i;
    const auto [cos, sin] = rope_tables(5, dim, number("theta"), 0, DType::f32, s);
    expect_close(cos, get("cos"), name + "/cos");
    expect_close(sin, get("sin"), name + "/sin");
  }
}

}  // namespace
}  // namespace tessera

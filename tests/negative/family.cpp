// SPDX-License-Identifier: Apache-2.0
// A complete family of models, and what its author may forget.
#include "tessera/models/family.h"

#include "tessera/models/decoder.h"

#include <array>

namespace tessera {

class Own final : public models::Decoder {
 public:
  struct Config {
    int64_t vocab_size = 11, max_seq_len = 8;
#ifndef WITHOUT_DTYPE
    DType dtype = DType::f32;
#endif
#ifndef WITHOUT_FIELDS
    void fields(config::Fields&) {}
#endif
#ifndef WITHOUT_CONFLICTS
    [[nodiscard]] std::vector<std::string> conflicts() const { return {}; }
#endif
  };
#ifdef WITHOUT_CONSTRUCTOR
  Own() : Decoder({}), table(1, 4) {}
#else
  explicit Own(const Config& c)
      : Decoder({.family = "own", .vocab_size = c.vocab_size, .max_seq_len = c.max_seq_len}),
        table(c.vocab_size, 4) {}
#endif
  void visit(nn::Visitor& v) override { v.child("table", table); }
#ifndef WITHOUT_UNITS
  std::vector<nn::Module*> units() override { return {}; }
#endif

 private:
#ifndef WITHOUT_PLAIN_METADATA
  [[nodiscard]] models::Metadata plain_metadata(int64_t, int64_t) const override { return {}; }
#endif
  [[nodiscard]] Tensor embed(const Tensor& tokens, const models::Metadata&) const override {
    return table(tokens);
  }
  [[nodiscard]] models::LayerResult layer(size_t, const Tensor& x, const models::Metadata&,
                                          nn::KvCache*) const override {
    return {x};
  }
#ifndef WITHOUT_FINISH
  [[nodiscard]] Tensor finish(const Tensor& x) const override { return x; }
#endif
  [[nodiscard]] const nn::Embedding* embedding() const override { return &table; }
  [[nodiscard]] Head head() const override { return {&table, table.weight}; }
  nn::Embedding table;
};

inline models::Family own() {
  const std::array sizes{std::pair{"small", Own::Config()}};
#ifdef WITHOUT_BASE
  struct NoModel {
    using Config = Own::Config;
  };
  return models::family<NoModel>("own", "one table", sizes);
#else
  return models::family<Own>("own", "one table", sizes);
#endif
}

}  // namespace tessera

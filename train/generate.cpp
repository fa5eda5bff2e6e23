// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/generate.h"

#include "tessera/core/rng.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"
#include "tessera/train/tokenizer.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

// Index into the k likeliest, drawn by `u` in (0, 1) from softmax(values / temperature).
size_t draw(const std::vector<double>& values, double temperature, double u) {
  std::vector<double> weights;
  double total = 0;
  for (double v : values) total += weights.emplace_back(std::exp((v - values[0]) / temperature));
  double left = u * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return i;
  }
  return weights.size() - 1;
}

Tensor forward(const llama3::Model& model, const Tensor& tokens) {
  const Tensor& weight = model.tok_embeddings.weight;
  if (!weight.is_distributed()) return model.forward(tokens);
  const Layout* everywhere = Layout::replicated(layout_of(weight)->mesh());
  return local(model.forward(distribute(tokens, everywhere)));
}

}  // namespace

std::string generate(const llama3::Model& model, std::string_view prompt,
                     const GenerateOptions& o) {
  const NoGrad guard;
  const int64_t context = std::min(o.context, model.config().max_seq_len);
  const int64_t k = o.temperature > 0 ? std::min(o.top_k, ByteTokenizer::kVocabulary) : 1;
  std::vector<int64_t> tokens{ByteTokenizer::kBegin};
  for (int64_t t : ByteTokenizer::encode(prompt)) tokens.push_back(t);
  const size_t given = tokens.size();
  constexpr int64_t kPad = 64;

  const RngKey key{o.seed, stream_of("generate")};
  for (int64_t made = 0; made < o.tokens; ++made) {
    const int64_t seen = std::min(context, static_cast<int64_t>(tokens.size()));
    // A causal model does not see what follows, so few lengths do: libraries prepare each new one.
    const int64_t length = std::min(context, (seen + kPad - 1) / kPad * kPad);
    const Tensor input = full({1, length}, ByteTokenizer::kEnd, DType::i64);
    std::copy(tokens.end() - seen, tokens.end(), input.data<int64_t>());
    const Tensor logits = forward(model, input);      // (1, T, V)
    const Tensor last = select(logits, 1, seen - 1);  // (1, V)
    const auto [values, ids] = topk(slice(last, 1, {0, ByteTokenizer::kVocabulary}), k);  // (1, k)
    const double u = rng::uniform4(key, static_cast<uint64_t>(made)).v[0];
    const size_t chosen = k == 1 ? 0 : draw(values.values(), o.temperature, u);
    const auto next = static_cast<int64_t>(ids.values()[chosen]);
    if (next == ByteTokenizer::kEnd) break;
    tokens.push_back(next);
  }
  return ByteTokenizer::decode(std::span(tokens).subspan(given));
}

}  // namespace tessera::train

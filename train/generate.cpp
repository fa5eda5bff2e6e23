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

// (1, V): what follows the tokens, which come after those in the cache.
Tensor logits_after(const llama3::Model& model, std::span<const int64_t> tokens,
                    llama3::Cache& cache) {
  Tensor ids = empty({1, static_cast<int64_t>(tokens.size())}, DType::i64);  // (1, T)
  std::ranges::copy(tokens, ids.data<int64_t>());
  const Tensor& weight = model.tok_embeddings.weight;
  if (weight.is_distributed()) ids = distribute(ids, Layout::replicated(layout_of(weight)->mesh()));
  const Tensor logits = model.next_logits(ids, cache);  // (1, 1, V)
  return select(logits.is_distributed() ? local(logits) : logits, 1, 0);
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
  llama3::Cache cache;
  size_t seen = 0;  // tokens that the cache holds or has dropped

  const RngKey key{o.seed, stream_of("generate")};
  for (int64_t made = 0; made < o.tokens; ++made) {
    const auto held = cache.empty() ? 0 : cache[0].length;
    if (cache.empty() || held + static_cast<int64_t>(tokens.size() - seen) > context) {
      // A full cache starts over with the last tokens, so that each is computed twice at most.
      const size_t kept = static_cast<size_t>(cache.empty() ? context : (context + 1) / 2);
      cache = model.make_cache(std::min(context, static_cast<int64_t>(given) + o.tokens));
      seen = tokens.size() - std::min(kept, tokens.size());
    }
    const Tensor last = logits_after(model, std::span(tokens).subspan(seen), cache);  // (1, V)
    seen = tokens.size();
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

// SPDX-License-Identifier: Apache-2.0
// The head is applied within its own module's run, by the loss too, which never has logits: its
// hooks see both, also where the embedding is the head. A step of generation that fails gives the
// cache its old lengths back, so that it can be tried again.
#include "tessera/models/decoder.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"

namespace tessera::models {

void Decoder::check_tokens(const Tensor& tokens) const {
  if (tokens.rank() != 2)
    fail<ShapeError>(sizes_.family, "tokens are ", tokens.meta(), ", expected i64 (B, T)");
  if (tokens.dtype() != DType::i64)
    fail<DTypeError>(sizes_.family, "tokens are ", tokens.meta(), ", expected i64 (B, T)");
}

void Decoder::check_positions(int64_t length, int64_t start) const {
  if (start < 0 || length < 1 || start + length > sizes_.max_seq_len) {
    fail<ValueError>(sizes_.family, "positions ", start, " to ", start + length,
                     " do not lie within max_seq_len ", sizes_.max_seq_len);
  }
}

Decoder::Head Decoder::require_head(std::string_view what) const {
  Head h = head();
  if (!h.module) {
    fail<UsageError>(sizes_.family, what,
                     " needs the head, which this stage lacks: call it on the last stage");
  }
  return h;
}

Placement Decoder::placement() const {
  Tensor weight;
  if (embedding()) weight = embedding()->weight;
  else if (head().module) weight = head().table;
  else weight = nn::named_parameters(const_cast<Decoder&>(*this)).at(0).tensor;
  return {weight.device().is_meta() ? kCpu : weight.device(),
          weight.is_distributed() ? layout_of(weight).mesh() : Mesh()};
}

double Decoder::flops(std::span<const int64_t> documents) {
  double tokens = 0, pairs = 0;
  for (const int64_t length : documents) {
    tokens += static_cast<double>(length);
    pairs += static_cast<double>(length) * static_cast<double>(length);
  }
  // A table of lookups multiplies with nothing; a tied one does, as the head.
  int64_t weights = nn::parameter_count(*this);
  if (embedding() && embedding() != head().module) weights -= embedding()->weight.numel();
  const auto attention = static_cast<double>(sizes_.n_layers * 2 * sizes_.attention_dim);
  return 6.0 * (static_cast<double>(weights) * tokens + attention * pairs);
}

Tensor Decoder::stack(const Tensor& x, const Metadata& metadata, Cache* cache) const {
  Tensor h = embedding() ? embed(x, metadata) : x;  // (B, T, dim)
  for (size_t i = 0; i < static_cast<size_t>(sizes_.n_layers); ++i)
    h = layer(i, h, metadata, cache ? &cache->at(i) : nullptr);
  return finish(h);  // (B, T, dim)
}

Tensor Decoder::features(const Tensor& x, const Metadata& metadata) const {
  if (embedding()) check_tokens(x);
  return run(&Decoder::stack, x, metadata, nullptr);
}

Tensor Decoder::logits(const Tensor& features) const {
  return require_head("logits").module->run(
      [](const Tensor& x, const Decoder* model) { return linear(x, model->head().table); },
      features, this);
}

Tensor Decoder::forward(const Tensor& tokens, const Metadata& metadata) const {
  if (embedding()) check_tokens(tokens);
  return run(&Decoder::logits_of, tokens, metadata);
}

Tensor Decoder::logits_of(const Tensor& x, const Metadata& metadata) const {
  return logits(stack(x, metadata, nullptr));  // (B, T, V)
}

Loss Decoder::loss(const Tensor& tokens, const Tensor& targets, const Metadata& metadata,
                   const CrossEntropyOptions& options) const {
  if (embedding()) check_tokens(tokens);
  const auto [sum, count] = run(&Decoder::loss_of, tokens, targets, metadata, options);
  return {sum, count};
}

CrossEntropyResult Decoder::loss_of(const Tensor& x, const Tensor& targets,
                                    const Metadata& metadata,
                                    const CrossEntropyOptions& options) const {
  return require_head("loss").module->run(
      [](const Tensor& in, const Tensor& of, const Decoder* model, const CrossEntropyOptions& o) {
        return linear_cross_entropy(in, model->head().table, of, o);
      },
      stack(x, metadata, nullptr), targets, this, options);
}

Cache Decoder::make_cache(int64_t capacity) const {
  if (capacity < 1 || capacity > sizes_.max_seq_len) {
    fail<ValueError>(sizes_.family, "a cache of ", capacity,
                     " tokens does not lie within max_seq_len ", sizes_.max_seq_len);
  }
  return Cache(static_cast<size_t>(sizes_.n_layers), {.capacity = capacity});
}

Tensor Decoder::next_logits(const Tensor& tokens, Cache& cache) const {
  if (embedding()) check_tokens(tokens);
  const int64_t seen = cache.empty() ? 0 : cache[0].length;
  bool fits = static_cast<int64_t>(cache.size()) == sizes_.n_layers;
  for (const nn::KvCache& c : cache) fits = fits && c.length == seen;
  if (!fits) {
    fail<ValueError>(sizes_.family, "the cache has ", cache.size(), " layers, the first of ", seen,
                     " tokens; expected ", sizes_.n_layers, " of equal length: use make_cache");
  }
  const Metadata m = metadata(tokens.size(1), seen);
  try {
    return run(&Decoder::next_logits_of, tokens, m, &cache);
  } catch (...) {
    for (nn::KvCache& c : cache) c.length = seen;  // some layers had taken the tokens
    throw;
  }
}

Tensor Decoder::next_logits_of(const Tensor& x, const Metadata& metadata, Cache* cache) const {
  const Tensor h = stack(x, metadata, cache);
  return logits(slice(h, 1, {h.size(1) - 1}));  // (B, 1, V)
}

}  // namespace tessera::models

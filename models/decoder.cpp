// SPDX-License-Identifier: Apache-2.0
// The head is applied within its module's run, also by the loss, which has no logits, so its hooks
// see both, even with tied embeddings. logits(features) runs through the model too, because of
// mixed precision. A generation step sets the length of every cache entry, also of absent layers;
// if it fails, all lengths are restored, so that it can be repeated.
#include "tessera/models/decoder.h"

#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/moe/routing_statistics.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/nn/parameters.h"

#include <algorithm>

namespace tessera::models {
namespace {

// The part with tied embeddings that no member has as its name.
constexpr std::string_view kHead = "output";
constexpr std::string_view kBalance = "load_balance";

}  // namespace

void Decoder::check_input(const Tensor& x) const {
  const bool tokens = embeds();
  const std::string_view given = tokens ? "tokens are " : "features are ";
  const std::string_view expected =
      tokens ? ", expected i64 (B, T)"
             : ", expected floating (B, T, dim) of the stage before: this one embeds no tokens";
  if (x.rank() != (tokens ? 2 : 3)) fail<ShapeError>(sizes_.family, given, x.meta(), expected);
  if (tokens ? x.dtype() != DType::i64 : !is_floating(x.dtype()))
    fail<DTypeError>(sizes_.family, given, x.meta(), expected);
}

Decoder::Head Decoder::require_head(std::string_view what) const {
  Head h = has_head_ ? head() : Head{};
  if (!h.module) {
    fail<UsageError>(sizes_.family, what,
                     " needs the head, which this stage lacks: call it on the last stage");
  }
  return h;
}

Placement Decoder::placement() const {
  Tensor weight;
  if (embedding()) {
    weight = embedding()->weight;
  } else if (head().module) {
    weight = head().table;
  } else {
    const auto parameters = nn::named_parameters(const_cast<Decoder&>(*this));
    if (parameters.empty())
      fail<UsageError>(sizes_.family, "a stage without parameters has no device: keep a layer");
    weight = parameters[0].tensor;
  }
  // Parameters may lie on a part of the mesh that the model computes on.
  Mesh mesh = nn::compute_mesh(*this);
  if (!mesh && weight.is_distributed()) mesh = layout_of(weight).mesh();
  return {weight.device().is_meta() ? kCpu : weight.device(), mesh};
}

double Decoder::flops(std::span<const int64_t> documents) {
  double tokens = 0, seen = 0;
  for (const int64_t length : documents) {
    tokens += static_cast<double>(length);
    seen += pairs(length);
  }
  // Matrices are in matmuls; the embedding is not, unless it is tied to the head.
  int64_t weights = 0;
  for (const Tensor& p : nn::parameters(*this)) weights += p.rank() > 1 ? p.numel() : 0;
  const Head h = head();
  if (embedding() && embedding() != h.module) weights -= embedding()->weight.numel();
  if (h.module && !has_head_) weights -= h.table.numel();
  weights -= idle_parameters();
  const double attention = 2.0 * static_cast<double>(sizes_.attention_dim);
  return 6.0 * (static_cast<double>(weights) * tokens + attention * seen);
}

double Decoder::pairs(int64_t length) {
  return static_cast<double>(units().size()) * static_cast<double>(length) *
         static_cast<double>(length + 1) / 2;
}

int64_t Decoder::idle_parameters() {
  int64_t idle = 0;
  for (const auto& [layer, moe] : experts()) {
    for (const Tensor& w : {moe->experts.w1, moe->experts.w2, moe->experts.w3})
      idle += w.numel() / sizes_.router.experts * (sizes_.router.experts - sizes_.router.top_k);
  }
  return idle;
}

Tensor Decoder::apply_layers(const Tensor& x, const Metadata& metadata, Cache* cache,
                             Routed* routed) const {
  Tensor h = embeds() ? embed(x, metadata) : x;  // (B, T, dim)
  for (size_t i = 0; i < static_cast<size_t>(sizes_.n_layers); ++i) {
    LayerResult result = layer(i, h, metadata, cache ? &cache->layers[i] : nullptr);
    h = std::move(result.x);
    if (!routed || !result.load.defined()) continue;
    routed->load.push_back(std::move(result.load));
    // A unit may give its results in another dtype.
    const DType wide = result.sums.dtype() == DType::f64 ? DType::f64 : DType::f32;
    routed->sums.push_back(cast(result.sums, wide));
  }
  return h;  // (B, T, dim)
}

Tensor Decoder::features_of(const Tensor& x, const Metadata& metadata) const {
  return finish(apply_layers(x, metadata, nullptr));  // (B, T, dim)
}

Tensor Decoder::features(const Tensor& x, const Metadata& metadata) const {
  check_input(x);
  return run(&Decoder::features_of, x, metadata);
}

Tensor Decoder::logits(const Tensor& features) const { return run(&Decoder::head_of, features); }

Tensor Decoder::scaled(const Tensor& features) const {
  return sizes_.logit_scale == 1 ? features : features * sizes_.logit_scale;
}

Tensor Decoder::logits_in_head(const Tensor& features) const {
  const Tensor y = linear(scaled(features), head().table);  // (..., V)
  const double cap = sizes_.logit_soft_cap;
  return cap > 0 ? tanh(y * (1 / cap)) * cap : y;
}

Tensor Decoder::head_of(const Tensor& features) const {
  return require_head("logits").module->run(
      [](const Tensor& x, const Decoder* model) { return model->logits_in_head(x); }, features,
      this);
}

Tensor Decoder::forward(const Tensor& tokens, const Metadata& metadata) const {
  check_input(tokens);
  return run(&Decoder::logits_of, tokens, metadata);
}

Tensor Decoder::logits_of(const Tensor& x, const Metadata& metadata) const {
  return head_of(features_of(x, metadata));  // (B, T, V)
}

Loss Decoder::loss(const Tensor& tokens, const Tensor& targets, const Metadata& metadata,
                   const CrossEntropyOptions& options) const {
  check_input(tokens);
  const TensorList values = run(&Decoder::loss_of, tokens, targets, metadata, options);
  Loss loss{values[0], values[1]};
  add_routed(loss, Tensors(values).subspan(2));
  return loss;
}

TensorList Decoder::loss_of(const Tensor& x, const Tensor& targets, const Metadata& metadata,
                            const CrossEntropyOptions& options) const {
  static_cast<void>(require_head("loss"));  // before the layers run
  const TensorList layers = stage_of(x, metadata);
  TensorList values = head_loss_of(layers[0], targets, options);
  for (size_t i = 1; i < layers.size(); ++i) values.push_back(layers[i]);
  return values;
}

StageOutput Decoder::stage(const TensorList& inputs, const Metadata& metadata) const {
  check_input(inputs[0]);
  const TensorList values = run(&Decoder::stage_of, inputs[0], metadata);
  StageOutput output{.next = {values[0]}};
  add_routed(output, Tensors(values).subspan(1));
  return output;
}

TensorList Decoder::stage_of(const Tensor& x, const Metadata& metadata) const {
  Routed routed;
  Tensor h = apply_layers(x, metadata, nullptr, &routed);
  if (!has_head_ || !head().module) h = finish(h);  // a norm that is not in the head's stage
  if (routed.load.empty()) return {h};
  return {h, stack(routed.load), stack(routed.sums)};
}

Loss Decoder::head_loss(const TensorList& inputs, const Tensor& targets,
                        const CrossEntropyOptions& options) const {
  const TensorList values = run(&Decoder::head_loss_of, inputs[0], targets, options);
  return {values[0], values[1]};
}

TensorList Decoder::head_loss_of(const Tensor& x, const Tensor& targets,
                                 const CrossEntropyOptions& options) const {
  const auto [sum, count] = require_head("loss").module->run(
      [](const Tensor& in, const Tensor& of, const Decoder* model, const CrossEntropyOptions& o) {
        if (model->sizes_.logit_soft_cap > 0)
          return cross_entropy(model->logits_in_head(in), of, o);
        return linear_cross_entropy(model->scaled(in), model->head().table, of, o);
      },
      finish(x), targets, this, options);
  return {sum, count};
}

template <class Result> void Decoder::add_routed(Result& result, Tensors load_and_sums) const {
  if (load_and_sums.empty()) return;
  result.load = load_and_sums[0];
  result.not_finite = select(load_and_sums[1], 1, 2);
  const Tensor sums = sum(load_and_sums[1], {0});  // (3), over layers
  for (const std::string& name : auxiliary_losses())
    result.auxiliary.push_back({name, select(sums, 0, name == kBalance ? 0 : 1)});
}

std::vector<std::string> Decoder::auxiliary_losses() const {
  std::vector<std::string> names;
  if (sizes_.router.balance_loss > 0) names.emplace_back(kBalance);
  if (sizes_.router.z_loss > 0) names.emplace_back("router_z");
  return names;
}

std::vector<std::string> Decoder::parts() {
  std::vector<std::string> all = LanguageModel::parts();
  if (tied() && std::ranges::find(all, embedding()->name()) != all.end()) all.emplace_back(kHead);
  return all;
}

void Decoder::keep(std::span<const std::string> names) {
  std::vector<std::string> kept(names.begin(), names.end());
  static_cast<void>(LanguageModel::parts());  // gives members their names
  if (tied()) {
    const auto keeps = [&](std::string_view name) {
      return std::ranges::find(names, name) != names.end();
    };
    const std::string name = embedding()->name();
    embeds_ = keeps(name);
    has_head_ = keeps(kHead);
    if (has_head_ && !embeds_) kept.push_back(name);
  }
  LanguageModel::keep(kept);
}

bool Decoder::force_load_balance() {
  const std::vector<Experts> all = experts();
  for (const Experts& at : all) at.moe->router.force_balance();
  return !all.empty();
}

Shape Decoder::load_shape() const {
  const auto layers = static_cast<int64_t>(routed_layers().size());
  return layers > 0 ? Shape{layers, 2, sizes_.router.experts} : Shape{0};
}

// The numbers of the layers with experts.
std::vector<int64_t> Decoder::routed_layers() const {
  std::vector<int64_t> layers;
  for (const Experts& at : const_cast<Decoder&>(*this).experts())
    layers.push_back(static_cast<int64_t>(at.layer));
  return layers;
}

std::vector<NamedValue> Decoder::statistics(const Tensor& load) const {
  std::vector<NamedValue> all;
  if (!load.defined()) return all;
  const Tensor values = nn::routing_statistics(load);  // (layers, statistics)
  all.push_back({"moe/load_max_over_mean", amax(select(values, 1, 0))});
  const std::vector<int64_t> layers = routed_layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const Tensor row = select(values, 0, static_cast<int64_t>(i));
    for (size_t j = 0; j < nn::kRoutingStatistics.size(); ++j)
      all.push_back(
          {nn::routing_statistic_name(layers[i], j), select(row, 0, static_cast<int64_t>(j))});
  }
  return all;
}

std::string Decoder::routing_fault(const Tensor& not_finite) const {
  return not_finite.defined() ? nn::routing_fault(not_finite, routed_layers()) : std::string();
}

void Decoder::before_optimizer_step(const Tensor& load, const Tensor& skip) {
  const std::vector<Experts> all = experts();
  for (size_t i = 0; i < all.size(); ++i) {
    const Tensor& bias = all[i].moe->expert_bias;
    if (!bias.defined()) continue;
    const Tensor chosen = select(select(load, 0, static_cast<int64_t>(i)), 0, 0);  // (experts)
    nn::update_expert_bias(bias, chosen, sizes_.load_balance_coeff, skip);
  }
}

Cache Decoder::make_cache(int64_t capacity) const {
  if (capacity < 1 || capacity > sizes_.max_seq_len) {
    fail<ValueError>(sizes_.family, "a cache of ", counted(capacity, "token"),
                     " is not within max_seq_len ", sizes_.max_seq_len);
  }
  return {std::vector<nn::KvCache>(static_cast<size_t>(sizes_.n_layers), {.capacity = capacity})};
}

Tensor Decoder::next_logits(const Tensor& tokens, Cache& cache) const {
  static_cast<void>(require_head("next_logits"));
  return next_stage({tokens}, tokens, cache)[0];
}

TensorList Decoder::next_stage(const TensorList& inputs, const Tensor& tokens, Cache& cache) const {
  check_input(inputs[0]);
  std::vector<nn::KvCache>& layers = cache.layers;
  const int64_t seen = layers.empty() ? 0 : layers[0].length;
  bool fits = static_cast<int64_t>(layers.size()) == sizes_.n_layers;
  for (const nn::KvCache& c : layers) fits = fits && c.length == seen;
  if (!fits) {
    fail<ValueError>(sizes_.family, "the cache has ", counted(layers.size(), "layer"),
                     ", the first of ", counted(seen, "token"), "; expected ", sizes_.n_layers,
                     " of equal length: use make_cache");
  }
  const int64_t count = tokens.size(1);
  Metadata m = metadata(count, seen, layers.empty() ? 0 : layers[0].capacity);
  Tensor x = inputs[0];
  if (cache.cut) {
    nn::GenerationCut::Step step = cache.cut->next(tokens, seen, m.kinds);
    if (embeds()) x = step.tokens;
    m.kinds = std::move(step.kinds);
  }
  try {
    Tensor next = run(&Decoder::next_stage_of, x, m, &cache);
    for (nn::KvCache& c : layers) c.length = seen + count;
    return {std::move(next)};
  } catch (...) {
    for (nn::KvCache& c : layers) c.length = seen;  // some layers had appended the tokens
    throw;
  }
}

Tensor Decoder::next_stage_of(const Tensor& x, const Metadata& metadata, Cache* cache) const {
  const Tensor features = apply_layers(x, metadata, cache);
  const Tensor h = finish(features);
  if (!has_head_ || !head().module) return h;
  const Tensor last = cache->cut ? cache->cut->last(h) : slice(h, 1, {h.size(1) - 1});
  const Tensor y = head_of(last);  // (B, 1, V)
  if (!y.is_distributed()) return y;
  Layout whole = layout_of(y);
  for (const int axis : whole.axes_of(2))
    whole = whole.with(whole.mesh().axis(axis).name, Replicate());
  return redistribute(y, whole);
}

}  // namespace tessera::models

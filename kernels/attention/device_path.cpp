// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/attention/device_path.h"

#include "tessera/core/context.h"
#include "tessera/kernels/cudnn/library_impl.h"

#include <algorithm>
#include <cstdlib>

namespace tessera {
namespace {

bool wide(const AttentionCase& c) { return item_size(c.dtype) != 2; }

constexpr CudnnRefusal kRefusals[] = {
    {"its operands are not of 16 bits", wide},
    {"a head size is no multiple of 8",
     [](const AttentionCase& c) { return c.d < 8 || c.d % 8 != 0 || c.dv < 8 || c.dv % 8 != 0; }},
    {"its heads are of more than 256 values",
     [](const AttentionCase& c) { return std::max(c.d, c.dv) > 256; }},
    {"values have heads of another size than queries, and they are not 192 and 128",
     [](const AttentionCase& c) { return c.d != c.dv && (c.d != 192 || c.dv != 128); }},
    // Its kernels for one query give NaN.
    {"there is one query or one key at most",
     [](const AttentionCase& c) { return c.queries < 2 || c.keys < 2; }},
    {"there are no heads",
     [](const AttentionCase& c) { return c.batch < 1 || c.kv_heads < 1 || c.heads < 1; }},
    {"positions, documents or a block map are tensors",
     [](const AttentionCase& c) { return c.mask_tensors; }},
    {"the mask is not all, causal or causal & window",
     [](const AttentionCase& c) { return !band_of(c.mask, c.keys).has_value(); }},
    // The last queries see nothing, and its kernels would give NaN.
    {"a window is over fewer keys than queries",
     [](const AttentionCase& c) {
       return c.mask.has(AttentionMask::Kind::window) && c.queries > c.keys;
     }},
    {"queries and keys begin at different positions",
     [](const AttentionCase& c) { return !c.mask.is_all() && c.first_query != c.first_key; }},
    {"lse has a gradient", [](const AttentionCase& c) { return c.lse_gradient; }},
    {"scores are capped", [](const AttentionCase& c) { return c.soft_cap != 0; }},
};

// What a mask's conditions say, joined.
struct Band {
  bool causal = false, other = false;
  int64_t window = 0;
  friend Band operator&(const Band& a, const Band& b) {
    const int64_t window =
        a.window && b.window ? std::min(a.window, b.window) : std::max(a.window, b.window);
    return {a.causal || b.causal, a.other || b.other, window};
  }
  friend Band operator|(const Band&, const Band&) { return {false, true, 0}; }
};

}  // namespace

std::string_view name_of(AttentionPath path) {
  switch (path) {
    case AttentionPath::scalar: return "scalar kernels";
    case AttentionPath::tensor_cores: return "tensor-core kernels";
    case AttentionPath::cudnn: break;
  }
  return "cuDNN";
}

bool has_cudnn() { return cudnn::Library::get() != nullptr; }
std::string cudnn_text() {
  const cudnn::Library* library = cudnn::Library::get();
  return library ? library->version_text() : cudnn::Library::why_not();
}

std::span<const CudnnRefusal> cudnn_refusals() { return kRefusals; }

std::optional<AttentionBand> band_of(const AttentionMask& mask, int64_t keys) {
  using Kind = AttentionMask::Kind;
  const Band band = mask.evaluate(Band(), [](Kind kind, int64_t n) -> Band {
    switch (kind) {
      case Kind::causal: return {true, false, 0};
      case Kind::window: return {false, false, n};
      default: return {false, true, 0};
    }
  });
  if (band.other || (band.window != 0 && !band.causal)) return {};
  return AttentionBand{band.causal, band.window < keys ? band.window : 0};
}

AttentionChoice choose_attention(const AttentionCase& c, bool cudnn) {
  const AttentionPath own = wide(c) ? AttentionPath::scalar : AttentionPath::tensor_cores;
  for (const CudnnRefusal& row : kRefusals) {
    if (row.refuses(c)) return {own, row.why};
  }
  if (!cudnn) return {own, kNoCudnn};
  return {AttentionPath::cudnn, {}};
}

namespace {
struct Refusals {
  std::vector<std::string> all;
};
}  // namespace
void note_cudnn_refusal(const std::string& why) {
  std::vector<std::string>& all = Context::current().state<Refusals>().all;
  if (std::ranges::find(all, why) == all.end()) all.push_back(why);
}
std::vector<std::string> noted_cudnn_refusals() { return Context::current().state<Refusals>().all; }

namespace {
// Bytes of a query head's matrix of scores in 16 bits, in whole tiles: deterministic backward keeps
// its gradient.
int64_t scores_bytes(const AttentionCase& c) {
  const auto rounded = [](int64_t n, int64_t tile) { return (n + tile - 1) / tile * tile; };
  return 2 * rounded(c.queries, 64) * rounded(c.keys, 128);
}
}  // namespace

// As the plans of cuDNN 9.19 for an H100 say (a test compares): what the graph keeps between its
// kernels, and the scratch that it is given.
int64_t cudnn_backward_workspace(const AttentionCase& given, bool deterministic) {
  AttentionCase c = given;
  if (deterministic) {
    const AttentionSlices slices = deterministic_slices(c);
    c.heads = c.heads / c.kv_heads * slices.kv_heads;
    c.batch = slices.batch, c.kv_heads = slices.kv_heads;
  }
  constexpr int64_t kBesides = 1024;
  const int64_t heads = c.batch * c.heads, rows = heads * c.queries;
  const int64_t delta = 4 * rows;
  // With grouped queries: the gradients of k and v of each query head, in 16 bits, before the sum
  // over a group.
  const int64_t groups = c.heads == c.kv_heads ? 0 : 2 * heads * c.keys * (c.d + c.dv);
  return delta + groups + (deterministic ? heads * scores_bytes(c) : 4 * rows * c.d) + kBesides;
}

int64_t most_cudnn_workspace() {
  static const int64_t bytes = [] {
    const char* given = std::getenv("TESSERA_CUDNN_WORKSPACE");
    const int64_t asked = given ? std::strtoll(given, nullptr, 10) : 0;
    return asked > 0 ? asked : int64_t{2} << 30;
  }();
  return bytes;
}

AttentionSlices deterministic_slices(const AttentionCase& c) {
  const int64_t of_head = c.heads / c.kv_heads * scores_bytes(c);
  const int64_t most = std::max<int64_t>(1, most_cudnn_workspace() / of_head);
  if (most >= c.kv_heads) return {std::min(c.batch, most / c.kv_heads), c.kv_heads};
  return {1, most};
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Which code computes attention on a device. The choice follows from what a call asks for and from
// the version of cuDNN alone, never from free memory, so that the bits of a run do not depend on
// it. Rows of a table refuse cuDNN, each with its reason; what remains is cuDNN's.
#pragma once

#include "tessera/core/api.h"
#include "tessera/core/op_types.h"
#include "tessera/kernels/mask/mask.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class AttentionPath : uint8_t {
  scalar,        ///< Tessera's kernels of f32 and f64, in that arithmetic
  tensor_cores,  ///< Tessera's kernels of 16-bit operands
  cudnn,         ///< cuDNN's engines of 16-bit operands
};
/// "scalar kernels", "tensor-core kernels", "cuDNN".
TESSERA_API std::string_view name_of(AttentionPath path);

/// What a call of attention asks for.
struct AttentionCase {
  DType dtype = DType::f32;
  int64_t batch = 1, heads = 1, kv_heads = 1;
  int64_t queries = 0, keys = 0;
  int64_t d = 0, dv = 0;  ///< sizes of a query's and of a value's head
  AttentionMask mask = {};
  int64_t first_query = 0, first_key = 0;  ///< their positions
  bool mask_tensors = false;               ///< positions, documents or a block map are given
  bool lse_gradient = false;               ///< in backward: lse has a gradient
  double soft_cap = 0;                     ///< of scores; 0: none
};

/// The reason if cuDNN takes the call, but is not installed.
inline constexpr std::string_view kNoCudnn = "there is no cuDNN of a version that is used";

struct AttentionChoice {
  AttentionPath path;
  std::string_view why_not_cudnn;  ///< empty with cuDNN
};
/// `cudnn`: there is one of a version that is used.
TESSERA_API AttentionChoice choose_attention(const AttentionCase& c, bool cudnn);

/// Whether this process has such a cuDNN; opens it.
TESSERA_API bool has_cudnn();
/// "9.19.0"; without one why there is none.
TESSERA_API std::string cudnn_text();

/// A row of the table.
struct CudnnRefusal {
  std::string_view why;
  bool (*refuses)(const AttentionCase& c);
};
TESSERA_API std::span<const CudnnRefusal> cudnn_refusals();

/// The last `window` keys up to a query, as a mask; empty if the mask is another one.
struct AttentionBand {
  bool causal = false;
  int64_t window = 0;  ///< 0: from the first key
};
TESSERA_API std::optional<AttentionBand> band_of(const AttentionMask& mask, int64_t keys);

/// cuDNN refused a call that the table gives it, for this reason, and Tessera's kernels did it.
TESSERA_API void note_cudnn_refusal(const std::string& why);
/// The reasons so far on this rank, each once.
TESSERA_API std::vector<std::string> noted_cudnn_refusals();

/// Bytes that cuDNN's backward takes besides its outputs; if deterministic, for one slice at a
/// time.
TESSERA_API int64_t cudnn_backward_workspace(const AttentionCase& c, bool deterministic);
/// How many sequences, and how many of their key heads, a deterministic backward computes at a
/// time. Its workspace is quadratic in the length; it stays below most_cudnn_workspace(), unless
/// that of one key head is larger.
struct AttentionSlices {
  int64_t batch, kv_heads;
};
TESSERA_API AttentionSlices deterministic_slices(const AttentionCase& c);
/// 2 GiB, or as many bytes as the variable TESSERA_CUDNN_WORKSPACE says.
TESSERA_API int64_t most_cudnn_workspace();

namespace op {
/// Of Attention or AttentionBackward and its operands.
template <class Op> AttentionCase attention_case(const Op& op, Metas in) {
  constexpr size_t kLseGradient = 6;  // an operand of backward
  const int head = op.heads_inner ? 2 : 1, time = op.heads_inner ? 1 : 2;
  const Shape &q = in[0].shape, &k = in[1].shape;
  AttentionCase c{.dtype = in[0].dtype,
                  .batch = q[0],
                  .heads = q[head],
                  .kv_heads = k[head],
                  .queries = q[time],
                  .keys = k[time],
                  .d = q[3],
                  .dv = in[2].shape[3],
                  .mask = op.mask,
                  .first_query = op.query_start,
                  .first_key = op.key_start,
                  .soft_cap = op.soft_cap};
  for (size_t i = Op::mask_operands; i < in.size(); ++i)
    c.mask_tensors = c.mask_tensors || in.has(i);
  c.lse_gradient = Op::mask_operands > kLseGradient && in.has(kLseGradient);
  return c;
}
}  // namespace op

}  // namespace tessera

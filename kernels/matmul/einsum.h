// SPDX-License-Identifier: Apache-2.0
// einsum: sums of products named by letters, made of permute, reshape, sum, mul and matmul. It has
// no kernel of its own, so gradients and layouts are those of the ops below.
#pragma once

#include "tessera/core/tensor.h"

#include <string_view>
#include <vector>

namespace tessera {

/// `einsum("bshd,hdm->bsm", {x, w})`: one term of letters per operand, one letter per dim; equal
/// letters are one dim, of one size; letters that the result lacks are summed over. Spaces do not
/// count. Without "->" the result has the letters that occur once, in the order of the alphabet.
/// "..." in terms stands for the dims that have no letter, aligned at the right; a result without
/// it sums over them.
///
/// Operands are contracted in pairs from left to right: put the pair with the smallest result
/// first. A letter that both operands of a pair and the rest have is a batch dim of the product;
/// batch dims are never merged with others, and dims of one operand alone only where the product
/// wants one: those of the operand that has more of them stay apart.
///
/// All operands are of one floating dtype; products accumulate as matmul's. ValueError for a
/// malformed equation, a letter repeated in one term or unknown in the result; ShapeError that
/// names the operand where ranks or sizes do not fit; DTypeError for mixed dtypes.
TESSERA_API Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);

}  // namespace tessera

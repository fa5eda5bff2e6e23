// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe/dispatcher.h"

#include "tessera/autograd/to.h"
#include "tessera/dist/exchange_rows.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/searchsorted/searchsorted.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace tessera::nn {
namespace {

using Sizes = std::vector<int64_t>;

// counts (ranks, experts) i64 on the host. On the meta device `rows` in equal parts.
std::vector<Sizes> on_host(const Tensor& counts, int64_t rows) {
  const int64_t ranks = counts.size(0), experts = counts.size(1), cells = ranks * experts;
  std::vector<double> all;
  if (!counts.device().is_meta()) all = counts.values();
  std::vector<Sizes> sizes(static_cast<size_t>(ranks));
  for (int64_t i = 0; i < cells; ++i) {
    const int64_t even = (i + 1) * rows / cells - i * rows / cells;
    sizes[static_cast<size_t>(i / experts)].push_back(
        all.empty() ? even : static_cast<int64_t>(all[static_cast<size_t>(i)]));
  }
  return sizes;
}

Sizes totals(const std::vector<Sizes>& sizes) {
  Sizes sums;
  for (const Sizes& s : sizes) sums.push_back(std::accumulate(s.begin(), s.end(), int64_t{0}));
  return sums;
}

// Rows come by rank and within that by expert. {places of the rows by expert, the inverse}.
std::pair<Tensor, Tensor> by_expert(const std::vector<Sizes>& sizes, Device device) {
  const Sizes of_rank = totals(sizes);
  const int64_t rows = std::accumulate(of_rank.begin(), of_rank.end(), int64_t{0});
  const Tensor order = empty({rows}, DType::i64), inverse = empty({rows}, DType::i64);
  int64_t at = 0;
  Sizes next(sizes.size(), 0);  // row of each rank
  for (size_t r = 1; r < sizes.size(); ++r) next[r] = next[r - 1] + of_rank[r - 1];
  for (size_t e = 0; e < sizes[0].size(); ++e) {
    for (size_t r = 0; r < sizes.size(); ++r) {
      for (int64_t i = 0; i < sizes[r][e]; ++i, ++at) {
        order.data<int64_t>()[at] = next[r];
        inverse.data<int64_t>()[next[r]++] = at;
      }
    }
  }
  return {to(order, device), to(inverse, device)};
}

// How many rows of one expert a rank sends: no token has two.
int64_t places(double factor, int64_t most_tokens, int64_t top_k, int64_t experts) {
  const double even = static_cast<double>(most_tokens * top_k) / static_cast<double>(experts);
  // Less what rounding may add: 1.1 times 10 is 11, not 12.
  const double wanted = std::ceil(factor * even * (1 - 1e-12));
  return static_cast<int64_t>(std::min(wanted, static_cast<double>(most_tokens)));
}

// Rows grouped by expert -> the place of each (N) in buffers of `room` rows per expert; the place
// after the last for a row that finds none, or has no expert.
Tensor places_of(const Tensor& rows, const Tensor& counts, int64_t room) {
  const int64_t outside = counts.size(0) * room;
  const Tensor ends = cumsum(counts, 0), row = arange(rows.size(0), DType::i64, rows.device());
  const Tensor expert = searchsorted(ends, row, true);  // one past the last for rows of none
  const Tensor starts = cat({zeros({1}, DType::i64, rows.device()), ends}, 0);
  const Tensor at = row - index_select(starts, 0, expert);
  return clamp(masked_fill(expert * room + at, at >= room, outside),
               {.max = static_cast<double>(outside)});
}

}  // namespace

Dispatched LocalDispatcher::run(const Dispatch& given, const Network& experts,
                                const std::function<void()>& meanwhile) const {
  meanwhile();
  return {experts(given.rows, cumsum(given.counts, 0)), {}};
}

Dispatched ExchangeDispatcher::run(const Dispatch& given, const Network& experts,
                                   const std::function<void()>& meanwhile) const {
  const auto& [rows, counts, most_tokens, top_k] = given;
  const int64_t ranks = mesh_.size(axis_), own = counts.size(0) / ranks;
  const Sizes each(static_cast<size_t>(ranks), own);
  const Shape grid{ranks, own};
  const Tensor coming = reshape(exchange_rows(counts, mesh_, axis_, each, each), grid);
  const std::vector<Sizes> from = on_host(coming, rows.size(0));
  const Sizes send = totals(on_host(reshape(counts, grid), rows.size(0))), receive = totals(from);
  const Tensor came = exchange_rows(rows, mesh_, axis_, send, receive);
  meanwhile();
  const auto [order, inverse] = by_expert(from, rows.device());
  const Tensor made = experts(index_select(came, 0, order), cumsum(sum(coming, {0}), 0));
  return {exchange_rows(index_select(made, 0, inverse), mesh_, axis_, receive, send, rows.size(0)),
          {}};
}

// Buffers have one row more than they send, where rows without a place go and zeros come from.
Dispatched PaddedDispatcher::run(const Dispatch& given, const Network& experts,
                                 const std::function<void()>& meanwhile) const {
  const auto& [rows, counts, most_tokens, top_k] = given;
  const Device device = rows.device();
  const int64_t all = counts.size(0), ranks = mesh_.size(axis_), own = all / ranks,
                room = places(factor_, most_tokens, top_k, all), width = rows.size(1);
  const Sizes each(static_cast<size_t>(ranks), own * room);
  const Tensor place = places_of(rows, counts, room);
  const Tensor sent = index_zeros(all * room + 1, 0, place, rows);
  const Tensor came = exchange_rows(sent, mesh_, axis_, each, each);
  meanwhile();
  // From (ranks, own, ...) to (own, ranks, ...), and back.
  const auto swapped = [&](const Tensor& x, int64_t outer, int64_t inner) {
    const Tensor turned = permute(reshape(x, {outer, inner, room, width}), {1, 0, 2, 3});
    return reshape(turned, {all * room, width});
  };
  const Tensor ends = (arange(own, DType::i64, device) + 1) * (ranks * room);
  const Tensor made = swapped(experts(swapped(came, ranks, own), ends), own, ranks);
  const Tensor back = exchange_rows(made, mesh_, axis_, each, each, all * room + 1);
  return {index_select(back, 0, place), clamp(counts, {.max = static_cast<double>(room)})};
}

}  // namespace tessera::nn

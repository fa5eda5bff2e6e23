// SPDX-License-Identifier: Apache-2.0
// Each balancer deals the tokens of one row to the parts, which are then sorted and joined.
#include "tessera/nn/context/load_balance.h"

#include "tessera/core/error.h"
#include "tessera/kernels/mask/block_map.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <vector>

namespace tessera::nn {
namespace {

// The tokens of each part, and how many more it takes.
struct Hands {
  std::vector<std::vector<int64_t>> tokens;
  std::vector<int64_t> room;

  explicit Hands(std::span<const int64_t> parts)
      : tokens(parts.size()), room(parts.begin(), parts.end()) {}
  void give(size_t part, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) tokens[part].push_back(first + i);
    room[part] -= count;
  }
};

// `count` tokens for parts in proportion to their room; what does not divide goes to those whose
// fractions are largest. Never more than the room.
std::vector<int64_t> shares(int64_t count, const std::vector<int64_t>& room) {
  const int64_t all = std::accumulate(room.begin(), room.end(), int64_t{0});
  std::vector<int64_t> share(room.size()), fraction(room.size());
  int64_t left = count;
  for (size_t r = 0; r < room.size(); ++r) {
    share[r] = count * room[r] / all;
    fraction[r] = count * room[r] % all;
    left -= share[r];
  }
  std::vector<size_t> by_fraction(room.size());
  std::iota(by_fraction.begin(), by_fraction.end(), size_t{0});
  std::ranges::stable_sort(by_fraction,
                           [&](size_t a, size_t b) { return fraction[a] > fraction[b]; });
  for (size_t i = 0; left > 0; ++i, --left) ++share[by_fraction[i]];
  return share;
}

// Tokens [begin, end): the first part gets their beginning and end, the next what lies inside.
void deal_head_tail(Hands& hands, int64_t begin, int64_t end) {
  if (begin == end) return;
  const std::vector<int64_t> share = shares(end - begin, hands.room);
  for (size_t r = 0; r < share.size(); ++r) {
    // A share that is odd has one more of the head, where a token sees least.
    const int64_t tail = share[r] / 2, head = share[r] - tail;
    hands.give(r, begin, head);
    hands.give(r, end - tail, tail);
    begin += head;
    end -= tail;
  }
}

void deal_documents(Hands& hands, const int64_t* documents, int64_t step, int64_t tokens) {
  int64_t begin = 0;
  for (int64_t i = 1; i <= tokens; ++i) {
    if (i < tokens && documents[i * step] == documents[begin * step]) continue;
    deal_head_tail(hands, begin, i);
    begin = i;
  }
}

void deal_blocks(Hands& hands, const int64_t* work, int64_t step, int64_t tokens) {
  const int64_t blocks = (tokens + kAttentionBlock - 1) / kAttentionBlock;
  std::vector<int64_t> by_work(static_cast<size_t>(blocks));
  std::iota(by_work.begin(), by_work.end(), int64_t{0});
  std::ranges::stable_sort(by_work,
                           [&](int64_t a, int64_t b) { return work[a * step] > work[b * step]; });
  const auto parts = static_cast<int64_t>(hands.room.size());
  int64_t turn = 0;
  for (const int64_t block : by_work) {
    int64_t first = block * kAttentionBlock;
    const int64_t end = std::min(first + kAttentionBlock, tokens);
    for (; first < end; ++turn) {
      const int64_t at = turn % (2 * parts);
      const auto part = static_cast<size_t>(at < parts ? at : 2 * parts - 1 - at);
      const int64_t count = std::min(end - first, hands.room[part]);
      hands.give(part, first, count);
      first += count;
    }
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& os, LoadBalancer b) {
  constexpr std::string_view names[] = {"none", "head_tail", "document_head_tail", "round_robin"};
  return os << names[static_cast<size_t>(b)];
}

Tensor balanced_order(const LoadBalance& balance, std::span<const int64_t> parts) {
  const auto [balancer, documents, work] = balance;
  if (balancer == LoadBalancer::none) return {};
  const int64_t tokens = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  const bool by_documents = balancer == LoadBalancer::document_head_tail,
             by_work = balancer == LoadBalancer::round_robin;
  if ((by_documents && !documents.defined()) || (by_work && !work.defined())) {
    fail<ValueError>("load_balance", balancer, " needs the ",
                     by_documents
                         ? "documents of the tokens, and none are given; head_tail does not"
                         : "work of each block of queries, by count_seen_blocks");
  }
  const Tensor& rows = by_documents ? documents : work;
  if (by_documents || by_work) {
    const int64_t each = by_documents ? tokens : (tokens + kAttentionBlock - 1) / kAttentionBlock;
    const bool ranked = by_work ? rows.rank() == 2 : rows.rank() == 1 || rows.rank() == 2;
    if (!ranked || rows.size(-1) != each || rows.dtype() != DType::i64 || rows.device() != kCpu) {
      fail<ValueError>("load_balance", by_documents ? "documents are " : "work is ", rows.meta(),
                       ": expected i64 on the CPU, ", each,
                       by_documents ? " tokens in a row" : " blocks of queries in a row");
    }
  }
  const bool batched = (by_documents && documents.rank() == 2) || (by_work && work.size(0) != 1);
  const int64_t batches = batched ? rows.size(0) : 1;
  const Tensor order = empty(batched ? Shape{batches, tokens} : Shape{tokens}, DType::i64);
  auto* to = order.data<int64_t>();
  for (int64_t b = 0; b < batches; ++b) {
    Hands hands(parts);
    const int64_t* row = rows.defined() && batched ? rows.data<int64_t>() + b * rows.strides()[0]
                         : rows.defined()          ? rows.data<int64_t>()
                                                   : nullptr;
    if (by_documents) deal_documents(hands, row, rows.strides()[rows.rank() - 1], tokens);
    else if (by_work) deal_blocks(hands, row, rows.strides()[1], tokens);
    else deal_head_tail(hands, 0, tokens);
    for (std::vector<int64_t>& part : hands.tokens) {
      std::ranges::sort(part);
      to = std::ranges::copy(part, to).out;
    }
  }
  return order;
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// An error travels as `kind` and text of the lowest rank that has one; a run without errors pays
// one reduction of one number.
#include "tessera/train/ranks/ranks.h"

#include "tessera/core/context.h"
#include "tessera/core/error.h"
#include "tessera/dist/world.h"
#include "tessera/nn/io/crc32c.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace tessera::train {
namespace {

struct StorageTimeout {
  std::chrono::milliseconds value = std::chrono::hours(1);
};

// Only a World sets a distributor.
bool alone() { return !Context::current().distributor; }

ProcessGroup& group() { return World::current().group(); }

Tensor bytes_of(std::string_view text) {
  const Tensor bytes = empty({std::ssize(text)}, DType::u8);
  std::ranges::copy(text, bytes.data<uint8_t>());
  return bytes;
}

[[noreturn]] void throw_as(std::string_view kind, const std::string& text) {
  if (kind == "ConfigError") throw ConfigError(text);
  if (kind == "DataError") throw DataError(text);
  if (kind == "LayoutError") throw LayoutError(text);
  if (kind == "StorageError") throw StorageError(text);
  if (kind == "UsageError") throw UsageError(text);
  throw IoError(text);  // what else fails when files are read or written
}

}  // namespace

int own_rank() { return alone() ? 0 : World::current().rank(); }

int rank_count() { return alone() ? 1 : World::current().size(); }

std::vector<std::string> texts_of_ranks(const std::string& own) {
  if (alone()) return {own};
  const Tensor size = empty({1}, DType::i64), sizes = empty({group().size()}, DType::i64);
  *size.data<int64_t>() = std::ssize(own);
  group().all_gather(size, sizes)->wait();
  const Counts counts(sizes.data<int64_t>(), sizes.data<int64_t>() + sizes.numel());
  const Tensor all = empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, DType::u8);
  if (all.numel() > 0) group().all_gather(bytes_of(own), all, counts)->wait();
  const auto* text = reinterpret_cast<const char*>(all.data<uint8_t>());
  std::vector<std::string> texts;
  for (const int64_t n : counts) {
    texts.emplace_back(text, static_cast<size_t>(n));
    text += n;
  }
  return texts;
}

std::vector<std::string> different_texts(const std::string& own) {
  const std::vector<std::string> digests = texts_of_ranks(concat(own.size(), ' ', io::crc32c(own)));
  if (std::ranges::count(digests, digests[0]) == std::ssize(digests)) return {own};
  const auto rank = static_cast<size_t>(own_rank());
  const bool first = std::ranges::find(digests, digests[rank]) == digests.begin() + own_rank();
  std::vector<std::string> texts = texts_of_ranks(first ? own : "");
  std::erase(texts, "");
  return texts;
}

std::string text_of_first(const std::string& own) {
  if (alone()) return own;
  const Tensor size = empty({1}, DType::i64);
  *size.data<int64_t>() = std::ssize(own);
  group().broadcast(size, 0)->wait();
  const Tensor bytes = own_rank() == 0 ? bytes_of(own) : empty({*size.data<int64_t>()}, DType::u8);
  if (bytes.numel() > 0) group().broadcast(bytes, 0)->wait();
  return {bytes.data<uint8_t>(), bytes.data<uint8_t>() + bytes.numel()};
}

void meet_before_failing() {
  if (alone()) return;
  try {
    group().barrier()->wait();
  } catch (const PeerFailed&) {  // it has passed the barrier, and says the same
  }
}

void on_all_or_none(const std::function<void()>& work) {
  if (alone()) return work();
  std::string own;  // kind, a line break, text
  try {
    work();
  } catch (const Error& error) {
    own = concat(error.kind(), '\n', error.what());
  } catch (const std::exception& error) {
    own = concat("IoError\n", error.what());
  }
  const Tensor first = empty({1}, DType::i64);
  *first.data<int64_t>() = own.empty() ? rank_count() : own_rank();
  group().all_reduce(first, ReduceOp::min)->wait();
  if (*first.data<int64_t>() == rank_count()) return;
  // Rare, so that all texts may travel.
  const auto rank = static_cast<size_t>(*first.data<int64_t>());
  const std::string found = texts_of_ranks(own)[rank];
  meet_before_failing();
  const size_t line = found.find('\n');
  const std::string text = found.substr(line + 1);
  throw_as(found.substr(0, line), rank_count() > 1 ? concat(text, " (on rank ", rank, ')') : text);
}

void set_storage_timeout(std::chrono::milliseconds timeout) {
  Context::current().state<StorageTimeout>().value = timeout;
}

Patience::Patience() {
  if (alone()) return;
  before_ms_ = group().timeout().count();
  group().set_timeout(Context::current().state<StorageTimeout>().value);
}

Patience::~Patience() {
  if (!alone()) group().set_timeout(std::chrono::milliseconds(before_ms_));
}

std::string first_few(const std::vector<std::string>& texts, size_t most) {
  const size_t n = std::min(most, texts.size());
  const auto listed = std::span(texts).first(n);
  return fmt::format("{}{}", fmt::join(listed, "; "),
                     n < texts.size() ? fmt::format("; and {} more", texts.size() - n) : "");
}

}  // namespace tessera::train

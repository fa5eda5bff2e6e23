// SPDX-License-Identifier: Apache-2.0
// The part of a segment where a rank leaves messages for processes that have not come to take them.
// Its pages are made by the first message that needs them and serve the next ones; the lowest free
// place is used first, so that few pages exist where few messages are under way.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace tessera {

class MessagePool {
 public:
  /// `memory` outlives it.
  MessagePool(std::byte* memory, size_t bytes);

  /// The offset of room for a message; none: it is full, or the system has no memory for it.
  [[nodiscard]] std::optional<size_t> take(size_t bytes);
  void give_back(size_t offset);

 private:
  [[nodiscard]] bool make_pages(size_t end);

  std::byte* memory_;
  size_t made_ = 0;                // bytes whose pages exist
  std::map<size_t, size_t> free_;  // offset and bytes
  std::map<size_t, size_t> used_;
};

}  // namespace tessera

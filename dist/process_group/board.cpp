// SPDX-License-Identifier: Apache-2.0
// The first failure of a group: the claim decides which rank writes it, the text follows, and
// readers wait a limited time for the text.
#include "tessera/core/error.h"
#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/process_group/board_impl.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tessera {

bool Failure::claim(FailureKind of, int world_rank, std::string_view why) {
  uint32_t none = 0;
  if (!state.compare_exchange_strong(none, 1, std::memory_order_seq_cst)) return false;
  kind = of;
  rank = world_rank;
  const size_t length = std::min(why.size(), text.size() - 1);
  std::copy_n(why.data(), length, text.data());
  text[length] = 0;
  state.store(2, std::memory_order_seq_cst);
  return true;
}

void Failure::raise(std::string_view where) const {
  expect_no_lock("a rank waits for the text of a failure");
  // A process may have died between the claim and the text, so this wait has a limit too.
  for (int i = 0; i < 2000 && !readable(); ++i)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  std::rethrow_exception(error(where));
}

std::exception_ptr Failure::error(std::string_view where) const {
  const bool written = readable();
  const std::string why =
      concat('[', where, "] ", written ? text.data() : "a rank died while it reported a failure");
  switch (written ? kind : FailureKind::peer) {
    case FailureKind::timeout: return std::make_exception_ptr(CollectiveTimeout(why));
    case FailureKind::mismatch: return std::make_exception_ptr(CollectiveMismatch(why));
    default: return std::make_exception_ptr(PeerFailed(why));
  }
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Base of Mesh and Layout: a pointer to data that a rank's Context owns, and that Context's number.
// Numbers are never reused, so a handle that outlived its world is detected, even if the memory has
// been reused. The check costs one compare.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/error.h"

#include <string_view>

namespace tessera::detail {

/// UsageError: `what` belongs to a world that has ended, or to another rank; or this thread has no
/// Context of the rank (the body of a parallel_for, a thread that reads data).
template <class What>
[[noreturn]] __attribute__((noinline, cold)) void fail_ended(std::string_view who,
                                                             const What& what) {
  fail<UsageError>(who, what,
                   " is used here, but the world it was made in has ended, or is another rank's: "
                   "create it again in the world that uses it");
}

template <class Data> class Handle {
 public:
  Handle() = default;
  Handle(const Data* data, uint32_t owner) : data_(data), owner_(owner) {}
  /// UsageError: an empty handle, or one whose world has ended.
  [[nodiscard]] const Data& get(std::string_view what) const {
    const Context* context = Context::current_or_null();
    if (!context || context->number != owner_) check(what);
    return *data_;
  }
  [[nodiscard]] const Data* address() const { return data_; }
  /// The number of the Context that owns the data.
  [[nodiscard]] uint32_t owner() const { return owner_; }
  bool operator==(const Handle&) const = default;

 private:
  __attribute__((noinline, cold)) void check(std::string_view what) const {
    if (!data_) fail<UsageError>(what, "an empty ", what, " was used: it names none yet");
    if (!Context::find(owner_)) fail_ended(what, concat("a ", what));
  }
  const Data* data_ = nullptr;
  uint32_t owner_ = 0;
};

}  // namespace tessera::detail

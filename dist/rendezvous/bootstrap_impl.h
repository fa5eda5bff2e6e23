// SPDX-License-Identifier: Apache-2.0
// Bootstrap: exchange of a few bytes (addresses, memory segments, ids of communicators) between
// ranks that have no group yet. By MPI messages, or by the rendezvous at MASTER_ADDR:MASTER_PORT.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + timeout;
}

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// "Open MPI 4.1.4", "rendezvous at node1:29500"; for messages.
  [[nodiscard]] virtual std::string name() const = 0;

  /// Every one of `members` (world ranks, the caller among them) gives `mine`, and gets what all
  /// gave, in the order of `members`. `key` is equal on all and tells simultaneous exchanges of
  /// overlapping members apart. CollectiveTimeout names who did not come, PeerFailed who left,
  /// CollectiveMismatch who is in another exchange.
  virtual std::vector<std::string> all_gather(std::span<const int> members, std::string_view key,
                                              std::string_view mine, Deadline deadline) = 0;
  void barrier(std::span<const int> members, std::string_view key, Deadline deadline) {
    (void)all_gather(members, key, {}, deadline);
  }
  /// Called periodically while an exchange waits; throws if waiting is useless.
  std::function<void()> interrupted;
  /// Ends the bootstrap. `clean`: all ranks are known to come here, so it may wait for them; false
  /// if one had not come by the deadline.
  virtual bool finish(bool clean, Deadline deadline) noexcept = 0;
};

/// Bytes of a message, in this machine's order: ranks of one job are of one build.
class PackedWriter {
 public:
  template <class T> PackedWriter& put(const T& value) requires std::is_trivially_copyable_v<T> {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  PackedWriter& text(std::string_view value) {
    put<uint32_t>(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads what PackedWriter wrote; past the end everything is zero and `ok` false.
class PackedReader {
 public:
  explicit PackedReader(std::string_view bytes) : rest_(bytes) {}
  template <class T> [[nodiscard]] T get() requires std::is_trivially_copyable_v<T> {
    T value{};
    if (rest_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    rest_.copy(reinterpret_cast<char*>(&value), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  [[nodiscard]] std::string text() {
    const auto size = get<uint32_t>();
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace tessera

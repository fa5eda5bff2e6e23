// SPDX-License-Identifier: Apache-2.0
// What the ranks of a host tell each other before they can talk, and if they never can: small files
// in a folder that the launcher makes for the job on each host, and removes with it. If it makes
// none, nothing is known of the other ranks.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tessera {

class HostFolder {
 public:
  struct Place {
    std::string path;  ///< empty: no folder
    int rank = 0, size = 1;
    int local_rank = -1, local_size = -1;  ///< -1: not known
  };
  explicit HostFolder(Place place) : place_(std::move(place)) {}

  /// Tells the others that this rank is here. If it cannot, the others do not know.
  void come() const noexcept;
  /// `here: rank 0, rank 2 (stopped); not here: rank 1; unknown: 3 ranks of other hosts`
  [[nodiscard]] std::string who_came() const;
  /// Calls `say`, which says this text, unless another rank of the host has said it. Ranks take
  /// turns, for which each waits a second at most.
  void say_once(std::string_view text, const std::function<void()>& say) const;

 private:
  [[nodiscard]] std::string file(std::string_view name) const;
  Place place_;
};

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The ledger of laws that an op may break for now. The goal is that it is empty; an entry whose law
// is kept fails.
#pragma once

#include <array>
#include <string_view>

namespace tessera::laws {

struct Waiver {
  std::string_view op, law, reason;
};
inline constexpr std::array<Waiver, 0> kWaivers{};

}  // namespace tessera::laws

// SPDX-License-Identifier: Apache-2.0
// Proof that a process knows the job's secret, without sending it: HMAC-SHA-256 over fresh random
// numbers of both sides. It keeps out whoever reaches the port but does not know the secret. It
// does not encrypt, and does not protect a connection against someone who can alter its packets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

using Digest = std::array<uint8_t, 32>;

/// SHA-256 (FIPS 180-4).
[[nodiscard]] Digest sha256(std::string_view bytes);
/// HMAC-SHA-256 (RFC 2104).
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::string_view bytes);
/// Takes equally long whichever bytes differ, so that the time reveals none of them.
[[nodiscard]] bool same_digest(const Digest& a, const Digest& b);
/// 32 random bytes of the operating system. LaunchError if it has none.
[[nodiscard]] Digest random_bytes();
/// A random secret of 64 hexadecimal digits.
[[nodiscard]] std::string random_secret();

}  // namespace tessera

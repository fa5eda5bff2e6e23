// SPDX-License-Identifier: Apache-2.0
// SHA-256 in its plainest form: messages here have some hundred bytes.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/secret_impl.h"

#include <algorithm>
#include <bit>
#include <unistd.h>

namespace tessera {
namespace {

constexpr size_t kBlock = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

void mix(State& state, const char* block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) {
    for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<uint8_t>(block[4 * i + b]);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t x = w[i - 15], y = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) +
           (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State sums{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += sums[i];
}

}  // namespace

Digest sha256(std::string_view bytes) {
  // The first 32 bits of the fractional parts of the square roots of the first 8 primes.
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  // The end is padded by a one bit, zeros, and the length in bits.
  const size_t whole = bytes.size() / kBlock * kBlock;
  std::string end(bytes.substr(whole));
  end.push_back('\x80');
  end.resize((end.size() + 8 + kBlock - 1) / kBlock * kBlock - 8);
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) end.push_back(static_cast<char>(bits >> shift));
  for (size_t at = 0; at < whole; at += kBlock) mix(state, bytes.data() + at);
  for (size_t at = 0; at < end.size(); at += kBlock) mix(state, end.data() + at);
  Digest digest{};
  for (size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view bytes) {
  const auto text = [](const Digest& d) { return std::string(d.begin(), d.end()); };
  std::string block = key.size() > kBlock ? text(sha256(key)) : std::string(key);
  block.resize(kBlock);
  const auto keyed = [&](char pad, std::string_view message) {
    std::string padded = block;
    for (char& c : padded) c = static_cast<char>(c ^ pad);
    return sha256(padded.append(message));
  };
  return keyed('\x5c', text(keyed('\x36', bytes)));
}

bool same_digest(const Digest& a, const Digest& b) {
  volatile uint8_t differing = 0;  // volatile: compared to the end
  for (size_t i = 0; i < a.size(); ++i) differing = static_cast<uint8_t>(differing | (a[i] ^ b[i]));
  return differing == 0;
}

Digest random_bytes() {
  Digest bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0)
    fail<LaunchError>("launch", "the system has no random numbers for the job's secret");
  return bytes;
}

std::string random_secret() {
  std::string text;
  for (const uint8_t byte : random_bytes()) {
    for (const int digit : {byte >> 4, byte & 15}) text.push_back("0123456789abcdef"[digit]);
  }
  return text;
}

}  // namespace tessera

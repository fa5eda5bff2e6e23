// SPDX-License-Identifier: Apache-2.0
// Frame types of the rendezvous. A hello begins with a magic number and a version, so that other
// programs and other builds are detected before anything else is read.
#pragma once

#include <cstdint>

namespace tessera::wire {

inline constexpr uint64_t kMagic = 0x7e55e7a'0'5e2d'e205;
inline constexpr uint32_t kVersion = 4;

enum Type : uint8_t {
  // To the server.
  kHello = 1,     // magic, version, random number
  kProof,         // rank, size, proof of the secret
  kGather,        // key, members, bytes
  kWhoIsMissing,  // key
  kNotify,        // text for all others
  kStatus,        // sequence, operation
  kTable,         // empty
  kBye,           // empty
  // To a client.
  kChallenge = 64,  // random number
  kWelcome,         // proof of the secret
  kRefused,         // why; also sent to ranks that already joined when the worlds cannot be one
  kGathered,        // key, parts
  kGatherFailed,    // key, whether ranks disagree, why
  kMissing,         // key, text
  kNotice,          // from, text
  kLost,            // rank, its last sequence and operation
  kTableReply,      // per rank: state, silent, sequence, operation
};

}  // namespace tessera::wire

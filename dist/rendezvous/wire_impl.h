// SPDX-License-Identifier: Apache-2.0
// Frame types of the rendezvous. A hello opens with a magic number and a version, so that strangers
// and other builds are told apart before anything else is read.
#pragma once

#include <cstdint>

namespace tessera::wire {

inline constexpr uint64_t kMagic = 0x7e55e7a'0'5e2d'e205;
inline constexpr uint32_t kVersion = 2;

enum Type : uint8_t {
  // To the server.
  kHello = 1,     // magic, version, job, rank, size
  kGather,        // key, members, bytes
  kWhoIsMissing,  // key
  kNotify,        // text for all others
  kStatus,        // sequence, operation
  kTable,         // empty
  kBye,           // empty
  // To a client.
  kWelcome = 64,  // empty
  kRefused,       // why; also sent to ranks that already joined when the worlds cannot be one
  kGathered,      // key, parts
  kGatherFailed,  // key, whether ranks disagree, why
  kMissing,       // key, text
  kNotice,        // from, text
  kLost,          // rank
  kTableReply,    // per rank: state, silent, sequence, operation
};

}  // namespace tessera::wire

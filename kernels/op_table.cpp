// SPDX-License-Identifier: Apache-2.0
// The table of all rooms. The list is made by the build from the rooms' names; this is the one file
// that sees them all.
#define TESSERA_OP_TABLE
#include "tessera/core/op_row.h"
#include "tessera/kernels/rooms.h"

namespace tessera {

std::span<const OpRow* const> kernel_rows() {
  static const std::vector<const OpRow*> rows = rows_of(KernelRooms{});
  return rows;
}

}  // namespace tessera

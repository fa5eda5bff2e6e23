// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/op_table.h"

#include "tessera/dist/exchange_rows.h"

TESSERA_ROOM(tessera::op::ExchangeRows)

namespace tessera {

std::span<const OpRow* const> dist_rows() {
  static constexpr const OpRow* kRows[]{&RowOf<op::ExchangeRows>::row};
  return kRows;
}

}  // namespace tessera

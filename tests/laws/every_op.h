// SPDX-License-Identifier: Apache-2.0
// The parameters of tests that are there once for each op.
#pragma once

#include "tessera/core/op_row.h"
#include "tessera/dist/op_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace tessera::laws {

/// All rooms of kernels/, and what dist/ adds.
inline std::vector<const OpRow*> every_row() {
  std::vector<const OpRow*> rows(kernel_rows().begin(), kernel_rows().end());
  rows.insert(rows.end(), dist_rows().begin(), dist_rows().end());
  return rows;
}
inline auto every_op() { return testing::ValuesIn(every_row()); }
inline std::string name_of_op(const testing::TestParamInfo<const OpRow*>& info) {
  std::string text(info.param->name);
  std::ranges::replace_if(
      text, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
}

}  // namespace tessera::laws

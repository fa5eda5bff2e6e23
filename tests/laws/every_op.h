// SPDX-License-Identifier: Apache-2.0
// The parameters of tests that are there once for each op.
#pragma once

#include "tessera/core/op_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace tessera::laws {

inline auto every_op() { return testing::ValuesIn(kernel_rows().begin(), kernel_rows().end()); }
inline std::string name_of_op(const testing::TestParamInfo<const OpRow*>& info) {
  std::string text(info.param->name);
  std::ranges::replace_if(
      text, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
}

}  // namespace tessera::laws

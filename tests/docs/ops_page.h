// SPDX-License-Identifier: Apache-2.0
// The page docs/ops.md: the public functions of each room and the facts of each op, from the rooms'
// headers, the op table and the laws' lists of rules and opt-outs.
#pragma once

#include "tessera/tests/docs/headers.h"

#include <string>
#include <vector>

namespace tessera::docs {

/// What a reader is told of a function or type: its own comment, else what its op computes, else
/// the expression that it returns, else the comment of its run of lines. Empty if there is none.
std::string said_of(const Public& entry, const std::vector<OpStruct>& structs);

/// What an op computes: the comment above its struct or its base, else the expression of f.
std::string formula_of(const OpStruct& op, const std::vector<OpStruct>& structs);

struct OpsPage {
  std::string text;
  std::vector<std::string> silent;  // functions, types and ops of which nothing is said
};
/// `laws` is the folder of rules.txt and opt_outs.txt. UsageError for an op that no header has.
OpsPage ops_page(const std::vector<Room>& rooms, const std::string& laws);

}  // namespace tessera::docs

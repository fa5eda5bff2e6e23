// SPDX-License-Identifier: Apache-2.0
// The search checks the operands and outputs of every op, only this rank's shards, so it does not
// communicate. It replaces an existing op hook until it ends.
#include "tessera/train/monitor/non_finite.h"

#include "tessera/core/message.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

std::string place(const std::vector<std::string>& module_path, bool backward) {
  const std::string path = joined_path(module_path);
  return concat(backward ? " in backward of " : " in ",
                path.empty() ? "the loss" : concat("module ", path));
}

}  // namespace

bool all_finite(const Tensor& t) {
  if (!t.defined() || !is_floating(t.dtype())) return true;
  if (t.is_distributed()) return all_finite(local(t));
  return std::ranges::all_of(t.values(), [](double v) { return std::isfinite(v); });
}

FirstNonFinite::FirstNonFinite()
    : context_(Context::current()), before_(std::move(context_.op_hook)) {
  context_.op_hook = [this](const OpRow& row, const void*, Tensors in, Tensors out) {
    if (!found_.empty()) return;
    if (std::ranges::all_of(out, all_finite) || !std::ranges::all_of(in, all_finite)) {
      ++ops_;
      return;
    }
    found_ = concat("op ", row.name, place(context_.module_path, trace_tag() == "grad"));
  };
}

FirstNonFinite::~FirstNonFinite() { context_.op_hook = std::move(before_); }

}  // namespace tessera::train

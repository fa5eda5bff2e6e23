// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/draws.h"

#include "tessera/core/context.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct MicroBatch {
  int64_t first_row = 0;
};

}  // namespace

int64_t& micro_batch_row() { return Context::current().state<MicroBatch>().first_row; }

Draw next_draw() { return {Context::current().next_key(), micro_batch_row()}; }

void begin_micro_batch(uint64_t step, int64_t first_row) {
  if (first_row < 0) fail<ValueError>("begin_micro_batch", "rows count from 0: given ", first_row);
  Context::current().call_keys.set_step(step);
  micro_batch_row() = first_row;
}

}  // namespace tessera

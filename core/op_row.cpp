// SPDX-License-Identifier: Apache-2.0
// Code shared by the rows of an op table, compiled once instead of for every op.
#include "tessera/core/op_row.h"

namespace tessera::detail {

std::shared_ptr<const void> copy_of(const OpRow& row, const void* op) {
  const auto free = [&row](void* p) { ::operator delete (p, std::align_val_t{row.op_align}); };
  std::unique_ptr<void, decltype(free)> at(
      ::operator new (row.op_size, std::align_val_t{row.op_align}), free);
  row.copy(op, at.get());
  return {at.release(), [&row, free](void* p) {
            row.destroy(p);
            free(p);
          }};
}

std::shared_ptr<const void> local_op(const OpRow& row, const void* op, const Piece& piece) {
  return row.local ? row.local(op, piece) : copy_of(row, op);
}

void add_sample(std::vector<SampleRow>& rows, const OpRow& row, const void* op,
                const std::vector<Arg>& in, const std::string& throws, bool bench,
                const std::vector<std::vector<double>>& known) {
  rows.push_back({copy_of(row, op), in, throws, bench, known});
}

void add_text(std::vector<std::string>& texts, std::string text) {
  texts.push_back(std::move(text));
}

std::vector<std::string> no_attributes(const void*) { return {}; }
bool always_same(const void*, const void*) { return true; }
uint64_t hash_of_nothing(const void*) { return 0; }
Cost cost_of_bytes(const void*, Metas in, Metas out) { return bytes_moved(in, out); }

}  // namespace tessera::detail

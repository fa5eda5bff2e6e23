// SPDX-License-Identifier: Apache-2.0
// The CUDA library's table: op name -> Op::cuda, from the list of all rooms. A room without a CUDA
// body does not link.
#include "tessera/core/cuda/kernel_table_impl.h"
#include "tessera/kernels/rooms.h"

#include <string_view>
#include <unordered_map>

namespace tessera {
namespace {

using Table = std::unordered_map<std::string_view, CudaBackend::Kernel>;

template <class Op> void add_row(Table& table) {
  if constexpr (!ViewOp<Op>) {
    if constexpr (!op_has::no_cuda<Op>) {
      table[Op::name] = [](const void* op, Tensors in, Outputs y, Stream stream) {
        static_cast<const Op*>(op)->cuda(in, y, stream);
      };
    }
  }
}

template <class... Ops> Table make_table(OpList<Ops...>) {
  Table table;
  (add_row<Ops>(table), ...);
  return table;
}

}  // namespace

CudaBackend::Kernel find_cuda_kernel(std::string_view op) {
  static const Table table = make_table(KernelRooms{});
  const auto row = table.find(op);
  return row == table.end() ? nullptr : row->second;
}

}  // namespace tessera

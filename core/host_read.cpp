// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/host_read.h"

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"

namespace tessera {

HostRead::HostRead(const Tensor& x) : meta_(x.meta()) {
  if (!x.device().is_cuda()) {
    values_ = x.values();
    return;
  }
  if (!x.is_contiguous())
    fail<UsageError>("HostRead", x.meta(), " is not contiguous: read contiguous(x)");
  const int64_t bytes = x.numel() * item_size(x.dtype());
  const void* const from = x.settled_address(Access::read);
  if (bytes > 0) copy_ = Process::get().cuda().copy_to_host(from, x.device(), bytes);
}

HostRead::~HostRead() = default;
HostRead::HostRead(HostRead&&) noexcept = default;
HostRead& HostRead::operator=(HostRead&&) noexcept = default;

std::vector<double> HostRead::values() const {
  if (!copy_) return values_;
  return from_blob(const_cast<void*>(copy_->wait()), meta_.shape, meta_.dtype).values();
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The conformance suite over `nccl`: up to four ranks, each with a device of its own. The groups
// are the host's, which pass tensors of a device on.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/tests/support/conformance.h"

namespace tessera::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Conformance,
                         testing::Values(Backend{
                             "nccl", [](int n, const RankFunction& fn) { run_ranks(n, fn); },
                             [] { return std::min(Process::get().cuda().device_count(), 4); },
                             [](int rank) { return cuda(rank); }, false}),
                         [](const auto& backend) { return std::string(backend.param.name); });

}  // namespace
}  // namespace tessera::test

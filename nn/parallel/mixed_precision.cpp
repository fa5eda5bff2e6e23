// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/parallel/mixed_precision.h"

#include "tessera/nn/parallel/wrap_impl.h"

#include <algorithm>

namespace tessera::nn {

void mixed_precision(Module& root, std::span<Module* const> units, const MixedPrecision& policy) {
  detail::check_dtypes("mixed_precision", policy);
  if (!policy.param)
    fail<ValueError>("mixed_precision", "no dtype to compute in is given: set `param`");
  std::vector<Module*> all(units.begin(), units.end());
  if (std::ranges::find(all, &root) == all.end()) all.push_back(&root);  // children first
  detail::check_unwrapped("mixed_precision", all);
  for (Module* module : all) {
    detail::FreeMembers members = detail::free_members({&module, 1});
    detail::wrap({module}, std::move(members),
                 detail::options_of("mixed_precision", policy, Reshard::never, {}),
                 [dtype = *policy.param](std::vector<Tensor> parameters) {
                   return std::make_unique<detail::CastParameters>(std::move(parameters), dtype);
                 });
  }
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/context.h"
#include "tessera/nn/kept_gradients_impl.h"

namespace tessera::nn::detail {

void clear_gradient(Tensor& parameter) {
  parameter.set_grad({});
  Context* context = Context::current_or_null();
  if (!context || !parameter.is_distributed()) return;
  auto& kept = context->state<KeptGradients>().of;
  const auto found = kept.find(parameter.handle().get());
  if (found == kept.end()) return;
  if (const auto bucket = found->second.bucket.lock()) bucket->forget(found->second.number);
  else kept.erase(found);
}

}  // namespace tessera::nn::detail

// SPDX-License-Identifier: Apache-2.0
// Each rank averages its own parts; the model's are brought to the averages' layout first.
#include "tessera/nn/optim/averaged_model.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parameters_impl.h"

#include <string>

namespace tessera::optim {
namespace {

constexpr std::string_view kName = "AveragedModel", kPrefix = "module.", kCount = "n_averaged";

// average += (value - average) * weight
void move_towards(const Tensor& average, const Tensor& value, double weight) {
  const DType wide = compute_dtype(average.dtype());
  const Tensor part = nn::detail::part_of(average, average), before = cast(part, wide);
  assign_(part, before + (cast(nn::detail::part_of(value, average), wide) - before) * weight);
}

}  // namespace

AveragedModel::AveragedModel(nn::Module& module, const AveragedModelOptions& options)
    : module_(module), options_(options) {
  if (options.decay && !(*options.decay >= 0 && *options.decay <= 1))
    fail<ValueError>(kName, "decay must lie in [0, 1]: given ", *options.decay);
}

void AveragedModel::update_parameters(nn::Module& model) {
  const NoGrad guard;
  if (n_averaged_ == 0) {
    nn::copy_parameters(module_, model);
  } else {
    const double weight =
        options_.decay ? 1 - *options_.decay : 1 / static_cast<double>(n_averaged_ + 1);
    for (const auto& [average, value] :
         nn::detail::matched(kName, module_, nn::detail::parameters, nn::named_parameters(model)))
      move_towards(average, value, weight);
    for (const auto& [average, value] :
         nn::detail::matched(kName, module_, nn::detail::buffers, nn::named_buffers(model))) {
      if (options_.use_buffers && is_floating(average.dtype()))
        move_towards(average, value, weight);
      else nn::copy_values(average, value);
    }
  }
  ++n_averaged_;
}

std::vector<nn::NamedParameter> AveragedModel::state() {
  std::vector<nn::NamedParameter> list = nn::named_parameters(module_);
  for (nn::NamedParameter& buffer : nn::named_buffers(module_)) list.push_back(std::move(buffer));
  for (nn::NamedParameter& tensor : list) tensor.name.insert(0, kPrefix);
  list.push_back({std::string(kCount), tensor(static_cast<double>(n_averaged_), DType::i64)});
  return list;
}

void AveragedModel::load_state(const std::vector<nn::NamedParameter>& from) {
  std::vector<nn::NamedParameter> tensors;
  const Tensor* count = nullptr;
  for (const nn::NamedParameter& t : from) {
    if (t.name == kCount) count = &t.tensor;
    else if (t.name.starts_with(kPrefix))
      tensors.push_back({t.name.substr(kPrefix.size()), t.tensor});
    else
      fail<DataError>(kName, t.name, " is no part of its state: expected module.<path> and ",
                      kCount);
  }
  if (!count || count->numel() != 1 || count->item() < 0)
    fail<DataError>(kName, "the state needs ", kCount, ", one number that is not negative: ",
                    count ? concat("given ", *count) : "it is missing");
  nn::copy_parameters(module_, tensors);
  n_averaged_ = static_cast<int64_t>(count->item());
}

}  // namespace tessera::optim

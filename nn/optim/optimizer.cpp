// SPDX-License-Identifier: Apache-2.0
// A step handles parameters by group and by their number of steps, so that each update is one call.
// States are created with the first gradient, in the layout of their parameter.
#include "tessera/nn/optim/optimizer.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/kept_gradients_impl.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace tessera::optim {
Parameters::Parameters(const std::vector<Tensor>& tensors) {
  for (const Tensor& t : tensors) list_.push_back({"", t});
}

Optimizer::Optimizer(std::string_view name, std::vector<GroupSpec> groups) : name_(name) {
  if (groups.empty())
    fail<UsageError>(name_, "no groups of parameters: give at least one, with its parameters");
  for (GroupSpec& group : groups) {
    const size_t begin = parameters_.size();
    for (const auto& [called, tensor] : group.parameters.list())
      add(tensor, called.empty() ? std::to_string(parameters_.size()) : called);
    if (parameters_.size() == begin)
      fail<UsageError>(name_, "group ", groups_.size(), " of ", groups.size(),
                       " has no parameters: give it some or leave it out");
    groups_.push_back({begin, parameters_.size(), std::move(group.states), group.state_dtype});
  }
  std::map<const TensorImpl*, std::string_view> tensors;
  std::set<std::string_view> names;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto [first, fresh] = tensors.emplace(&parameters_[i].impl(), names_[i]);
    if (!fresh)
      fail<UsageError>(name_, "parameter ", names_[i], " is given twice, before as ", first->second,
                       ": a parameter belongs to one group, once");
    if (!names.insert(names_[i]).second)
      fail<UsageError>(name_, "two parameters are called ", names_[i],
                       ": their states need different names");
  }
  states_.resize(parameters_.size());
  parameter_steps_.resize(parameters_.size());
  for (const GroupPart& group : groups_) {
    for (size_t i = group.begin; i < group.end; ++i)
      if (parameters_[i].requires_grad()) make_states(i, group);
  }
}

void Optimizer::add(Tensor parameter, std::string name) {
  if (!parameter.defined()) fail<UsageError>(name_, "parameter ", name, " is undefined");
  if (!parameter.is_leaf())
    fail<UsageError>(
        name_, "parameter ", name, ", ", parameter.meta(),
        ", is not a leaf but the result of an op: give the leaf that it was computed from, or "
        "detach() it before set_requires_grad()");
  streams_.push_back(stream_of(name));
  names_.push_back(std::move(name));
  parameters_.push_back(std::move(parameter));
}

void Optimizer::make_states(size_t parameter, const GroupPart& group) {
  const NoGrad guard;
  const Tensor& p = parameters_[parameter];
  const DType dtype = p.dtype() == DType::f64 ? DType::f64 : group.state_dtype;
  for (size_t i = 0; i < group.states.size(); ++i)
    states_[parameter].push_back(call_like(op::Fill{p.shape(), dtype, p.device(), 0}, p));
}

bool Optimizer::takes_part(size_t parameter) const {
  return parameters_[parameter].requires_grad() || !states_[parameter].empty();
}

void Optimizer::step(const Tensor& skip, const Tensor& grad_factor) {
  const NoGrad guard;
  for (size_t g = 0; g < groups_.size(); ++g) {
    // By their number of steps and the mesh that they lie on: ops work on one.
    std::map<std::pair<int64_t, size_t>, std::vector<size_t>> ready;
    std::vector<Mesh> meshes;
    for (size_t i = groups_[g].begin; i < groups_[g].end; ++i) {
      const Tensor& p = parameters_[i];
      if (!p.grad().defined()) continue;
      const Mesh mesh = p.is_distributed() ? layout_of(p).mesh() : Mesh();
      const auto at = std::ranges::find(meshes, mesh);
      const auto number = static_cast<size_t>(at - meshes.begin());
      if (at == meshes.end()) meshes.push_back(mesh);
      ready[{parameter_steps_[i], number}].push_back(i);
    }
    for (const auto& [key, members] : ready) {
      Update u = gathered(g, key.first, members);
      u.skip = skip;
      if (takes_grad_factor()) {
        u.grad_factor = grad_factor;
      } else if (grad_factor.defined()) {
        for (Tensor& grad : u.grads) grad = copy(grad);  // those of the parameters stay
        scale_(u.grads, grad_factor);
      }
      update(u);
      for (size_t i : members) parameter_steps_[i] = key.first + 1;
    }
  }
  ++steps_;
}

Optimizer::Update Optimizer::gathered(size_t group, int64_t done,
                                      const std::vector<size_t>& members) {
  const GroupPart& part = groups_[group];
  Update u{.group = group, .step = done + 1, .lr = lr(group) * lr_factor_};
  u.states.resize(part.states.size());
  for (size_t i : members) {
    if (states_[i].empty()) make_states(i, part);
    require_same_device(i);
    u.parameters.push_back(parameters_[i]);
    u.grads.push_back(parameters_[i].grad());
    for (size_t s = 0; s < u.states.size(); ++s) u.states[s].push_back(states_[i][s]);
    u.streams.push_back(streams_[i]);
  }
  return u;
}

void Optimizer::require_same_device(size_t parameter) const {
  const Device device = parameters_[parameter].device();
  for (const Tensor& state : states_[parameter]) {
    if (state.device() == device) continue;
    fail<UsageError>(name_, "parameter ", names_[parameter], " is on ", device, ", its states on ",
                     state.device(),
                     ": make the optimizer after the model is initialized, loaded or moved");
  }
}

void Optimizer::zero_grad() {
  for (Tensor& p : parameters_) nn::detail::clear_gradient(p);
}

void Optimizer::require_group(size_t group) const {
  if (group >= groups_.size())
    fail<IndexError>(name_, "no group ", group, ": there are ", groups_.size(), ", counted from 0");
}

void Optimizer::require_states(size_t group, const GroupSpec& spec) const {
  const GroupPart& part = groups_[group];
  if (spec.states == part.states && (spec.states.empty() || spec.state_dtype == part.state_dtype))
    return;
  const auto text = [](const std::vector<std::string>& states, DType dtype) {
    std::string list;
    for (const std::string& s : states) list += concat(list.empty() ? "" : " and ", s);
    return list.empty() ? std::string("nothing") : concat(list, " in ", dtype);
  };
  fail<UsageError>(name_, "group ", group, " keeps ", text(part.states, part.state_dtype),
                   " between steps, these options need ", text(spec.states, spec.state_dtype),
                   ": make a new optimizer for them");
}

void Optimizer::require_range(std::string_view optimizer, std::string_view field, double value,
                              double min, double below) {
  if (std::isfinite(value) && value >= min && value < below) return;
  if (std::isfinite(below))
    fail<ValueError>(optimizer, field, " must be at least ", min, " and below ", below, ": given ",
                     value);
  fail<ValueError>(optimizer, field, " must be finite and at least ", min, ": given ", value);
}

void Optimizer::set_lr_factor(double factor) {
  require_range(name_, "the factor of lr", factor, 0);
  lr_factor_ = factor;
}

void Optimizer::set_steps(int64_t steps, std::span<const int64_t> of_parameters) {
  const size_t n = parameters_.size();
  if (!of_parameters.empty() && of_parameters.size() != n)
    fail<UsageError>(name_, "expected the steps of ", counted(n, "parameter"), ", or none: given ",
                     of_parameters.size());
  if (steps < 0 || std::ranges::any_of(of_parameters, [](int64_t s) { return s < 0; }))
    fail<ValueError>(name_, "numbers of steps must not be negative");
  steps_ = steps;
  for (size_t i = 0; i < n; ++i)
    parameter_steps_[i] = !of_parameters.empty() ? of_parameters[i] : takes_part(i) ? steps : 0;
}

OptimizerState Optimizer::state() const {
  OptimizerState state{steps_};
  for (const GroupPart& group : groups_) {
    for (size_t i = group.begin; i < group.end; ++i) {
      for (size_t s = 0; s < states_[i].size(); ++s)
        state.tensors.push_back({names_[i] + "." + group.states[s], states_[i][s]});
      if (takes_part(i) && parameter_steps_[i] != steps_)
        state.tensors.push_back(
            {names_[i] + ".step", tensor(static_cast<double>(parameter_steps_[i]), DType::i64)});
    }
  }
  return state;
}

void Optimizer::load_state(const OptimizerState& from) {
  const NoGrad guard;
  for (size_t i = 0; i < parameters_.size(); ++i) require_same_device(i);
  std::map<std::string_view, const Tensor*> left;
  for (const auto& [name, t] : from.tensors) left[name] = &t;
  std::string wrong;
  std::vector<std::pair<Tensor, const Tensor*>> pairs;
  std::vector<int64_t> steps(parameters_.size());
  // Loads the tensor `name`, if it exists with the right shape and dtype.
  const auto take = [&](const std::string& name, const Shape& shape, DType dtype, bool needed) {
    const auto found = left.find(name);
    const Tensor* t = found == left.end() ? nullptr : found->second;
    if (!t) {
      if (needed) wrong += concat("; ", name, " is missing");
      return t;
    }
    left.erase(found);
    if (t->shape() == shape && t->dtype() == dtype) return t;
    wrong += concat("; ", name, " is ", t->meta(), ", expected ", TensorMeta{shape, dtype, kCpu});
    return static_cast<const Tensor*>(nullptr);
  };
  for (const GroupPart& group : groups_) {
    for (size_t i = group.begin; i < group.end; ++i) {
      // A parameter that was thawed before the state was made may be frozen here.
      if (states_[i].empty() && !group.states.empty() &&
          left.contains(names_[i] + "." + group.states[0]))
        make_states(i, group);
      for (size_t s = 0; s < states_[i].size(); ++s) {
        const Tensor& to = states_[i][s];
        if (const Tensor* t = take(names_[i] + "." + group.states[s], to.shape(), to.dtype(), true))
          pairs.emplace_back(to, t);
      }
      steps[i] = takes_part(i) ? from.steps : 0;
      if (const Tensor* t = take(names_[i] + ".step", {}, DType::i64, false))
        steps[i] = static_cast<int64_t>(t->item());
    }
  }
  for (const auto& [name, t] : left) wrong += concat("; ", name, " is of no parameter here");
  if (!wrong.empty())
    fail<DataError>(name_, "the state given does not fit the parameters: ", wrong.substr(2));
  for (const auto& [to, t] : pairs) nn::copy_values(to, *t);
  set_steps(from.steps, steps);
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& states : states_) {
    for (const Tensor& t : states) {
      const Tensor part = t.is_distributed() ? local(t) : t;
      bytes += part.numel() * static_cast<int64_t>(item_size(part.dtype()));
    }
  }
  return bytes;
}

}  // namespace tessera::optim

// SPDX-License-Identifier: Apache-2.0
// What all optimizers share: parameters in groups, which of them take part in a step, the tensors
// that are kept for each of them between steps, and what of it a checkpoint holds. Parameters
// without a gradient are passed over; each counts its own steps, so that its bias correction is
// right whenever it joins in. An optimizer of one's own derives from Optimizer and writes update().
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/nn/parameters.h"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::optim {

/// What an optimizer steps: tensors under their names (`nn::named_parameters(net)`), or alone
/// (`nn::parameters(net)`, `{w, b}`), then named by their numbers. Names are keys of the states and
/// of the random numbers that round bf16.
class TESSERA_API Parameters {
 public:
  Parameters(std::vector<nn::NamedParameter> named) : list_(std::move(named)) {}
  Parameters(const std::vector<Tensor>& tensors);
  Parameters(std::initializer_list<Tensor> tensors) : Parameters(std::vector<Tensor>(tensors)) {}
  [[nodiscard]] const std::vector<nn::NamedParameter>& list() const { return list_; }

 private:
  std::vector<nn::NamedParameter> list_;  // without names where tensors alone were given
};

/// Parameters that are stepped with the same options.
template <class Options> struct ParameterGroup {
  Parameters parameters;
  Options options = {};
};

/// What a checkpoint holds of an optimizer.
struct OptimizerState {
  int64_t steps = 0;
  /// `<parameter>.<state>`, such as `w.exp_avg`; `<parameter>.step`, () i64, for those that had no
  /// gradient in some steps.
  std::vector<nn::NamedParameter> tensors = {};
};

class TESSERA_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Steps the parameters that have a gradient, in place; gradients stay.
  virtual void step();
  void zero_grad();

  /// All parameters in the order given, group after group, and their names.
  [[nodiscard]] const std::vector<Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] size_t group_count() const { return groups_.size(); }
  [[nodiscard]] virtual double lr(size_t group = 0) const = 0;
  /// ValueError unless it is finite and not negative.
  virtual void set_lr(double lr, size_t group = 0) = 0;
  /// What the learning rates of all groups are multiplied by in the steps to come, 1 at first: a
  /// schedule sets it before each step. ValueError unless it is finite and not negative.
  void set_lr_factor(double factor);

  /// Calls of step() so far, and of each parameter the steps that it took part in.
  [[nodiscard]] int64_t steps() const { return steps_; }
  [[nodiscard]] const std::vector<int64_t>& parameter_steps() const { return parameter_steps_; }
  /// Sets both: `steps` for every parameter that takes part, or one number each.
  void set_steps(int64_t steps, std::span<const int64_t> of_parameters = {});

  /// The tensors kept are those that step() works on: copy them to keep their values.
  [[nodiscard]] OptimizerState state() const;
  /// Takes the values of `from`, whole tensors where states are distributed too. DataError names
  /// what is missing, unknown or of another shape or dtype, all at once.
  void load_state(const OptimizerState& from);
  /// Of this rank's states.
  [[nodiscard]] int64_t state_bytes() const;

 protected:
  /// What the base needs to know of a group. A state has its parameter's shape, device and layout,
  /// is zero at first, and f64 for a parameter that is.
  struct GroupSpec {
    Parameters parameters;
    std::vector<std::string> states = {};
    DType state_dtype = DType::f32;
  };
  /// What is stepped in one call: parameters of a group that have taken part equally often.
  struct Update {
    size_t group = 0;
    int64_t step = 1;  ///< of these parameters, from 1
    double lr = 0;     ///< times the factor
    std::vector<Tensor> parameters = {}, grads = {};
    std::vector<std::vector<Tensor>> states = {};  ///< by state, then as the parameters
    std::vector<uint64_t> streams = {};            ///< of each parameter's random numbers
  };
  /// `name` begins the errors. UsageError: no parameters in the whole or in a group; one that is
  /// undefined, no leaf, on the meta device or there twice; a name that is there twice. Those that
  /// do not require grad get their states with their first gradient.
  Optimizer(std::string_view name, std::vector<GroupSpec> groups);
  virtual void update(const Update& u) = 0;
  /// IndexError unless there is such a group.
  void require_group(size_t group) const;
  /// ValueError, which names the field, unless `value` is finite and in [min, below).
  static void require_range(std::string_view optimizer, std::string_view field, double value,
                            double min, double below);

 private:
  struct GroupPart {
    size_t begin, end;  // of parameters_
    std::vector<std::string> states;
    DType state_dtype;
  };
  void add(Tensor parameter, std::string name);
  /// Whether it requires grad or once had one.
  [[nodiscard]] bool takes_part(size_t parameter) const;
  void make_states(size_t parameter, const GroupPart& group);
  [[nodiscard]] Update gathered(size_t group, int64_t done, const std::vector<size_t>& members);

  std::string name_;
  std::vector<GroupPart> groups_;
  std::vector<Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<std::vector<Tensor>> states_;  // by parameter; none before a frozen one is thawed
  std::vector<int64_t> parameter_steps_;
  std::vector<uint64_t> streams_;
  int64_t steps_ = 0;
  double lr_factor_ = 1;
};

}  // namespace tessera::optim

// SPDX-License-Identifier: Apache-2.0
// Base of all optimizers: parameter groups, states per parameter, and the state dict of
// checkpoints. Parameters without a gradient are skipped; each parameter counts its own steps, so
// that its bias correction is right even if it had no gradient at first. Your own optimizer derives
// from Optimizer and implements update().
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/nn/parameters.h"

#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::optim {

/// The parameters of an optimizer: tensors with names (`nn::named_parameters(net)`), or without
/// (`nn::parameters(net)`, `{w, b}`), then named by their index. Names are the keys of states and
/// of the random numbers that round bf16.
class TESSERA_API Parameters {
 public:
  Parameters(std::vector<nn::NamedParameter> named) : list_(std::move(named)) {}
  Parameters(const std::vector<Tensor>& tensors);
  Parameters(std::initializer_list<Tensor> tensors) : Parameters(std::vector<Tensor>(tensors)) {}
  [[nodiscard]] const std::vector<nn::NamedParameter>& list() const { return list_; }

 private:
  std::vector<nn::NamedParameter> list_;  // empty names if only tensors were given
};

/// Parameters with the same options.
template <class Options> struct ParameterGroup {
  Parameters parameters;
  Options options = {};
};

/// The state of an optimizer in a checkpoint.
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

  /// Updates the parameters that have a gradient, in place; does not clear gradients. `skip`, ()
  /// bool and plain: where it is true, parameters and states keep their values; the host does not
  /// read it, so steps are counted all the same (set_steps() takes them back). Undefined: false.
  /// `grad_factor`, () f64 and plain, as grad_norm() gives it: the gradients count times it, to the
  /// bits of scale_(gradients, grad_factor) before the step, but p.grad() keeps its values, which
  /// are then those before clipping. Undefined: 1.
  /// UsageError: a parameter is on another device than its states, which were made earlier.
  /// DTypeError, ShapeError: of the two tensors, from the op that takes them.
  virtual void step(const Tensor& skip = {}, const Tensor& grad_factor = {});
  void zero_grad();

  /// All parameters in the given order, group by group, and their names.
  [[nodiscard]] const std::vector<Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] size_t group_count() const { return groups_.size(); }
  [[nodiscard]] virtual double lr(size_t group = 0) const = 0;
  /// ValueError unless it is finite and not negative.
  virtual void set_lr(double lr, size_t group = 0) = 0;
  /// Factor of the learning rates of all groups in future steps, initially 1; a schedule sets it
  /// before each step. ValueError unless it is finite and not negative.
  void set_lr_factor(double factor);

  /// Number of step() calls, and for each parameter the number of steps with a gradient.
  [[nodiscard]] int64_t steps() const { return steps_; }
  [[nodiscard]] const std::vector<int64_t>& parameter_steps() const { return parameter_steps_; }
  /// Sets both: `steps` for every parameter, or one number each.
  void set_steps(int64_t steps, std::span<const int64_t> of_parameters = {});

  /// The tensors are those that step() updates: copy them to keep their values.
  [[nodiscard]] OptimizerState state() const;
  /// Loads the values of `from`, which are global tensors even if states are distributed. DataError
  /// names everything that is missing, unknown or of another shape or dtype. UsageError as step().
  void load_state(const OptimizerState& from);
  /// Bytes of this rank's states.
  [[nodiscard]] int64_t state_bytes() const;

 protected:
  /// Properties of a group. A state has its parameter's shape, device and layout, is initially
  /// zero, and is f64 for an f64 parameter.
  struct GroupSpec {
    Parameters parameters;
    std::vector<std::string> states = {};
    DType state_dtype = DType::f32;
  };
  /// Parameters of one update() call: those of a group with the same number of steps.
  struct Update {
    size_t group = 0;
    int64_t step = 1;  ///< of these parameters, from 1
    double lr = 0;     ///< already multiplied by the factor
    std::vector<Tensor> parameters = {}, grads = {};
    std::vector<std::vector<Tensor>> states = {};  ///< by state, then by parameter
    std::vector<uint64_t> streams = {};            ///< of each parameter's random numbers
    Tensor skip = {};  ///< () bool: where true, nothing is written; undefined: false
    /// () f64: what the gradients are to be multiplied by, each product rounded to its gradient's
    /// dtype; undefined: 1, or `grads` are multiplied already (takes_grad_factor()).
    Tensor grad_factor = {};
  };
  /// Errors begin with `name`. UsageError: no parameters at all or in a group; a parameter that is
  /// undefined, not a leaf or given twice; a name given twice. Parameters that do not require grad
  /// get their states with their first gradient. States of parameters on the meta device are on it
  /// too: step() then shows the memory that it takes.
  Optimizer(std::string_view name, std::vector<GroupSpec> groups);
  virtual void update(const Update& u) = 0;
  /// Whether update() multiplies the gradients itself, which saves a copy of all of them at a step.
  [[nodiscard]] virtual bool takes_grad_factor() const { return false; }
  /// IndexError unless there is such a group.
  void require_group(size_t group) const;
  /// UsageError unless the states that `spec` names are those that `group` keeps.
  void require_states(size_t group, const GroupSpec& spec) const;
  /// ValueError, which names the field, unless `value` is finite and in [min, below).
  static void require_range(std::string_view optimizer, std::string_view field, double value,
                            double min, double below = std::numeric_limits<double>::infinity());

 private:
  struct GroupPart {
    size_t begin, end;  // of parameters_
    std::vector<std::string> states;
    DType state_dtype;
  };
  void add(Tensor parameter, std::string name);
  /// Whether it requires grad or once had one.
  [[nodiscard]] bool takes_part(size_t parameter) const;
  void require_same_device(size_t parameter) const;
  void make_states(size_t parameter, const GroupPart& group);
  [[nodiscard]] Update gathered(size_t group, int64_t done, const std::vector<size_t>& members);

  std::string name_;
  std::vector<GroupPart> groups_;
  std::vector<Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<std::vector<Tensor>> states_;  // by parameter; empty until its first gradient
  std::vector<int64_t> parameter_steps_;
  std::vector<uint64_t> streams_;
  int64_t steps_ = 0;
  double lr_factor_ = 1;
};

/// An optimizer whose groups have `Options`, among them `lr`. The derived class gives one function
/// that checks the options of a group and says which states they need.
template <class Options> class TESSERA_API OptimizerWith : public Optimizer {
 public:
  using Group = ParameterGroup<Options>;
  [[nodiscard]] const Options& options(size_t group = 0) const {
    require_group(group);
    return options_[group];
  }
  [[nodiscard]] double lr(size_t group = 0) const override { return options(group).lr; }
  void set_lr(double lr, size_t group = 0) override {
    Options changed = options(group);
    changed.lr = lr;
    set_options(changed, group);
  }
  /// Options of the steps to come. Errors as of the constructor; UsageError where they need other
  /// states than the group keeps.
  void set_options(const Options& options, size_t group) {
    require_group(group);
    require_states(group, spec_({Parameters{}, options}));
    options_[group] = options;
  }

 protected:
  using SpecOf = GroupSpec (*)(const Group&);
  OptimizerWith(std::string_view name, const std::vector<Group>& groups, SpecOf spec)
      : Optimizer(name, specs(groups, spec)), spec_(spec) {
    for (const Group& group : groups) options_.push_back(group.options);
  }

 private:
  static std::vector<GroupSpec> specs(const std::vector<Group>& groups, SpecOf spec) {
    std::vector<GroupSpec> list;
    for (const Group& group : groups) list.push_back(spec(group));
    return list;
  }
  std::vector<Options> options_;
  SpecOf spec_;
};

}  // namespace tessera::optim

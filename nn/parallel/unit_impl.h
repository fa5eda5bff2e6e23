// SPDX-License-Identifier: Apache-2.0
// Unit: modules whose parameters are made whole together before they run and given back after it.
// fully_shard, replicate and mixed_precision are units with different WholeParameters. A unit hangs
// on its modules: an around-hook makes the parameters whole, puts them in the members' place, runs
// forward and puts the parameters back. One autograd Function per WholeParameters joins the whole
// ones to the parameters, so that gradients are reduced in backward, in the reversed order of
// forward on every rank.
#pragma once

#include "tessera/nn/module.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/nn/parallel/unit_state_impl.h"
#include "tessera/nn/parallel/whole_parameters_impl.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::nn::detail {

struct UnitOptions {
  std::string pass;              ///< for errors: `fully_shard`
  std::optional<DType> compute;  ///< of floating inputs; empty: as they are
  std::optional<DType> output;   ///< of floating results
  Reshard reshard = Reshard::automatic;
  Mesh mesh = {};  ///< of the computation; empty: plain tensors, or whatever they lie on
};

class Unit;
using UnitList = std::vector<std::weak_ptr<Unit>>;

/// One forward of the outermost unit.
struct UnitPass {
  uint64_t number = 0;
  std::vector<std::shared_ptr<Unit>> begun, ended;  // in order
  std::vector<std::shared_ptr<Unit>> ahead;         // gathered for their place in `order_`
  std::vector<Tensor> functions;                    // a result of each function that always runs
  uint64_t backward = 0;                            // whose end was asked to free what is left
};

/// What the units of a rank have in common.
struct UnitFlow {
  std::shared_ptr<UnitPass> pass;           // the forward that runs
  std::vector<std::shared_ptr<Unit>> left;  // have ended: freed when the next unit begins
  std::unordered_map<const TensorImpl*, std::weak_ptr<Unit>> holders;  // of parameters
  uint64_t passes = 0;
  bool last = true;  // no micro-batch of this step follows
};

/// A note on a module: the unit that has its parameters.
struct UnitNote {
  std::weak_ptr<Unit> unit;
  bool runs_it = false;  // its around-hook is on this module
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  /// What the WholeParameters of a parameter depend on.
  struct Known {
    const TensorImpl* tensor = nullptr;
    LayoutId layout = LayoutId::none;
    DType dtype = DType::f32;
    Device device = kMeta;
    bool requires_grad = false;
    bool operator==(const Known&) const = default;
  };
  struct Slot {
    std::vector<Tensor*> members;  // of one parameter
    std::string name;
    Tensor parameter, whole = {};
    Known known = {};
    uint32_t version = 0;  // of the parameter in the last forward
  };
  /// Makes the WholeParameters of parameters of one mesh, dtype and need of a gradient; null where
  /// they can be used as they are.
  using Make = std::function<std::unique_ptr<WholeParameters>(std::vector<Tensor>)>;

  Unit(std::vector<Module*> modules, std::vector<Slot> slots, UnitOptions options, Make make);
  /// Hangs it on its modules, and notes it on them and on `inside`.
  void attach(std::span<Module* const> inside);
  TensorList run(const Module& module, const CheckpointedFunction& forward, Tensors inputs);
  /// Starts to make the parameters whole; nothing if they are.
  void prefetch();
  /// Makes them whole until reshard(), whatever runs between.
  void hold();
  /// Frees them, unless forward uses them.
  void reshard() {
    if (!swapped_ && opened_ == 0) on(UnitEvent::reshard);
  }
  /// The same, unless they are held.
  void release() { on(UnitEvent::release); }
  /// The same when forward is done with them and backward may follow.
  void release_after_forward();
  /// Bytes of the whole parameters that are there now.
  [[nodiscard]] int64_t whole_bytes() const;
  [[nodiscard]] const UnitOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  /// Whose gathers start with this one's, in place of the next unit's in the order of the last
  /// forward, or of the one before it in backward.
  std::optional<UnitList> forward_prefetch, backward_prefetch;

 private:
  struct Group {
    std::vector<size_t> slots;
    std::shared_ptr<WholeParameters> parameters;
    bool trained = false;
  };
  class Swapped;
  class InOwnName;
  class Scope;

  void on(UnitEvent event);
  void gather(WholeParameters& parameters) const;
  void refresh_at_rest();
  void refresh();
  void make_groups();
  void check_values() const;
  void open(UnitFlow& flow, bool recompute);
  void close();
  void make_whole(UnitPass* pass);
  void before_backward(const std::shared_ptr<UnitPass>& pass, size_t at);
  static void start(const std::optional<UnitList>& wished, Unit* next, UnitPass* forward);

  std::vector<Module*> modules_;
  std::string path_;  // of the module that ran first
  std::vector<Slot> slots_;
  UnitOptions options_;
  Make make_;
  std::vector<Group> groups_;
  UnitList order_;              // of the last forward that began with this unit
  Ref<Region> region_;          // of the open forward
  std::shared_ptr<size_t> at_;  // its place among those that ended
  UnitState state_ = UnitState::sharded;
  uint64_t opened_ = 0;  // number of the open pass; 0: none
  bool swapped_ = false, checked_ = false;
};

/// Parameters of `modules` and their descendants that no unit has and `takes` wants, the floating
/// ones; `inside`: the modules that were walked.
struct FreeMembers {
  std::vector<Unit::Slot> slots;
  std::vector<Module*> inside;
  std::vector<Tensor*> buffers;
};
FreeMembers free_members(
    std::span<Module* const> modules,
    const std::function<bool(const std::string& name, const Tensor&)>& takes = {});

/// The name of a module in errors.
std::string name_of(const Module& module);

}  // namespace tessera::nn::detail

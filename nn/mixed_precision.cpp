// SPDX-License-Identifier: Apache-2.0
// The copies of a unit's parameters are in one buffer in the order of visit(), so that adjacent
// ones (the weights of queries, keys and values) can be used in one matmul.
#include "tessera/nn/mixed_precision.h"

#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>
#include <memory>

namespace tessera::nn {
namespace {

class PrecisionUnit {
 public:
  PrecisionUnit(Module& module, std::span<Module* const> units, DType dtype) : dtype_(dtype) {
    class Members final : public Visitor {
     public:
      Members(Module& unit, std::span<Module* const> others) : unit_(unit), others_(others) {}
      void on_parameter(const std::string&, Tensor& p, const Init&) override {
        if (is_floating(p.dtype())) found.push_back(&p);
      }
      bool on_module(const std::string&, Module& m) override {
        return &m == &unit_ || std::ranges::find(others_, &m) == others_.end();
      }
      std::vector<Tensor*> found;

     private:
      Module& unit_;
      std::span<Module* const> others_;
    } members(module, units);
    members.walk(module);
    for (Tensor* member : members.found) {
      const auto known = std::ranges::find_if(
          slots_, [&](const Slot& s) { return s.master.handle() == member->handle(); });
      if (known != slots_.end()) known->members.push_back(member);
      else slots_.push_back({{member}, *member, {}, {}, 0});
    }
  }

  TensorList forward(const CheckpointedFunction& body, Tensors inputs) {
    TensorList cast_inputs;
    for (const Tensor& t : inputs)
      cast_inputs.push_back(t.defined() && is_floating(t.dtype()) ? cast(t, dtype_) : t);
    if (swapped_) return body(cast_inputs);  // the unit runs inside itself
    refresh();
    const Swapped swapped(*this);
    return body(cast_inputs);
  }

 private:
  struct Slot {
    std::vector<Tensor*> members;  // of one parameter
    Tensor master, copy;
    Ref<Storage> seen;  // source of the copy, with its version
    uint32_t version;
  };

  // Replaces the module's members by the copies during its lifetime.
  class Swapped {
   public:
    explicit Swapped(PrecisionUnit& unit) : unit_(unit) { set(true); }
    ~Swapped() { set(false); }
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

   private:
    void set(bool on) {
      unit_.swapped_ = on;
      for (Slot& s : unit_.slots_) {
        for (Tensor* member : s.members) *member = on ? s.copy : s.master;
      }
    }
    PrecisionUnit& unit_;
  };

  static bool fits(const Slot& s) {
    return s.copy.defined() && s.copy.device() == s.master.device() &&
           s.copy.impl().layout == s.master.impl().layout;
  }

  void refresh() {
    bool same = true;
    for (Slot& s : slots_) {  // a pass may have put another tensor in the parameter's place
      same = same && s.members[0]->handle() == s.master.handle() && fits(s);
      s.master = *s.members[0];
    }
    if (!same) make_copies();
    const NoGrad guard;
    const OutsideCheckpoint outside;
    for (Slot& s : slots_) {
      s.copy.set_requires_grad(s.master.requires_grad());
      const Ref<Storage>& storage = s.master.impl().storage;
      if (s.seen == storage && s.version == storage->version()) continue;
      assign_(s.copy, s.master);
      s.seen = storage;
      s.version = storage->version();
    }
  }

  void make_copies() {
    if (slots_.empty()) return;
    const auto part = [](const Tensor& t) {
      return t.is_distributed() ? Tensor(t.impl().local) : t;
    };
    int64_t total = 0;
    for (const Slot& s : slots_) total += part(s.master).numel();
    const Tensor buffer = empty({total}, dtype_, slots_[0].master.device());
    int64_t offset = 0;
    for (Slot& s : slots_) {
      const Shape shape = part(s.master).shape();
      const Tensor piece = alias(buffer, shape, contiguous_strides(shape), offset);
      offset += shape.numel();
      s.copy = s.master.is_distributed()
                   ? make_distributed(piece, s.master.shape(), s.master.impl().layout)
                   : piece;
      s.seen = {};
      s.copy.set_requires_grad();
      register_post_accumulate_hook(
          s.copy, [master = s.master](const Tensor& copy) { give_gradient(master, copy); });
    }
  }

  // Accumulates a leaf's gradient in the parameter's dtype; recorded if backward is recorded.
  static void give_gradient(Tensor master, Tensor copy) {
    Tensor g = cast(copy.grad(), master.dtype());
    copy.set_grad({});
    LeafGrad& leaf = *master.impl().leaf;
    for (size_t i = 0; i < leaf.hooks.size(); ++i) {
      if (Tensor replaced = leaf.hooks[i](g); replaced.defined()) g = std::move(replaced);
    }
    master.set_grad(leaf.grad.defined() ? add(leaf.grad, g) : std::move(g));
    for (size_t i = 0; i < leaf.post_accumulate.size(); ++i) leaf.post_accumulate[i](master);
  }

  DType dtype_;
  std::vector<Slot> slots_;
  bool swapped_ = false;
};

}  // namespace

void mixed_precision(Module& root, std::span<Module* const> units, DType dtype) {
  if (!is_floating(dtype))
    fail<DTypeError>("mixed_precision", "parameters cannot be computed with in ", dtype);
  const auto wrap = [&](Module& module) {
    auto unit = std::make_shared<PrecisionUnit>(module, units, dtype);
    module.register_around_hook([unit](const Module&, const CheckpointedFunction& forward,
                                       Tensors inputs) { return unit->forward(forward, inputs); });
  };
  for (Module* unit : units) wrap(*unit);
  if (std::ranges::find(units, &root) == units.end()) wrap(root);
}

}  // namespace tessera::nn

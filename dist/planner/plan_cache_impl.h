// SPDX-License-Identifier: Apache-2.0
// Cache of plans by call: a hash table of fixed size with linear probing over a few slots. Where
// all of them are taken, a new entry replaces one. Hashes contain addresses, so collisions differ
// from process to process; there are enough slots to probe that the plans of a step all stay. Keys
// contain everything that a plan depends on, so an equal key means an equal plan on every rank.
#pragma once

#include "tessera/core/op_row.h"
#include "tessera/dist/layout.h"
#include "tessera/dist/redistribute/plan.h"

#include <memory>
#include <optional>
#include <vector>

namespace tessera {

struct OpPlan {
  struct Input {
    Layout target;                            // empty: undefined
    const RedistributePlan* moves = nullptr;  // null: no redistribution
    bool sends = false;                       // by a recorded redistribute, else moved in place
  };
  struct Output {
    TensorMeta local;
    Shape global;
    LayoutId layout = LayoutId::none;
  };
  std::shared_ptr<const void> local_op;
  SmallVector<Input, 4> in;
  SmallVector<Output, 2> out;
  bool asks = false;  // needs explicit permission
  // This rank has no elements of a factor that outputs drop: it adds the reduction's neutral value.
  std::optional<double> neutral;
};

struct InputKey {
  LayoutId layout = LayoutId::none;  // none: plain 0-dim
  Shape shape;
  DType dtype{};
  Device device{};
  bool defined = false;
  bool operator==(const InputKey&) const = default;
};

class PlanCache {
 public:
  struct Entry {
    uint64_t hash = 0;
    const OpRow* row = nullptr;
    LayoutId created_on = LayoutId::none;  // of an op without inputs
    std::shared_ptr<const void> op;
    std::vector<InputKey> in;
    OpPlan plan;
  };

  static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 32;
  }
  static uint64_t hash(const OpRow& row, const void* op, Tensors in, LayoutId created_on) {
    uint64_t h = mix(reinterpret_cast<uintptr_t>(&row), static_cast<uint64_t>(created_on));
    h = mix(h, row.key_hash(op));
    for (const Tensor& t : in) {
      if (!t.defined()) {
        h = mix(h, 1);
        continue;
      }
      const TensorImpl& x = t.impl();
      uint64_t sizes = static_cast<uint64_t>(x.meta.dtype);
      for (int64_t s : x.meta.shape) sizes = sizes * 0x100000001B3ull + static_cast<uint64_t>(s);
      h = mix(h, static_cast<uint64_t>(x.layout) ^ sizes << 4);
    }
    return h;
  }

  const OpPlan* find(uint64_t h, const OpRow& row, const void* op, Tensors in,
                     LayoutId created_on) {
    for (size_t probe = 0; probe < kProbes; ++probe) {
      const Entry* e = entries_[(h + probe) & kMask].get();
      if (!e) return nullptr;
      if (e->hash == h && e->row == &row && e->created_on == created_on && matches(*e, in) &&
          row.same(e->op.get(), op))
        return &e->plan;
    }
    return nullptr;
  }

  OpPlan& insert(std::unique_ptr<Entry> e) {
    size_t probe = 0;
    while (probe < kProbes && entries_[(e->hash + probe) & kMask]) ++probe;
    if (probe == kProbes) probe = turn_++ % kProbes;
    auto& slot = entries_[(e->hash + probe) & kMask];
    slot = std::move(e);
    return slot->plan;
  }
  [[nodiscard]] size_t size() const {
    size_t n = 0;
    for (const auto& e : entries_) n += e != nullptr;
    return n;
  }

 private:
  static bool matches(const Entry& e, Tensors in) {
    if (e.in.size() != in.size()) return false;
    for (size_t i = 0; i < in.size(); ++i) {
      const InputKey& k = e.in[i];
      if (!in[i].defined()) {
        if (k.defined) return false;
        continue;
      }
      const TensorImpl& x = in[i].impl();
      if (!k.defined || k.layout != x.layout || k.dtype != x.meta.dtype ||
          !(k.device == x.meta.device) || !(k.shape == x.meta.shape))
        return false;
    }
    return true;
  }

  static constexpr size_t kMask = 4095, kProbes = 8;
  std::vector<std::unique_ptr<Entry>> entries_{kMask + 1};
  size_t turn_ = 0;
};

}  // namespace tessera

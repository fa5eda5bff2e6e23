// SPDX-License-Identifier: Apache-2.0
// A frame is one checkpointed call. While its function runs, saved tensors are replaced by numbered
// slots; the first slot that backward unpacks runs the function again, which fills all slots. A
// filled slot is freed with the node that saved it, or when the backward pass ends.
#include "tessera/autograd/checkpoint.h"

#include "tessera/autograd/checkpoint_impl.h"
#include "tessera/core/draws.h"
#include "tessera/core/message.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace tessera {
namespace {

// Thrown to stop a recompute that has filled all slots.
struct Finished {
  const void* frame;
};

std::string text_of(Tensors tensors) {
  std::string text;
  for (const Tensor& t : tensors)
    text += (text.empty() ? "" : ", ") + (t.defined() ? concat(t.meta()) : std::string("none"));
  return text;
}

template <class T> class Restore {
 public:
  Restore(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
  ~Restore() { place_ = std::move(before_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& place_;
  T before_;
};

class Frame final : public std::enable_shared_from_this<Frame> {
 public:
  Frame(CheckpointedFunction fn, const CheckpointOptions& options)
      : fn_(std::move(fn)), options_(options) {}

  TensorList forward(const std::vector<Tensor>& inputs);

 private:
  friend class Observer;
  friend class Replayer;

  // A saved tensor: its description in forward, its value from recompute.
  struct Slot {
    TensorMeta meta;
    size_t call = 0;       // ops that ran before it was saved
    uint32_t version = 0;  // of what the function did not compute: it must not have been written
    bool leaf = false, needed = true;
    Tensor value;
  };
  // A leaf beside the inputs, such as a bias or a buffer: recompute must find it as it was.
  struct Read {
    size_t operand = 0;
    const Storage* storage = nullptr;  // of `read_`, or gone
    uint32_t version = 0;
  };
  // An op of the function. Outputs are kept as detached aliases, so that they hold no graph.
  struct Call {
    std::string_view name;
    TensorList kept;
    SmallVector<uint32_t, 2> versions;  // of what is kept
    std::string text;                   // with `debug`
    SmallVector<Read, 2> reads;
  };
  // A node holds this in place of the tensor.
  struct Holder {
    Holder(std::shared_ptr<Frame> f, size_t s) : frame(std::move(f)), slot(s) {}
    ~Holder() {
      frame->slots_[slot].needed = false;
      frame->slots_[slot].value = {};
    }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    std::shared_ptr<Frame> frame;
    size_t slot;
  };
  struct Input {
    SavedTensor saved;
    bool requires_grad = false;
  };

  std::any pack(const Tensor& t);
  Tensor unpack(size_t slot);
  void recompute();
  std::any pack_again(const Tensor& t);
  [[nodiscard]] Call describe(const OpRow& row, Tensors in, Tensors out) const;
  void check_reads(const Call& call, const OpRow& row, Tensors in) const;
  void compare(size_t call, const Call& again) const;
  [[noreturn]] void differs(const std::string& what) const;

  CheckpointedFunction fn_;
  CheckpointOptions options_;
  std::vector<Input> inputs_;
  std::vector<std::string> module_path_;
  CallKeys keys_;
  int64_t row_ = 0;
  std::vector<Slot> slots_;
  std::vector<Call> calls_;
  std::vector<Call> again_;  // of the running recompute
  std::unordered_map<const Storage*, Ref<Storage>> read_;
  size_t refilled_ = 0;  // slots that the running recompute has filled
  bool recorded_ = false, filled_ = false;
};

// Counts and describes the ops of forward, and stores the outputs that the policy or the budget
// chooses. All ranks must choose the same: sizes are global, and the ops alone, not local aliasing,
// decide whose bytes a saved tensor holds. Of a function of distributed tensors, a budget stores
// nothing that a rank computes of its own part, whose size other ranks do not know.
class Observer final : public NestedInterceptor {
 public:
  Observer(Frame& frame, Context& context, const std::vector<Tensor>& inputs)
      : NestedInterceptor(context.interceptor), frame_(frame), context_(context) {
    for (const Tensor& t : inputs) {
      if (!t.defined()) continue;
      known_.insert(&t.storage());
      distributed_ = distributed_ || t.is_distributed();
    }
  }
  bool replay(const OpRow& row, const void* op, Tensors in, TensorList& out) override {
    return outer_replays(row, op, in, out);
  }
  void observe(const OpRow& row, const void* op, Tensors in, Tensors out) override {
    outer_observes(row, op, in, out);
    Frame::Call call = frame_.describe(row, in, out);
    for (size_t i = 0; i < in.size(); ++i) {
      if (!in[i].defined() || !in[i].is_leaf() || known_.contains(&in[i].storage())) continue;
      call.reads.push_back({i, &in[i].storage(), in[i].storage().version()});
      frame_.read_.try_emplace(&in[i].storage(), in[i].impl().storage);
    }
    for (const Tensor& t : out) known_.insert(&t.storage());
    const bool budget = frame_.options_.memory_budget.has_value();
    if (row.kind == OpKind::compute) {
      const bool keep = (budget && is_candidate(out)) ||
                        (frame_.options_.keep &&
                         frame_.options_.keep({row.name, row.expensive, in, out,
                                               context_.module_path, earlier_[row.name]}));
      ++earlier_[row.name];
      if (keep) {
        for (const Tensor& t : out) {
          call.kept.push_back(t.detach());
          call.versions.push_back(t.storage().version());
        }
      }
    }
    if (budget) weigh(row, op, in, out);
    frame_.calls_.push_back(std::move(call));
  }
  /// A tensor that backward would hold without the checkpoint.
  void saved(const Tensor& t) { saved_.push_back(bytes_of(t)); }
  /// Frees stored outputs that exceed the budget.
  void settle(double budget) {
    int64_t stored = 0;
    std::vector<Choice> choices;
    for (const Candidate& c : candidates_) {
      choices.push_back({c.bytes, c.seconds});
      if (c.stored) stored += c.bytes;
    }
    const auto kept =
        choose_kept(choices, static_cast<int64_t>(budget * static_cast<double>(stored)));
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) frame_.calls_[candidates_[i].call].kept.clear();
    }
  }

 private:
  struct Candidate {
    size_t call = 0;
    int64_t bytes = 0;
    double seconds = 0;
    bool stored = false;
  };
  // Identifies the bytes of t, equal for its aliases.
  static const void* bytes_of(const Tensor& t) {
    return t.is_distributed() ? static_cast<const void*>(t.impl().local.get())
                              : static_cast<const void*>(&t.storage());
  }
  [[nodiscard]] bool is_candidate(Tensors out) const {
    return !distributed_ || out[0].is_distributed();
  }
  void weigh(const OpRow& row, const void* op, Tensors in, Tensors out) {
    if (row.kind == OpKind::compute && is_candidate(out)) {
      Candidate c{frame_.calls_.size(), 0, 0, false};
      for (const Tensor& t : out) {
        maker_[bytes_of(t)] = candidates_.size();
        c.bytes += t.numel() * item_size(t.dtype());
      }
      c.seconds = estimated_seconds(row.cost(op, MetaArray(in), MetaArray(out)), out[0].device());
      candidates_.push_back(c);
    } else if (row.kind == OpKind::view && bytes_of(in[0]) != bytes_of(out[0])) {
      const auto maker = maker_.find(bytes_of(in[0]));
      if (maker == maker_.end()) maker_.erase(bytes_of(out[0]));
      else maker_[bytes_of(out[0])] = maker->second;
    }
    // Only now, because the outputs of an op are saved before the op is observed.
    for (const void* bytes : saved_) {
      if (const auto maker = maker_.find(bytes); maker != maker_.end())
        candidates_[maker->second].stored = true;
    }
    saved_.clear();
  }

  Frame& frame_;
  Context& context_;
  bool distributed_ = false;  // whether an input is
  std::unordered_map<std::string_view, int64_t> earlier_;
  std::vector<Candidate> candidates_;
  std::unordered_map<const void*, size_t> maker_;  // of bytes: an index into candidates_
  std::vector<const void*> saved_;
  std::unordered_set<const Storage*> known_;  // of its inputs, which are checked where they are
                                              // saved, and of what its ops computed
};

// Supplies stored outputs in place of running their ops.
class Replayer final : public NestedInterceptor {
 public:
  explicit Replayer(Frame& frame)
      : NestedInterceptor(Context::current().interceptor), frame_(frame) {}
  bool replay(const OpRow& row, const void* op, Tensors in, TensorList& out) override {
    const size_t at = frame_.again_.size();
    if (at < frame_.calls_.size()) frame_.check_reads(frame_.calls_[at], row, in);
    if (outer_replays(row, op, in, out)) return true;
    if (at >= frame_.calls_.size() || frame_.calls_[at].kept.empty()) return false;
    Frame::Call& call = frame_.calls_[at];
    if (call.name != row.name) frame_.compare(at, frame_.describe(row, in, {}));
    for (size_t i = 0; i < call.kept.size(); ++i) {
      if (call.kept[i].storage().version() == call.versions[i]) continue;
      fail<InPlaceError>("checkpoint", "output ", i, " of ", row.name, ", ", call.kept[i].meta(),
                         ", which is stored for recompute, was written in place; write a copy");
    }
    out = std::move(call.kept);
    call.kept.clear();
    return true;
  }
  void observe(const OpRow& row, const void* op, Tensors in, Tensors out) override {
    outer_observes(row, op, in, out);
    frame_.again_.push_back(frame_.describe(row, in, out));
  }

 private:
  Frame& frame_;
};

Frame::Call Frame::describe(const OpRow& row, Tensors in, Tensors out) const {
  Call call{row.name, {}, {}, {}, {}};
  if (!options_.debug) return call;
  const std::string path = joined_path(Context::current().module_path);
  call.text =
      concat(row.name, '(', text_of(in), ") -> ", text_of(out), path.empty() ? "" : " in ", path);
  return call;
}

// Also operands that no gradient needs: a bias that changed would give other activations silently.
void Frame::check_reads(const Call& call, const OpRow& row, Tensors in) const {
  if (call.name != row.name) return;  // another op than in forward, which is an error of its own
  for (const Read& read : call.reads) {
    const auto there = read_.find(read.storage);
    if (there == read_.end() || there->second->version() == read.version ||
        read.operand >= in.size())
      continue;
    fail<InPlaceError>("checkpoint", "operand ", read.operand, " of ", row.name, ", ",
                       in[read.operand].meta(),
                       ", was written in place since forward; write it after backward");
  }
}

TensorList Frame::forward(const std::vector<Tensor>& inputs) {
  Context& context = Context::current();
  Tape& tape = Tape::current();
  const bool outer = !tape.saved_hooks.empty();
  for (const Tensor& t : inputs) {
    inputs_.push_back({t.defined() ? SavedTensor(t, outer ? &tape.saved_hooks.back().pack : nullptr,
                                                 outer ? &tape.saved_hooks.back().unpack : nullptr)
                                   : SavedTensor(),
                       t.defined() && t.requires_grad()});
  }
  module_path_ = context.module_path;
  keys_ = context.call_keys;
  row_ = micro_batch_row();
  Observer observer(*this, context, inputs);
  TensorList out;
  {
    const Restore<Interceptor*> interceptor(context.interceptor, &observer);
    const auto self = shared_from_this();
    const SavedTensorHooks hooks(
        [self, &observer](const Tensor& t) {
          if (self->options_.memory_budget) observer.saved(t);
          return self->pack(t);
        },
        [](const std::any& value) {
          const auto& holder = std::any_cast<const std::shared_ptr<Holder>&>(value);
          return holder->frame->unpack(holder->slot);
        });
    out = fn_(inputs);
  }
  recorded_ = true;
  // If nobody else holds the bytes, code within the function that is not an op made them, such as a
  // collective: they must not stay until backward.
  std::erase_if(read_, [](const auto& r) { return r.second->use_count() == 1; });
  if (options_.memory_budget) observer.settle(*options_.memory_budget);
  return out;
}

std::any Frame::pack(const Tensor& t) {
  Slot slot;
  slot.meta = t.meta();
  slot.call = calls_.size();
  slot.leaf = t.is_leaf();
  if (slot.leaf) slot.version = t.storage().version();
  slots_.push_back(std::move(slot));
  return std::make_shared<Holder>(shared_from_this(), slots_.size() - 1);
}

Tensor Frame::unpack(size_t slot) {
  if (!recorded_)
    fail<AutogradError>("checkpoint",
                        "backward was called inside the checkpointed function: its tensors are not "
                        "stored yet; call it outside");
  if (!filled_) recompute();
  const Tensor& value = slots_[slot].value;
  if (!value.defined()) differs("recompute ended before it");
  return value;
}

void Frame::recompute() {
  Context& context = Context::current();
  Tape& tape = Tape::current();
  std::vector<Tensor> inputs;
  for (const Input& input : inputs_) {
    Tensor t = input.saved.defined() ? input.saved.unpack("checkpoint") : Tensor();
    // Detached, so that a hook that the function registers on it has no effect in recompute.
    if (t.defined()) t = t.detach();
    if (input.requires_grad) t.set_requires_grad();
    inputs.push_back(std::move(t));
  }
  refilled_ = 0;
  again_.clear();
  Replayer replayer(*this);
  {
    const GradMode recording(true);
    const Restore<std::vector<std::string>> path(context.module_path, module_path_);
    const Restore<CallKeys> keys(context.call_keys,
                                 options_.preserve_rng_state ? keys_ : context.call_keys);
    const Restore<int64_t> row(micro_batch_row(), row_);
    const Restore<Interceptor*> interceptor(context.interceptor, &replayer);
    const SavedTensorHooks hooks([this](const Tensor& t) { return pack_again(t); },
                                 [](const std::any&) -> Tensor {
                                   fail<AutogradError>("checkpoint",
                                                       "backward was called inside the "
                                                       "checkpointed function: call it outside");
                                 });
    try {
      (void)fn_(inputs);
    } catch (const Finished& end) {
      if (end.frame != this) throw;
    }
  }
  if (refilled_ < slots_.size())
    differs(concat("forward saved ", counted(slots_.size(), "tensor"), ", recompute ", refilled_));
  filled_ = true;
  again_.clear();
  // Slots of nodes that this pass does not release are recomputed in the next pass.
  if (tape.passes > 0) {
    queue_final_callback([frame = weak_from_this()] {
      if (const auto self = frame.lock()) {
        self->filled_ = false;
        for (Slot& s : self->slots_) s.value = {};
      }
    });
  }
}

std::any Frame::pack_again(const Tensor& t) {
  if (refilled_ == slots_.size()) {
    differs(concat("forward saved ", counted(slots_.size(), "tensor"),
                   ", recompute saves another, ", t.meta()));
  }
  Slot& slot = slots_[refilled_];
  if (options_.determinism_check) {
    if (!(slot.meta.shape == t.shape()) || slot.meta.dtype != t.dtype() ||
        slot.call != again_.size()) {
      differs(concat("saved tensor ", refilled_, " was ", slot.meta, " in forward and is ",
                     t.meta(), " in recompute, after ", slot.call, " and ",
                     counted(again_.size(), "op")));
    }
  }
  if (slot.leaf && t.storage().version() != slot.version) {
    fail<InPlaceError>("checkpoint", "a tensor that the function reads, ", t.meta(),
                       ", was written in place since forward; write it after backward");
  }
  if (slot.needed) slot.value = t.detach();
  ++refilled_;
  if (options_.early_stop && refilled_ == slots_.size()) throw Finished{this};
  return {};
}

void Frame::compare(size_t call, const Call& again) const {
  differs(concat("op ", call, " was ", calls_[call].name, " in forward and is ", again.name,
                 " in recompute"));
}

void Frame::differs(const std::string& what) const {
  std::string trace;
  if (options_.debug) {
    size_t first = 0;
    while (first < calls_.size() && first < again_.size() &&
           calls_[first].text == again_[first].text) {
      ++first;
    }
    trace = concat("; ops from the first that differs (", first, "):");
    const size_t end = std::min(std::max(calls_.size(), again_.size()), first + 8);
    for (size_t i = first > 2 ? first - 2 : 0; i < end; ++i) {
      const auto line = [i](const std::vector<Call>& calls) {
        return i < calls.size() ? calls[i].text : std::string("-");
      };
      trace += concat("\n  ", i, i == first ? " > " : "   ", "forward   ", line(calls_),
                      "\n      recompute ", line(again_));
    }
  } else {
    trace = "; set `debug` to list the ops of both passes";
  }
  fail<AutogradError>("checkpoint", what,
                      ": the function must do the same when it runs again during backward", trace);
}

}  // namespace

TensorList checkpoint(const CheckpointedFunction& fn, const std::vector<Tensor>& inputs,
                      const CheckpointOptions& options) {
  if (options.memory_budget) {
    const double b = *options.memory_budget;
    if (!(b >= 0 && b <= 1))
      fail<ValueError>("checkpoint", "memory_budget ", b, " is not in [0, 1]");
    if (options.keep)
      fail<ValueError>("checkpoint", "memory_budget and keep are both set: give one of them");
  }
  if (!Context::current().grad_enabled || options.memory_budget == 1.0) return fn(inputs);
  return std::make_shared<Frame>(fn, options)->forward(inputs);
}

OutsideCheckpoint::OutsideCheckpoint()
    : context_(Context::current()), before_(context_.interceptor) {
  if (const auto* nested = dynamic_cast<NestedInterceptor*>(context_.interceptor))
    context_.interceptor = nested->outer();
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: its plans, kept per rank, device and case, and their runs. cuDNN compiles a
// plan, which takes half a second or more: each new shape costs that once. Plans stay as long as
// their rank, since a captured graph goes on launching their kernels.
#include "tessera/core/context.h"
#include "tessera/kernels/attention/attention_impl.cuh"
#include "tessera/kernels/cudnn/attention_graphs_impl.h"

#include <map>
#include <optional>

namespace tessera::op::cudnn_attention {
namespace {

using cudnn::Layout, cudnn::Library;
using Graph = cudnn::AttentionGraph;
using BackwardGraph = cudnn::AttentionBackwardGraph;

// cuDNN's handle for a device, and the plans made with it; none: cuDNN refused the case.
struct Plans {
  const Library& library = *Library::get();
  cudnn::Handle handle = nullptr;
  std::map<Graph, std::optional<cudnn::AttentionPlan>> forward;
  std::map<BackwardGraph, std::optional<cudnn::AttentionBackwardPlan>> backward;

  Plans() { library.check(library->create(&handle), "cudnnCreate"); }
  ~Plans() {
    forward.clear();
    backward.clear();
    (void)library->destroy(handle);
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  static Plans& of(Stream stream) {
    auto& all = Context::current().state<std::map<int, Plans>>();
    Plans& plans = all[stream.device.index];
    plans.library.check(plans.library->set_stream(plans.handle, stream.handle), "cudnnSetStream");
    return plans;
  }
  template <class P, class C, class Make>
  const std::optional<P>& find(std::map<C, std::optional<P>>& kept, const C& c, Make&& make) {
    const auto found = kept.find(c);
    if (found != kept.end()) return found->second;
    std::optional<P> plan;
    try {
      plan.emplace(make(library, cudnn::Graph::Target{handle}, c));
    } catch (const cudnn::NotSupported& e) {
      note_cudnn_refusal(e.what());
    }
    return kept.emplace(c, std::move(plan)).first->second;
  }
};

// Operands as cuDNN takes them: the last dim without gaps, all else on 16 bytes, nothing twice.
Tensor usable(const Tensor& x, Stream stream) {
  constexpr int64_t kVector = 16;
  const int64_t item = item_size(x.dtype());
  bool fits =
      x.strides()[3] == 1 && reinterpret_cast<uintptr_t>(x.raw_device_data()) % kVector == 0;
  for (int dim = 0; dim < 3; ++dim) {
    const int64_t stride = x.strides()[dim];
    fits = fits && stride * item % kVector == 0 && (stride != 0 || x.shape()[dim] == 1);
  }
  if (fits) return x;
  const Tensor y = empty(x.shape(), x.dtype(), x.device());
  copy_strided(x, y, stream);
  return y;
}

// An operand as (B, heads, time, D).
Layout layout_of(const Tensor& x, bool heads_inner) {
  const int head = heads_inner ? 2 : 1, time = heads_inner ? 1 : 2;
  const auto turned = [&](const auto& of) {
    return std::array<int64_t, 4>{of[0], of[head], of[time], of[3]};
  };
  return {turned(x.shape()), turned(x.strides())};
}

void* address(const Tensor& x, int64_t elements = 0) {
  return static_cast<char*>(x.raw_device_data()) + elements * item_size(x.dtype());
}

Graph graph_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Run& run) {
  const AttentionBand band = *band_of(run.call.mask, run.call.keys);
  const auto layout = [&](const Tensor& x) { return layout_of(x, run.heads_inner); };
  Graph c{q.dtype() == DType::bf16 ? cudnn::DataType::bf16 : cudnn::DataType::f16,
          layout(q),
          layout(k),
          layout(v),
          layout(o),
          run.scale};
  c.causal = band.causal, c.window = band.window;
  return c;
}

// A part of a call: sequences from `b`, key heads from `kv_head` with their query heads.
struct Slice {
  int64_t b, kv_head, batch, kv_heads;
  void cut(Layout& x, bool of_keys, int64_t group) const {
    x.dims[0] = batch;
    x.dims[1] = kv_heads * (of_keys ? 1 : group);
  }
  void* in(const Tensor& x, const Layout& layout, bool of_keys, int64_t group) const {
    return address(x, b * layout.strides[0] + kv_head * (of_keys ? 1 : group) * layout.strides[1]);
  }
};

}  // namespace

bool forward(Tensors in, Outputs y, const Run& run, Stream stream) {
  Plans& plans = Plans::of(stream);
  const Tensor q = usable(in[0], stream), k = usable(in[1], stream), v = usable(in[2], stream);
  const auto& plan = plans.find(plans.forward, graph_of(q, k, v, y[0], run), cudnn::attention_plan);
  if (!plan) return false;
  const Tensor workspace = empty({plan->plan.workspace()}, DType::u8, stream.device);
  const std::pair<int64_t, void*> memory[] = {{plan->q, address(q)},
                                              {plan->k, address(k)},
                                              {plan->v, address(v)},
                                              {plan->o, address(y[0])},
                                              {plan->lse, address(y[1])}};
  plan->plan.run(plans.handle, memory, workspace.raw_device_data());
  return true;
}

bool backward(Tensors in, Outputs y, const Run& run, Stream stream) {
  Plans& plans = Plans::of(stream);
  const Tensor q = usable(in[0], stream), k = usable(in[1], stream), v = usable(in[2], stream),
               o = usable(in[3], stream), dout = usable(in[5], stream),
               lse = row_major(in[4], stream);
  const auto layout = [&](const Tensor& x) { return layout_of(x, run.heads_inner); };
  BackwardGraph whole;
  static_cast<Graph&>(whole) = graph_of(q, k, v, o, run);
  whole.dout = layout(dout), whole.dq = layout(y[0]), whole.dk = layout(y[1]),
  whole.dv = layout(y[2]);
  whole.deterministic = Context::current().options.deterministic;
  const int64_t batch = run.call.batch, heads = run.call.heads, kv_heads = run.call.kv_heads,
                group = heads / kv_heads;
  const AttentionSlices slices =
      whole.deterministic ? deterministic_slices(run.call) : AttentionSlices{batch, kv_heads};
  for (int64_t b = 0; b < batch; b += slices.batch) {
    for (int64_t kv = 0; kv < kv_heads; kv += slices.kv_heads) {  // some heads: of one sequence
      const Slice s{b, kv, std::min(slices.batch, batch - b),
                    std::min(slices.kv_heads, kv_heads - kv)};
      BackwardGraph c = whole;
      for (Layout* x : {&c.q, &c.o, &c.dout, &c.dq}) s.cut(*x, false, group);
      for (Layout* x : {&c.k, &c.v, &c.dk, &c.dv}) s.cut(*x, true, group);
      const auto& plan = plans.find(plans.backward, c, cudnn::attention_backward_plan);
      if (!plan) return false;
      const int64_t rows = s.batch * s.kv_heads * group * run.call.queries;
      const auto scratch = [&](int64_t n, DType dtype) { return empty({n}, dtype, stream.device); };
      const Tensor delta = scratch(rows, DType::f32),
                   sums = scratch(plan->sums ? rows * c.q.dims[3] : 0, DType::f32),
                   workspace = scratch(plan->plan.workspace(), DType::u8);
      std::vector<std::pair<int64_t, void*>> memory{
          {plan->q, s.in(q, whole.q, false, group)},
          {plan->k, s.in(k, whole.k, true, group)},
          {plan->v, s.in(v, whole.v, true, group)},
          {plan->o, s.in(o, whole.o, false, group)},
          {plan->dout, s.in(dout, whole.dout, false, group)},
          {plan->lse, address(lse, (b * heads + kv * group) * run.call.queries)},
          {plan->dq, s.in(y[0], whole.dq, false, group)},
          {plan->dk, s.in(y[1], whole.dk, true, group)},
          {plan->dv, s.in(y[2], whole.dv, true, group)},
          {plan->delta, address(delta)}};
      if (plan->sums) memory.emplace_back(plan->sums, address(sums));
      plan->plan.run(plans.handle, memory, workspace.raw_device_data());
    }
  }
  return true;
}

}  // namespace tessera::op::cudnn_attention

// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend API for graphs of products, sums, element-wise operations and views, on emulated
// devices: each operation is computed for itself, from the descriptors alone. Tensors that are
// "virtual" are kept as long as a run, in their type. Like the library it refuses descriptors that
// were not finalized, tensors that no operation makes, addresses that are not aligned as promised
// or not of the device, and heads that are no multiple of 8; unlike it, it takes any order of
// operations: which graphs cuDNN knows is asked of cuDNN itself (tests/cudnn/plans_test.cpp).
// Scratch memory is NaN when a run begins.
// TESSERA_EMULATED_CUDNN_VERSION: what it says its version is. `cudnn_emulation_mutant(n)`: from
// now on the n-th operation of each graph is another one; -1: none is.
// `cudnn_emulation_refuse(on)`: no graph finds an engine meanwhile.
#include "tessera/kernels/cudnn/api_impl.h"

#include "cuda_emulation.h"
#include "cuda_runtime.h"

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using namespace tessera::cudnn;
using Dims = std::array<int64_t, 4>;

std::atomic<int> mutant{-1};
std::atomic<bool> refuses{false};
std::atomic<int> most_operations{0};
thread_local std::string message;

constexpr auto kBad = static_cast<Status>(2000), kFailed = static_cast<Status>(5000);

// --- descriptors ---------------------------------------------------------------------------------

// A descriptor as what was set: numbers, or other descriptors.
struct Object {
  Kind kind;
  bool finalized = false;
  std::map<Attribute, std::vector<int64_t>> numbers = {};
  std::map<Attribute, std::vector<const Object*>> parts = {};
  std::map<Attribute, std::vector<void*>> pointers = {};

  [[nodiscard]] int64_t number(Attribute a, int64_t otherwise = 0) const {
    const auto found = numbers.find(a);
    return found == numbers.end() || found->second.empty() ? otherwise : found->second[0];
  }
  [[nodiscard]] const Object* part(Attribute a) const {
    const auto found = parts.find(a);
    return found == parts.end() || found->second.empty() ? nullptr : found->second[0];
  }
  [[nodiscard]] Dims dims(Attribute a) const {
    Dims all{};
    const auto found = numbers.find(a);
    if (found != numbers.end() && found->second.size() == 4)
      std::copy_n(found->second.begin(), 4, all.begin());
    return all;
  }
};

// What a run needs of a tensor and of an operation; descriptors may end before it.
struct TensorPlan {
  int64_t id;
  DataType type;
  Dims dims, strides;
  bool is_virtual, is_value;
  int64_t alignment;
  explicit TensorPlan(const Object& o)
      : id(o.number(Attribute::tensor_id)),
        type(static_cast<DataType>(o.number(Attribute::tensor_type))),
        dims(o.dims(Attribute::tensor_dims)),
        strides(o.dims(Attribute::tensor_strides)),
        is_virtual(o.number(Attribute::tensor_is_virtual) != 0),
        is_value(o.number(Attribute::tensor_is_value) != 0),
        alignment(o.number(Attribute::tensor_alignment, 1)) {}
  [[nodiscard]] int64_t numel() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};
struct Operation {
  Kind kind;
  int64_t how, axis;  // the mode or operator
  std::vector<TensorPlan> in;
  TensorPlan out;
};
struct Graph {
  std::vector<Operation> operations;
};

Operation operation_of(const Object& o) {
  const auto tensors = [&](std::initializer_list<Attribute> names) {
    std::vector<TensorPlan> all;
    for (const Attribute a : names) {
      if (const Object* t = o.part(a)) all.emplace_back(*t);
    }
    return all;
  };
  switch (o.kind) {
    case Kind::operation_pointwise: {
      const Object& how = *o.part(Attribute::operation_pointwise_how);
      return {o.kind, how.number(Attribute::pointwise_mode), how.number(Attribute::pointwise_axis),
              tensors({Attribute::operation_pointwise_x, Attribute::operation_pointwise_b,
                       Attribute::operation_pointwise_t}),
              TensorPlan(*o.part(Attribute::operation_pointwise_y))};
    }
    case Kind::operation_reduction:
      return {o.kind,
              o.part(Attribute::operation_reduction_how)->number(Attribute::reduction_operator), 0,
              tensors({Attribute::operation_reduction_x}),
              TensorPlan(*o.part(Attribute::operation_reduction_y))};
    case Kind::operation_matmul:
      return {o.kind, 0, 0, tensors({Attribute::operation_matmul_a, Attribute::operation_matmul_b}),
              TensorPlan(*o.part(Attribute::operation_matmul_c))};
    default:
      return {o.kind, 0, 0, tensors({Attribute::operation_reshape_x}),
              TensorPlan(*o.part(Attribute::operation_reshape_y))};
  }
}

// --- tensors of a run ----------------------------------------------------------------------------

float round_to(DataType type, float x) {
  switch (type) {
    case DataType::f16: return static_cast<float>(static_cast<_Float16>(x));
    case DataType::bf16: {
      if (x != x) return x;
      const auto bits = std::bit_cast<uint32_t>(x);
      return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
    }
    default: return x;
  }
}
float load(DataType type, const void* p, int64_t i) {
  switch (type) {
    case DataType::f16: return static_cast<float>(static_cast<const _Float16*>(p)[i]);
    case DataType::bf16:
      return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(p)[i]} << 16);
    case DataType::i32: return static_cast<float>(static_cast<const int32_t*>(p)[i]);
    default: return static_cast<const float*>(p)[i];
  }
}
void store(DataType type, void* p, int64_t i, float x) {
  switch (type) {
    case DataType::f16: static_cast<_Float16*>(p)[i] = static_cast<_Float16>(x); return;
    case DataType::bf16:
      static_cast<uint16_t*>(p)[i] =
          static_cast<uint16_t>(x != x ? 0x7fc0 : std::bit_cast<uint32_t>(round_to(type, x)) >> 16);
      return;
    default: static_cast<float*>(p)[i] = x;
  }
}
int64_t at(const Dims& index, const Dims& strides) {
  int64_t sum = 0;
  for (size_t d = 0; d < 4; ++d) sum += index[d] * strides[d];
  return sum;
}
template <class F> void each(const Dims& dims, F&& f) {
  Dims i{};
  int64_t n = 0;
  for (i[0] = 0; i[0] < dims[0]; ++i[0])
    for (i[1] = 0; i[1] < dims[1]; ++i[1])
      for (i[2] = 0; i[2] < dims[2]; ++i[2])
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) f(i, n++);
}

// The elements in order of their index, as f32.
struct Values {
  Dims dims;
  std::vector<float> all;
  // Of a tensor that has fewer of some dims: one for all, or one for each group of heads.
  [[nodiscard]] float spread(const Dims& index, const Dims& over) const {
    int64_t n = 0;
    for (size_t d = 0; d < 4; ++d) n = n * dims[d] + index[d] / (over[d] / dims[d]);
    return all[static_cast<size_t>(n)];
  }
};

float apply(Pointwise how, float x, float b, bool t) {
  switch (how) {
    case Pointwise::add: return x + b;
    case Pointwise::multiply: return x * b;
    case Pointwise::divide: return x / b;
    case Pointwise::subtract: return x - b;
    case Pointwise::exp: return std::exp(x);
    case Pointwise::log: return std::log(x);
    case Pointwise::identity: return x;
    case Pointwise::greater: return x > b;
    case Pointwise::greater_equal: return x >= b;
    case Pointwise::select: return t ? x : b;
    case Pointwise::index: break;
  }
  return std::numeric_limits<float>::quiet_NaN();
}

struct Run {
  std::map<int64_t, void*> memory;
  std::map<int64_t, float> values;
  std::map<int64_t, Values> made;  // virtual tensors

  Values read(const TensorPlan& t) const {
    if (const auto found = made.find(t.id); found != made.end()) return found->second;
    Values v{t.dims, std::vector<float>(static_cast<size_t>(t.numel()))};
    if (t.is_value) v.all[0] = values.at(t.id);
    else
      each(t.dims, [&](const Dims& i, int64_t n) {
        v.all[static_cast<size_t>(n)] = load(t.type, memory.at(t.id), at(i, t.strides));
      });
    return v;
  }
  void write(const TensorPlan& t, Values v) {
    for (float& x : v.all) x = round_to(t.type, x);
    if (t.is_virtual) {
      made[t.id] = std::move(v);
      return;
    }
    each(t.dims, [&](const Dims& i, int64_t n) {
      store(t.type, memory.at(t.id), at(i, t.strides), v.all[static_cast<size_t>(n)]);
    });
  }

  void pointwise(const Operation& o, bool other) {
    auto how = static_cast<Pointwise>(o.how);
    Values y{o.out.dims, std::vector<float>(static_cast<size_t>(o.out.numel()))};
    std::vector<Values> in;
    for (const TensorPlan& t : o.in) in.push_back(read(t));
    if (other) {
      how = how == Pointwise::add             ? Pointwise::subtract
            : how == Pointwise::greater       ? Pointwise::greater_equal
            : how == Pointwise::greater_equal ? Pointwise::greater
            : how == Pointwise::exp           ? Pointwise::identity
            : how == Pointwise::identity      ? Pointwise::exp
            : how == Pointwise::log           ? Pointwise::identity
                                              : Pointwise::add;
      if (how == Pointwise::add && in.size() == 1) in.push_back(in[0]);  // of an index
    }
    each(y.dims, [&](const Dims& i, int64_t n) {
      float& out = y.all[static_cast<size_t>(n)];
      if (how == Pointwise::index) {
        out = static_cast<float>(i[static_cast<size_t>(o.axis)]);
        return;
      }
      const auto operand = [&](size_t k) { return in.size() > k ? in[k].spread(i, y.dims) : 0; };
      out = apply(how, operand(0), operand(1), operand(2) != 0);
    });
    write(o.out, std::move(y));
  }
  void matmul(const Operation& o, bool other) {
    const Values a = read(o.in[0]), b = read(o.in[1]);
    Values y{o.out.dims, std::vector<float>(static_cast<size_t>(o.out.numel()))};
    const int64_t k_dim = a.dims[3], group = a.dims[1] / b.dims[1];
    each(y.dims, [&](const Dims& i, int64_t n) {
      const float* row = a.all.data() + ((i[0] * a.dims[1] + i[1]) * a.dims[2] + i[2]) * k_dim;
      const float* column =
          b.all.data() + (i[0] * b.dims[1] + i[1] / group) * b.dims[2] * b.dims[3] + i[3];
      float sum = 0;
      for (int64_t k = 0; k < k_dim - (other ? 1 : 0); ++k) sum += row[k] * column[k * b.dims[3]];
      y.all[static_cast<size_t>(n)] = sum;
    });
    write(o.out, std::move(y));
  }
  void reduce(const Operation& o, bool other) {
    const Values x = read(o.in[0]);
    const bool max = (static_cast<Reduction>(o.how) == Reduction::max) != other;
    Values y{o.out.dims, std::vector<float>(static_cast<size_t>(o.out.numel()),
                                            max ? -std::numeric_limits<float>::infinity() : 0.0F)};
    each(x.dims, [&](const Dims& i, int64_t n) {
      int64_t to = 0;
      for (size_t d = 0; d < 4; ++d) to = to * y.dims[d] + i[d] / (x.dims[d] / y.dims[d]);
      float& sum = y.all[static_cast<size_t>(to)];
      const float value = x.all[static_cast<size_t>(n)];
      sum = max ? std::max(sum, value) : sum + value;
    });
    write(o.out, std::move(y));
  }
  // y's strides read what x's wrote.
  void reshape(const Operation& o, bool other) {
    const Values x = read(o.in[0]);
    std::unordered_map<int64_t, float> bytes;
    each(x.dims, [&](const Dims& i, int64_t n) {
      bytes[at(i, o.in[0].strides)] = x.all[static_cast<size_t>(n)];
    });
    Values y{o.out.dims, std::vector<float>(static_cast<size_t>(o.out.numel()))};
    each(y.dims, [&](const Dims& i, int64_t n) {
      y.all[static_cast<size_t>(n)] =
          other ? x.all[static_cast<size_t>(n)] : bytes.at(at(i, o.out.strides));
    });
    write(o.out, std::move(y));
  }
  void run(const Graph& graph, int changed) {
    for (size_t n = 0; n < graph.operations.size(); ++n) {
      const Operation& o = graph.operations[n];
      const bool other = static_cast<int>(n) == changed;
      if (o.kind == Kind::operation_pointwise) pointwise(o, other);
      else if (o.kind == Kind::operation_matmul) matmul(o, other);
      else if (o.kind == Kind::operation_reduction) reduce(o, other);
      else reshape(o, other);
    }
  }
};

// --- what the library checks ---------------------------------------------------------------------

Status refuse(Status status, std::string why) {
  message = std::move(why);
  return status;
}

// Each tensor in memory that some operation makes and that another reads is scratch or a result;
// one that none makes is an operand.
bool well_formed(const Graph& graph) {
  std::map<int64_t, int> made;
  for (const Operation& o : graph.operations) {
    for (const TensorPlan& t : o.in)
      if (t.is_virtual && !made.contains(t.id)) return false;
    if (o.out.is_value || ++made[o.out.id] > 1) return false;
  }
  return true;
}
bool takes(const Graph& graph) {
  for (const Operation& o : graph.operations) {
    if (o.kind != Kind::operation_matmul) continue;
    for (const TensorPlan& t : o.in) {
      if (t.is_virtual) continue;
      // The head size is the dim without gaps.
      const int64_t head = t.strides[3] == 1 ? t.dims[3] : t.dims[2];
      if (head % 8 != 0) return false;
    }
  }
  return true;
}

Graph graph_of(const Object& o) {
  Graph graph;
  for (const Object* operation : o.parts.at(Attribute::graph_operations))
    graph.operations.push_back(operation_of(*operation));
  return graph;
}
const Object& graph_object(const Object& plan) {
  return *plan.part(Attribute::plan_config)->part(Attribute::heuristics_graph);
}

constexpr int64_t kWorkspace = 1000;

struct Context {
  cudaStream_t stream = nullptr;
};

}  // namespace

extern "C" {

CUDA_EMULATION_API void cudnn_emulation_mutant(int n) { mutant = n; }
CUDA_EMULATION_API void cudnn_emulation_refuse(bool on) { refuses = on; }
CUDA_EMULATION_API int cudnn_emulation_operations() { return most_operations; }

CUDA_EMULATION_API size_t cudnnGetVersion() {
  const char* given = std::getenv("TESSERA_EMULATED_CUDNN_VERSION");
  return given && *given ? std::strtoul(given, nullptr, 10) : 91900;
}
CUDA_EMULATION_API Status cudnnCreate(Handle* handle) {
  *handle = new Context;
  return Status::success;
}
CUDA_EMULATION_API Status cudnnDestroy(Handle handle) {
  delete static_cast<Context*>(handle);
  return Status::success;
}
CUDA_EMULATION_API Status cudnnSetStream(Handle handle, void* stream) {
  static_cast<Context*>(handle)->stream = static_cast<cudaStream_t>(stream);
  return Status::success;
}
CUDA_EMULATION_API const char* cudnnGetErrorString(Status status) {
  return status == Status::not_supported ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == kBad                ? "CUDNN_STATUS_BAD_PARAM"
                                         : "CUDNN_STATUS_EXECUTION_FAILED";
}
CUDA_EMULATION_API void cudnnGetLastErrorString(char* text, size_t size) {
  std::strncpy(text, message.c_str(), size - 1);
}
CUDA_EMULATION_API Status cudnnBackendCreateDescriptor(Kind kind, Descriptor* descriptor) {
  *descriptor = new Object{.kind = kind};
  return Status::success;
}
CUDA_EMULATION_API Status cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  delete static_cast<Object*>(descriptor);
  return Status::success;
}
CUDA_EMULATION_API Status cudnnBackendSetAttribute(Descriptor descriptor, Attribute attribute,
                                                   AttributeType type, int64_t count,
                                                   const void* values) {
  auto& o = *static_cast<Object*>(descriptor);
  if (o.finalized) return refuse(kBad, "the descriptor is finalized");
  for (int64_t i = 0; i < count; ++i) {
    switch (type) {
      case AttributeType::boolean:
        o.numbers[attribute].push_back(static_cast<const bool*>(values)[i]);
        break;
      case AttributeType::int64:
        o.numbers[attribute].push_back(static_cast<const int64_t*>(values)[i]);
        break;
      case AttributeType::descriptor: {
        const auto* part = static_cast<const Object* const*>(values)[i];
        if (!part || !part->finalized) return refuse(kBad, "a part is not finalized");
        o.parts[attribute].push_back(part);
        break;
      }
      case AttributeType::pointer:
      case AttributeType::handle:
        o.pointers[attribute].push_back(static_cast<void* const*>(values)[i]);
        break;
      case AttributeType::text: break;
      default: o.numbers[attribute].push_back(static_cast<const int*>(values)[i]);
    }
  }
  return Status::success;
}
CUDA_EMULATION_API Status cudnnBackendFinalize(Descriptor descriptor) {
  auto& o = *static_cast<Object*>(descriptor);
  if (o.finalized) return refuse(kBad, "the descriptor is finalized");
  if (o.kind == Kind::operation_graph && !well_formed(graph_of(o)))
    return refuse(kBad, "a tensor is made twice, or by no operation");
  if (o.kind == Kind::execution_plan && !takes(graph_of(graph_object(o))))
    return refuse(Status::not_supported, "a head size is no multiple of 8");
  o.finalized = true;
  return Status::success;
}
CUDA_EMULATION_API Status cudnnBackendGetAttribute(Descriptor descriptor, Attribute attribute,
                                                   AttributeType, int64_t, int64_t* count,
                                                   void* values) {
  const auto& o = *static_cast<const Object*>(descriptor);
  *count = 1;
  if (attribute == Attribute::plan_workspace) {
    std::memcpy(values, &kWorkspace, sizeof(kWorkspace));
    return Status::success;
  }
  if (attribute != Attribute::heuristics_results) return refuse(kBad, "an unknown attribute");
  *count = refuses ? 0 : 1;
  auto& config = **static_cast<Object**>(values);
  config.parts[Attribute::heuristics_graph] = o.parts.at(Attribute::heuristics_graph);
  config.finalized = true;
  return Status::success;
}
CUDA_EMULATION_API Status cudnnBackendExecute(Handle handle, Descriptor plan, Descriptor pack) {
  const auto stream = static_cast<Context*>(handle)->stream;
  const auto& given = *static_cast<const Object*>(pack);
  if (!given.finalized) return refuse(kBad, "the variant pack is not finalized");
  const Graph graph = graph_of(graph_object(*static_cast<const Object*>(plan)));
  const std::vector<int64_t>& ids = given.numbers.at(Attribute::pack_ids);
  const std::vector<void*>& pointers = given.pointers.at(Attribute::pack_pointers);
  most_operations = std::max(most_operations.load(), static_cast<int>(graph.operations.size()));
  std::map<int64_t, void*> memory;
  for (size_t i = 0; i < ids.size(); ++i) memory[ids[i]] = pointers[i];

  Run run;
  std::map<int64_t, TensorPlan> scratch;
  for (const Operation& o : graph.operations) {
    std::vector<TensorPlan> all = o.in;
    all.push_back(o.out);
    for (const TensorPlan& t : all) {
      if (t.is_virtual) continue;
      if (!memory.contains(t.id) || !memory[t.id]) return refuse(kBad, "a tensor has no address");
      void* const p = memory[t.id];
      if (t.is_value) {  // the host's, taken at the call
        run.values[t.id] = load(t.type, p, 0);
        continue;
      }
      if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(t.alignment) != 0)
        return refuse(kBad, "an address is not aligned as its descriptor says");
      if (cuda_emulation::device_of(p, 2) != cuda_emulation::device_of(stream))
        return refuse(kBad, "a tensor is not of the device");
      run.memory[t.id] = p;
      if (&t == &all.back()) scratch.emplace(t.id, t);
    }
  }
  void* const workspace = given.pointers.at(Attribute::pack_workspace)[0];
  if (cuda_emulation::device_of(workspace, kWorkspace) != cuda_emulation::device_of(stream))
    return refuse(kBad, "the workspace is not of the device, or too small");
  const cudaError_t status =
      enqueue(stream, [=, run = std::move(run), changed = mutant.load()]() mutable {
        std::memset(workspace, 0xff, kWorkspace);
        for (const auto& [id, t] : scratch) {
          each(t.dims, [&, p = run.memory.at(id)](const Dims& i, int64_t) {
            store(t.type, p, at(i, t.strides), std::numeric_limits<float>::quiet_NaN());
          });
        }
        run.run(graph, changed);
      });
  return status == cudaSuccess ? Status::success : kFailed;
}
}

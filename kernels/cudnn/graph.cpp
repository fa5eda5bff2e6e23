// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cudnn/graph_impl.h"

#include <algorithm>

namespace tessera::cudnn {

// --- descriptors ---------------------------------------------------------------------------------

Object::Object(const Library& library, Kind kind) : library_(&library) {
  library.check(library->create_descriptor(kind, &raw_), "cudnnBackendCreateDescriptor");
}
Object::~Object() {
  if (raw_) (void)(*library_)->destroy_descriptor(raw_);
}
void Object::finalize() { library_->check((*library_)->finalize(raw_), "cudnnBackendFinalize"); }

Layout Layout::row_major(const std::array<int64_t, 4>& dims) {
  return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}};
}
Layout Layout::transposed() const {
  Layout t = *this;
  std::swap(t.dims[2], t.dims[3]);
  std::swap(t.strides[2], t.strides[3]);
  return t;
}

// --- the graph -----------------------------------------------------------------------------------

Graph::Id Graph::add_tensor(DataType type, const Layout& layout, Storage storage,
                            int64_t alignment) {
  const auto id = static_cast<Id>(tensors_.size()) + 1;
  Object t(library_, Kind::tensor);
  t.set(Attribute::tensor_type, AttributeType::data_type, type)
      .set(Attribute::tensor_dims, AttributeType::int64, std::span<const int64_t>(layout.dims))
      .set(Attribute::tensor_strides, AttributeType::int64,
           std::span<const int64_t>(layout.strides))
      .set(Attribute::tensor_id, AttributeType::int64, id)
      .set(Attribute::tensor_alignment, AttributeType::int64, alignment)
      .set(Attribute::tensor_is_virtual, AttributeType::boolean, storage == kInner)
      .set(Attribute::tensor_is_value, AttributeType::boolean, storage == kValue);
  t.finalize();
  tensors_.push_back(keep(std::move(t)).raw());
  return id;
}

Graph::Id Graph::add_value(DataType type, uint32_t bits) {
  const Id id = add_tensor(type, Layout::row_major({1, 1, 1, 1}), kValue);
  values_.emplace_back(id, bits);
  return id;
}

void Graph::add(Kind kind, const Parts& parts) {
  Object operation(library_, kind);
  for (const auto& [attribute, part] : parts)
    operation.set(attribute, AttributeType::descriptor, part);
  operation.finalize();
  operations_.push_back(keep(std::move(operation)).raw());
}

void Graph::add(Kind kind, Attribute place_of_how, Object how, Parts parts) {
  how.finalize();
  parts.emplace_back(place_of_how, keep(std::move(how)).raw());
  add(kind, parts);
}

void Graph::pointwise(Pointwise mode, std::initializer_list<Id> x, Id y, DataType math) {
  Object how(library_, Kind::pointwise);
  how.set(Attribute::pointwise_mode, AttributeType::pointwise_mode, mode)
      .set(Attribute::pointwise_math_type, AttributeType::data_type, math);
  constexpr Attribute kOperands[] = {Attribute::operation_pointwise_x,
                                     Attribute::operation_pointwise_b,
                                     Attribute::operation_pointwise_t};
  Parts parts{{Attribute::operation_pointwise_y, of(y)}};
  for (size_t i = 0; i < x.size(); ++i) parts.emplace_back(kOperands[i], of(x.begin()[i]));
  add(Kind::operation_pointwise, Attribute::operation_pointwise_how, std::move(how),
      std::move(parts));
}

void Graph::index(int64_t axis, Id like, Id y) {
  Object how(library_, Kind::pointwise);
  how.set(Attribute::pointwise_mode, AttributeType::pointwise_mode, Pointwise::index)
      .set(Attribute::pointwise_math_type, AttributeType::data_type, DataType::i32)
      .set(Attribute::pointwise_axis, AttributeType::int64, axis);
  add(Kind::operation_pointwise, Attribute::operation_pointwise_how, std::move(how),
      {{Attribute::operation_pointwise_x, of(like)}, {Attribute::operation_pointwise_y, of(y)}});
}

void Graph::matmul(Id a, Id b, Id y) {
  Object how(library_, Kind::matmul);
  how.set(Attribute::matmul_math_type, AttributeType::data_type, DataType::f32);
  add(Kind::operation_matmul, Attribute::operation_matmul_how, std::move(how),
      {{Attribute::operation_matmul_a, of(a)},
       {Attribute::operation_matmul_b, of(b)},
       {Attribute::operation_matmul_c, of(y)}});
}

void Graph::reduce(Reduction reduction, Id x, Id y) {
  Object how(library_, Kind::reduction);
  how.set(Attribute::reduction_operator, AttributeType::reduction_operator, reduction)
      .set(Attribute::reduction_math_type, AttributeType::data_type, DataType::f32);
  add(Kind::operation_reduction, Attribute::operation_reduction_how, std::move(how),
      {{Attribute::operation_reduction_x, of(x)}, {Attribute::operation_reduction_y, of(y)}});
}

void Graph::reshape(Id x, Id y) {
  add(Kind::operation_reshape,
      {{Attribute::operation_reshape_x, of(x)}, {Attribute::operation_reshape_y, of(y)}});
}

// --- plans ---------------------------------------------------------------------------------------

namespace {
int64_t workspace_of(const Library& library, const Object& plan) {
  int64_t bytes = 0, count = 0;
  library.check(library->get_attribute(plan.raw(), Attribute::plan_workspace, AttributeType::int64,
                                       1, &count, &bytes),
                "cudnnBackendGetAttribute");
  return bytes;
}
}  // namespace

Plan Graph::finalize(const Target& target) && {
  Descriptor device = nullptr;
  if (!target.handle) {
    Object described(library_, Kind::device_properties);
    described.set(Attribute::device_json, AttributeType::text,
                  std::span<const char>(target.json.data(), target.json.size() + 1));
    described.finalize();
    device = keep(std::move(described)).raw();
  }
  Object graph(library_, Kind::operation_graph);
  graph.set(Attribute::graph_operations, AttributeType::descriptor,
            std::span<const Descriptor>(operations_));
  if (target.handle) graph.set(Attribute::graph_handle, AttributeType::handle, target.handle);
  graph.finalize();

  Object heuristics(library_, Kind::engine_heuristics);
  heuristics.set(Attribute::heuristics_graph, AttributeType::descriptor, graph.raw())
      .set(Attribute::heuristics_mode, AttributeType::heuristics_mode, Heuristics::by_model);
  if (device) heuristics.set(Attribute::heuristics_device, AttributeType::descriptor, device);
  heuristics.finalize();
  keep(std::move(graph));

  constexpr int64_t kMostConfigs = 8;
  std::vector<Descriptor> configs;
  for (int64_t i = 0; i < kMostConfigs; ++i)
    configs.push_back(keep(Object(library_, Kind::engine_config)).raw());
  int64_t count = 0;
  library_.check(
      library_->get_attribute(heuristics.raw(), Attribute::heuristics_results,
                              AttributeType::descriptor, kMostConfigs, &count, configs.data()),
      "cudnnBackendGetAttribute");
  keep(std::move(heuristics));
  count = std::min(count, kMostConfigs);
  if (count == 0) fail<NotSupported>("cudnn", "no engine takes the graph");
  for (size_t i = 0;; ++i) {
    try {
      Object plan(library_, Kind::execution_plan);
      plan.set(Attribute::plan_config, AttributeType::descriptor, configs[i]);
      if (device) plan.set(Attribute::plan_device, AttributeType::descriptor, device);
      else plan.set(Attribute::plan_handle, AttributeType::handle, target.handle);
      plan.finalize();
      const int64_t workspace = workspace_of(library_, plan);
      return {library_, std::move(plan), std::move(kept_), values_, workspace};
    } catch (const DeviceError&) {
      if (i + 1 == static_cast<size_t>(count)) throw;  // the last engine's reason
    }
  }
}

Plan::Plan(const Library& library, Object plan, std::vector<Object> kept,
           std::vector<std::pair<int64_t, uint32_t>> values, int64_t workspace)
    : library_(&library),
      kept_(std::move(kept)),
      plan_(std::move(plan)),
      values_(std::move(values)),
      workspace_(workspace) {}

void Plan::run(Handle handle, std::span<const std::pair<int64_t, void*>> memory,
               void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : memory) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  std::vector<std::pair<int64_t, uint32_t>> values = values_;
  for (auto& [id, bits] : values) {
    ids.push_back(id);
    pointers.push_back(&bits);
  }
  Object pack(*library_, Kind::variant_pack);
  pack.set(Attribute::pack_ids, AttributeType::int64, std::span<const int64_t>(ids))
      .set(Attribute::pack_pointers, AttributeType::pointer, std::span<void* const>(pointers))
      .set(Attribute::pack_workspace, AttributeType::pointer, workspace);
  pack.finalize();
  library_->check((*library_)->execute(handle, plan_.raw(), pack.raw()), "cudnnBackendExecute");
}

}  // namespace tessera::cudnn

// SPDX-License-Identifier: Apache-2.0
// A graph of cuDNN operations on tensors of four dims, and the plan that runs it. Tensors are named
// by numbers, as in cuDNN; all arithmetic is f32.
#pragma once

#include "tessera/kernels/cudnn/library_impl.h"

#include <array>
#include <bit>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cudnn {

/// A finalized descriptor.
class TESSERA_API Object {
 public:
  Object(const Library& library, Kind kind);
  ~Object();
  Object(Object&& other) noexcept
      : library_(other.library_), raw_(std::exchange(other.raw_, nullptr)) {}
  Object(const Object&) = delete;
  Object& operator=(Object&&) = delete;

  template <class T>
  Object& set(Attribute attribute, AttributeType type, std::span<const T> values) {
    library_->check((*library_)->set_attribute(raw_, attribute, type,
                                               static_cast<int64_t>(values.size()), values.data()),
                    "cudnnBackendSetAttribute");
    return *this;
  }
  template <class T> Object& set(Attribute attribute, AttributeType type, const T& value) {
    return set(attribute, type, std::span<const T>(&value, 1));
  }
  void finalize();
  [[nodiscard]] Descriptor raw() const { return raw_; }

 private:
  const Library* library_;
  Descriptor raw_ = nullptr;
};

struct TESSERA_API Layout {
  std::array<int64_t, 4> dims, strides;  ///< strides in elements
  static Layout row_major(const std::array<int64_t, 4>& dims);
  [[nodiscard]] Layout transposed() const;  ///< of the last two dims
  auto operator<=>(const Layout&) const = default;
};

/// Runs a graph.
class TESSERA_API Plan {
 public:
  [[nodiscard]] int64_t workspace() const { return workspace_; }  ///< bytes that a run needs
  /// `memory`: of each tensor of the graph, its number and its address.
  void run(Handle handle, std::span<const std::pair<int64_t, void*>> memory, void* workspace) const;

 private:
  friend class Graph;
  Plan(const Library& library, Object plan, std::vector<Object> kept,
       std::vector<std::pair<int64_t, uint32_t>> values, int64_t workspace);
  const Library* library_;
  std::vector<Object> kept_;  // cuDNN does not say what of them a plan goes on reading
  Object plan_;
  std::vector<std::pair<int64_t, uint32_t>> values_;
  int64_t workspace_;
};

class TESSERA_API Graph {
 public:
  using Id = int64_t;
  explicit Graph(const Library& library) : library_(library) {}

  /// A tensor in memory, on `alignment` bytes.
  Id tensor(DataType type, const Layout& layout, int64_t alignment = 16) {
    return add_tensor(type, layout, kMemory, alignment);
  }
  /// A number that the host gives with each run.
  Id value(float x) { return add_value(DataType::f32, std::bit_cast<uint32_t>(x)); }
  Id value(int32_t x) { return add_value(DataType::i32, std::bit_cast<uint32_t>(x)); }
  /// A result that only other operations read.
  Id inner(DataType type, const Layout& layout) { return add_tensor(type, layout, kInner); }

  void pointwise(Pointwise how, std::initializer_list<Id> x, Id y, DataType math = DataType::f32);
  /// The index along an axis of `like` in each element of y.
  void index(int64_t axis, Id like, Id y);
  void matmul(Id a, Id b, Id y);
  void reduce(Reduction how, Id x, Id y);
  void reshape(Id x, Id y);  ///< y's strides say how it reads x

  /// A device that calls can run on, or one that is described in JSON (for tests).
  struct Target {
    Handle handle = nullptr;
    std::string json = {};
  };
  /// Ends the graph, by the first engine that makes a plan of it. NotSupported: none takes it.
  [[nodiscard]] Plan finalize(const Target& target) &&;

 private:
  enum Storage { kMemory, kInner, kValue };
  Id add_tensor(DataType type, const Layout& layout, Storage storage, int64_t alignment = 16);
  Id add_value(DataType type, uint32_t bits);
  [[nodiscard]] Descriptor of(Id id) const { return tensors_[static_cast<size_t>(id - 1)]; }
  Object& keep(Object object) { return kept_.emplace_back(std::move(object)); }
  using Parts = std::vector<std::pair<Attribute, Descriptor>>;
  void add(Kind kind, const Parts& parts);
  /// With `how`, which is not finalized yet, as one of the parts.
  void add(Kind kind, Attribute place_of_how, Object how, Parts parts);

  const Library& library_;
  std::vector<Descriptor> tensors_;  // of numbers from 1
  std::vector<Descriptor> operations_;
  std::vector<Object> kept_;  // all of them
  std::vector<std::pair<Id, uint32_t>> values_;
};

}  // namespace tessera::cudnn

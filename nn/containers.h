// SPDX-License-Identifier: Apache-2.0
// Modules that contain others: a list whose elements the parent calls, and a sequence.
#pragma once

#include "tessera/core/message.h"
#include "tessera/nn/module.h"

#include <iterator>
#include <memory>
#include <vector>

namespace tessera::nn {

/// Modules of one type (or derived from it) that their owner lists by
/// `visitor.children("layers", layers)` and calls itself. Elements never change their index.
/// Removing one leaves its index empty, so that the others keep their names: a pipeline stage has
/// some of a model's layers. Iteration skips empty indices.
template <class T> class ModuleList {
 public:
  ModuleList() = default;
  /// `count` elements, made without arguments.
  explicit ModuleList(int64_t count) {
    for (int64_t i = 0; i < count; ++i) emplace_back();
  }
  /// Makes an element, of a type derived from T if one is given: `layers.emplace_back(config, i)`.
  template <class M = T, class... Args> M& emplace_back(Args&&... args) {
    auto made = std::make_unique<M>(std::forward<Args>(args)...);
    M& module = *made;
    modules_.push_back(std::move(made));
    return module;
  }
  /// IndexError if there is no such index.
  void remove(size_t i) {
    if (i >= size()) missing(i);
    modules_[i].reset();
  }
  /// Number of indices, empty ones included.
  [[nodiscard]] size_t size() const { return modules_.size(); }
  [[nodiscard]] bool has(size_t i) const { return i < size() && modules_[i]; }
  /// IndexError if there is no element.
  T& operator[](size_t i) { return has(i) ? *modules_[i] : missing(i); }
  const T& operator[](size_t i) const { return has(i) ? *modules_[i] : missing(i); }
  [[nodiscard]] auto begin() { return Iterator<T>(first(), last()); }
  [[nodiscard]] auto end() { return Iterator<T>(last(), last()); }
  [[nodiscard]] auto begin() const { return Iterator<const T>(first(), last()); }
  [[nodiscard]] auto end() const { return Iterator<const T>(last(), last()); }

 private:
  using Place = const std::unique_ptr<T>*;
  template <class Element> class Iterator {
   public:
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    Iterator(Place at, Place end) : at_(at), end_(end) { pass_over(); }
    Element& operator*() const { return **at_; }
    Element* operator->() const { return at_->get(); }
    Iterator& operator++() {
      ++at_;
      pass_over();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& o) const { return at_ == o.at_; }

   private:
    void pass_over() {
      while (at_ != end_ && !*at_) ++at_;
    }
    Place at_ = nullptr, end_ = nullptr;
  };
  [[nodiscard]] Place first() const { return modules_.data(); }
  [[nodiscard]] Place last() const { return modules_.data() + modules_.size(); }
  [[noreturn]] T& missing(size_t i) const {
    fail<IndexError>("module_list", "there is no module ", i, " among ", counted(size(), "place"));
  }
  std::vector<std::unique_ptr<T>> modules_;
};

/// Runs its modules in order, named `0`, `1` ...:
/// `Sequential net(Linear(1, 16), Tanh(), Linear(16, 1)); net(x)`.
class TESSERA_API Sequential final : public Layer<Sequential> {
 public:
  template <std::derived_from<Module>... M> explicit Sequential(M... modules) {
    (push_back(std::move(modules)), ...);
  }
  /// Appends `module`, which maps a Tensor to a Tensor.
  template <std::derived_from<Module> M> M& push_back(M module) {
    auto made = std::make_unique<M>(std::move(module));
    M& element = *made;
    elements_.push_back({std::move(made), [](const Module& m, const Tensor& x) -> Tensor {
                           return static_cast<const M&>(m)(x);
                         }});
    return element;
  }
  void visit(Visitor& visitor) override;
  [[nodiscard]] size_t size() const { return elements_.size(); }
  Module& operator[](size_t i) { return *elements_[i].module; }
  const Module& operator[](size_t i) const { return *elements_[i].module; }

 private:
  friend class Layer<Sequential>;
  struct Element {
    std::unique_ptr<Module> module;
    Tensor (*call)(const Module&, const Tensor&);
  };
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  std::vector<Element> elements_;
};

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// A vector that stores its first N elements inline: shapes, outputs and gradients of an op call
// need no heap allocation. It only grows at the end; elements are not copied while they fit.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace tessera {

template <class T, size_t N> class SmallVector {
 public:
  SmallVector() = default;
  explicit SmallVector(size_t n) { resize(n); }
  SmallVector(std::initializer_list<T> init) {
    reserve(init.size());
    for (const T& v : init) push_back(v);
  }
  SmallVector(const SmallVector& o) { append(o); }
  SmallVector(SmallVector&& o) noexcept { take(o); }
  SmallVector& operator=(const SmallVector& o) {
    if (this != &o) {
      clear();
      append(o);
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& o) noexcept {
    if (this != &o) {
      drop();
      take(o);
    }
    return *this;
  }
  ~SmallVector() { drop(); }

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T* data() { return heap_ ? heap_ : inline_data(); }
  [[nodiscard]] const T* data() const {
    return heap_ ? heap_ : const_cast<SmallVector*>(this)->inline_data();
  }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& back() { return data()[size_ - 1]; }
  operator std::span<const T>() const { return {data(), size_}; }
  operator std::span<T>() { return {data(), size_}; }

  template <class... A> T& emplace_back(A&&... a) {
    if (size_ == capacity_) reserve(capacity_ * 2);
    return *new (data() + size_++) T(std::forward<A>(a)...);
  }
  void push_back(const T& v) { emplace_back(v); }
  void push_back(T&& v) { emplace_back(std::move(v)); }
  void resize(size_t n) {
    reserve(n);
    while (size_ < n) new (data() + size_++) T();
    while (size_ > n) data()[--size_].~T();
  }
  void clear() { resize(0); }
  void reserve(size_t n) {
    if (n <= capacity_) return;
    T* grown = static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{alignof(T)}));
    std::uninitialized_move(begin(), end(), grown);
    std::destroy(begin(), end());
    release();
    heap_ = grown;
    capacity_ = n;
  }

 private:
  T* inline_data() { return reinterpret_cast<T*>(bytes_); }
  void append(const SmallVector& o) {
    reserve(o.size_);
    for (const T& v : o) push_back(v);
  }
  void take(SmallVector& o) {
    if (o.heap_) {
      heap_ = std::exchange(o.heap_, nullptr);
      size_ = std::exchange(o.size_, 0);
      capacity_ = std::exchange(o.capacity_, N);
    } else {
      for (T& v : o) new (inline_data() + size_++) T(std::move(v));
      o.clear();
    }
  }
  void drop() {
    std::destroy(begin(), end());
    release();
    heap_ = nullptr;
    size_ = 0;
    capacity_ = N;
  }
  void release() {
    if (heap_) ::operator delete (heap_, std::align_val_t{alignof(T)});
  }

  T* heap_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = N;
  alignas(T) std::byte bytes_[N * sizeof(T)];
};

}  // namespace tessera

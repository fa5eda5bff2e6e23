// SPDX-License-Identifier: Apache-2.0
// Intrusive reference counting: a count inside the object keeps a handle one pointer wide, and its
// memory comes from the rank's pool.
#pragma once

#include "tessera/core/pool.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera {

/// Base of objects held by Ref<T>. T may hide `destroy`, which the last owner calls.
template <class T> class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  void ref() const noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  void unref() const noexcept {
    // The last owner needs no atomic write: nobody else can see the object.
    if (refs_.load(std::memory_order_acquire) == 1 ||
        refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      static_cast<const T*>(this)->destroy();
    }
  }
  void destroy() const noexcept { delete static_cast<const T*>(this); }
  [[nodiscard]] uint32_t use_count() const noexcept {
    return refs_.load(std::memory_order_acquire);
  }
  static void* operator new(size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* block, size_t bytes) noexcept { pool_free(block, bytes); }

 private:
  mutable std::atomic<uint32_t> refs_{0};
};

/// A counted handle; null is allowed.
template <class T> class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* p) : p_(p) {
    if (p_) p_->ref();
  }
  Ref(const Ref& o) : Ref(o.p_) {}
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <class U>
  requires std::is_convertible_v<U*, T*> Ref(const Ref<U>& o) : Ref(o.get()) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_) p_->unref();
  }
  [[nodiscard]] T* get() const noexcept { return p_; }
  T* operator->() const noexcept { return p_; }
  T& operator*() const noexcept { return *p_; }
  explicit operator bool() const noexcept { return p_ != nullptr; }
  bool operator==(const Ref& o) const noexcept { return p_ == o.p_; }

 private:
  T* p_ = nullptr;
};

template <class T, class... A> [[nodiscard]] Ref<T> make_ref(A&&... a) {
  return Ref<T>(new T(std::forward<A>(a)...));
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Converts the tensors in a module's arguments and result to the lists that hooks and checkpoints
// use. An argument that is a Tensor, or an array, pair, tuple or list of them, is an input;
// anything else (a struct of metadata, a pointer, a number) is copied.
#pragma once

#include "tessera/core/error.h"
#include "tessera/core/op_types.h"

#include <array>
#include <concepts>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::nn::detail {

template <class T, size_t... I> consteval bool holds_tensors(std::index_sequence<I...>) {
  return (std::same_as<std::tuple_element_t<I, T>, Tensor> && ...);
}
template <class T, size_t... I> consteval bool made_of_tensors(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Tensor())...}; };
}

template <class T>
concept TensorTuple = requires {
  requires holds_tensors<T>(std::make_index_sequence<std::tuple_size<T>::value>());
};
template <class T>
concept TensorRange = std::ranges::range<T> && std::same_as<std::ranges::range_value_t<T>, Tensor>;
/// A struct of one to four tensors, as CrossEntropyResult.
template <class T>
concept TensorStruct = std::is_aggregate_v<T> && !TensorTuple<T> &&
                       sizeof(T) % sizeof(Tensor) == 0 && sizeof(T) <= 4 * sizeof(Tensor) &&
                       made_of_tensors<T>(std::make_index_sequence<sizeof(T) / sizeof(Tensor)>());
template <class T>
concept TensorResult = std::same_as<T, Tensor> || TensorTuple<T> || TensorStruct<T> ||
    std::same_as<T, TensorList> || std::same_as<T, std::vector<Tensor>>;

/// Calls f with each tensor of an argument, in order; with none if it is not an input.
template <class T, class F> void each_tensor(T& value, const F& f) {
  using Value = std::remove_const_t<T>;
  if constexpr (std::same_as<Value, Tensor>) {
    f(value);
  } else if constexpr (TensorTuple<Value>) {
    std::apply([&](auto&... tensors) { (f(tensors), ...); }, value);
  } else if constexpr (TensorRange<Value>) {
    for (auto& tensor : value) f(tensor);
  }
}

/// A copy of an argument that outlives the call: the tensors of a span, anything else by value.
template <class T> auto keep(const T& argument) {
  using Kept = std::decay_t<const T&>;
  if constexpr (TensorRange<Kept> && std::ranges::view<Kept>) {
    return std::vector<Tensor>(argument.begin(), argument.end());
  } else {
    return Kept(argument);
  }
}

template <TensorResult R> TensorList to_list(const R& result) {
  TensorList list;
  const auto add = [&list](const auto&... tensors) { (list.push_back(tensors), ...); };
  if constexpr (!TensorStruct<R>) {
    each_tensor(result, add);
  } else if constexpr (sizeof(R) == sizeof(Tensor)) {
    const auto& [a] = result;
    add(a);
  } else if constexpr (sizeof(R) == 2 * sizeof(Tensor)) {
    const auto& [a, b] = result;
    add(a, b);
  } else if constexpr (sizeof(R) == 3 * sizeof(Tensor)) {
    const auto& [a, b, c] = result;
    add(a, b, c);
  } else {
    const auto& [a, b, c, d] = result;
    add(a, b, c, d);
  }
  return list;
}

/// A hook may replace tensors, but not add or drop any.
inline void check_count(std::string_view what, size_t given, size_t expected) {
  if (given == expected) return;
  fail<UsageError>("module", "a hook left ", given, ' ', what, " where there were ", expected,
                   "; it may replace tensors, but not change their number");
}

template <TensorResult R> R from_list(TensorList list) {
  if constexpr (std::same_as<R, TensorList>) {
    return list;
  } else if constexpr (std::same_as<R, std::vector<Tensor>>) {
    return R(list.begin(), list.end());
  } else {
    constexpr size_t kCount = sizeof(R) / sizeof(Tensor);
    check_count("outputs", list.size(), kCount);
    return [&]<size_t... I>(std::index_sequence<I...>) { return R{std::move(list[I])...}; }
    (std::make_index_sequence<kCount>());
  }
}

}  // namespace tessera::nn::detail

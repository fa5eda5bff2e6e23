// SPDX-License-Identifier: Apache-2.0
// Values of a tokenizer's JSON files, which are untrusted: each knows the place where it stands,
// for errors.
#pragma once

#include "tessera/core/error.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::train {

using Json = nlohmann::ordered_json;

/// A bound that no tokenizer of the field comes near.
inline constexpr int64_t kMostIds = int64_t{1} << 24;

// A value with the place where it stands, for errors.
class Value {
 public:
  Value(const Json* json, std::string place) : json_(json), place_(std::move(place)) {}

  template <class... Parts> [[noreturn]] void stop(const Parts&... parts) const {
    fail<DataError>("tokenizer", place_, ": ", parts...);
  }
  [[nodiscard]] const std::string& place() const { return place_; }
  /// Whether it stands in the file, be it null.
  [[nodiscard]] bool said() const { return json_ != nullptr; }
  [[nodiscard]] bool absent() const { return json_ == nullptr || json_->is_null(); }
  [[nodiscard]] bool is_string() const { return !absent() && json_->is_string(); }
  [[nodiscard]] bool is_object() const { return !absent() && json_->is_object(); }
  [[nodiscard]] bool is_list() const { return !absent() && json_->is_array(); }

  /// Absent if there is no such member.
  [[nodiscard]] Value member(std::string_view name) const {
    const auto& members = need(Json::value_t::object, "an object").get_ref<const Json::object_t&>();
    const auto at =
        std::ranges::find(members, name, [](const auto& m) { return std::string_view(m.first); });
    return {at == members.end() ? nullptr : &at->second, concat(place_, '.', name)};
  }
  [[nodiscard]] std::string_view text() const {
    return need(Json::value_t::string, "a text").get_ref<const std::string&>();
  }
  [[nodiscard]] std::string_view text_or(std::string_view fallback) const {
    return absent() ? fallback : text();
  }
  [[nodiscard]] bool flag_or(bool fallback) const {
    return absent() ? fallback : need(Json::value_t::boolean, "true or false").get<bool>();
  }
  [[nodiscard]] int64_t id() const {
    if (absent() || !json_->is_number_unsigned()) stop("is ", kind(), ", expected an id");
    const auto value = json_->get<uint64_t>();
    if (value >= kMostIds) stop("id ", value, " is not below ", kMostIds);
    return static_cast<int64_t>(value);
  }
  /// Calls f with the name of each member and the member.
  template <class F> void each_member(F f) const {
    if (absent()) return;
    for (const auto& [name, value] :
         need(Json::value_t::object, "an object").get_ref<const Json::object_t&>())
      f(name, Value(&value, concat(place_, '.', io::excerpt(name, 60))));
  }
  /// Calls f with each element.
  template <class F> void each(F f) const {
    if (absent()) return;
    const auto& list = need(Json::value_t::array, "a list").get_ref<const Json::array_t&>();
    for (size_t i = 0; i < list.size(); ++i) f(Value(&list[i], concat(place_, '[', i, ']')));
  }
  [[nodiscard]] const Json& need(Json::value_t type, const char* expected) const {
    if (json_ == nullptr) stop("is missing, expected ", expected);
    if (json_->type() != type) stop("is ", kind(), ", expected ", expected);
    return *json_;
  }
  [[nodiscard]] std::string kind() const {
    if (absent()) return "missing";
    if (json_->is_string())
      return concat('\'', io::excerpt(json_->get_ref<const std::string&>(), 60), '\'');
    return json_->is_primitive() ? json_->dump() : json_->type_name();
  }

 private:
  const Json* json_;
  std::string place_;
};

inline Json parsed(const TokenizerFile& file) {
  io::ParsedJson json = io::parse_json(file.bytes, {.nul_in_names = true});  // a token
  if (!json.faults.empty()) fail<DataError>("tokenizer", file.name, ": ", json.faults[0]);
  if (!json.value.is_object())
    fail<DataError>("tokenizer", file.name, ": is ", json.value.type_name(),
                    ", expected an object");
  return std::move(json.value);
}

}  // namespace tessera::train

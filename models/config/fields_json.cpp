// SPDX-License-Identifier: Apache-2.0
// Fields from JSON and back. Types are taken strictly: a number in quotes is a fault, not a number.
// A file may name a field once only, and holds infinities as texts, since JSON has none.
#include "tessera/models/config/fields.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace tessera::config {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxDepth = 32;  // fields lie at most three deep

std::string position_of(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const auto line = std::ranges::count(before, '\n') + 1;
  const size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}", line, before.size() - start + 1);
}

// JSON with the names that an object holds more than once.
struct Parsed {
  ordered_json json;
  std::vector<std::string> faults;
};

Parsed parsed_json(std::string_view text, std::string_view where) {
  Parsed result;
  std::vector<std::set<std::string>> open;
  bool too_deep = false;
  const auto note = [&](int depth, ordered_json::parse_event_t event, ordered_json& value) {
    using Event = ordered_json::parse_event_t;
    too_deep = too_deep || depth > kMaxDepth;
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key && !open.back().insert(value.get<std::string>()).second) {
      result.faults.push_back(
          fmt::format("[{}] '{}' stands there twice", where, value.get<std::string>()));
    }
    return !too_deep;  // a value that is printed must not be deeper than the stack
  };
  try {
    result.json = ordered_json::parse(text, note);
    if (too_deep) {
      result.json = nullptr;
      result.faults = {fmt::format("[{}] nested deeper than {} levels", where, kMaxDepth)};
    } else if (!result.json.is_object())
      result.faults = {fmt::format("[{}] not a JSON object of fields", where)};
  } catch (const ordered_json::parse_error& error) {
    result.faults = {
        fmt::format("[{}] not JSON: wrong at {}", where, position_of(text, error.byte))};
  } catch (const ordered_json::out_of_range&) {
    result.faults = {fmt::format("[{}] a number is too large for a double", where)};
  }
  if (!result.json.is_object()) result.json = ordered_json::object();
  return result;
}

// The value as one would write it on the command line; none where its type is not the field's.
std::optional<std::string> as_text(const Field& field, const ordered_json& json) {
  const auto number = [&]() -> std::optional<std::string> {
    if (json.is_number()) return json.dump();
    const bool infinite = json.is_string() && (json == "inf" || json == "-inf");
    return infinite ? std::optional(json.get<std::string>()) : std::nullopt;
  };
  const auto integer = [&] { return json.is_number() ? std::optional(json.dump()) : std::nullopt; };
  return std::visit(
      [&](const auto& v) -> std::optional<std::string> {
        using T = std::remove_cvref_t<decltype(v)>;
        if constexpr (std::is_same_v<T, int64_t*>) return integer();
        else if constexpr (std::is_same_v<T, double*>) return number();
        else if constexpr (std::is_same_v<T, bool*>)
          return json.is_boolean() ? std::optional(json.dump()) : std::nullopt;
        else if constexpr (std::is_same_v<T, std::optional<int64_t>*>)
          return json.is_null() ? "none" : integer();
        else if constexpr (std::is_same_v<T, std::optional<double>*>)
          return json.is_null() ? "none" : number();
        else if constexpr (std::is_same_v<T, std::vector<std::string>*>)
          return json.is_array() ? std::optional(json.dump()) : std::nullopt;
        else return json.is_string() ? std::optional(json.get<std::string>()) : std::nullopt;
      },
      field.value);
}

ordered_json number_as_json(double v) {
  return std::isfinite(v) ? ordered_json(v) : ordered_json(v > 0 ? "inf" : v < 0 ? "-inf" : "nan");
}

ordered_json as_json(const Field& field) {
  return std::visit(
      [&](const auto& v) -> ordered_json {
        using T = std::remove_cvref_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Choice>) return field.text();
        else if constexpr (std::is_same_v<T, double*>) return number_as_json(*v);
        else if constexpr (std::is_same_v<T, std::optional<double>*>)
          return *v ? number_as_json(**v) : ordered_json(nullptr);
        else if constexpr (std::is_same_v<T, std::optional<int64_t>*>)
          return *v ? ordered_json(**v) : ordered_json(nullptr);
        else return *v;
      },
      field.value);
}

}  // namespace

std::vector<std::string> Fields::parse_json(std::string_view text, std::string_view where) {
  Parsed parsed = parsed_json(text, where);
  std::vector<std::string>& faults = parsed.faults;
  const auto set = [&](const std::string& path, const ordered_json& value) {
    Field* field = find(path);
    if (!field) {
      faults.push_back(fmt::format("[{}] {}", where, unknown(path)));
      return;
    }
    const auto word = as_text(*field, value);
    const auto fault = word ? field->assign(*word)
                            : fmt::format("[--{}] {} is not valid: expected {}", path, value.dump(),
                                          field->type());
    if (fault) faults.push_back(fmt::format("[{}] {}", where, *fault));
  };
  for (const auto& [key, value] : parsed.json.items()) {
    if (!value.is_object()) {
      set(key, value);
      continue;
    }
    for (const auto& [name, member] : value.items()) set(concat(key, '.', name), member);
  }
  return faults;
}

std::string Fields::dump() const {
  ordered_json json;
  for (const Field& f : fields_) {
    const size_t dot = f.path.find('.');
    ordered_json& at = dot == std::string::npos
                           ? json[f.path]
                           : json[f.path.substr(0, dot)][f.path.substr(dot + 1)];
    at = as_json(f);
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::config

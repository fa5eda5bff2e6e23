// SPDX-License-Identifier: Apache-2.0
// Fields from and to JSON. Types are strict: a number in quotes is an error. A file may name a
// field only once, and stores infinities as texts, since JSON has none.
#include "tessera/models/config/fields.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera::config {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostFaults = 50;  // of one file

// The value as written on the command line; none if its type is not the field's.
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
        else if constexpr (std::is_same_v<T, std::vector<std::string>*> ||
                           std::is_same_v<T, std::vector<double>*>)
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
  const io::ParsedJson parsed = io::parse_json(text);
  std::vector<std::string> faults;
  const auto full = [&] { return faults.size() >= kMostFaults; };
  const auto note = [&](std::string_view fault) {
    if (!full()) faults.push_back(fmt::format("[{}] {}", where, fault));
  };
  for (const std::string& fault : parsed.faults) note(fault);
  if (!parsed.value.is_object()) {
    if (faults.empty()) note("not a JSON object of fields");
    return faults;
  }
  const auto set = [&](const std::string& path, const ordered_json& value) {
    Field* field = find(path);
    if (!field) {
      if (full()) return;
      const bool section = path.find('.') == path.npos && !unknown_section(path);
      note(section ? fmt::format("[{}] {} is not valid: expected an object of fields", path,
                                 io::excerpt(value.dump()))
                   : unknown(path));
      return;
    }
    const auto word = as_text(*field, value);
    const auto fault = word ? field->assign(*word)
                            : fmt::format("[--{}] {} is not valid: expected {}", path,
                                          io::excerpt(value.dump()), field->type());
    if (fault) note(*fault);
  };
  for (const auto& [key, value] : parsed.value.items()) {
    if (!value.is_object() || find(key)) {
      set(key, value);
      continue;
    }
    if (value.empty() && !full()) {
      if (const auto fault = unknown_section(key)) note(*fault);
    }
    for (const auto& [name, member] : value.items()) set(key + '.' + name, member);
  }
  if (full())
    faults.push_back(concat('[', where, "] only the first ", kMostFaults, " faults are shown"));
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

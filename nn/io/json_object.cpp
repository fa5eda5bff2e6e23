// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/json_object_impl.h"

#include <charconv>
#include <limits>
#include <utility>

namespace tessera::io {

using Json = nlohmann::ordered_json;

void JsonSubject::bad(std::string_view what) const {
  fail<DataError>(field, path, " is not a valid ", kind, ": ", what);
}

Json strict_json(std::string_view text, const JsonSubject& subject) {
  ParsedJson parsed = parse_json(text);
  if (!parsed.faults.empty()) subject.bad(parsed.faults[0]);
  return std::move(parsed.value);
}

JsonObject::JsonObject(const Json& json, std::string name, const JsonSubject& subject)
    : json_(json), name_(std::move(name)), subject_(subject) {
  if (!json.is_object()) bad("is not an object");
}

const Json& JsonObject::at(const char* key) {
  if (!json_.contains(key)) bad(concat("has no ", key));
  ++asked_;
  return json_[key];
}

int64_t JsonObject::integer(const char* key) {
  const Json& value = at(key);
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    bad(concat("has a ", key, " that is not an integer from 0 to 2^63 - 1"));
  return value.get<int64_t>();
}

std::string JsonObject::text(const char* key) {
  const Json& value = at(key);
  if (!value.is_string()) bad(concat("has a ", key, " that is not text"));
  return value.get<std::string>();
}

uint32_t JsonObject::sum(const char* key) {
  const auto value = parsed_sum(text(key));
  if (!value) bad(concat("has a ", key, " that is not eight hexadecimal digits"));
  return *value;
}

const Json& JsonObject::object(const char* key) {
  const Json& value = at(key);
  if (!value.is_object()) bad(concat("has a ", key, " that is not an object"));
  return value;
}

const Json& JsonObject::list(const char* key) {
  const Json& value = at(key);
  if (!value.is_array()) bad(concat("has a ", key, " that is not a list"));
  return value;
}

void JsonObject::finish() const {
  if (json_.size() != asked_) bad("has unknown members");
}

void JsonObject::bad(const std::string& what) const { subject_.bad(concat(name_, ' ', what)); }

std::string sum_text(uint32_t sum) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(8, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, sum >>= 4)
    *digit = kDigits[sum & 15];
  return text;
}

std::optional<uint32_t> parsed_sum(std::string_view text) {
  uint32_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (error != std::errc() || end != text.data() + text.size() || sum_text(sum) != text)
    return std::nullopt;
  return sum;
}

}  // namespace tessera::io

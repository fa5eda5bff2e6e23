// SPDX-License-Identifier: Apache-2.0
// Strict reading of the objects of a JSON file of our own: every member must be there, of its type,
// and known.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::io {

/// What an error says before it names the object: `[field] path is not a valid kind: `.
struct JsonSubject {
  std::string_view field;
  const std::string& path;
  std::string_view kind;  ///< "manifest"
  [[noreturn]] void bad(std::string_view what) const;
};

/// The text as JSON. DataError: as the faults of parse_json.
[[nodiscard]] nlohmann::ordered_json strict_json(std::string_view text, const JsonSubject& subject);

/// Reads the members of one object. The subject and the JSON must outlive it. Each function throws
/// DataError, which names the object and the member: not there, or of another type.
class JsonObject {
 public:
  JsonObject(const nlohmann::ordered_json& json, std::string name, const JsonSubject& subject);
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  const nlohmann::ordered_json& at(const char* key);
  int64_t integer(const char* key);  ///< from 0 to 2^63 - 1
  std::string text(const char* key);
  uint32_t sum(const char* key);  ///< eight hexadecimal digits
  const nlohmann::ordered_json& object(const char* key);
  const nlohmann::ordered_json& list(const char* key);
  /// DataError if there are members that nothing asked for.
  void finish() const;
  [[noreturn]] void bad(const std::string& what) const;

 private:
  const nlohmann::ordered_json& json_;
  std::string name_;
  const JsonSubject& subject_;
  size_t asked_ = 0;
};

/// A checksum as JsonObject::sum reads it.
[[nodiscard]] std::string sum_text(uint32_t sum);
/// None if the text is not such a checksum.
[[nodiscard]] std::optional<uint32_t> parsed_sum(std::string_view text);

}  // namespace tessera::io

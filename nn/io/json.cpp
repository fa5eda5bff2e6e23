// SPDX-License-Identifier: Apache-2.0
// nlohmann's own parser ends at a NUL byte without an error, keeps the last of two equal names, and
// with a callback or ordered members takes quadratic time in the size of an object. So events of
// its scanner build the value here; names are compared once, when their object ends.
#include "tessera/core/error.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>

namespace tessera::io {
namespace {

using Json = nlohmann::ordered_json;

std::string position_of(std::string_view text, size_t byte, const JsonOptions& options) {
  if (options.is_line) return concat("byte ", std::min(byte, text.size()) + 1, " of the line");
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  return concat("line ", std::ranges::count(before, '\n') + 1, ", column ",
                before.size() - start + 1);
}

class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const JsonOptions& options) : text_(text), options_(options) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(int64_t v) override { return put(v); }
  bool number_unsigned(uint64_t v) override { return put(v); }
  bool number_float(double v, const std::string&) override { return put(v); }
  bool string(std::string& v) override { return put(std::move(v)); }
  bool binary(Json::binary_t&) override { return false; }  // no JSON text has it
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (!options_.nul_in_names && name.find('\0') != name.npos)
      return stop(concat("the name '", excerpt(name), "' holds a NUL byte"));
    append_member(*open_.back(), std::move(name), nullptr);
    return true;
  }
  bool end_object() override {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : open_.back()->get_ref<Json::object_t&>())
      names.push_back(name);
    std::ranges::sort(names);
    for (size_t i = 1; i < names.size(); ++i) {
      if (names[i] == names[i - 1] && (i == 1 || names[i] != names[i - 2]))
        result.faults.push_back(concat('\'', excerpt(names[i]), "' occurs twice"));
    }
    return close();
  }
  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOutOfRange = 406;
    return stop(error.id == kOutOfRange
                    ? "a number is too large for a double"
                    : concat("not JSON: wrong at ",
                             position_of(text_, std::max<size_t>(byte, 1) - 1, options_)));
  }

  ParsedJson result;

 private:
  // The place of the next value: the whole, the end of an array, or the member just named.
  Json* add(Json value) {
    if (open_.empty()) return &(result.value = std::move(value));
    Json& in = *open_.back();
    if (in.is_array()) return &in.get_ref<Json::array_t&>().emplace_back(std::move(value));
    return &(in.get_ref<Json::object_t&>().back().second = std::move(value));
  }
  bool put(Json value) {
    add(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == static_cast<size_t>(options_.most_depth))
      return stop(concat("nested deeper than ", options_.most_depth, " levels"));
    open_.push_back(add(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool stop(std::string fault) {
    result = {nullptr, {std::move(fault)}};
    return false;
  }

  std::string_view text_;
  JsonOptions options_;
  std::vector<Json*> open_;
};

}  // namespace

std::string kind_text(nlohmann::json::value_t type) {
  const std::string name = nlohmann::json(type).type_name();
  return name == "null" ? name : (name == "array" || name == "object" ? "an " : "a ") + name;
}

void append_member(Json& object, std::string name, Json value) {
  // ordered_json keeps its members in a vector, whose own function does not look for the name.
  Json::object_t::Container& members = object.get_ref<Json::object_t&>();
  members.emplace_back(std::move(name), std::move(value));
}

ParsedJson parse_json(std::string_view text, const JsonOptions& options) {
  if (const size_t nul = text.find('\0'); nul != text.npos)
    return {nullptr, {concat("not JSON: a NUL byte at ", position_of(text, nul, options))}};
  Builder builder(text, options);
  (void)Json::sax_parse(text, &builder);
  return std::move(builder.result);
}

}  // namespace tessera::io

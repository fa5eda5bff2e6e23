// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/nn/io/told_impl.h"
#include "tessera/nn/io/utf8.h"

namespace tessera::io {

using Json = nlohmann::ordered_json;

bool same_value(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

std::string shown(const Json& value) {
  return excerpt(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Agreed agreed(std::span<const Told> told) {
  const Told* first = nullptr;
  for (const Told& t : told) {
    if (t.value.is_null()) continue;
    if (!first) first = &t;
    if (same_value(first->value, t.value)) continue;
    return {first->value, concat(first->place, " is ", shown(first->value), ", but ", t.place,
                                 " is ", shown(t.value), ": they must agree")};
  }
  return {first ? first->value : Json()};
}

}  // namespace tessera::io

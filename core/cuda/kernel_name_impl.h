// SPDX-License-Identifier: Apache-2.0
// Names of kernels for people. Read by the trace of a device and by its emulation; includes nothing
// else of Tessera.
#pragma once

#include <cstdlib>
#include <cxxabi.h>
#include <string>
#include <string_view>

namespace tessera {

/// `tessera::op::row_parts<float>` of its mangled symbol: without return type, parameters and
/// anonymous namespaces. Any other text is returned as it is.
inline std::string kernel_name(const std::string& symbol) {
  int status = 0;
  char* const plain = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = plain ? plain : symbol;
  std::free(plain);
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  for (size_t at = 0; (at = name.find(kAnonymous)) != std::string::npos;)
    name.erase(at, kAnonymous.size());
  if (name.ends_with(')')) {  // the parenthesis that opens the parameters
    size_t at = name.size();
    for (int depth = 0; at > 0;) {
      --at;
      depth += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
      if (depth == 0) break;
    }
    name.erase(at);
  }
  return name.starts_with("void ") ? name.substr(5) : name;
}

}  // namespace tessera

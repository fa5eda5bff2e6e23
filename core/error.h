// SPDX-License-Identifier: Apache-2.0
// Typed errors. Every message reads `[op or field] what is wrong: given, expected, how to fix`.
// The library throws these and nothing else on purpose; it never aborts or exits.
#pragma once

#include "tessera/core/api.h"

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

/// Base of all errors. `kind()` is the type's name, for laws and for programs that print it.
class TESSERA_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  [[nodiscard]] virtual std::string_view kind() const noexcept = 0;
};

#define TESSERA_ERROR(Name)                                                         \
  class TESSERA_API Name : public Error {                                           \
   public:                                                                          \
    using Error::Error;                                                             \
    [[nodiscard]] std::string_view kind() const noexcept override { return #Name; } \
  }

TESSERA_ERROR(ShapeError);          ///< wrong rank, size, dim or index
TESSERA_ERROR(DTypeError);          ///< wrong or mixed dtypes
TESSERA_ERROR(DeviceError);         ///< wrong, mixed or missing devices
TESSERA_ERROR(IndexError);          ///< an index or dim out of range
TESSERA_ERROR(StorageError);        ///< released or foreign bytes, out of memory
TESSERA_ERROR(AutogradError);       ///< a gradient that cannot be computed
TESSERA_ERROR(InPlaceError);        ///< writing a tensor that autograd still needs
TESSERA_ERROR(LayoutError);         ///< distributed layouts that do not fit
TESSERA_ERROR(ValueError);          ///< an attribute, field or datum out of its range
TESSERA_ERROR(ConfigError);         ///< unknown or ill-typed configuration
TESSERA_ERROR(DataError);           ///< missing, empty, corrupt or too short data
TESSERA_ERROR(IoError);             ///< a file or folder that cannot be read or written
TESSERA_ERROR(NumericError);        ///< NaN or infinity that must stop training
TESSERA_ERROR(UsageError);          ///< wrong use of the library
TESSERA_ERROR(LaunchError);         ///< invalid ranks, launcher variables or ports
TESSERA_ERROR(CollectiveMismatch);  ///< ranks disagree on a collective, a mesh or a group
TESSERA_ERROR(CollectiveTimeout);   ///< a rank did not arrive in time
TESSERA_ERROR(PeerFailed);          ///< another rank threw, left or died
#undef TESSERA_ERROR

/// Concatenates anything printable. Compiled for size: it is called rarely, in hundreds of places.
template <class... Parts>
[[nodiscard]] __attribute__((noinline, cold)) std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Throws `E("[where] parts...")`.
template <class E, class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail(std::string_view where,
                                                       const Parts&... parts) {
  throw E(concat('[', where, "] ", parts...));
}

}  // namespace tessera

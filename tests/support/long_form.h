// SPDX-License-Identifier: Apache-2.0
// For tests that have a short form, of which CI can afford many, and a long one.
#pragma once

#include <cstdlib>

namespace tessera::test {

/// Whether TESSERA_TEST_FULL asks for the long form.
inline bool long_form() { return std::getenv("TESSERA_TEST_FULL") != nullptr; }

}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// The machine's vector instructions by name. GCC 12's start from what they call undefined, and warn
// of it (GCC bug 105593).
#pragma once

#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

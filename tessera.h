// SPDX-License-Identifier: Apache-2.0
// The whole library for programs that want one include.
#pragma once

#include "tessera/core/tensor.h"

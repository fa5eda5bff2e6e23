// SPDX-License-Identifier: Apache-2.0
// Opens libtessera_mpi.so or libtessera_nccl.so on first use: beside the library or program that
// holds this code, then as the linker would.
#pragma once

#include "tessera/dist/mpi/mpi_api_impl.h"
#include "tessera/dist/nccl/nccl_api_impl.h"

namespace tessera {

/// The table of the library, opened once per process; LaunchError says why there is none and how to
/// get it.
const TesseraMpiApi& mpi_api();
const TesseraNcclApi& nccl_api();

}  // namespace tessera

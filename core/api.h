// SPDX-License-Identifier: Apache-2.0
// Export and host/device markers, the only macros that public headers need.
#pragma once

#define TESSERA_API __attribute__((visibility("default")))

#ifdef __CUDACC__
#define TESSERA_HD __host__ __device__ inline
#define TESSERA_INITIAL_EXEC  // nvcc does not know it on members; its code pays for a general
                              // access
#else
#define TESSERA_HD inline
#define TESSERA_INITIAL_EXEC __attribute__((tls_model("initial-exec")))
#endif

// Code of a kernel's inner loops: inlined into a function compiled for the running machine's
// instruction set.
#define TESSERA_INLINE __attribute__((always_inline)) inline

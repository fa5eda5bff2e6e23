// SPDX-License-Identifier: Apache-2.0
// Products by Intel's matrix tiles: a tile holds 16 rows of 64 bytes; four tiles of sums are fed
// from two of each operand. The kernel gives a process its tiles on request.
#include "tessera/core/process.h"
#include "tessera/kernels/products/micro_tiles_impl.h"

#if defined(__x86_64__) && defined(__linux__)
#include "tessera/kernels/products/intrinsics_impl.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TESSERA_TILES __attribute__((target("amx-tile,amx-bf16")))

namespace tessera::micro {
namespace {

bool ask_for_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0)
    return false;
  if (!__builtin_cpu_supports("avx512bf16")) return false;  // which rounds what tiles sum
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Tiles 0 to 3 are sums, 4 and 5 parts of a, 6 and 7 parts of b.
template <bool second_row, bool second_column>
TESSERA_TILES void sums(int64_t k, const bf16* a, int64_t lda, const uint32_t* b, int64_t ldb,
                        float* c, int64_t ldc, bool accumulate) {
  const int64_t a_step = lda * 2, b_step = ldb * 4, c_step = ldc * 4;
  if (accumulate) {
    _tile_loadd(0, c, c_step);
    if constexpr (second_column) _tile_loadd(1, c + 16, c_step);
    if constexpr (second_row) _tile_loadd(2, c + 16 * ldc, c_step);
    if constexpr (second_row && second_column) _tile_loadd(3, c + 16 * ldc + 16, c_step);
  } else {
    _tile_zero(0);
    if constexpr (second_column) _tile_zero(1);
    if constexpr (second_row) _tile_zero(2);
    if constexpr (second_row && second_column) _tile_zero(3);
  }
  for (int64_t i = 0; i < k; i += 32) {
    const uint32_t* pairs = b + i / 2 * ldb;
    _tile_loadd(4, a + i, a_step);
    _tile_loadd(6, pairs, b_step);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (second_column) {
      _tile_loadd(7, pairs + 16, b_step);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (second_row) {
      _tile_loadd(5, a + 16 * lda + i, a_step);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (second_row && second_column) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_step);
  if constexpr (second_column) _tile_stored(1, c + 16, c_step);
  if constexpr (second_row) _tile_stored(2, c + 16 * ldc, c_step);
  if constexpr (second_row && second_column) _tile_stored(3, c + 16 * ldc + 16, c_step);
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

TESSERA_TILES void set_up() {
  const TileConfig config;
  // GCC's intrinsic names the first bytes alone as read, and the rest would not be written.
  asm volatile("ldtilecfg %0" : : "m"(config));
}
TESSERA_TILES void release() { _tile_release(); }

}  // namespace

bool has_tiles() {
  static const bool given = ask_for_tiles();
  return given && Process::get().isa() == Isa::avx512;
}

bool has_pair_products() {
  static const bool given = __builtin_cpu_supports("avx512bf16");
  return given && Process::get().isa() == Isa::avx512;
}

TileScope::TileScope() { set_up(); }
TileScope::~TileScope() { release(); }

TESSERA_TILES void tile_block(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda,
                              const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                              bool accumulate) {
  for (int64_t i = 0; i < m; i += 32) {
    const bf16* rows = a + i * lda;
    for (int64_t j = 0; j < n; j += 32) {
      const uint32_t* columns = b + j;
      float* to = c + i * ldc + j;
      const bool second_row = i + 16 < m, second_column = j + 16 < n;
      if (second_row && second_column)
        sums<true, true>(k, rows, lda, columns, ldb, to, ldc, accumulate);
      else if (second_row) sums<true, false>(k, rows, lda, columns, ldb, to, ldc, accumulate);
      else if (second_column) sums<false, true>(k, rows, lda, columns, ldb, to, ldc, accumulate);
      else sums<false, false>(k, rows, lda, columns, ldb, to, ldc, accumulate);
    }
  }
}

}  // namespace tessera::micro

#else

namespace tessera::micro {

bool has_tiles() { return false; }
bool has_pair_products() { return false; }
TileScope::TileScope() = default;
TileScope::~TileScope() = default;

void tile_block(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const uint32_t* b,
                int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = accumulate ? c[i * ldc + j] : 0;
      for (int64_t x = 0; x < k; ++x) {
        const uint32_t word = b[x / 2 * ldb + j];
        bf16 factor;
        factor.bits = static_cast<uint16_t>(x % 2 ? word >> 16 : word);
        sum += static_cast<float>(a[i * lda + x]) * static_cast<float>(factor);
      }
      c[i * ldc + j] = sum;
    }
  }
}

}  // namespace tessera::micro

#endif

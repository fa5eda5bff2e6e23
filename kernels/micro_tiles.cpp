// SPDX-License-Identifier: Apache-2.0
// Products by Intel's matrix tiles: a tile holds 16 rows of 64 bytes; four tiles of sums are fed
// from two of each operand. The kernel gives a process its tiles on request.
#include "tessera/core/context.h"
#include "tessera/kernels/micro_tiles_impl.h"

#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TESSERA_TILES __attribute__((target("amx-tile,amx-bf16")))
#define TESSERA_ROUNDING_TILES \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16,prfchw")))

namespace tessera::micro {
namespace {

bool ask_for_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0)
    return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  constexpr unsigned kRounding = 1u << 5;  // AVX512_BF16
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & kRounding) == 0) return false;
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

// Rows of a block of sums that are yet to become bf16.
struct Unrounded {
  const float* sums = nullptr;  // (rows, 32)
  bf16* to = nullptr;
  int64_t step = 0, rows = 0;

  TESSERA_ROUNDING_TILES void round(int64_t n) {
    for (; n > 0 && rows > 0; --n, --rows, sums += 32, to += step) {
      const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(sums + 16), _mm512_loadu_ps(sums));
      std::memcpy(static_cast<void*>(to), &both, sizeof(both));
      __builtin_prefetch(to + 64, 1);  // lines of rows far apart come late otherwise
    }
  }
};

// Sums of 32 columns. Tile products take their time: meanwhile the block before is rounded.
template <bool second_row>
TESSERA_ROUNDING_TILES void panel_sums(int64_t k, const bf16* a, const uint32_t* b, float* c,
                                       Unrounded& before) {
  const int64_t rows_each = (before.rows * 32 + k - 1) / k;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < k; i += 32, a += 32 * 32, b += 16 * 32) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 16, 128);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (second_row) {
      _tile_loadd(5, a + 16 * 32, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    before.round(rows_each);
  }
  _tile_stored(0, c, 128);
  _tile_stored(1, c + 16, 128);
  if constexpr (second_row) {
    _tile_stored(2, c + 16 * 32, 128);
    _tile_stored(3, c + 16 * 32 + 16, 128);
  }
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

TESSERA_ROUNDING_TILES void tile_sums(int64_t rows, int64_t k, const bf16* a, const uint32_t* b,
                                      float* sums) {
  Unrounded none;
  if (rows > 16) panel_sums<true>(k, a, b, sums, none);
  else panel_sums<false>(k, a, b, sums, none);
}

TESSERA_ROUNDING_TILES void tile_panels(int64_t rows, int64_t k, const bf16* a, const uint32_t* b,
                                        int64_t panels, float* sums, bf16* c, int64_t c_row) {
  Unrounded last;
  for (int64_t i = 0; i < panels; ++i, b += k / 2 * 32, c += 32) {
    float* to = sums + i % 2 * 32 * 32;
    if (rows > 16) panel_sums<true>(k, a, b, to, last);
    else panel_sums<false>(k, a, b, to, last);
    last.round(last.rows);
    last = {to, c, c_row, rows};
  }
  last.round(last.rows);
}

}  // namespace tessera::micro

#else

namespace tessera::micro {

bool has_tiles() { return false; }
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

void tile_sums(int64_t rows, int64_t k, const bf16* a, const uint32_t* b, float* sums) {
  for (int64_t i = 0; i < k; i += 32)
    tile_block(rows, 32, 32, a + i * 32, 32, b + i / 2 * 32, 32, sums, 32, i > 0);
}

void tile_panels(int64_t rows, int64_t k, const bf16* a, const uint32_t* b, int64_t panels,
                 float* sums, bf16* c, int64_t c_row) {
  for (int64_t p = 0; p < panels; ++p, b += k / 2 * 32, c += 32) {
    tile_sums(rows, k, a, b, sums);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < 32; ++j) c[i * c_row + j] = static_cast<bf16>(sums[i * 32 + j]);
    }
  }
}

}  // namespace tessera::micro

#endif

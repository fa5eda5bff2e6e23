// SPDX-License-Identifier: Apache-2.0
// bf16 products by matrix tiles. b is packed to panels of 32 columns that all threads read, 32 rows
// of a at a time by the thread that multiplies them. Each element is one sum in the order of k, so
// its bits depend neither on threads nor on how the product is cut.
#include "tessera/core/parallel.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/matmul/gemm_impl.h"
#include "tessera/kernels/micro_tiles_impl.h"
#include "tessera/kernels/micro_words_impl.h"

#include <cstring>
#include <omp.h>

namespace tessera {
namespace {

using micro::round_up;

constexpr int64_t kPanel = 32;             // columns of a panel
constexpr int64_t kRows = 32;              // rows of a at a time
constexpr int64_t kPackedWords = 1 << 18;  // of b at a time: half of an L2
constexpr int64_t kMatrix = kRows * kPanel;

// `n` numbers to 32, with zeros behind.
TESSERA_INLINE void copy_numbers(const bf16* from, int64_t n, bf16* to) {
  if (n >= 32) return static_cast<void>(std::memcpy(static_cast<void*>(to), from, 64));
  for (int64_t i = 0; i < 32; ++i) to[i].bits = i < n ? from[i].bits : 0;
}

// `columns` (up to 32) columns of b to pairs of rows, (k32 / 2, 32), zeros where there are none.
TESSERA_INLINE void pack_panel(const Gemm& g, const bf16* b, int64_t columns, int64_t k32,
                               uint32_t* to) {
  if (g.b_row == 1 && g.b_col != 1) {
    for (int64_t j = 0; j < kPanel; j += 16) {
      const int64_t there = std::clamp<int64_t>(columns - j, 0, 16);
      for (int64_t p = 0; p < k32; p += 32) {
        alignas(64) uint32_t block[16 * 16];
        const bf16* from = b + p + j * g.b_col;
        if (there == 16 && p + 32 <= g.k) {
          micro::Words x[16];
          for (int64_t i = 0; i < 16; ++i) std::memcpy(&x[i], from + i * g.b_col, sizeof(x[i]));
          micro::transpose_words(x);
          for (int64_t i = 0; i < 16; ++i) micro::store(to + (p / 2 + i) * kPanel + j, x[i]);
          continue;
        }
        for (int64_t i = 0; i < 16; ++i) {
          copy_numbers(from + i * g.b_col, i < there ? g.k - p : 0,
                       reinterpret_cast<bf16*>(block + i * 16));
        }
        micro::transpose_words(block, 16, to + p / 2 * kPanel + j, kPanel);
      }
    }
    return;
  }
  for (int64_t p = 0; p < k32; p += 2, to += kPanel) {
    const bf16 *low = b + p * g.b_row, *high = low + g.b_row;
    if (columns == kPanel && p + 2 <= g.k) {
#pragma GCC ivdep
      for (int64_t j = 0; j < kPanel; ++j)
        to[j] = static_cast<uint32_t>(low[j].bits) | static_cast<uint32_t>(high[j].bits) << 16;
      continue;
    }
    for (int64_t j = 0; j < kPanel; ++j) {
      const uint32_t l = p < g.k && j < columns ? low[j].bits : 0,
                     h = p + 1 < g.k && j < columns ? high[j].bits : 0;
      to[j] = l | h << 16;
    }
  }
}

// Up to 32 rows of a, as tile_panels wants them: (k32 / 32, 32, 32), zeros where there are none.
TESSERA_INLINE void pack_rows(const Gemm& g, const bf16* a, int64_t rows, int64_t k32, bf16* to) {
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t p = 0; p < k32; p += 32)
      copy_numbers(a + i * g.a_row + p, i < rows ? g.k - p : 0, to + p * kRows + i * 32);
  }
}

// Sums (rows, 32) to `columns` columns of c.
TESSERA_INLINE void save(const Gemm& g, const float* sums, int64_t rows, int64_t columns,
                         std::byte* c) {
  const auto to = [&]<class T>(T* y) {
    for (int64_t i = 0; i < rows; ++i, y += g.c_row) {
      const float* x = sums + i * kPanel;
      if (g.accumulate) {
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j)
          y[j] = static_cast<T>(static_cast<float>(y[j]) + x[j]);
      } else {
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j) y[j] = static_cast<T>(x[j]);
      }
    }
  };
  if (g.wide) return to(reinterpret_cast<float*>(c));
  to(reinterpret_cast<bf16*>(c));
}

// What is multiplied at a time: `batches` products, of each the columns [column, column + columns).
struct Part {
  int64_t batch, batches, column, columns;
};

void multiply(const Gemm& g, const Part& part, uint32_t* packed, float* scratch, int64_t room) {
  const int64_t k32 = round_up(g.k, 32), panels = (part.columns + kPanel - 1) / kPanel;
  const int64_t panel_words = k32 / 2 * kPanel, blocks = (g.m + kRows - 1) / kRows;
  const int threads = Context::current().options.threads;
  parallel_for(part.batches * panels, 4, [&](int64_t begin, int64_t end) {
    simd([&]() TESSERA_LAMBDA {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t column = part.column + i % panels * kPanel;
        const bf16* b = static_cast<const bf16*>(g.b) + (part.batch + i / panels) * g.b_batch;
        pack_panel(g, b + column * g.b_col, std::min(kPanel, g.n - column), k32,
                   packed + i * panel_words);
      }
    });
  });
  const int64_t whole = g.wide || g.accumulate ? 0 : part.columns / kPanel;
  parallel_for(part.batches * blocks, 4, [&](int64_t begin, int64_t end) {
    float* sums = scratch + omp_get_thread_num() % threads * room;
    auto* a_rows = reinterpret_cast<bf16*>(sums + 2 * kMatrix);
    simd([&]() TESSERA_LAMBDA {
      const micro::TileScope scope;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t batch = part.batch + task / blocks, row = task % blocks * kRows;
        const int64_t rows = std::min(kRows, g.m - row), item = g.wide ? 4 : 2;
        const uint32_t* b = packed + task / blocks * panels * panel_words;
        const bf16* a = static_cast<const bf16*>(g.a) + batch * g.a_batch + row * g.a_row;
        std::byte* c =
            static_cast<std::byte*>(g.c) + (batch * g.c_batch + row * g.c_row + part.column) * item;
        pack_rows(g, a, rows, k32, a_rows);
        micro::tile_panels(rows, k32, a_rows, b, whole, sums, reinterpret_cast<bf16*>(c), g.c_row);
        for (int64_t i = whole; i < panels; ++i) {
          micro::tile_sums(rows, k32, a_rows, b + i * panel_words, sums);
          save(g, sums, rows, std::min(kPanel, part.columns - i * kPanel), c + i * kPanel * item);
        }
      }
    });
  });
}

}  // namespace

bool tiles_take(const Gemm& g) {
  return g.dtype == DType::bf16 && g.a_col == 1 && g.m >= 16 && g.n >= 16 && g.k >= 16 &&
         micro::has_tiles();
}

void tile_gemm(const Gemm& g) {
  const int64_t k32 = round_up(g.k, 32), n32 = round_up(g.n, kPanel);
  const int64_t columns =
      std::clamp<int64_t>(kPackedWords / (k32 / 2) / kPanel * kPanel, kPanel, n32);
  const int64_t batches =
      columns < n32 ? 1 : std::clamp<int64_t>(kPackedWords / (k32 / 2 * n32), 1, g.batch);
  const int threads = Context::current().options.threads;
  const int64_t room = 2 * kMatrix + k32 * kRows / 2;
  const Tensor scratch = empty({threads, room}, DType::f32),
               packed = empty({batches, columns, k32 / 2}, DType::i32);
  auto* words = static_cast<uint32_t*>(packed.raw_data());
  for (int64_t batch = 0; batch < g.batch; batch += batches) {
    for (int64_t column = 0; column < g.n; column += columns) {
      multiply(g,
               {batch, std::min(batches, g.batch - batch), column, std::min(columns, g.n - column)},
               words, scratch.data<float>(), room);
    }
  }
}

}  // namespace tessera

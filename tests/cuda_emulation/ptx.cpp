// SPDX-License-Identifier: Apache-2.0
#include "block.h"
#include "counts.h"
#include "cuda_ptx.h"
#include "mutants.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cuda_emulation {
namespace {

constexpr unsigned kAll = 0xffffffff;
constexpr size_t kRow = 16;  // bytes of a matrix's row, and of a copy

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kRow == 0; }

// The element that stands in the low or high half of a register.
uint16_t half_of(const uint32_t* r, int element) {
  return static_cast<uint16_t>(r[element / 2] >> (element % 2 * 16));
}

struct Mma {
  float* d;
  const uint32_t *a, *b;
  float (*widen)(uint16_t);
};

// PTX ISA, "Matrix Fragments for mma.m16n8k16": a lane's elements are pairs of columns of A, C and
// D, and of rows of B.
void multiply(void* const (&lanes)[kWarp]) {
  count_product();
  float a[16][16], b[16][8];
  for (int l = 0; l < kWarp; ++l) {
    const auto& lane = *static_cast<const Mma*>(lanes[l]);
    const int group = l / 4, pair = l % 4 * 2;
    for (int i = 0; i < 8; ++i)
      a[group + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = lane.widen(half_of(lane.a, i));
    for (int i = 0; i < 4; ++i) b[pair + i % 2 + i / 2 * 8][group] = lane.widen(half_of(lane.b, i));
  }
  for (int l = 0; l < kWarp; ++l) {
    const auto& lane = *static_cast<const Mma*>(lanes[l]);
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) lane.d[i] += a[row][k] * b[k][column];
    }
  }
}

struct Rows {
  uint32_t* r;
  const void* row;
};

// How many accesses the eight rows of a matrix take: 128 bytes lie in different banks.
int accesses_of(void* const (&lanes)[kWarp], int matrix) {
  std::array<int, 8> at{};
  for (int i = 0; i < 8; ++i) {
    const auto row =
        reinterpret_cast<uintptr_t>(static_cast<const Rows*>(lanes[matrix * 8 + i])->row);
    ++at[row / kRow % 8];
  }
  return *std::ranges::max_element(at);
}

// Lane l gives row l % 8 of matrix l / 8; of each matrix it takes two elements of row l / 4, or of
// column l / 4.
template <bool kTrans> void load(void* const (&lanes)[kWarp]) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t x[8][8];
    for (int i = 0; i < 8; ++i)
      std::memcpy(x[i], static_cast<const Rows*>(lanes[matrix * 8 + i])->row, kRow);
    count_matrix(accesses_of(lanes, matrix));
    for (int l = 0; l < kWarp; ++l) {
      const int i = l / 4, j = l % 4 * 2;
      const uint32_t low = kTrans ? x[j][i] : x[i][j], high = kTrans ? x[j + 1][i] : x[i][j + 1];
      static_cast<const Rows*>(lanes[l])->r[matrix] = low | high << 16;
    }
  }
}

template <bool kTrans> void ldmatrix(uint32_t (&r)[4], const void* row, Site site) {
  if (!is_shared(row, kRow)) fail("an ldmatrix reads a row outside of shared memory", site);
  if (!aligned(row)) fail("an ldmatrix reads a row that does not begin on 16 bytes", site);
  Rows mine{r, row};
  converge(kAll, &mine, load<kTrans>, site);
}

}  // namespace

void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 float (*widen)(uint16_t), Site site) {
  Mma mine{d, a, b, widen};
  converge(kAll, &mine, multiply, site);
}

void ldmatrix_x4(uint32_t (&r)[4], const void* row, Site site) { ldmatrix<false>(r, row, site); }
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, Site site) {
  ldmatrix<true>(r, row, site);
}

void cp_async(void* shared, const void* global, int bytes, Site site) {
  if (!is_shared(shared, kRow)) fail("a cp.async writes outside of shared memory", site);
  if (is_shared(global, 1)) fail("a cp.async reads shared memory", site);
  if (!aligned(shared) || !aligned(global))
    fail("a cp.async has an address that is no multiple of 16 bytes", site);
  if (bytes < 0 || bytes > static_cast<int>(kRow)) fail("a cp.async reads 0 to 16 bytes", site);
  Copies& mine = copies();
  mine.pending.push_back({shared, global, static_cast<size_t>(bytes), mine.groups});
}

void cp_async_commit() { ++copies().groups; }

void cp_async_wait(int groups, Site site) {
  if (mutated(Mutant::skipped_wait, site)) return;
  Copies& mine = copies();
  auto copy = mine.pending.begin();
  for (; copy != mine.pending.end() && copy->group < mine.groups - groups; ++copy) {
    std::memcpy(copy->to, copy->from, copy->bytes);
    std::memset(static_cast<char*>(copy->to) + copy->bytes, 0, kRow - copy->bytes);
  }
  mine.pending.erase(mine.pending.begin(), copy);
}

}  // namespace cuda_emulation

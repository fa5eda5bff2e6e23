// SPDX-License-Identifier: Apache-2.0
// Large products by oneDNN, with a primitive per shape kept for the rank; by Eigen (f32) where
// oneDNN is missing.
#include "tessera/core/context.h"
#include "tessera/core/parallel.h"
#include "tessera/core/process.h"
#include "tessera/kernels/matmul/gemm_kinds_impl.h"

#ifdef TESSERA_GEMM_ONEDNN

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <omp.h>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tessera {
namespace {

using Key = std::array<int64_t, 14>;
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0xcbf29ce484222325ull;
    for (int64_t v : key) h = (h ^ static_cast<uint64_t>(v)) * 0x100000001b3ull;
    return h ^ h >> 29;
  }
};

struct Plan {
  dnnl::memory a, b, c;
  dnnl::matmul primitive;
};

// Per rank: oneDNN's objects and the primitives of the shapes seen. Bounded, because shapes may
// keep changing.
struct Plans {
  static constexpr size_t kMost = 1024;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Key, Plan, KeyHash> by_shape;

  Plan& find(const Gemm& g) {
    const Key key{static_cast<int64_t>(g.dtype),
                  g.batch,
                  g.m,
                  g.n,
                  g.k,
                  g.a_row,
                  g.a_col,
                  g.a_batch,
                  g.b_row,
                  g.b_col,
                  g.b_batch,
                  g.c_row,
                  g.wide,
                  g.accumulate};
    if (auto it = by_shape.find(key); it != by_shape.end()) return it->second;
    if (by_shape.size() >= kMost) by_shape.clear();
    using dnnl::memory;
    const auto type = g.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const auto out_type = g.wide ? memory::data_type::f32 : type;
    const auto describe = [&](int64_t rows, int64_t cols, int64_t row, int64_t col, int64_t step,
                              memory::data_type t) {
      if (g.batch == 1) return memory::desc({rows, cols}, t, memory::dims{row, col});
      return memory::desc({step == 0 ? 1 : g.batch, rows, cols}, t,
                          memory::dims{step == 0 ? rows * cols : step, row, col});
    };
    const auto a = describe(g.m, g.k, g.a_row, g.a_col, g.a_batch, type),
               b = describe(g.k, g.n, g.b_row, g.b_col, g.b_batch, type),
               c = describe(g.m, g.n, g.c_row, 1, g.c_batch, out_type);
    dnnl::primitive_attr attributes;
    if (g.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine);
    Plan plan{memory(a, engine, nullptr), memory(b, engine, nullptr), memory(c, engine, nullptr),
              dnnl::matmul(description)};
    return by_shape.emplace(key, std::move(plan)).first->second;
  }
};

}  // namespace

bool library_takes(DType dtype) {
  return dtype == DType::f32 || (dtype == DType::bf16 && Process::get().isa() == Isa::avx512);
}

std::string library_text() {
  // Named here, since the library prints its instruction sets as numbers alone.
  constexpr std::array<std::pair<dnnl_cpu_isa_t, std::string_view>, 8> kNames{
      {{dnnl_cpu_isa_sse41, "sse41"},
       {dnnl_cpu_isa_avx, "avx"},
       {dnnl_cpu_isa_avx2, "avx2"},
       {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"},
       {dnnl_cpu_isa_avx512_core, "avx512_core"},
       {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
       {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
       {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"}}};
  const dnnl_version_t& v = *dnnl_version();
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  const auto* known = std::ranges::find(kNames, isa, &decltype(kNames)::value_type::first);
  return concat(
      "oneDNN ", v.major, '.', v.minor, '.', v.patch, ' ',
      known == kNames.end() ? concat("isa ", static_cast<int>(isa)) : concat(known->second));
}

void library_gemm(const Gemm& g) {
  Context& context = Context::current();
  Plans& plans = context.state<Plans>();
  try {
    Plan& plan = plans.find(g);
    plan.a.set_data_handle(const_cast<void*>(g.a));
    plan.b.set_data_handle(const_cast<void*>(g.b));
    plan.c.set_data_handle(g.c);
    if (omp_get_max_threads() != context.options.threads)
      omp_set_num_threads(context.options.threads);
    plan.primitive.execute(
        plans.stream, {{DNNL_ARG_SRC, plan.a}, {DNNL_ARG_WEIGHTS, plan.b}, {DNNL_ARG_DST, plan.c}});
    plans.stream.wait();
  } catch (const dnnl::error& e) {
    fail<UsageError>("matmul", "oneDNN refused a ", g.m, " x ", g.k, " by ", g.k, " x ", g.n,
                     " product of ", g.dtype, ": ", e.what());
  }
}

}  // namespace tessera

#else

// Eigen takes its number of threads from a global of the process, which all ranks would share.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include <algorithm>

namespace tessera {
namespace {

void multiply(const Gemm& g) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColumnMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  const auto with = [](const void* p, int64_t rows, int64_t cols, int64_t row, int64_t col,
                       auto&& f) {
    const auto* at = static_cast<const float*>(p);
    // The stride of a single column may be any number.
    if (col == 1 || cols == 1)
      f(Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>(at, rows, cols,
                                                          Eigen::OuterStride<>(row)));
    else
      f(Eigen::Map<const ColumnMajor, 0, Eigen::OuterStride<>>(at, rows, cols,
                                                               Eigen::OuterStride<>(col)));
  };
  Eigen::Map<Matrix, 0, Eigen::OuterStride<>> c(static_cast<float*>(g.c), g.m, g.n,
                                                Eigen::OuterStride<>(g.c_row));
  with(g.a, g.m, g.k, g.a_row, g.a_col, [&](const auto& a) {
    with(g.b, g.k, g.n, g.b_row, g.b_col, [&](const auto& b) {
      if (g.accumulate) c.noalias() += a * b;
      else c.noalias() = a * b;
    });
  });
}

}  // namespace

bool library_takes(DType dtype) { return dtype == DType::f32; }

std::string library_text() {
  return concat("Eigen ", EIGEN_WORLD_VERSION, '.', EIGEN_MAJOR_VERSION, '.', EIGEN_MINOR_VERSION);
}

// Cut along the longer side of c, at the same places for any number of threads.
void library_gemm(const Gemm& g) {
  constexpr int64_t kPart = 192;  // a multiple of the rows and columns of Eigen's tiles
  const bool by_rows = g.m >= g.n;
  const int64_t length = by_rows ? g.m : g.n, parts = (length + kPart - 1) / kPart;
  parallel_for(g.batch * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / parts, at = i % parts * kPart, size = std::min(kPart, length - at);
      Gemm part = g;
      (by_rows ? part.m : part.n) = size;
      part.a = static_cast<const float*>(g.a) + batch * g.a_batch + (by_rows ? at * g.a_row : 0);
      part.b = static_cast<const float*>(g.b) + batch * g.b_batch + (by_rows ? 0 : at * g.b_col);
      part.c = static_cast<float*>(g.c) + batch * g.c_batch + (by_rows ? at * g.c_row : at);
      multiply(part);
    }
  });
}

}  // namespace tessera

#endif

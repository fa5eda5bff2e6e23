// SPDX-License-Identifier: Apache-2.0
// The raw MPI side of bench_collectives: the same sizes, calls and repeats in place of Tessera's
// process groups. Built where MPI is; run by `./dev mpirun -n 2 build/release/bin/bench_peer_mpi`.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

constexpr int kRepeats = 7;

double collective_us(const std::function<void()>& f, int64_t bytes) {
  const int64_t count =
      std::clamp<int64_t>((int64_t{256} << 20) / (bytes + 100'000), int64_t{3}, int64_t{2000});
  for (int64_t i = 0; i < count; ++i) f();
  double least = 1e30;
  for (int r = 0; r < kRepeats; ++r) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) f();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    least = std::min(least, time.count() / static_cast<double>(count));
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4) {
    const int n = static_cast<int>(bytes / 4), part = n / size;
    std::vector<float> whole(static_cast<size_t>(n)), piece(static_cast<size_t>(part));
    const double reduce = collective_us(
        [&] { MPI_Allreduce(MPI_IN_PLACE, whole.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
        bytes);
    const double scatter = collective_us(
        [&] {
          MPI_Reduce_scatter_block(whole.data(), piece.data(), part, MPI_FLOAT, MPI_SUM,
                                   MPI_COMM_WORLD);
        },
        bytes);
    const double gather = collective_us(
        [&] {
          MPI_Allgather(piece.data(), part, MPI_FLOAT, whole.data(), part, MPI_FLOAT,
                        MPI_COMM_WORLD);
        },
        bytes);
    if (rank != 0) continue;
    std::printf(
        "{\"backend\": \"raw mpi\", \"ranks\": %d, \"bytes\": %lld, \"all_reduce_us\": %.3f, "
        "\"reduce_scatter_us\": %.3f, \"all_gather_us\": %.3f}\n",
        size, static_cast<long long>(bytes), reduce, scatter, gather);
    std::fflush(stdout);
  }
  MPI_Finalize();
}

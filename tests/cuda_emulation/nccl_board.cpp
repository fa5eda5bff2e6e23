// SPDX-License-Identifier: Apache-2.0
// An id names the process that made the board and its file there, which the kernel's list of open
// files leads to: no name is left behind, however a process ends.
#include "nccl_board.h"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nccl_emulation {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHead = (sizeof(Board) + kPage - 1) / kPage * kPage;
constexpr size_t kSize = kHead + kMostRanks * kMostRanks * kChannelBytes;

}  // namespace

void Described::write(const Call& call) {
  number_ = 0;  // nobody takes half of it
  count_ = call.count;
  rest_ = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.type) << 8 |
          static_cast<uint64_t>(call.op) << 16 | static_cast<uint64_t>(call.peer + 1) << 24;
  number_ = call.number;
}

std::optional<Call> Described::read(uint64_t number) const {
  if (number_ != number) return {};
  const uint64_t count = count_, rest = rest_;
  if (number_ != number) return {};
  const auto part = [rest](int shift) { return static_cast<int>(rest >> shift & 0xff); };
  return Call{static_cast<Kind>(part(0)),
              nullptr,
              nullptr,
              count,
              static_cast<ncclDataType_t>(part(8)),
              static_cast<ncclRedOp_t>(part(16)),
              part(24) - 1,
              nullptr,
              number};
}

SharedBoard::SharedBoard(int file) : file_(file) {
  void* const at =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at != MAP_FAILED) board_ = static_cast<Board*>(at);
}

SharedBoard::~SharedBoard() {
  if (board_) munmap(board_, kSize);
  close(file_);
}

std::shared_ptr<SharedBoard> SharedBoard::make(uint64_t random) {
  static std::atomic<uint64_t> made = 0;  // a number of a file is used again
  const int file = memfd_create("emulated-nccl", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  std::shared_ptr<SharedBoard> board(new SharedBoard(file));
  if (!board->board_ || ftruncate(file, static_cast<off_t>(kSize)) != 0) return nullptr;
  (*board)->first = random;
  std::snprintf((*board)->id.internal, sizeof(ncclUniqueId), "emulated-%d-%d-%llu", getpid(), file,
                static_cast<unsigned long long>(++made));
  return board;
}

std::shared_ptr<SharedBoard> SharedBoard::open(const ncclUniqueId& id) {
  int process = 0, number = 0;
  if (std::sscanf(id.internal, "emulated-%d-%d-", &process, &number) != 2) return nullptr;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  std::shared_ptr<SharedBoard> board(new SharedBoard(file));
  struct stat status {};
  if (!board->board_ || fstat(file, &status) != 0 || static_cast<size_t>(status.st_size) != kSize ||
      std::memcmp((*board)->id.internal, id.internal, sizeof(ncclUniqueId)) != 0)
    return nullptr;
  return board;
}

char* SharedBoard::bytes(int from, int to) const {
  const auto channel = static_cast<size_t>(from * kMostRanks + to);
  return reinterpret_cast<char*>(board_) + kHead + channel * kChannelBytes;
}

}  // namespace nccl_emulation

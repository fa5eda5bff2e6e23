// SPDX-License-Identifier: Apache-2.0
// A rank's file holds its number and process; a text's file, the ranks that have had it. A rank
// that has it again is in a later command of the job, in which it is said anew. The lock of a text
// is the system's (flock), so that a rank that dies before it has spoken leaves the turn to the
// next.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/host_folder_impl.h"
#include "tessera/dist/rendezvous/place_impl.h"
#include "tessera/dist/rendezvous/socket_impl.h"

#include <array>
#include <chrono>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <sys/file.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tessera {
namespace {

constexpr std::string_view kRank = "tessera.rank.", kSaid = "tessera.said.";
constexpr auto kTurn = std::chrono::seconds(1);

Descriptor open_file(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
}

std::string list(const std::vector<std::string>& ranks) {
  std::string text;
  for (const std::string& rank : ranks) text += concat(text.empty() ? "" : ", ", rank);
  return text.empty() ? "none" : text;
}

}  // namespace

std::string HostFolder::file(std::string_view name) const { return concat(place_.path, '/', name); }

void HostFolder::come() const noexcept {
  if (place_.path.empty() || place_.local_rank < 0) return;
  try {
    const RankPlace own = RankPlace::own();
    const std::string path = file(concat(kRank, place_.local_rank)), aside = path + ".new";
    std::ofstream(aside) << place_.rank << ' ' << own.pid << ' ' << own.started << '\n';
    (void)::rename(aside.c_str(), path.c_str());
  } catch (const std::exception&) {  // only the others' errors lack this rank
  }
}

std::string HostFolder::who_came() const {
  if (place_.path.empty() || place_.local_size < 1)
    return concat("here: rank ", place_.rank, "; unknown: the other ", place_.size - 1,
                  ", since the launcher gives the ranks of a host no folder");
  std::vector<std::string> here, absent;
  for (int local = 0; local < place_.local_size; ++local) {
    std::ifstream in(file(concat(kRank, local)));
    int rank = -1;
    int64_t pid = 0;
    uint64_t started = 0;
    if (!(in >> rank >> pid >> started)) {
      // Ranks of one host alone are numbered alike.
      absent.push_back(place_.local_size == place_.size ? concat("rank ", local)
                                                        : concat("local rank ", local));
      continue;
    }
    switch (process_state(pid, started)) {
      case ProcessState::running: here.push_back(concat("rank ", rank)); break;
      case ProcessState::stopped: here.push_back(concat("rank ", rank, " (stopped)")); break;
      case ProcessState::gone: absent.push_back(concat("rank ", rank, " (it has ended)")); break;
    }
  }
  std::string text = concat("here: ", list(here), "; not here: ", list(absent));
  if (const int others = place_.size - place_.local_size; others > 0)
    text += concat("; unknown: ", others,
                   others == 1 ? " rank of another host" : " ranks of other hosts");
  return text;
}

void HostFolder::say_once(std::string_view text, const std::function<void()>& say) const {
  if (place_.path.empty()) return say();
  const Descriptor turn = open_file(file(concat(kSaid, std::hash<std::string_view>{}(text))));
  if (!turn) return say();
  const auto end = std::chrono::steady_clock::now() + kTurn;
  while (::flock(turn.get(), LOCK_EX | LOCK_NB) != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::string heard;
  std::array<char, 4096> piece{};
  for (ssize_t n = 0; (n = ::read(turn.get(), piece.data(), piece.size())) > 0;)
    heard.append(piece.data(), static_cast<size_t>(n));
  const std::string own = concat(' ', place_.local_rank, ' ');
  if (heard.empty() || heard.find(own) != std::string::npos) {
    (void)!::ftruncate(turn.get(), 0);
    (void)::lseek(turn.get(), 0, SEEK_SET);
    say();
  }
  (void)!::write(turn.get(), own.data(), own.size());
}

}  // namespace tessera

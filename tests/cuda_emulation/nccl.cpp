// SPDX-License-Identifier: Apache-2.0
// Collectives among ranks that are threads or processes of one host. A call is a step of its
// stream; its bytes move when the streams of all ranks have come to it: each rank writes what it
// sends to the board, and takes from there what the others have written. What NCCL would hang on or
// corrupt, ranks that disagree and memory or streams of another device, is an error of all ranks
// that says so. Calls on communicators that do not block end at random polls later, and take none
// before. A call that connects ranks stays in progress until they have come to theirs: the first
// message of two ranks, and the first collective unless NCCL_RUNTIME_CONNECT=0. Floats are summed
// in their own type, from a rank that differs from communicator to communicator.
//
// TESSERA_EMULATED_NCCL_ERROR=<rank>:<n>: the rank's n-th operation on each communicator fails
// some polls after it was taken, as with a broken link; its peers are left waiting.
#include "cuda_emulation.h"
#include "nccl_board.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <type_traits>
#include <utility>

namespace nccl_emulation {

constexpr const char* kNames[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
                                  "ReduceScatter", "Send",   "Recv"};

// Calls that a rank's stream comes to together.
struct Batch {
  ncclComm* comm;  // null after an abort
  std::vector<Call> calls;
  bool come = false, ended = false;
};

// A split that not all ranks are known to have called.
struct Split {
  std::shared_ptr<SharedBoard> of, own;  // the parent's board; the one that this rank offers
  int size = 0, rank = 0;                // of the parent
  const Splitting* parts = nullptr;
};

}  // namespace nccl_emulation

struct ncclComm {
  std::shared_ptr<nccl_emulation::SharedBoard> board;  // null until its split is complete
  nccl_emulation::Split split;
  int size = 0, rank = 0, device = 0;
  bool blocks = true, finalizing = false;
  bool connects_at_start = false;
  int64_t kept = 0;  // bytes of the device, for buffers
  int polls = 0;     // until it has taken the last call
  int polls_to_error = -1;
  ncclResult_t error = ncclSuccess;
  std::string text;
  std::vector<nccl_emulation::Call> taking;
  std::vector<std::shared_ptr<nccl_emulation::Batch>> batches;  // that have not ended
  size_t collectives = 0, operations = 0, splits = 0;
  uint64_t sends[nccl_emulation::kMostRanks] = {}, receives[nccl_emulation::kMostRanks] = {};

  ~ncclComm() { cuda_emulation::keep_memory(device, -kept); }
  bool connected() const {
    return board && std::all_of(std::begin((*board)->joined), std::begin((*board)->joined) + size,
                                [](const auto& device_and_1) { return device_and_1 != 0; });
  }
};

namespace nccl_emulation {
namespace {

// From then on it has buffers on its device.
void connect_rings(ncclComm* comm) {
  constexpr int64_t kBuffers = 3 << 20;
  if (comm->kept == 0) cuda_emulation::keep_memory(comm->device, comm->kept = kBuffers);
}

struct Group {
  int depth = 0;
  std::vector<std::pair<ncclComm*, Call>> calls;
};
thread_local Group group;

struct Library {
  std::map<std::string, std::shared_ptr<SharedBoard>> boards;  // made here, not joined by all
  std::mt19937_64 random{std::getenv("TESSERA_TEST_SEED")
                             ? std::strtoull(std::getenv("TESSERA_TEST_SEED"), nullptr, 10)
                             : std::random_device{}()};
  static Library& get() {
    static auto* library = new Library;  // threads may end after main
    return *library;
  }
};

size_t item(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
  }
}

std::string text_of(const Call& c) {
  constexpr const char* kTypes[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                    "uint64", "float16", "float32", "float64", "bfloat16"};
  constexpr const char* kOps[] = {"sum", "prod", "max", "min", "avg"};
  std::ostringstream out;
  out << kNames[static_cast<size_t>(c.kind)] << ' ' << c.count << ' ' << kTypes[c.type];
  const bool reduces =
      c.kind == Kind::all_reduce || c.kind == Kind::reduce || c.kind == Kind::reduce_scatter;
  if (reduces) out << ' ' << kOps[c.op];
  if (c.peer >= 0) out << (c.message() ? ", peer " : ", root ") << c.peer;
  if (!c.message()) out << ", collective " << c.number;
  return out.str();
}

ncclResult_t fail(ncclComm* comm, ncclResult_t code, std::string text) {
  if (comm->error != ncclSuccess) return comm->error;
  comm->error = code;
  comm->text = std::move(text);
  return code;
}

// Takes note of an error that a rank has told all: nothing of this communicator can end any more,
// and the streams go on.
void look(ncclComm* comm) {
  const int failed = comm->board ? (*comm->board)->failed.load() : 0;
  if (failed < 2) return;
  (void)fail(comm, static_cast<ncclResult_t>(failed - 2), (*comm->board)->failure);
  for (const auto& batch : std::exchange(comm->batches, {})) batch->ended = true;
}

// The first error counts.
void fail_all(ncclComm* comm, ncclResult_t code, const std::string& text) {
  Board& board = *comm->board->get();
  int none = 0;
  if (board.failed.compare_exchange_strong(none, 1)) {
    std::snprintf(board.failure, sizeof(board.failure), "%s", text.c_str());
    board.failed = 2 + static_cast<int>(code);
  }
  look(comm);
}

void fail_differing(ncclComm* comm, int a, const Call& of_a, int b, const Call& of_b) {
  fail_all(comm, ncclInvalidUsage,
           "rank " + std::to_string(a) + " has " + text_of(of_a) + " where rank " +
               std::to_string(b) + " has " + text_of(of_b));
}

struct BFloat16 {
  uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  explicit BFloat16(float x) {
    const auto b = std::bit_cast<uint32_t>(x);
    bits = static_cast<uint16_t>(x != x ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
};

template <class T> T combine(T a, T b, ncclRedOp_t op) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, _Float16>) {
    return static_cast<T>(combine(static_cast<float>(a), static_cast<float>(b), op));
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // sums wrap
    switch (op) {
      case ncclMax: return std::max(a, b);
      case ncclMin: return std::min(a, b);
      case ncclProd: return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
      default: return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  } else {
    switch (op) {
      case ncclMax: return a != a || a > b ? a : b;  // NaN wins
      case ncclMin: return a != a || a < b ? a : b;
      case ncclProd: return a * b;
      default: return a + b;
    }
  }
}

template <class T>
void reduce_as(const std::vector<const char*>& from, char* to, size_t count, ncclRedOp_t op,
               size_t first) {
  const size_t n = from.size();
  const auto at = [&](size_t rank, size_t i) {
    return reinterpret_cast<const T*>(from[rank % n])[i];
  };
  for (size_t i = 0; i < count; ++i) {
    T value = at(first, i);
    for (size_t k = 1; k < n; ++k) value = combine(value, at(first + k, i), op);
    if constexpr (!std::is_integral_v<T>) {
      using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
      if (op == ncclAvg) value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(n));
    }
    reinterpret_cast<T*>(to)[i] = value;
  }
}

void reduce(const std::vector<const char*>& from, char* to, size_t count, ncclDataType_t type,
            ncclRedOp_t op, size_t first) {
  switch (type) {
    case ncclInt8: return reduce_as<int8_t>(from, to, count, op, first);
    case ncclUint8: return reduce_as<uint8_t>(from, to, count, op, first);
    case ncclInt32: return reduce_as<int32_t>(from, to, count, op, first);
    case ncclUint32: return reduce_as<uint32_t>(from, to, count, op, first);
    case ncclInt64: return reduce_as<int64_t>(from, to, count, op, first);
    case ncclUint64: return reduce_as<uint64_t>(from, to, count, op, first);
    case ncclFloat16: return reduce_as<_Float16>(from, to, count, op, first);
    case ncclFloat32: return reduce_as<float>(from, to, count, op, first);
    case ncclFloat64: return reduce_as<double>(from, to, count, op, first);
    case ncclBfloat16: return reduce_as<BFloat16>(from, to, count, op, first);
  }
}

void send(ncclComm& comm, Call& c, int to, size_t bytes) {
  Channel& channel = (*comm.board)->channels[comm.rank][to];
  if (bytes > 0) std::memcpy(comm.board->bytes(comm.rank, to), c.from, bytes);
  channel.call.write(c);
  channel.sent = c.number;
  c.sent = true;
}

// Whether a channel's last bytes were those of the call before, and all ranks have read them.
bool free_for(const Channel& channel, const Call& c, int first_reader, int last_reader) {
  for (int r = first_reader; r <= last_reader; ++r)
    if (channel.read[r] + 1 < c.number) return false;
  return channel.sent + 1 == c.number;
}

// All streams have come: what this rank gets.
void take_result(const ncclComm& comm, const Call& c) {
  const size_t bytes = c.count * item(c.type);
  const bool scatters = c.kind == Kind::reduce_scatter;
  std::vector<const char*> from;
  for (int r = 0; r < comm.size; ++r)
    from.push_back(comm.board->bytes(r, r) +
                   (scatters ? bytes * static_cast<size_t>(comm.rank) : 0));
  if (c.kind == Kind::all_gather) {
    for (size_t r = 0; r < from.size(); ++r) std::copy_n(from[r], bytes, c.to + r * bytes);
  } else if (c.kind == Kind::broadcast) {
    std::copy_n(from[static_cast<size_t>(c.peer)], bytes, c.to);
  } else if (c.kind != Kind::reduce || comm.rank == c.peer) {
    reduce(from, c.to, c.count, c.type, c.op,
           static_cast<size_t>((*comm.board)->first % static_cast<uint64_t>(comm.size)));
  }
}

// Whether a collective has ended for this rank.
bool meet(ncclComm& comm, Call& c) {
  auto& channels = (*comm.board)->channels;
  const bool silent = c.kind == Kind::broadcast && comm.rank != c.peer;
  const size_t parts = c.kind == Kind::reduce_scatter ? static_cast<size_t>(comm.size) : 1;
  if (!c.sent) {
    if (!free_for(channels[comm.rank][comm.rank], c, 0, comm.size - 1)) return false;
    send(comm, c, comm.rank, silent ? 0 : parts * c.count * item(c.type));
  }
  for (int r = 0; r < comm.size; ++r)
    if (channels[r][r].sent != c.number) return false;
  for (int r = 0; r < comm.size; ++r) {
    const Call theirs = channels[r][r].call.read(c.number).value();
    if (!theirs.agrees(c)) {
      fail_differing(&comm, r, theirs, comm.rank, c);
      return false;
    }
  }
  take_result(comm, c);
  for (int r = 0; r < comm.size; ++r) channels[r][r].read[comm.rank] = c.number;
  return true;
}

// Whether a message has ended for this rank.
bool exchange(ncclComm& comm, Call& c) {
  auto& channels = (*comm.board)->channels;
  if (c.kind == Kind::send) {
    Channel& channel = channels[comm.rank][c.peer];
    if (!c.sent && free_for(channel, c, c.peer, c.peer))
      send(comm, c, c.peer, c.count * item(c.type));
    return channel.read[c.peer] == c.number;
  }
  Channel& channel = channels[c.peer][comm.rank];
  if (channel.sent != c.number) return false;
  const Call theirs = channel.call.read(c.number).value();
  if (theirs.count != c.count || theirs.type != c.type) {
    fail_differing(&comm, c.peer, theirs, comm.rank, c);
    return false;
  }
  std::copy_n(comm.board->bytes(c.peer, comm.rank), c.count * item(c.type), c.to);
  channel.read[comm.rank] = c.number;
  return true;
}

// A rank's stream has come to its calls.
void come(Batch& batch) {
  if (!batch.comm || batch.ended) return;
  for (Call& c : batch.calls) {
    if (!c.message()) continue;
    auto& numbers = c.kind == Kind::send ? batch.comm->sends : batch.comm->receives;
    c.number = ++numbers[c.peer];
  }
  batch.come = true;
}

// Does what the other ranks have made possible; whether the stream goes on.
bool ends(const std::shared_ptr<Batch>& batch) {
  if (!batch->comm || batch->ended) return batch->ended;
  ncclComm& comm = *batch->comm;
  look(&comm);
  bool done = batch->come;
  for (size_t i = 0; i < batch->calls.size() && batch->come && !batch->ended; ++i) {
    Call& c = batch->calls[i];
    if (!c.done) c.done = c.message() ? exchange(comm, c) : meet(comm, c);
    done = done && c.done;
  }
  if (!batch->ended && done) {
    batch->ended = true;
    std::erase(comm.batches, batch);
  }
  return batch->ended;
}

// Where the bytes of a call must lie, on the device of the rank.
std::string misplaced(const ncclComm& comm, const Call& c) {
  const size_t bytes = c.count * item(c.type), n = static_cast<size_t>(comm.size);
  const bool root = comm.rank == c.peer;
  const auto wrong = [&](const void* p, size_t size, const char* what) -> std::string {
    if (size == 0 || cuda_emulation::device_of(p, size) == comm.device) return "";
    return std::string("the ") + what + " of " + text_of(c) + ", " + std::to_string(size) +
           " bytes, do not lie in one allocation on the communicator's device, " +
           std::to_string(comm.device);
  };
  if (cuda_emulation::device_of(c.stream) != comm.device)
    return "the stream of " + text_of(c) + " is one of device " +
           std::to_string(cuda_emulation::device_of(c.stream)) + ", the communicator's device is " +
           std::to_string(comm.device);
  const size_t most = c.kind == Kind::reduce_scatter ? bytes * n : bytes;
  if (most > kChannelBytes)
    return text_of(c) + " sends " + std::to_string(most) + " bytes: emulated ranks send " +
           std::to_string(kChannelBytes) + " at most";
  const bool sends = c.kind != Kind::recv && (c.kind != Kind::broadcast || root);
  const bool takes = c.kind != Kind::send && (c.kind != Kind::reduce || root);
  std::string text;
  if (sends) text = wrong(c.from, most, "input");
  if (text.empty() && takes)
    text = wrong(c.to, c.kind == Kind::all_gather ? bytes * n : bytes, "output");
  return text;
}

// Puts calls that were taken on their stream.
void issue(ncclComm* comm) {
  const auto batch = std::make_shared<Batch>(Batch{comm, std::exchange(comm->taking, {})});
  auto& issued = (*comm->board)->issued;
  std::string what;
  for (Call& c : batch->calls) {
    if (!c.message()) {
      c.number = ++comm->collectives;
      connect_rings(comm);
    }
    what += (what.empty() ? "" : "; ") + text_of(c);
    if (c.message()) continue;
    const size_t place = c.number % kMostIssued;
    issued[comm->rank][place].write(c);
    for (int r = 0; r < comm->size; ++r) {
      const std::optional<Call> theirs = issued[r][place].read(c.number);
      if (theirs && !theirs->agrees(c)) return fail_differing(comm, r, *theirs, comm->rank, c);
    }
  }
  const cudaStream_t stream = batch->calls.front().stream;
  if (const char* broken = std::getenv("TESSERA_EMULATED_NCCL_ERROR")) {
    int rank = -1;
    size_t number = 0;
    if (std::sscanf(broken, "%d:%zu", &rank, &number) == 2 && rank == comm->rank &&
        number == ++comm->operations) {
      comm->polls_to_error = static_cast<int>(Library::get().random() % 8);
      batch->comm = nullptr;  // it never comes
    }
  }
  comm->batches.push_back(batch);
  (void)cuda_emulation::enqueue_until(
      stream, std::move(what), [batch] { come(*batch); }, [batch] { return ends(batch); });
}

// Whether the ranks are connected that the call in progress connects.
bool connects(const ncclComm& comm) {
  const auto& called = (*comm.board)->called;
  return std::ranges::all_of(comm.taking, [&](const Call& c) {
    if (c.message()) return called[c.peer][comm.rank].load();
    if (comm.connects_at_start) return true;
    bool all = true;
    for (int r = 0; r < comm.size; ++r) all = all && called[r][r];
    return all;
  });
}

// Puts the call in progress on its stream, once it has been asked often enough.
void go_on(ncclComm* comm) {
  if (comm->taking.empty() || !(comm->blocks || connects(*comm))) return;
  if (comm->polls == 0 || --comm->polls == 0) issue(comm);
}

ncclResult_t take(ncclComm* comm, std::vector<Call> calls) {
  look(comm);
  if (comm->error != ncclSuccess) return comm->error;
  if (!comm->connected() || !comm->taking.empty() || comm->finalizing)
    return fail(comm, ncclInvalidUsage,
                text_of(calls.front()) +
                    " was called while the call before it was in progress: "
                    "poll ncclCommGetAsyncError until it is not");
  for (const Call& c : calls) {
    if (c.peer >= comm->size || (c.message() && c.peer == comm->rank))
      return fail(comm, ncclInvalidArgument, text_of(c) + ": there is no such rank");
    if (std::string text = misplaced(*comm, c); !text.empty())
      return fail(comm, ncclInvalidArgument, std::move(text));
    if (c.stream != calls.front().stream)
      return fail(comm, ncclInvalidUsage, "the calls of a group are on several streams");
  }
  comm->taking = std::move(calls);
  for (const Call& c : comm->taking)
    (*comm->board)->called[comm->rank][c.message() ? c.peer : comm->rank] = true;
  comm->polls = comm->blocks ? 0 : static_cast<int>(Library::get().random() % 4);
  if (comm->polls > 0) return ncclInProgress;
  go_on(comm);
  return comm->error != ncclSuccess || comm->taking.empty() ? comm->error : ncclInProgress;
}

ncclResult_t call(Call c, ncclComm* comm) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  if (group.depth == 0) return take(comm, {c});
  group.calls.emplace_back(comm, c);
  return ncclSuccess;
}

void join(ncclComm* comm, std::shared_ptr<SharedBoard> at, int size, int rank) {
  Board& board = *at->get();
  comm->board = std::move(at);
  comm->size = size;
  comm->rank = rank;
  int none = 0, nobody = 0;
  const bool first = board.size.compare_exchange_strong(none, size);
  if ((!first && none != size) ||
      !board.joined[rank].compare_exchange_strong(nobody, comm->device + 1)) {
    (void)fail(comm, ncclInvalidArgument,
               "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                   " joins a communicator of " + std::to_string(board.size) +
                   " ranks, which has no such place left");
    return;
  }
  for (int r = 0; r < size; ++r) {
    if (r == rank || board.joined[r] != comm->device + 1) continue;
    fail_all(comm, ncclInvalidUsage,
             "Duplicate GPU detected: rank " + std::to_string(r) + " and rank " +
                 std::to_string(rank) + " both on device " + std::to_string(comm->device));
  }
}

void forget(ncclComm* comm) {
  for (const auto& batch : comm->batches) {
    for (const Call& c : batch->calls) {  // what was not taken is taken back
      if (c.sent && !c.done)
        (*comm->board)->channels[comm->rank][c.message() ? c.peer : comm->rank].sent = c.number - 1;
    }
    batch->comm = nullptr;
    batch->ended = true;
  }
}

// Joins the communicator that a split makes, once all ranks of the parent have called it.
void finish_split(ncclComm* comm) {
  if (comm->board || !comm->split.parts || comm->error != ncclSuccess) return;
  const Split& split = comm->split;
  const int color = split.parts[split.rank].color;
  std::vector<int> members;
  for (int r = 0; r < split.size; ++r) {
    if (!split.parts[r].written) return;
    if (split.parts[r].color == color) members.push_back(r);
  }
  std::ranges::stable_sort(members, {}, [&](int r) { return split.parts[r].key; });
  const int first = members.front();
  auto board = first == split.rank ? split.own : SharedBoard::open(split.parts[first].id);
  const auto rank = std::ranges::find(members, split.rank) - members.begin();
  comm->split = {};
  if (board)
    return join(comm, std::move(board), static_cast<int>(members.size()), static_cast<int>(rank));
  (void)fail(comm, ncclRemoteError,
             "the first rank of the communicator that is split off has left");
}

}  // namespace
}  // namespace nccl_emulation

using namespace nccl_emulation;

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  Library& library = Library::get();
  const auto board = SharedBoard::make(library.random());
  if (!board) return ncclSystemError;
  *id = (*board)->id;
  library.boards[id->internal] = board;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (!comm || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  auto* made = new ncclComm;
  made->device = device;
  made->blocks = !config || config->blocking != 0;
  const char* const connects = std::getenv("NCCL_RUNTIME_CONNECT");
  made->connects_at_start = connects && std::string(connects) == "0";
  *comm = made;
  if (ranks > kMostRanks)
    return fail(made, ncclInvalidArgument,
                "a communicator of " + std::to_string(ranks) + " ranks: emulated hosts have " +
                    std::to_string(kMostRanks) + " devices at most, and each rank needs one");
  const auto& boards = Library::get().boards;
  const auto here = boards.find(id.internal);
  auto board = here != boards.end() ? here->second : SharedBoard::open(id);
  if (!board)
    return fail(made, ncclRemoteError, "the process that made the communicator's id has ended");
  join(made, std::move(board), ranks, rank);
  if (made->connects_at_start) connect_rings(made);
  return made->blocks ? made->error : ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (!comm || !made) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  *made = nullptr;
  look(comm);
  if (comm->error != ncclSuccess) return comm->error;
  if (comm->splits == kMostSplits)
    return fail(
        comm, ncclInvalidUsage,
        "an emulated communicator is split " + std::to_string(kMostSplits) + " times at most");
  Splitting* const parts = (*comm->board)->splits[comm->splits++];
  Splitting& mine = parts[comm->rank];
  mine.color = color;
  mine.key = key;
  if (color != NCCL_SPLIT_NOCOLOR) {
    auto own = SharedBoard::make(Library::get().random());
    if (!own) return fail(comm, ncclSystemError, "no memory is left for another communicator");
    mine.id = (*own)->id;
    *made = new ncclComm;
    (*made)->split = {comm->board, std::move(own), comm->size, comm->rank, parts};
    (*made)->device = comm->device;
    (*made)->connects_at_start = comm->connects_at_start;
    (*made)->blocks = config && config->blocking != INT_MIN ? config->blocking != 0 : comm->blocks;
  }
  mine.written = true;
  return comm->blocks ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (!comm || !state) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  finish_split(comm);
  look(comm);
  if (comm->connected()) Library::get().boards.erase((*comm->board)->id.internal);
  if (comm->error == ncclSuccess) go_on(comm);
  if (comm->polls_to_error >= 0 && comm->polls_to_error-- == 0)
    (void)fail(comm, ncclRemoteError, "the link of rank " + std::to_string(comm->rank) + " broke");
  const bool ends =
      comm->finalizing && (!comm->batches.empty() || (*comm->board)->finalized < comm->size);
  const bool busy = !comm->connected() || !comm->taking.empty() || ends;
  *state = comm->error != ncclSuccess ? comm->error : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  look(comm);
  if (comm->error != ncclSuccess) return comm->error;
  if (comm->finalizing) return fail(comm, ncclInvalidUsage, "it was finalized before");
  comm->finalizing = true;
  ++(*comm->board)->finalized;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  if (!comm->batches.empty())
    return fail(comm, ncclInvalidUsage, "destroyed while operations are in progress: finalize it");
  forget(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  forget(comm);
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  text = comm ? comm->text : "";
  return text.c_str();
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  std::vector<std::pair<ncclComm*, std::vector<Call>>> batches;
  for (auto& [comm, c] : std::exchange(group.calls, {})) {
    ncclComm* const of = comm;
    const auto at = std::ranges::find_if(batches, [of](const auto& b) { return b.first == of; });
    if (at == batches.end()) batches.emplace_back(comm, std::vector<Call>{c});
    else at->second.push_back(c);
  }
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, calls] : batches) {
    const ncclResult_t code = take(comm, std::move(calls));
    if (result == ncclSuccess || result == ncclInProgress)
      result = code == ncclSuccess ? result : code;
  }
  return result;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::all_reduce, static_cast<const char*>(from), static_cast<char*>(to), count,
               type, op, -1, stream},
              comm);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::reduce, static_cast<const char*>(from), static_cast<char*>(to), count, type,
               op, root, stream},
              comm);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::broadcast, static_cast<const char*>(from), static_cast<char*>(to), count, type,
               ncclSum, root, stream},
              comm);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count_each, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::all_gather, static_cast<const char*>(from), static_cast<char*>(to), count_each,
               type, ncclSum, -1, stream},
              comm);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count_each, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::reduce_scatter, static_cast<const char*>(from), static_cast<char*>(to),
               count_each, type, op, -1, stream},
              comm);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call(
      {Kind::send, static_cast<const char*>(from), nullptr, count, type, ncclSum, peer, stream},
      comm);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call({Kind::recv, nullptr, static_cast<char*>(to), count, type, ncclSum, peer, stream},
              comm);
}

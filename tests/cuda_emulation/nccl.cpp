// SPDX-License-Identifier: Apache-2.0
// Collectives among ranks that are threads. A call is a step of its stream; its bytes move when the
// streams of all ranks have come to it. What NCCL would hang on or corrupt, ranks that disagree and
// memory or streams of another device, is an error of all ranks that says so. Calls on
// communicators that do not block end at random polls later, and take none before. Floats are
// summed in their own type, from a rank that differs from communicator to communicator.
//
// TESSERA_EMULATED_NCCL_ERROR=<rank>:<n>: the rank's n-th operation on each communicator fails
// some polls after it was taken, as with a broken link; its peers are left waiting.
#include "nccl.h"

#include "cuda_emulation.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <type_traits>
#include <utility>

namespace nccl_emulation {

enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };
constexpr const char* kNames[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
                                  "ReduceScatter", "Send",   "Recv"};

struct Batch;

struct Call {
  Kind kind;
  const char* from;
  char* to;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // root, or the other rank of a message; -1: none
  cudaStream_t stream;
  size_t sequence = 0;  // among the collectives of its rank

  bool message() const { return kind == Kind::send || kind == Kind::recv; }
  bool agrees(const Call& o) const {
    return kind == o.kind && count == o.count && type == o.type && op == o.op && peer == o.peer;
  }
};

// Calls that a rank's stream comes to together, and its leave to go on.
struct Batch {
  ncclComm* comm;  // null after an abort
  std::vector<Call> calls;
  size_t left = 0;  // calls that have not ended
  std::shared_ptr<bool> end = std::make_shared<bool>(false);
};

struct Part {
  std::shared_ptr<Batch> batch;
  size_t call = 0;
  const Call& get() const { return batch->calls[call]; }
};

// A collective, from the first rank that issues it.
struct Meeting {
  int first = 0;  // the rank whose call this is
  Call call;
  std::vector<Part> parts;  // of ranks whose streams have come
  size_t come = 0;
};

struct Splitting {
  struct Member {
    ncclComm *parent, *made;
    int color, key;
  };
  std::vector<Member> members;
};

// The ranks of one communicator.
struct Clique {
  int size;
  size_t first;  // the rank from which sums start
  std::vector<ncclComm*> members;
  int joined = 0, finalized = 0;
  std::map<size_t, Meeting> meetings = {};
  std::map<std::pair<int, int>, std::deque<Part>> sends = {}, receives = {};  // by its two ranks
  std::map<size_t, Splitting> splits = {};
};

}  // namespace nccl_emulation

struct ncclComm {
  std::shared_ptr<nccl_emulation::Clique> clique;  // null until its split is complete
  int rank = 0, device = 0;
  bool blocks = true, finalizing = false;
  int polls = 0;  // until it has taken the last call
  int polls_to_error = -1;
  ncclResult_t error = ncclSuccess;
  std::string text;
  std::vector<nccl_emulation::Call> taking;
  std::vector<std::shared_ptr<nccl_emulation::Batch>> batches;  // that have not ended
  size_t collectives = 0, operations = 0, splits = 0;

  bool connected() const { return clique && clique->joined == clique->size; }
};

namespace nccl_emulation {
namespace {

struct Group {
  int depth = 0;
  std::vector<std::pair<ncclComm*, Call>> calls;
};
thread_local Group group;

struct Library {
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // that not all ranks have joined
  uint64_t ids = 0;
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
  if (!c.message()) out << ", collective " << c.sequence;
  return out.str();
}

ncclResult_t fail(ncclComm* comm, ncclResult_t code, std::string text) {
  if (comm->error != ncclSuccess) return comm->error;
  comm->error = code;
  comm->text = std::move(text);
  return code;
}

// Nothing of this communicator can end any more; the streams go on.
void fail_all(Clique& clique, ncclResult_t code, const std::string& text) {
  for (ncclComm* member : clique.members) {
    if (!member) continue;
    (void)fail(member, code, text);
    for (const auto& batch : member->batches) *batch->end = true;
  }
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

void end_call(const Part& part) {
  Batch& batch = *part.batch;
  if (--batch.left > 0) return;
  *batch.end = true;
  if (batch.comm)
    std::erase_if(batch.comm->batches, [&](const auto& b) { return b.get() == &batch; });
}

// All streams have come: moves the bytes. Inputs are read before any output is written, as in
// place each rank's output may be another's input.
void run(const Clique& clique, const Meeting& meeting) {
  const Call& c = meeting.call;
  const size_t bytes = c.count * item(c.type);
  const bool gathers = c.kind == Kind::all_gather;
  const size_t parts = c.kind == Kind::reduce_scatter ? meeting.parts.size() : 1;
  std::vector<std::vector<char>> inputs;
  for (size_t r = 0; r < meeting.parts.size(); ++r) {
    const char* from = meeting.parts[r].get().from;
    if (from && (c.kind != Kind::broadcast || static_cast<int>(r) == c.peer))
      inputs.emplace_back(from, from + bytes * parts);
    else inputs.emplace_back(from ? 0 : bytes * parts);
  }
  for (size_t r = 0; r < meeting.parts.size(); ++r) {
    char* const to = meeting.parts[r].get().to;
    if (gathers) {
      for (size_t p = 0; p < inputs.size(); ++p)
        std::copy(inputs[p].begin(), inputs[p].end(), to + p * bytes);
    } else if (c.kind == Kind::broadcast) {
      const auto& root = inputs[static_cast<size_t>(c.peer)];
      std::copy(root.begin(), root.end(), to);
    } else if (c.kind != Kind::reduce || static_cast<int>(r) == c.peer) {
      std::vector<const char*> from;
      for (const auto& input : inputs) from.push_back(input.data() + (parts > 1 ? r * bytes : 0));
      reduce(from, to, c.count, c.type, c.op, clique.first);
    }
  }
  for (const Part& p : meeting.parts) end_call(p);
}

void meet_message(Clique& clique, const Part& part, int rank) {
  const Call& c = part.get();
  const bool sends = c.kind == Kind::send;
  const std::pair key = sends ? std::pair(rank, c.peer) : std::pair(c.peer, rank);
  auto& mine = sends ? clique.sends[key] : clique.receives[key];
  auto& theirs = sends ? clique.receives[key] : clique.sends[key];
  if (theirs.empty()) {
    mine.push_back(part);
    return;
  }
  const Part other = theirs.front();
  theirs.pop_front();
  const Call &from = sends ? c : other.get(), &to = sends ? other.get() : c;
  if (from.count != to.count || from.type != to.type) {
    return fail_all(clique, ncclInvalidUsage,
                    "rank " + std::to_string(key.first) + " has " + text_of(from) + " where rank " +
                        std::to_string(key.second) + " has " + text_of(to));
  }
  std::memcpy(to.to, from.from, from.count * item(from.type));
  end_call(part);
  end_call(other);
}

// Whether its rank has aborted.
bool gone(const Part& part) { return part.batch && !part.batch->comm; }

// A rank's stream has come to its calls.
void come(const std::shared_ptr<Batch>& batch) {
  if (!batch->comm || *batch->end) return;
  const std::shared_ptr<Clique> clique = batch->comm->clique;
  const int rank = batch->comm->rank;
  for (size_t i = 0; i < batch->calls.size() && !*batch->end; ++i) {
    const Part part{batch, i};
    if (part.get().message()) {
      meet_message(*clique, part, rank);
      continue;
    }
    const auto meeting = clique->meetings.find(part.get().sequence);
    meeting->second.parts[static_cast<size_t>(rank)] = part;
    if (++meeting->second.come < static_cast<size_t>(clique->size)) continue;
    if (std::ranges::any_of(meeting->second.parts, gone)) continue;  // it never ends for the others
    const Meeting all = std::move(meeting->second);
    clique->meetings.erase(meeting);
    run(*clique, all);
  }
}

// Where the bytes of a call must lie, on the device of the rank.
std::string misplaced(const ncclComm& comm, const Call& c) {
  const size_t bytes = c.count * item(c.type), n = static_cast<size_t>(comm.clique->size);
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
  const bool sends = c.kind != Kind::recv && (c.kind != Kind::broadcast || root);
  const bool takes = c.kind != Kind::send && (c.kind != Kind::reduce || root);
  std::string text;
  if (sends) text = wrong(c.from, c.kind == Kind::reduce_scatter ? bytes * n : bytes, "input");
  if (text.empty() && takes)
    text = wrong(c.to, c.kind == Kind::all_gather ? bytes * n : bytes, "output");
  return text;
}

// Puts calls that were taken on their stream.
void issue(ncclComm* comm) {
  const auto batch = std::make_shared<Batch>(Batch{comm, std::move(comm->taking), 0});
  comm->taking.clear();
  batch->left = batch->calls.size();
  std::string what;
  for (Call& c : batch->calls) {
    c.sequence = c.message() ? 0 : ++comm->collectives;
    what += (what.empty() ? "" : "; ") + text_of(c);
    if (c.message()) continue;
    Clique& clique = *comm->clique;
    auto [at, first] = clique.meetings.try_emplace(
        c.sequence, Meeting{comm->rank, c, std::vector<Part>(static_cast<size_t>(clique.size))});
    if (!first && !at->second.call.agrees(c)) {
      return fail_all(clique, ncclInvalidUsage,
                      "rank " + std::to_string(at->second.first) + " has " +
                          text_of(at->second.call) + " where rank " + std::to_string(comm->rank) +
                          " has " + text_of(c));
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
      stream, std::move(what), [batch] { come(batch); }, batch->end);
}

ncclResult_t take(ncclComm* comm, std::vector<Call> calls) {
  if (comm->error != ncclSuccess) return comm->error;
  if (!comm->connected() || comm->polls > 0 || comm->finalizing)
    return fail(comm, ncclInvalidUsage,
                text_of(calls.front()) +
                    " was called while the call before it was in progress: "
                    "poll ncclCommGetAsyncError until it is not");
  for (const Call& c : calls) {
    if (c.peer >= comm->clique->size || (c.message() && c.peer == comm->rank))
      return fail(comm, ncclInvalidArgument, text_of(c) + ": there is no such rank");
    if (std::string text = misplaced(*comm, c); !text.empty())
      return fail(comm, ncclInvalidArgument, std::move(text));
    if (c.stream != calls.front().stream)
      return fail(comm, ncclInvalidUsage, "the calls of a group are on several streams");
  }
  comm->taking = std::move(calls);
  comm->polls = comm->blocks ? 0 : static_cast<int>(Library::get().random() % 4);
  if (comm->polls > 0) return ncclInProgress;
  issue(comm);
  return comm->error;
}

ncclResult_t call(Call c, ncclComm* comm) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  if (group.depth == 0) return take(comm, {c});
  group.calls.emplace_back(comm, c);
  return ncclSuccess;
}

void join(ncclComm* comm, const std::shared_ptr<Clique>& clique, int rank) {
  comm->clique = clique;
  comm->rank = rank;
  clique->members[static_cast<size_t>(rank)] = comm;
  ++clique->joined;
  for (const ncclComm* other : clique->members) {
    if (!other || other == comm || other->device != comm->device) continue;
    fail_all(*clique, ncclInvalidUsage,
             "Duplicate GPU detected: rank " + std::to_string(other->rank) + " and rank " +
                 std::to_string(rank) + " both on device " + std::to_string(comm->device));
  }
}

std::shared_ptr<Clique> make_clique(int size) {
  return std::make_shared<Clique>(Clique{size, Library::get().random() % static_cast<size_t>(size),
                                         std::vector<ncclComm*>(static_cast<size_t>(size))});
}

void forget(ncclComm* comm) {
  for (const auto& batch : comm->batches) {
    batch->comm = nullptr;
    *batch->end = true;
  }
  if (!comm->clique) return;
  Clique& clique = *comm->clique;
  clique.members[static_cast<size_t>(comm->rank)] = nullptr;
  for (auto* queues : {&clique.sends, &clique.receives}) {
    for (auto& [_, parts] : *queues) std::erase_if(parts, gone);
  }
}

// All ranks have called: the new communicators know each other.
void split(const Splitting& all) {
  std::map<int, std::vector<Splitting::Member>> colors;
  for (const auto& m : all.members) {
    if (m.made) colors[m.color].push_back(m);
  }
  for (auto& [_, members] : colors) {
    std::ranges::stable_sort(members, {},
                             [](const auto& m) { return std::pair(m.key, m.parent->rank); });
    const auto clique = make_clique(static_cast<int>(members.size()));
    for (size_t r = 0; r < members.size(); ++r) join(members[r].made, clique, static_cast<int>(r));
  }
}

}  // namespace
}  // namespace nccl_emulation

using namespace nccl_emulation;

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "emulated-%llu",
                static_cast<unsigned long long>(++Library::get().ids));
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
  *comm = made;
  auto& clique = Library::get().cliques[id.internal];
  if (!clique) clique = make_clique(ranks);
  if (clique->size != ranks || clique->members[static_cast<size_t>(rank)]) {
    return fail(made, ncclInvalidArgument,
                "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                    " joins a communicator of " + std::to_string(clique->size) +
                    " ranks, which has no such place left");
  }
  join(made, clique, rank);
  if (clique->joined == ranks) Library::get().cliques.erase(id.internal);
  return made->blocks ? made->error : ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (!comm || !made) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  *made = nullptr;
  if (comm->error != ncclSuccess) return comm->error;
  if (color != NCCL_SPLIT_NOCOLOR) {
    *made = new ncclComm;
    (*made)->device = comm->device;
    (*made)->blocks = config && config->blocking != INT_MIN ? config->blocking != 0 : comm->blocks;
  }
  const std::shared_ptr<Clique> clique = comm->clique;
  const size_t number = ++comm->splits;
  Splitting& all = clique->splits[number];
  all.members.push_back({comm, *made, color, key});
  if (all.members.size() == static_cast<size_t>(clique->size)) {
    split(all);
    clique->splits.erase(number);
  }
  return comm->blocks ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (!comm || !state) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  if (comm->polls > 0 && --comm->polls == 0) issue(comm);
  if (comm->polls_to_error >= 0 && comm->polls_to_error-- == 0)
    (void)fail(comm, ncclRemoteError, "the link of rank " + std::to_string(comm->rank) + " broke");
  const bool ends =
      comm->finalizing && (!comm->batches.empty() || comm->clique->finalized < comm->clique->size);
  const bool busy = !comm->connected() || comm->polls > 0 || ends;
  *state = comm->error != ncclSuccess ? comm->error : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(cuda_emulation::runtime_mutex());
  if (comm->error != ncclSuccess) return comm->error;
  if (comm->finalizing) return fail(comm, ncclInvalidUsage, "it was finalized before");
  comm->finalizing = true;
  ++comm->clique->finalized;
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

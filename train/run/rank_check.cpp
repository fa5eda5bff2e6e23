// SPDX-License-Identifier: Apache-2.0
// Texts travel as `<bytes>:<text>`, since values may hold any character. Of ranks with one digest
// only the first sends its text. All ranks derive the same error from the same bytes; each waits
// until all have them, so that no rank sees only that another one failed.
#include "tessera/train/run/rank_check.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/message.h"
#include "tessera/core/parallel.h"
#include "tessera/core/process.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <elf.h>
#include <link.h>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace tessera::train {
namespace {

constexpr std::string_view kAbsent = "absent";

// The linker's build ids of the program and, if it is another file, the library.
struct BuildIds {
  std::string text;
  bool first = true;
};

std::string id_in(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    std::string_view notes(reinterpret_cast<const char*>(object.dlpi_addr + segment.p_vaddr),
                           segment.p_memsz);
    constexpr auto kAlign = [](uint32_t size) { return (size_t{size} + 3) / 4 * 4; };
    ElfW(Nhdr) note{};
    while (notes.size() > sizeof note) {
      std::memcpy(&note, notes.data(), sizeof note);
      const size_t at = sizeof note + kAlign(note.n_namesz), end = at + kAlign(note.n_descsz);
      if (end > notes.size()) break;
      if (note.n_type == NT_GNU_BUILD_ID && notes.substr(sizeof note).starts_with("GNU")) {
        std::string id;
        for (const char byte : notes.substr(at, note.n_descsz))
          id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
        return id;
      }
      notes.remove_prefix(end);
    }
  }
  return "unknown";
}

bool holds(const dl_phdr_info& object, ElfW(Addr) address) {
  return std::any_of(object.dlpi_phdr, object.dlpi_phdr + object.dlpi_phnum, [&](const auto& s) {
    return s.p_type == PT_LOAD && address - object.dlpi_addr - s.p_vaddr < s.p_memsz;
  });
}

std::string build_ids() {
  BuildIds ids;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* into) {
        auto& found = *static_cast<BuildIds*>(into);
        const bool program = std::exchange(found.first, false);
        if (program || holds(*object, reinterpret_cast<ElfW(Addr)>(&build_ids)))
          found.text += concat(found.text.empty() ? "" : " and ", id_in(*object));
        return 0;
      },
      &ids);
  return ids.text;
}

std::string packed(const std::vector<RankFact>& facts) {
  std::string text;
  for (const auto& [name, value] : facts)
    text += concat(name.size(), ':', name, value.size(), ':', value);
  return text;
}

using Values = std::map<std::string, std::string, std::less<>>;

// Names in the order of their first use.
struct Names {
  std::vector<std::string> all;
  std::set<std::string, std::less<>> known;
  void add(const std::string& name) {
    if (known.insert(name).second) all.push_back(name);
  }
};

// Stops at bytes of another form, which only another version of the library sends.
Values unpacked(std::string_view text, Names& names) {
  const auto next = [&]() -> std::optional<std::string> {
    size_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (error != std::errc() || !text.starts_with(':') || size >= text.size()) return std::nullopt;
    std::string part(text.substr(1, size));
    text.remove_prefix(1 + size);
    return part;
  };
  Values values;
  while (auto name = next()) {
    auto value = next();
    if (!value) break;
    names.add(*name);
    values.emplace(*std::move(name), *std::move(value));
  }
  return values;
}

// One line of at most about 200 characters; equal only for equal values.
std::string shown(const std::string& value) {
  constexpr size_t kMost = 200;
  if (value.empty()) return "empty";
  const std::string text = io::excerpt(value, kMost);
  return value.size() <= kMost ? text
                               : fmt::format("{} (checksum {:08x})", text, io::crc32c(value));
}

// `0.001 on ranks 0, 2, 3 and 0.05 on rank 1`, for the value of each rank (null: it has none).
// Empty if all are equal.
std::string by_value(const std::vector<const std::string*>& values) {
  constexpr size_t kMost = 4;  // values that are listed
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  std::map<std::string_view, size_t> known;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (!values[rank]) continue;
    const auto [at, first] = known.emplace(*values[rank], groups.size());
    if (first && groups.size() < kMost)
      groups.emplace_back(shown(*values[rank]), std::vector<int>{});
    else if (first) at->second = kMost - 1;
    if (known.size() > kMost) groups.back().first = "other values";
    groups[at->second].second.push_back(static_cast<int>(rank));
  }
  if (known.size() < 2) return "";
  std::string text;
  for (size_t i = 0; i < groups.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == groups.size() ? " and " : ", ";
    text += concat(before, groups[i].first, " on ", ranks_text(groups[i].second));
  }
  return text;
}

// Every rank gets here with the same message.
[[noreturn]] void fail_on_all_ranks(std::string_view where, const std::string& message) {
  meet_before_failing();
  fail<CollectiveMismatch>(where, message);
}

// A tensor (n) of each rank, as (ranks, n).
Tensor of_all_ranks(ProcessGroup& group, const Tensor& own) {
  const Tensor all = empty({group.size(), own.numel()}, own.dtype());
  group.all_gather(own, all)->wait();
  return all;
}

// Of blocks, whose size does not depend on the number of threads, then of their checksums.
uint32_t checksum(const Tensor& x) {
  constexpr int64_t kBlock = int64_t{1} << 22;
  Tensor whole = contiguous(x);
  if (!whole.device().is_cpu()) {
    whole = empty(x.shape(), x.dtype());
    copy_bytes(whole, contiguous(x));
  }
  const int64_t bytes = whole.numel() * item_size(whole.dtype());
  const auto* data = bytes > 0 ? static_cast<const char*>(whole.raw_data()) : nullptr;
  std::vector<uint32_t> sums(static_cast<size_t>((bytes + kBlock - 1) / kBlock));
  parallel_for(bytes, kBlock, [&](int64_t begin, int64_t end) {
    sums[static_cast<size_t>(begin / kBlock)] =
        io::crc32c({data + begin, static_cast<size_t>(end - begin)});
  });
  return io::crc32c({reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint32_t)});
}

// Where this rank's shard begins in the global tensor; -1 if it is empty or a summand.
int64_t shard_of(const Tensor& x) {
  if (!x.is_distributed()) return 0;
  const Layout layout = layout_of(x);
  if (layout.has_partial() || local(x).numel() == 0) return -1;
  int64_t at = 0;
  for (int d = 0; d < x.shape().rank(); ++d) at = at * x.size(d) + layout.range(x.shape(), d).begin;
  return at;
}

}  // namespace

RankFacts::RankFacts() {
  add("build", concat("tessera ", TESSERA_VERSION, " by compiler ", __VERSION__, ", build id ",
                      build_ids()));
}

void RankFacts::add_fields(const config::Fields& fields, std::string_view prefix) {
  for (const config::Field& field : fields.all()) {
    if (!field.limits.per_rank) add(concat(prefix, field.path), field.text());
  }
}

void RankFacts::add_device(Device device) {
  add("kind of device", device.is_cuda() ? "cuda" : "cpu");
}

DataFingerprint RankFacts::add_data(const std::string& path, const std::string& field) {
  try {
    DataFingerprint files = fingerprint_data(path, field);
    for (const DataFile& file : files) add(concat(file.name, " of ", field), file.text());
    return files;
  } catch (const Error& error) {  // on all ranks, or only on this one
    add(concat("data of ", field), error.what());
    return {};
  }
}

void RankFacts::add_tokenizer(const std::string& path, const std::string& field) {
  if (path.empty()) return;
  try {
    add_tokenizer(read_tokenizer_files(path, field), field);
  } catch (const Error& error) {
    add(concat("tokenizer of ", field), error.what());
  }
}

void RankFacts::add_tokenizer(std::span<const TokenizerFile> files, const std::string& field) {
  for (const TokenizerFile& file : files) {
    add(concat(file.name, " of ", field),
        concat(counted(file.bytes.size(), "byte"), ", CRC-32C ", io::crc32c(file.bytes)));
  }
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 4) end = i + 1;  // short runs are easier to read as a list
    text += concat(i == 0 ? "" : ", ", ranks[i]);
    if (end - i > 1) text += concat(" to ", ranks[end - 1]);
    i = end;
  }
  return text;
}

std::vector<std::string> rank_differences(const std::vector<RankFact>& facts) {
  ProcessGroup& group = World::current().group();
  const auto n = static_cast<size_t>(group.size());
  const std::string own = packed(facts);
  const Tensor digest = empty({2}, DType::i64);
  digest.data<int64_t>()[0] = std::ssize(own);
  digest.data<int64_t>()[1] = io::crc32c(own);
  const Tensor digests = of_all_ranks(group, digest);  // (ranks, 2)

  // The first rank with each digest, and the number of bytes that it sends.
  std::map<std::pair<int64_t, int64_t>, size_t> firsts;
  std::vector<size_t> first(n);
  Counts counts(n, 0);
  int64_t bytes = 0;
  for (size_t r = 0; r < n; ++r) {
    const int64_t* d = digests.data<int64_t>() + 2 * r;
    const auto [at, is_first] = firsts.emplace(std::pair(d[0], d[1]), r);
    first[r] = at->second;
    if (is_first) bytes += counts[r] = d[0];
  }
  if (firsts.size() == 1) return {};
  const auto rank = static_cast<size_t>(group.rank());
  const Tensor sent = empty({counts[rank]}, DType::u8), all = empty({bytes}, DType::u8);
  std::copy_n(own.begin(), counts[rank], reinterpret_cast<char*>(sent.data<uint8_t>()));
  group.all_gather(sent, all, counts)->wait();

  Names names;
  std::vector<Values> values(n);
  const auto* text = reinterpret_cast<const char*>(all.data<uint8_t>());
  for (size_t r = 0; r < n; text += counts[r++])
    values[r] = unpacked({text, static_cast<size_t>(counts[r])}, names);
  const std::string absent(kAbsent);
  std::vector<std::string> differences;
  for (const std::string& name : names.all) {
    std::vector<const std::string*> of_ranks;
    for (size_t r = 0; r < n; ++r) {
      const auto at = values[first[r]].find(name);
      of_ranks.push_back(at == values[first[r]].end() ? &absent : &at->second);
    }
    if (const std::string found = by_value(of_ranks); !found.empty())
      differences.push_back(concat(name, " is ", found));
  }
  return differences;
}

void require_equal_ranks(std::string_view where, const RankFacts& facts) {
  const std::vector<std::string> differences = rank_differences(facts.all());
  if (differences.empty()) return;
  fail_on_all_ranks(where,
                    concat("ranks differ: ", first_few(differences),
                           "; start all ranks with the same program, configuration and data"));
}

std::string products_on(Device device) {
  if (!device.is_cuda()) return product_route();
  return concat(Process::get().cuda().device_name(device.index),
                has_cudnn() ? ", attention by cuDNN " + cudnn_text() : ", no cuDNN");
}

void compare_kernels(std::string_view where, Device device, bool strict,
                     const std::function<void(const std::string&)>& warn) {
  const std::vector<std::string> differences = rank_differences({{"matmul", products_on(device)}});
  if (differences.empty()) return;
  const std::string what = concat("ranks compute differently: ", first_few(differences));
  if (strict) {
    fail_on_all_ranks(where, concat(what,
                                    ", so the bits of the run depend on which rank computes what: "
                                    "use equal hosts, or give --debug.deterministic_warn_only"));
  }
  warn(concat("warning: ", what, ": bits differ from those of a run on equal hosts"));
}

void check_replicas(std::string_view where, const std::vector<nn::NamedParameter>& tensors,
                    std::string_view when) {
  ProcessGroup& group = World::current().group();
  if (group.size() == 1) return;  // nothing to compare with, so the bytes need not be read
  const NoGrad guard;
  const Tensor own = empty({2 * std::ssize(tensors)}, DType::i64);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i].tensor;
    own.data<int64_t>()[2 * i] = t.defined() ? shard_of(t) : -1;
    own.data<int64_t>()[2 * i + 1] = t.defined() ? checksum(t.is_distributed() ? local(t) : t) : 0;
  }
  const Tensor all = of_all_ranks(group, own);  // (ranks, tensors x (shard, checksum))

  std::vector<std::string> differences;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::map<int64_t, std::vector<std::string>> shards;  // checksums by rank; empty: another shard
    for (int r = 0; r < group.size(); ++r) {
      const int64_t* of_rank = all.data<int64_t>() + r * own.numel() + 2 * static_cast<int64_t>(i);
      if (of_rank[0] < 0) continue;
      auto& sums = shards[of_rank[0]];
      sums.resize(static_cast<size_t>(group.size()));
      sums[static_cast<size_t>(r)] = fmt::format("{:08x}", of_rank[1]);
    }
    for (const auto& [shard, sums] : shards) {
      std::vector<const std::string*> present;
      for (const std::string& sum : sums) present.push_back(sum.empty() ? nullptr : &sum);
      if (const std::string found = by_value(present); !found.empty())
        differences.push_back(concat(tensors[i].name, " has the checksum ", found));
    }
  }
  if (differences.empty()) return;
  fail_on_all_ranks(
      where, concat("replicas differ ", when, ": ", first_few(differences),
                    "; one of these ranks computed or stored wrong bits: check its host, then "
                    "resume from a checkpoint"));
}

}  // namespace tessera::train

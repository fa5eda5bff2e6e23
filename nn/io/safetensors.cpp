// SPDX-License-Identifier: Apache-2.0
// Opening checks the whole header: tensors must cover the file without overlap or gap, and sizes
// are checked for overflow, so a read never allocates more than the file has. A file with dtypes
// that we do not support can be opened; only those tensors cannot be read.
#include "tessera/nn/io/safetensors.h"

#include "tessera/core/message.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000, kMaxName = 1024;
constexpr int kMaxDepth = 4;

struct FileType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;  // none: known to the format, not to us
};
constexpr std::array<FileType, 22> kTypes{{
    {"F64", 64, DType::f64},
    {"F32", 32, DType::f32},
    {"BF16", 16, DType::bf16},
    {"F16", 16, DType::f16},
    {"F8_E4M3", 8, DType::f8_e4m3},
    {"F8_E5M2", 8, DType::f8_e5m2},
    {"I64", 64, DType::i64},
    {"I32", 32, DType::i32},
    {"U8", 8, DType::u8},
    {"BOOL", 8, DType::bool_},
    {"U64", 64, {}},
    {"U32", 32, {}},
    {"U16", 16, {}},
    {"I16", 16, {}},
    {"I8", 8, {}},
    {"C64", 64, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
}};

const FileType* file_type(std::string_view name) {
  const auto at = std::ranges::find(kTypes, name, &FileType::name);
  return at == kTypes.end() ? nullptr : &*at;
}

std::string quoted(const std::string& name) { return concat('\'', excerpt(name), '\''); }

std::optional<uint64_t> unsigned_integer(const Json& j) {
  if (!j.is_number_unsigned()) return std::nullopt;
  return j.get<uint64_t>();
}

uint64_t size_of(const TensorBytes& t) {
  return static_cast<uint64_t>(t.shape.numel() * item_size(t.dtype));
}

}  // namespace

std::string_view file_type_name(DType dtype) {
  return std::ranges::find(kTypes, std::optional(dtype), &FileType::dtype)->name;
}

std::optional<DType> dtype_of_file_type(std::string_view name) {
  const FileType* type = file_type(name);
  return type ? type->dtype : std::nullopt;
}

void SafetensorsFile::corrupt(const std::string& what) const {
  fail<DataError>("safetensors", path_, " is not a complete safetensors file: ", what);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  fd_ = open_file(path, "safetensors");
  try {
    struct stat info {};
    if (::fstat(fd_, &info) != 0)
      fail<IoError>("safetensors", "cannot open ", path, ": ", std::strerror(errno));
    const auto file_bytes = static_cast<uint64_t>(info.st_size);
    uint64_t length = 0;
    if (file_bytes < sizeof(length))
      corrupt(concat("it has ", counted(file_bytes, "byte"),
                     ", fewer than the 8 of the header's length"));
    if (::pread(fd_, &length, sizeof(length), 0) != sizeof(length))
      corrupt("the header's length cannot be read");
    if (length > kMaxHeader)
      corrupt(concat("the header's length ", length, " is above ", kMaxHeader));
    if (length > file_bytes - sizeof(length))
      corrupt(concat("the header's length ", length, " is beyond the end of the file"));
    std::string header(length, '\0');
    for (size_t used = 0; used < length;) {
      const ssize_t n = ::pread(fd_, header.data() + used, length - used,
                                static_cast<off_t>(sizeof(length) + used));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) corrupt("the header cannot be read");
      used += static_cast<size_t>(n);
    }
    header_.bytes = sizeof(length) + length;
    header_.crc32c =
        crc32c(header, crc32c({reinterpret_cast<const char*>(&length), sizeof(length)}));
    parse(header, file_bytes - header_.bytes);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::close(fd_); }

namespace {

// Why tensors do not fill their bytes without gaps; empty: they do.
std::string fault_of(std::vector<std::pair<uint64_t, uint64_t>> spans, uint64_t buffer_bytes) {
  std::ranges::sort(spans);
  uint64_t at = 0;
  for (const auto& [begin, end] : spans) {
    if (begin != at) {
      return concat(begin < at ? "tensors overlap" : "there is a hole", " at byte ",
                    std::min(begin, at));
    }
    at = end;
  }
  if (at == buffer_bytes) return {};
  return concat("tensors end at byte ", at, ", the file at ", buffer_bytes);
}

}  // namespace

void SafetensorsFile::parse(std::string_view header, uint64_t buffer_bytes) {
  if (header.empty() || header.front() != '{') corrupt("the header does not begin with '{'");
  const ParsedJson parsed = parse_json(header, {.most_depth = kMaxDepth});
  if (!parsed.faults.empty()) corrupt(concat("header: ", parsed.faults[0]));
  const Json& json = parsed.value;
  if (json.size() > kMaxTensors) corrupt("it lists too many tensors");

  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) corrupt("__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) corrupt(concat("__metadata__ ", quoted(key), " is not text"));
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    const auto bad = [&, &tensor = name](const std::string& what) {
      corrupt(concat("tensor ", quoted(tensor), ' ', what));
    };
    if (name.size() > kMaxName) bad(concat("has a name of more than ", kMaxName, " bytes"));
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets")) {
      bad("does not have exactly dtype, shape and data_offsets");
    }
    Entry entry;
    const FileType* type =
        value["dtype"].is_string() ? file_type(value["dtype"].get<std::string>()) : nullptr;
    if (!type) bad(concat("has the unknown dtype ", excerpt(value["dtype"].dump())));
    entry.dtype = type->name;
    if (!value["shape"].is_array()) bad("has a shape that is not a list");
    uint64_t bits = type->bits;
    for (const Json& size : value["shape"]) {
      const auto s = unsigned_integer(size);
      if (!s || *s > uint64_t{1} << 48) bad("has a size that is not an integer in [0, 2^48]");
      if (__builtin_mul_overflow(bits, *s, &bits)) bad("has a shape whose bytes overflow");
      entry.shape.push_back(static_cast<int64_t>(*s));
    }
    if (bits % 8 != 0) bad("does not fill whole bytes");
    const Json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2)
      bad("has data_offsets that are not [begin, end]");
    const auto begin = unsigned_integer(offsets[0]), end = unsigned_integer(offsets[1]);
    if (!begin || !end || *begin > *end || *end > buffer_bytes)
      bad(concat("has data_offsets ", excerpt(offsets.dump()), " outside the file, which has ",
                 counted(buffer_bytes, "byte"), " of tensors"));
    if (*end - *begin != bits / 8) {
      bad(concat("takes ", counted(*end - *begin, "byte"), ", but its shape and dtype need ",
                 bits / 8));
    }
    entry.begin = *begin;
    entry.end = *end;
    entries_.emplace(name, std::move(entry));
  }
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& [name, e] : entries_) spans.emplace_back(e.begin, e.end);
  if (const std::string fault = fault_of(std::move(spans), buffer_bytes); !fault.empty())
    corrupt(fault);
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto at = entries_.find(name);
  if (at == entries_.end()) fail<DataError>("safetensors", path_, " has no tensor ", quoted(name));
  return at->second;
}

void SafetensorsFile::read_bytes(const std::string& name, uint64_t begin, uint64_t bytes,
                                 void* to) const {
  const uint64_t from = header_.bytes + entry(name).begin + begin;
  for (uint64_t used = 0; used < bytes;) {
    const ssize_t n =
        ::pread(fd_, static_cast<char*>(to) + used, bytes - used, static_cast<off_t>(from + used));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      fail<IoError>("safetensors", "cannot read tensor ", quoted(name), " of ", path_, ": ",
                    n < 0 ? std::strerror(errno) : "the file ends before it");
    }
    used += static_cast<uint64_t>(n);
  }
}

Tensor SafetensorsFile::read(const std::string& name) const {
  const Entry& e = entry(name);
  const std::optional<DType> dtype = file_type(e.dtype)->dtype;
  if (!dtype)
    fail<DataError>("safetensors", "tensor ", quoted(name), " of ", path_, " is ", e.dtype,
                    ", which is not supported");
  if (e.shape.size() > static_cast<size_t>(kMaxRank)) {
    fail<DataError>("safetensors", "tensor ", quoted(name), " of ", path_, " has ",
                    counted(e.shape.size(), "dim"), ", at most ", kMaxRank, " are supported");
  }
  const Tensor t = empty(Shape(std::span<const int64_t>(e.shape)), *dtype);
  if (t.numel() > 0) read_bytes(name, 0, e.end - e.begin, t.raw_data());
  return t;
}

std::vector<nn::NamedParameter> SafetensorsFile::read_all() const {
  std::vector<nn::NamedParameter> all;
  for (const auto& [name, entry] : entries_) all.push_back({name, read(name)});
  return all;
}

void write_safetensors(const std::string& path, const std::vector<nn::NamedParameter>& tensors,
                       Metadata metadata, FileMode mode) {
  const NoGrad guard;
  std::vector<TensorBytes> metas;
  for (const auto& [name, t] : tensors) metas.push_back({name, t.dtype(), t.shape()});
  Tensor host;  // one at a time
  const auto bytes_of = [&](size_t i) {
    host = to_device(contiguous(tensors[i].tensor.detach()), kCpu);
    return host.numel() > 0 ? host.read_data() : nullptr;
  };
  (void)write_safetensors(path, metas, std::move(metadata), bytes_of, mode);
}

SafetensorsSums write_safetensors(const std::string& path, const std::vector<TensorBytes>& tensors,
                                  Metadata metadata) {
  return write_safetensors(path, tensors, std::move(metadata),
                           [&](size_t i) { return tensors[i].data; });
}

SafetensorsSums write_safetensors(const std::string& path, const std::vector<TensorBytes>& tensors,
                                  Metadata metadata,
                                  const std::function<const void*(size_t)>& data_of,
                                  FileMode mode) {
  metadata.emplace("format", "pt");
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Wide types first keeps every tensor aligned to its elements.
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const int64_t x = item_size(tensors[a].dtype), y = item_size(tensors[b].dtype);
    return x != y ? x > y : tensors[a].name < tensors[b].name;
  });
  Json json = Json::object();
  append_member(json, "__metadata__", metadata);
  std::set<std::string_view> names{"__metadata__"};
  uint64_t at = 0;
  for (const size_t i : order) {
    const TensorBytes& t = tensors[i];
    if (!names.insert(t.name).second)
      fail<UsageError>("safetensors", "two tensors are named ", quoted(t.name));
    const uint64_t end = at + size_of(t);
    append_member(json, t.name,
                  {{"dtype", file_type_name(t.dtype)},
                   {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                   {"data_offsets", {at, end}}});
    at = end;
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  header.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));

  SafetensorsSums sums{
      header.size() + at, {header.size(), crc32c(header)}, std::vector<uint32_t>(tensors.size())};
  const auto produce = [&](const std::function<void(std::string_view)>& write) {
    write(header);
    for (const size_t i : order) {
      const std::string_view bytes(static_cast<const char*>(data_of(i)), size_of(tensors[i]));
      sums.tensors[i] = crc32c(bytes);
      write(bytes);
    }
  };
  write_file_atomically(path, produce, mode);
  return sums;
}

}  // namespace tessera::io

// SPDX-License-Identifier: Apache-2.0
// A value of f8_e4m3 times its factor is one rounding of f32; MXFP4 times a power of two is exact
// but for the largest powers.
#include "tessera/train/exchange/weights.h"

#include "tessera/core/error.h"
#include "tessera/core/float_types.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostIndexBytes = size_t{100} << 20;
constexpr int kIndexDepth = 3;

constexpr std::string_view kF8Scales = "_scale_inv", kMxBlocks = "_blocks", kMxScales = "_scales";
constexpr int64_t kF8Block = 128;  // rows, and columns, that have one factor
constexpr int64_t kMxBytes = 16;   // of the 32 elements that have one power of two

constexpr std::array<std::string_view, 9> kCopied{"tokenizer.json",
                                                  "tokenizer_config.json",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "merges.txt",
                                                  "tokenizer.model",
                                                  "chat_template.jinja",
                                                  kHfGeneration};

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_plain(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// Whether a tensor is the same in two files, read in pieces.
bool equal_bytes(const std::string& tensor, const io::SafetensorsFile& a,
                 const io::SafetensorsFile& b) {
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  const auto &one = a.entries().at(tensor), &other = b.entries().at(tensor);
  if (one.dtype != other.dtype || one.shape != other.shape) return false;
  std::string first, second;
  const uint64_t all = one.end - one.begin;
  for (uint64_t at = 0; at < all; at += kPiece) {
    const uint64_t size = std::min(kPiece, all - at);
    first.resize(size), second.resize(size);
    a.read_bytes(tensor, at, size, first.data());
    b.read_bytes(tensor, at, size, second.data());
    if (first != second) return false;
  }
  return true;
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

std::span<const std::string_view> hf_copied_files() { return kCopied; }

std::string hf_file(const std::string& folder, std::string_view name) {
  if (!is_plain(name)) {
    fail<DataError>("hugging_face", folder, " names the file '", io::excerpt(name),
                    "', expected the name of a file in the folder itself");
  }
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none)
    fail<IoError>("hugging_face", "cannot access ", path.string(), ": ", error.message());
  if (!fs::exists(status)) return {};
  const fs::path real = fs::canonical(path, error);
  if (error) fail<DataError>("hugging_face", path.string(), ": ", error.message());
  const fs::path own = fs::canonical(folder);
  if (!is_below(real, own) && !is_below(real, own.parent_path().parent_path() / "blobs")) {
    fail<DataError>("hugging_face", path.string(), " is a link to ", real.string(),
                    ", which is not in the folder; copy the file there");
  }
  return real.string();
}

bool has_hf_config(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / kHfConfig, ignored);
}

HfWeights::HfWeights(const std::string& folder) {
  const std::string index = hf_file(folder, kHfIndex), file = hf_file(folder, kHfWeights);
  std::map<std::string, std::string> named;  // the file of each tensor, as an index names it
  if (!index.empty()) named = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, of] : named) names.insert(of);
  if (!file.empty()) {
    if (!index.empty() && names != std::set<std::string>{std::string(kHfWeights)}) {
      fail<DataError>("hugging_face", folder, " has ", kHfWeights, ", but also ", kHfIndex,
                      ", which names other files: remove the one that is not the model");
    }
    names = {std::string(kHfWeights)};
  }
  if (names.empty()) {
    fail<DataError>("hugging_face", folder, " has no ", kHfWeights, " and no ", kHfIndex,
                    ": give the folder of a model in safetensors");
  }
  for (const std::string& name : names) {
    const std::string path = hf_file(folder, name);
    if (path.empty()) {
      const auto held = std::ranges::find(named, name, [](const auto& n) { return n.second; });
      fail<DataError>("hugging_face", index, ": there is no file ", io::excerpt(name),
                      ", which holds ", io::excerpt(held->first));
    }
    add_file(folder, name, path);
  }
  for (const auto& [tensor, of] : named) {
    const auto at = entries_.find(tensor);
    if (at == entries_.end() || !files_.at(of)->entries().contains(tensor))
      fail<DataError>("hugging_face", index, ": ", io::excerpt(of), " has no tensor ",
                      io::excerpt(tensor));
  }
  find_tensors(folder);
}

// Where each tensor lies, as an index says it; the tensors that it does not name are the model's
// too.
std::map<std::string, std::string> HfWeights::read_index(const std::string& index) {
  const auto bad = [&](const auto&... what) {
    fail<DataError>("hugging_face", index, ": ", what...);
  };
  const io::ParsedJson parsed =
      io::parse_json(io::read_file(index, kMostIndexBytes), {.most_depth = kIndexDepth});
  if (!parsed.faults.empty()) bad(parsed.faults[0]);
  const auto map = parsed.value.is_object() ? parsed.value.find("weight_map") : parsed.value.end();
  if (map == parsed.value.end() || !map->is_object()) bad("it has no weight_map, an object");
  std::map<std::string, std::string> named;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) bad("the file of ", io::excerpt(tensor), " is not text");
    const auto name = file.get<std::string>();
    if (!name.ends_with(".safetensors")) bad("'", io::excerpt(name), "' is no safetensors file");
    named[tensor] = name;
  }
  if (named.empty()) bad("its weight_map names no tensor");
  return named;
}

void HfWeights::add_file(const std::string& folder, const std::string& name,
                         const std::string& path) {
  const auto& file =
      files_.emplace(name, std::make_unique<io::SafetensorsFile>(path)).first->second;
  for (const auto& [tensor, entry] : file->entries()) {
    const auto [at, is_new] = entries_.try_emplace(tensor, Entry{name, file.get(), &entry});
    if (is_new || equal_bytes(tensor, *at->second.file, *file)) continue;
    fail<DataError>("hugging_face", folder, ": ", io::excerpt(tensor), " is in ",
                    io::excerpt(at->second.name), " and with other values in ", io::excerpt(name),
                    ": remove one of them");
  }
}

// Scales go with what they scale; every other tensor is one of its own.
void HfWeights::find_tensors(const std::string& folder) {
  const auto bad = [&](const std::string& name, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& expected) {
    fail<DataError>("hugging_face", folder, ": ", io::excerpt(name), " has the shape ",
                    text_of(shape), ", expected ", text_of(expected));
  };
  const auto there = [&](const std::string& name, std::string_view dtype) {
    const auto at = entries_.find(name);
    return at != entries_.end() && at->second.entry->dtype == dtype ? at->second.entry : nullptr;
  };
  std::set<std::string> scales;
  for (const auto& [name, at] : entries_) {
    const auto& [dtype, shape, begin, end] = *at.entry;
    Stored stored{Storage::plain, dtype, shape, name, ""};
    std::string read_as = name;
    if (const auto* factors = there(concat(name, kF8Scales), "F32");
        factors && dtype == "F8_E4M3") {
      stored.storage = Storage::f8_blocks;
      stored.scales = concat(name, kF8Scales);
      std::vector<int64_t> expected = shape;
      for (int64_t& n : expected) n = (n + kF8Block - 1) / kF8Block;
      if (shape.size() != 2 || factors->shape != expected)
        bad(stored.scales, factors->shape, expected);
    } else if (name.ends_with(kMxBlocks) && dtype == "U8") {
      read_as = name.substr(0, name.size() - kMxBlocks.size());
      const auto* powers = there(concat(read_as, kMxScales), "U8");
      if (powers) {
        stored.storage = Storage::mxfp4;
        stored.dtype = "MXFP4";
        stored.scales = concat(read_as, kMxScales);
        if (shape.size() != 4 || shape[3] != kMxBytes)
          fail<DataError>("hugging_face", folder, ": ", io::excerpt(name), " has the shape ",
                          text_of(shape), ", expected [experts, out, in / 32, 16]");
        const std::vector<int64_t> expected(shape.begin(), shape.end() - 1);
        if (powers->shape != expected) bad(stored.scales, powers->shape, expected);
        stored.shape = {shape[0], 2 * kMxBytes * shape[2], shape[1]};
      } else {
        read_as = name;
      }
    }
    if (!stored.scales.empty()) scales.insert(stored.scales);
    if (!tensors_.emplace(read_as, std::move(stored)).second)
      fail<DataError>("hugging_face", folder, " has both ", io::excerpt(read_as), " and ",
                      io::excerpt(name), ": remove one of them");
  }
  for (const std::string& name : scales) tensors_.erase(name);
}

// Elements that lie next to each other in the file are read at once.
void HfWeights::read_range(const std::string& name, const Shape& begin, const Shape& size,
                           void* to) const {
  const auto& [in, file, entry] = entries_.at(name);
  const std::vector<int64_t>& shape = entry->shape;
  const auto rank = shape.size();
  uint64_t elements = 1;
  for (const int64_t n : shape) elements *= static_cast<uint64_t>(n);
  if (size.numel() == 0) return;
  uint64_t run = (entry->end - entry->begin) / elements;  // bytes; first of an element
  size_t whole = rank;                                    // dims from here on are read whole
  while (whole > 0 && size[static_cast<int>(whole) - 1] == shape[whole - 1])
    run *= static_cast<uint64_t>(shape[--whole]);
  const uint64_t stride = run;  // of dim whole - 1
  if (whole > 0) run *= static_cast<uint64_t>(size[static_cast<int>(whole) - 1]);
  Shape at = begin;
  char* next = static_cast<char*>(to);
  while (true) {
    uint64_t offset = 0;
    for (size_t d = 0; d < whole; ++d)
      offset =
          offset * static_cast<uint64_t>(shape[d]) + static_cast<uint64_t>(at[static_cast<int>(d)]);
    file->read_bytes(name, offset * stride, run, next);
    next += run;
    int d = static_cast<int>(whole) - 2;
    for (; d >= 0; --d) {
      if (++at[d] < begin[d] + size[d]) break;
      at[d] = begin[d];
    }
    if (d < 0) return;
  }
}

Tensor HfWeights::read_f8_blocks(const Stored& stored, const Shape& begin,
                                 const Shape& size) const {
  Shape first = begin, blocks = size;  // of the factors
  for (int d = 0; d < 2; ++d) {
    first[d] = begin[d] / kF8Block;
    blocks[d] = (begin[d] + size[d] + kF8Block - 1) / kF8Block - first[d];
  }
  std::vector<f8_e4m3> values(static_cast<size_t>(size.numel()));
  std::vector<float> factors(static_cast<size_t>(blocks.numel()));
  read_range(stored.values, begin, size, values.data());
  read_range(stored.scales, first, blocks, factors.data());
  const Tensor result = empty(size, DType::f32);
  auto* to = result.data<float>();
  const f8_e4m3* from = values.data();
  for (int64_t r = begin[0]; r < begin[0] + size[0]; ++r) {
    const float* row = factors.data() + (r / kF8Block - first[0]) * blocks[1];
    for (int64_t c = begin[1]; c < begin[1] + size[1]; ++c)
      *to++ = static_cast<float>(*from++) * row[c / kF8Block - first[1]];
  }
  return result;
}

Tensor HfWeights::read_mxfp4(const Stored& stored, const Shape& begin, const Shape& size) const {
  static constexpr std::array<float, 16> kValues{0,    0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                 -0.F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  constexpr int64_t kBlock = 2 * kMxBytes;
  const int64_t first = begin[1] / kBlock,
                groups = (begin[1] + size[1] + kBlock - 1) / kBlock - first;
  const Shape from{begin[0], begin[2], first}, count{size[0], size[2], groups};
  std::vector<uint8_t> bytes(static_cast<size_t>(count.numel() * kMxBytes)),
      powers(static_cast<size_t>(count.numel()));
  read_range(stored.values, {from[0], from[1], from[2], 0},
             {count[0], count[1], count[2], kMxBytes}, bytes.data());
  read_range(stored.scales, from, count, powers.data());
  const Tensor result = empty(size, DType::f32);  // (experts, in, out)
  auto* to = result.data<float>();
  for (int64_t e = 0; e < size[0]; ++e) {
    for (int64_t i = begin[1]; i < begin[1] + size[1]; ++i) {
      for (int64_t o = 0; o < size[2]; ++o) {
        const int64_t row = (e * size[2] + o) * groups, in = i - first * kBlock;
        const uint8_t pair = bytes[static_cast<size_t>(row * kMxBytes + in / 2)];
        const uint8_t power = powers[static_cast<size_t>(row + in / kBlock)];
        *to++ = std::ldexp(kValues[in % 2 == 0 ? pair & 15 : pair >> 4], power - 127);
      }
    }
  }
  return result;
}

Tensor HfWeights::read(const std::string& name, const Shape& begin, const Shape& size) const {
  const Stored& stored = tensors_.at(name);
  if (stored.storage == Storage::f8_blocks) return read_f8_blocks(stored, begin, size);
  if (stored.storage == Storage::mxfp4) return read_mxfp4(stored, begin, size);
  const std::optional<DType> dtype = io::dtype_of_file_type(stored.dtype);
  if (!dtype)
    fail<DataError>("hugging_face", io::excerpt(name), " is ", stored.dtype,
                    ", which cannot be read");
  const Tensor result = empty(size, *dtype);
  read_range(name, begin, size, result.raw_data());
  return result;
}

}  // namespace tessera::train

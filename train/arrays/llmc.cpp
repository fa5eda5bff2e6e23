// SPDX-License-Identifier: Apache-2.0
// Only the magic number, its version and the count are looked at: programs that write this format
// leave the rest of the header zero.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/train/arrays/array_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

namespace tessera::train {
namespace {

constexpr std::string_view kWhere = "data";
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);

struct Variant {
  int32_t magic, version;
  ElementType type;
  std::string_view made_for;
};
constexpr std::array<Variant, 2> kVariants{
    {{20240520, 1, ElementType::u16, "GPT-2"}, {20240801, 7, ElementType::u32, "Llama 3"}}};
constexpr int32_t kEvaluationMagic = 20240522;

}  // namespace

ArrayHeader parse_llmc_header(std::string_view bytes, const std::string& path) {
  if (bytes.size() < kHeaderBytes) {
    fail<DataError>(kWhere, path, " is cut short: ", counted(bytes.size(), "byte"),
                    ", expected a header of ", kHeaderBytes, " and the tokens");
  }
  std::array<int32_t, 3> header{};  // magic, version, count
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const auto [magic, version, count] = header;
  if (magic == kEvaluationMagic) {
    fail<DataError>(kWhere, path,
                    " holds multiple-choice questions (magic number 20240522), expected a shard of "
                    "tokens");
  }
  const auto variant = std::ranges::find(kVariants, magic, &Variant::magic);
  if (variant == kVariants.end()) {
    fail<DataError>(kWhere, path, " begins with ", magic,
                    ", expected llm.c's magic number, 20240520 (uint16) or 20240801 (uint32); "
                    "write it with llm.c's write_datafile");
  }
  if (version != variant->version) {
    fail<DataError>(kWhere, path, " is a shard for ", variant->made_for, " of version ", version,
                    ", expected version ", variant->version);
  }
  if (count < 0) fail<DataError>(kWhere, path, " has a header of ", counted(count, "token"));
  return {variant->type, {count}, kHeaderBytes};
}

bool is_llmc_file(const std::string& path) {
  int32_t magic = 0;
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&magic), sizeof magic);
  return file && std::ranges::count(kVariants, magic, &Variant::magic) > 0;
}

}  // namespace tessera::train

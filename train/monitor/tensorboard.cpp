// SPDX-License-Identifier: Apache-2.0
// Each run creates a new file named by time, host and process, so that two runs cannot mix. Each
// record is flushed, so that a viewer sees the running training.
#include "tessera/train/monitor/tensorboard.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace tessera::train {
namespace {

template <class T> std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string varint(uint64_t v) {
  std::string bytes;
  for (; v >= 0x80; v >>= 7) bytes += static_cast<char>(v | 0x80);
  return bytes += static_cast<char>(v);
}

// Protobuf fields: number << 3 | wire type, then the value.
enum : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
std::string key(uint64_t field, uint64_t type) { return varint(field << 3 | type); }
std::string field(uint64_t number, double v) { return key(number, kFixed64) + little_endian(v); }
std::string field(uint64_t number, float v) { return key(number, kFixed32) + little_endian(v); }
std::string field(uint64_t number, int64_t v) {
  return key(number, kVarint) + varint(static_cast<uint64_t>(v));
}
std::string field(uint64_t number, std::string_view bytes) {
  return key(number, kBytes) + varint(bytes.size()) + std::string(bytes);
}

// Field numbers of tensorflow.Event and tensorflow.Summary.
constexpr uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr uint64_t kSummaryValue = 1, kTag = 1, kSimpleValue = 2;

// A rotated and shifted CRC: one of data that holds CRCs itself would be weak.
std::string masked_crc(std::string_view bytes) {
  const uint32_t crc = io::crc32c(bytes);
  return little_endian(std::rotr(crc, 15) + 0xA282EAD8u);
}

std::string framed(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string event_file_header(double wall_time) {
  return framed(field(kWallTime, wall_time) +
                field(kFileVersion, std::string_view("brain.Event:2")));
}

std::string event_record(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  std::string values;
  for (const Scalar& s : scalars)
    values +=
        field(kSummaryValue, field(kTag, s.tag) + field(kSimpleValue, static_cast<float>(s.value)));
  return framed(field(kWallTime, wall_time) + field(kStep, step) + field(kSummary, values));
}

struct TensorBoardWriter::File {
  std::FILE* handle = nullptr;
  ~File() {
    if (handle) std::fclose(handle);
  }
};

TensorBoardWriter::TensorBoardWriter(const std::string& folder) : file_(new File) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  const double wall = now();
  for (int n = 0; !file_->handle; ++n) {
    path_ = concat(folder, "/events.out.tfevents.", static_cast<int64_t>(wall), '.', host.data(),
                   '.', getpid(), '.', n);
    file_->handle = std::fopen(path_.c_str(), "wxe");
    if (!file_->handle && errno != EEXIST)
      fail<IoError>("metrics.save_tb_folder", "cannot create ", path_, ": ", std::strerror(errno));
  }
  append(event_file_header(wall));
}
TensorBoardWriter::~TensorBoardWriter() = default;

void TensorBoardWriter::append(const std::string& record) {
  if (std::fwrite(record.data(), 1, record.size(), file_->handle) != record.size() ||
      std::fflush(file_->handle) != 0)
    fail<IoError>("metrics.save_tb_folder", "cannot write ", path_, ": ", std::strerror(errno));
}

void TensorBoardWriter::write(int64_t step, std::span<const Scalar> scalars) {
  append(event_record(now(), step, scalars));
}

}  // namespace tessera::train

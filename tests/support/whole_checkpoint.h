// SPDX-License-Identifier: Apache-2.0
// For tests: checkpoints of whole tensors, as earlier programs wrote them.
#pragma once

#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/train/checkpoint/folder.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <string>

namespace tessera::test {

inline std::string hex(uint32_t sum) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", sum);
  return digits;
}

/// A manifest's text with a checksum at its end that fits.
inline std::string sealed(const std::string& body) {
  return body + ",\n \"crc32c\": \"" + hex(io::crc32c(body)) + "\"\n}\n";
}

/// Replaces a step by the same one in the form of version 1, which counted `batches`, or of version
/// 2, which counted rows. Needs a Context.
inline void make_whole(const std::string& step, int version, int64_t batches = 0) {
  const train::CheckpointReader from(step);
  const train::Manifest& m = from.manifest();
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [part, entries] : m.parts()) {
    if (entries->empty() || entries == &m.train_state) continue;
    const std::string name = concat(part, ".safetensors"), path = concat(step, '/', name);
    io::write_safetensors(path, from.read_all(*entries));
    const io::FileSum sum = io::sum_of_file(path);
    nlohmann::ordered_json tensors;
    for (const auto& [tensor, e] : *entries)
      tensors[tensor] = {{"dtype", tessera::name(e.dtype)},
                         {"shape", std::vector<int64_t>(e.shape.begin(), e.shape.end())}};
    files[name] = {
        {"part", part}, {"bytes", sum.bytes}, {"crc32c", hex(sum.crc32c)}, {"tensors", tensors}};
  }
  for (const auto& file : m.files) std::filesystem::remove(concat(step, '/', file.name));
  nlohmann::ordered_json data{{"rows", m.progress.data_rows}, {"windows", m.data_windows}};
  if (version == 1) data = {{"step", batches}, {"windows", m.data_windows}};
  const nlohmann::ordered_json manifest{{"format", "tessera checkpoint"},
                                        {"version", version},
                                        {"step", m.progress.step},
                                        {"optimizer", {{"steps", m.progress.optimizer_steps}}},
                                        {"lr_scheduler", {{"step", m.progress.schedule_step}}},
                                        {"dataloader", data},
                                        {"seed", m.seed},
                                        {"config", nlohmann::ordered_json::parse(m.config)},
                                        {"files", files}};
  std::string text = manifest.dump(1);
  text.resize(text.size() - 2);
  io::write_file_atomically(concat(step, "/manifest.json"), sealed(text));
}

}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/manifest.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/tests/support/mutator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace tessera::train {
namespace {

Manifest example() {
  Manifest m;
  m.progress = {10, 9, 8, 7};
  m.seed = 42;
  m.config = "{\n  \"a\": 1,\n  \"model\": {\n    \"dim\": 0.1\n  }\n}";
  m.data_windows = 1000;
  m.products = "oneDNN";
  m.data = {{"b/a.txt", 5, 1'700'000'000'123'456'789, 0xc0ffee}, {"c.txt", 0, 0, 0}};
  m.files.push_back({"model.safetensors",
                     "model",
                     {1234, 0xdeadbeef},
                     {{"w", {"f32", {2, 3}}}, {"scalar", {"bf16", {}}}}});
  m.files.push_back({"optimizer.safetensors", "optimizer", {99, 7}, {{"w.exp_avg", {"f32", {2}}}}});
  return m;
}

constexpr size_t kTail = 14 + 8 + 4;  // `,\n "crc32c": "`, the digits, `"\n}\n`

// The text with another body under a checksum that fits.
std::string sealed(const std::string& body) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", io::crc32c(body));
  return body + ",\n \"crc32c\": \"" + digits + "\"\n}\n";
}

std::string body_of(const std::string& text) { return text.substr(0, text.size() - kTail); }

std::string error_of(const std::string& text) {
  try {
    (void)parse_manifest(text, "here");
  } catch (const DataError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(io::crc32c(""), 0u);
  EXPECT_EQ(io::crc32c("123456789"), 0xe3069283u);  // RFC 3720's check value
  EXPECT_EQ(io::crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(io::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, TheInstructionAndTheTableAgreeOnPiecesOfAnyLength) {
  std::string bytes;
  for (int i = 0; i < 77; ++i) {
    EXPECT_EQ(io::crc32c(bytes), io::crc32c_portable(bytes)) << i;
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      const std::string_view all = bytes;
      EXPECT_EQ(io::crc32c(all.substr(cut), io::crc32c(all.substr(0, cut))), io::crc32c(bytes));
    }
    bytes += static_cast<char>(i * 37 + 5);
  }
}

TEST(ManifestTest, ComesBackAsItWas) {
  const Manifest m = example();
  EXPECT_EQ(parse_manifest(manifest_text(m), "here"), m);
  EXPECT_TRUE(m.has("optimizer"));
  EXPECT_EQ(m.tensors("model").size(), 2u);
  Manifest alone = m;
  alone.files.pop_back();
  EXPECT_EQ(parse_manifest(manifest_text(alone), "here"), alone);
  EXPECT_FALSE(alone.has("optimizer"));
  // Of a program that noted neither the data nor who computed products.
  std::string body = body_of(manifest_text(m));
  const size_t from = body.find("\n \"products\""), to = body.find("\n \"config\"");
  const Manifest older = parse_manifest(sealed(body.erase(from, to - from)), "here");
  EXPECT_EQ(older.products, "");
  EXPECT_TRUE(older.data.empty());
  EXPECT_EQ(older.files, m.files);
  EXPECT_TRUE(alone.tensors("optimizer").empty());
}

TEST(ManifestTest, WhatIsWrongIsSaid) {
  const std::string text = manifest_text(example());
  ASSERT_EQ(sealed(body_of(text)), text);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string body = body_of(text);
    const size_t at = body.find(from);
    EXPECT_NE(at, body.npos) << from;
    return error_of(sealed(body.replace(at, from.size(), to)));
  };
  const auto holds = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find("[checkpoint] here is not a valid manifest: "), error.npos) << error;
    EXPECT_NE(error.find(part), error.npos) << error;
  };
  holds(error_of(""), "does not end with its checksum");
  holds(error_of(text.substr(0, text.size() - 1)), "does not end with its checksum");
  holds(error_of(text + "\n"), "does not end with its checksum");
  holds(error_of("{" + text), "its checksum does not match");
  holds(error_of(sealed("{")), "not JSON: wrong at line 1, column 2");
  holds(error_of(sealed("[1")), "not JSON: wrong at line 2, column 10");
  holds(error_of(sealed(body_of(text) + std::string(1, '\0'))), "not JSON: a NUL byte at line");
  holds(error_of(sealed("{\"format\": \"tessera checkpoint\"")), "has no version");
  holds(with("\"tessera checkpoint\"", "\"another\""), "is not of the format");
  holds(with("\"version\": 2", "\"version\": 3"),
        "is of version 3; this program reads versions 1 to 2");
  holds(with("\"step\": 10", "\"step\": -10"), "has a step that is not an integer from 0");
  holds(with("\"step\": 10", "\"step\": 1e1"), "has a step that is not an integer from 0");
  holds(with("\"step\": 10", "\"step\": 18446744073709551615"),
        "has a step that is not an integer");
  holds(with("\"step\": 10", "\"step\": \"10\""), "has a step that is not an integer");
  holds(with("\"oneDNN\"", "7"), "has a products that is not text");
  holds(with("\"seed\": 42", "\"seed\": 42, \"seed\": 43"), "'seed' occurs twice");
  holds(with("\"seed\": 42", "\"seed\": 42, \"sead\": 43"), "has unknown members");
  holds(with("\"steps\": 9", "\"steps\": 9, \"x\": 1"), "has unknown members");
  holds(with("\"model.safetensors\"", "\"../model.safetensors\""), "has a name that is not of a-z");
  holds(with("\"model.safetensors\"", "\"manifest.json\""), "has a name that is not of a-z");
  holds(with("\"part\": \"model\"", "\"part\": \"other\""), "is of an unknown part");
  holds(with("\"part\": \"model\"", "\"part\": \"optimizer\""), "has no file of the model");
  holds(with("\"deadbeef\"", "\"DEADBEEF\""), "eight hexadecimal digits");
  holds(with("\"w.exp_avg\"", "\"w\""), "has a tensor in two files");
  holds(with("\"00c0ffee\"", "\"c0ffee\""), "a data file has a crc32c that is not eight");
  holds(with("\"modified\": 0", "\"modified\": -1"), "has a modified that is not an integer");
  holds(with("\"modified\": 0", "\"modified\": 0, \"x\": 0"), "has unknown members");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  holds(with("\"seed\": 42", "\"seed\": " + deep), "nested deeper than 32 levels");
}

// Quadratic time would be half a minute.
TEST(ManifestTest, TimeIsLinearInTheNumberOfTensors) {
  Manifest m = example();
  for (int i = 0; i < 60'000; ++i)
    m.files[0].tensors[concat("layers.", i, ".weight")] = {"f32", {i, 2}};
  EXPECT_EQ(parse_manifest(manifest_text(m), "here"), m);
}

// A change of any kind is found; with a checksum made to fit, what is read is a manifest again.
TEST(ManifestTest, RandomChangesNeverCrashAndNeverLoadWrong) {
  const bool full = std::getenv("TESSERA_TEST_FULL") != nullptr;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const Manifest original = example();
  const std::string text = manifest_text(original);
  test::Mutator whole({text}), body({body_of(text)});
  int64_t read = 0, tried = 0;
  for (; tried < 20'000 || (full && std::chrono::steady_clock::now() < end); ++tried) {
    const std::string changed = whole.next();
    if (changed != text) {
      EXPECT_NE(error_of(changed), "no error") << changed;
    }
    const std::string fitting = sealed(body.next());
    try {
      const Manifest m = parse_manifest(fitting, "here");
      EXPECT_EQ(parse_manifest(manifest_text(m), "here"), m) << fitting;
      ++read;
    } catch (const DataError&) {
    }
  }
  std::cout << tried << " changed manifests; of as many under a fitting checksum " << read
            << " were manifests\n";
}

}  // namespace
}  // namespace tessera::train

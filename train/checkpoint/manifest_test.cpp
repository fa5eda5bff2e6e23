// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/manifest.h"

#include "tessera/core/error.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/mutator.h"
#include "tessera/tests/support/whole_checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tessera::train {
namespace {

using test::sealed;

Manifest example() {
  Manifest m;
  m.progress = {10, 9, 8, 7};
  m.seed = 42;
  m.config = "{\n  \"a\": 1,\n  \"model\": {\n    \"dim\": 0.1\n  }\n}";
  m.data_windows = 1000;
  m.products = "oneDNN";
  m.data = {{"b/a.txt", 5, 1'700'000'000'123'456'789, 0xc0ffee}, {"c.txt", 0, 0, 0}};
  m.mesh = "mesh(dp=2)";
  m.files = {{"rank-00000.safetensors", 1234, {99, 0xdeadbeef}}, {"rank-00001.safetensors", 7, {}}};
  m.tokenizer = {{"tokenizer.json", {12, 0xabc}}, {"tokenizer_config.json", {0, 0}}};
  m.model["w"] = {DType::f32,
                  {2, 3},
                  {{0, {{0, 0}, {1, 3}}, 1}, {1, {{1, 0}, {1, 1}}, 2}, {0, {{1, 1}, {1, 2}}, 3}}};
  m.model["scalar"] = {DType::bf16, {}, {{0, {}, 4}}};
  m.model["none"] = {DType::f64, {5, 0}, {}};
  m.train_state["losses"] = {DType::f64, {1, 4}, {{1, {{0, 0}, {1, 4}}, 6}}};
  m.optimizer["w.exp_avg"] = {DType::f32, {2}, {{1, {{0}, {2}}, 5}}};
  return m;
}

constexpr size_t kTail = 14 + 8 + 4;  // `,\n "crc32c": "`, the digits, `"\n}\n`

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
  EXPECT_TRUE(m.has_optimizer());
  EXPECT_EQ(m.find("w.exp_avg"), &m.optimizer.at("w.exp_avg"));
  EXPECT_EQ(m.find("v"), nullptr);
  Manifest alone = m;
  alone.optimizer.clear();
  EXPECT_EQ(parse_manifest(manifest_text(alone), "here"), alone);
  EXPECT_FALSE(alone.has_optimizer());
  for (const auto& tokenizer : {decltype(m.tokenizer)(), {{}}}) {  // unknown; bytes
    alone.tokenizer = tokenizer;
    EXPECT_EQ(parse_manifest(manifest_text(alone), "here"), alone);
  }
  Manifest whole = m;
  whole.whole_tensors = true;
  EXPECT_EQ(test::error_of<UsageError>([&] { (void)manifest_text(whole); }),
            "[checkpoint] a manifest of whole tensors is read and not written");
  // Of a program that noted neither the data nor who computed products.
  std::string body = body_of(manifest_text(m));
  const size_t from = body.find("\n \"products\""), to = body.find("\n \"mesh\"");
  const Manifest older = parse_manifest(sealed(body.erase(from, to - from)), "here");
  EXPECT_EQ(older.products, "");
  EXPECT_EQ(older.model, m.model);
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
  holds(with("\"version\": 3", "\"version\": 4"),
        "is of version 4; this program reads versions 1 to 3");
  holds(with("\"step\": 10", "\"step\": -10"), "has a step that is not an integer from 0");
  holds(with("\"step\": 10", "\"step\": 1e1"), "has a step that is not an integer from 0");
  holds(with("\"step\": 10", "\"step\": 18446744073709551615"),
        "has a step that is not an integer");
  holds(with("\"step\": 10", "\"step\": \"10\""), "has a step that is not an integer");
  holds(with("\"oneDNN\"", "7"), "has a products that is not text");
  holds(with("\"seed\": 42", "\"seed\": 42, \"seed\": 43"), "'seed' occurs twice");
  holds(with("\"seed\": 42", "\"seed\": 42, \"sead\": 43"), "has unknown members");
  holds(with("\"steps\": 9", "\"steps\": 9, \"x\": 1"), "has unknown members");
  holds(with("\"rank-00000.safetensors\"", "\"../rank-00000.safetensors\""),
        "has a name that is not of a-z");
  holds(with("\"rank-00000.safetensors\"", "\"manifest.json\""), "has a name that is not of a-z");
  holds(with("\"tokenizer.json\"", "\"../tokenizer.json\""), "has a name that is not of a-z");
  holds(with("\"tokenizer.json\"", "\"rank-00001.safetensors\""),
        "lists rank-00001.safetensors twice");
  holds(with("\"00000abc\"", "\"abc\""), "tokenizer file tokenizer.json has a crc32c that is not");
  holds(with("\"deadbeef\"", "\"DEADBEEF\""), "eight hexadecimal digits");
  holds(with("\"w.exp_avg\"", "\"w\""), "has two tensors w");
  holds(with("\"f32\"", "\"f33\""), "has the unknown dtype f33");
  holds(with("[2,3]", "[2,9223372036854775807]"), "not of integers from 0 to 2^48");
  holds(with("[2,3]", "[281474976710656,281474976710656]"), "has a shape whose bytes overflow");
  holds(with("[2,3]", "[1,1,1,1,1,1,1,1,1]"), "has a shape of more than 8 dims");
  holds(with("[2,3]", "[3,3]"), "tensor w has chunks that leave 3 of its 9 elements out");
  holds(with("[2,3]", "[2,3,1]"), "has a chunk of another number of dims");
  holds(with("[1,3]", "[2,3]"),
        "tensor w has chunks that overlap: [0:2,0:3] in rank-00000.safetensors and [1:2,0:1] in "
        "rank-00001.safetensors");
  holds(with("[1,1],[1,2]", "[1,1],[1,3]"), "has a chunk [1:2,1:4] that is empty or beyond");
  holds(with("[1,1],[1,2]", "[1,1],[1,0]"), "has a chunk [1:2,1:1] that is empty or beyond");
  holds(with("[1,[1,0]", "[2,[1,0]"), "has a chunk in a file that is not listed");
  holds(with("[1,[1,0]", "[-1,[1,0]"), "has a chunk that is not [file, ");
  holds(with("[],\"00000004\"", "[],4"), "has a chunk that is not [file, ");
  holds(with("\"00000004\"", "\"4\""), "whose checksum is not eight hexadecimal digits");
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
    m.model[concat("layers.", i, ".weight")] = {DType::f32, {1, 2}, {{1, {{0, 0}, {1, 2}}, 6}}};
  EXPECT_EQ(parse_manifest(manifest_text(m), "here"), m);
}

// A change of any kind is found; with a checksum made to fit, what is read is a manifest again.
TEST(ManifestTest, RandomChangesNeverCrashAndNeverLoadWrong) {
  const bool full = test::long_form();
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

// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <gtest/gtest.h>

namespace tessera::io {
namespace {

using Strings = std::vector<std::string>;

TEST(Json, ValuesComeInTheOrderOfTheText) {
  const ParsedJson parsed = parse_json(
      R"( {"b": [1, -2, 2.5, "x\n\u00e9", null, true, {}, []], "a": {"z": {"y": 18446744073709551615}}} )");
  EXPECT_EQ(parsed.faults, Strings());
  EXPECT_EQ(parsed.value.dump(),
            "{\"b\":[1,-2,2.5,\"x\\n\xC3\xA9\",null,true,{},[]],\"a\":{\"z\":{\"y\":"
            "18446744073709551615}}}");
  EXPECT_EQ(parse_json("7").value, 7);
}

TEST(Json, KindsOfValuesHaveTheirArticle) {
  const ParsedJson parsed = parse_json(R"([null, true, 1, -1, 0.5, "x", [], {}])");
  Strings kinds;
  for (const auto& value : parsed.value) kinds.push_back(kind_text(value.type()));
  EXPECT_EQ(kinds, (Strings{"null", "a boolean", "a number", "a number", "a number", "a string",
                            "an array", "an object"}));
}

TEST(Json, WhatIsNotAcceptedHasOneReason) {
  const std::string nul(1, '\0');
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "not JSON: wrong at line 1, column 1"},
      {"{\n\"a\": 1,\n}", "not JSON: wrong at line 3, column 1"},
      {"{} {}", "not JSON: wrong at line 1, column 4"},
      {"{}" + nul, "not JSON: a NUL byte at line 1, column 3"},
      {"{}\n" + nul + "{]", "not JSON: a NUL byte at line 2, column 1"},
      {"{\"a" + nul + "\": 1}", "not JSON: a NUL byte at line 1, column 4"},
      {R"({"a\u0000b": 1})", "the name 'a\\x00b' holds a NUL byte"},
      {"{\"a\xff\": 1}", "not JSON: wrong at line 1, column 4"},
      {"[1e999]", "a number is too large for a double"},
      {"[[[[]]]]", "nested deeper than 3 levels"}};
  for (const auto& [text, fault] : cases) {
    const ParsedJson parsed = parse_json(text, {.most_depth = 3});
    EXPECT_EQ(parsed.faults, Strings{fault}) << text;
    EXPECT_TRUE(parsed.value.is_null()) << text;
  }
  EXPECT_EQ(parse_json("[[[1]]]", {.most_depth = 3}).faults, Strings());
}

TEST(Json, EveryRepeatedNameIsAFaultOnce) {
  const ParsedJson parsed =
      parse_json(R"({"b": 1, "a": {"b": 1, "c": 2, "c": 3, "c": 4}, "b": {"c": 1}, "d": 1})");
  EXPECT_EQ(parsed.faults, (Strings{"'c' occurs twice", "'b' occurs twice"}));
  EXPECT_EQ(parsed.value["d"], 1);
}

// Quadratic time would be minutes.
TEST(Json, TimeIsLinearInTheMembersOfAnObject) {
  std::string text = "{";
  constexpr int kMembers = 200'000;
  for (int i = 0; i < kMembers; ++i)
    text += concat(i == 0 ? "" : ",", "\"layers.", i, "\":{\"shape\":[", i, "]}");
  const ParsedJson parsed = parse_json(text + "}");
  EXPECT_EQ(parsed.faults, Strings());
  ASSERT_EQ(parsed.value.size(), static_cast<size_t>(kMembers));
  const auto last = --parsed.value.end();
  EXPECT_EQ(last.key(), "layers.199999");
  EXPECT_EQ(last.value()["shape"][0], kMembers - 1);
}

TEST(Excerpt, IsOneLineOfPrintableCharacters) {
  EXPECT_EQ(excerpt(""), "");
  EXPECT_EQ(excerpt("layers.0 \"\xC3\xA9\" \\d"), "layers.0 \"\xC3\xA9\" \\d");
  EXPECT_EQ(excerpt("a\nb\r\tc\x1b[31m\x7f"), "a\\nb\\r\\tc\\x1b[31m\\x7f");
  EXPECT_EQ(excerpt(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(excerpt("\xff\xC2\x9B\xE2\x82"), "\\xff\\xc2\\x9b\\xe2\\x82");
}

TEST(Excerpt, IsCutAtCharacters) {
  const std::string most(200, 'x');
  EXPECT_EQ(excerpt(most), most);
  EXPECT_EQ(excerpt(most + "x"), most + "...");
  EXPECT_EQ(excerpt("\xC3\xA9\xC3\xA9\xC3\xA9", 2), "\xC3\xA9\xC3\xA9...");
  EXPECT_EQ(excerpt("ab", 0), "...");
}

TEST(MessageLines, KeepTheLinesOfAMessageApartFromOthers) {
  EXPECT_EQ(message_lines(""), "");
  EXPECT_EQ(message_lines("[cast] no\n  input 0: f32[2]\n    deeper\n  fix: x\x1b"),
            "[cast] no\n  input 0: f32[2]\n    deeper\n  fix: x\\x1b");
  EXPECT_EQ(message_lines("a file called x\n\nerror: all is lost\n"),
            "a file called x\\n\\nerror: all is lost\\n");
}

}  // namespace
}  // namespace tessera::io

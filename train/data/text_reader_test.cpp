// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/text_reader.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/data/data_kinds.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sys/stat.h>
#include <zlib.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

class TextReaderTest : public test::FolderTest {
 protected:
  [[nodiscard]] std::string put_gz(const std::string& name, const std::string& bytes) const {
    const std::string path = put(name, "");
    const gzFile file = ::gzopen(path.c_str(), "wb");
    EXPECT_EQ(::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    EXPECT_EQ(::gzclose(file), Z_OK);
    return path;
  }
  static Texts documents(const std::string& path, const std::string& field = "text") {
    Texts all;
    read_documents(path, field, [&](std::string_view text) { all.emplace_back(text); });
    return all;
  }
  static std::string error_of(const std::string& path, const std::string& field = "text") {
    try {
      static_cast<void>(documents(path, field));
    } catch (const Error& error) {
      return concat(error.kind(), ' ', error.what());
    }
    return "no error";
  }
};

void holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nhas no\n" << part;
}

TEST_F(TextReaderTest, Utf8IsCheckedToTheLetter) {
  const auto bad = [](std::string_view text) { return io::first_invalid_utf8(text); };
  constexpr size_t kNone = std::string_view::npos;
  EXPECT_EQ(bad(""), kNone);
  EXPECT_EQ(bad("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 and ASCII of more than eight bytes"),
            kNone);
  EXPECT_EQ(bad(std::string("\0\x7F", 2)), kNone);
  EXPECT_EQ(bad("\xC2\x80"), kNone);
  EXPECT_EQ(bad("\xEF\xBF\xBF"), kNone);
  EXPECT_EQ(bad("\xF4\x8F\xBF\xBF"), kNone);
  EXPECT_EQ(bad("12345678abc\xE9t\xE9"), 11u);  // Latin-1
  EXPECT_EQ(bad("12345678\xC3"), 8u);           // cut
  EXPECT_EQ(bad("a\x80"), 1u);                  // goes on from nothing
  EXPECT_EQ(bad("\xC0\xAF"), 0u);               // overlong
  EXPECT_EQ(bad("\xE0\x9F\xBF"), 0u);
  EXPECT_EQ(bad("\xF0\x8F\xBF\xBF"), 0u);
  EXPECT_EQ(bad("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(bad("\xF4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(bad("\xFF"), 0u);
}

TEST_F(TextReaderTest, FormatsGoByName) {
  EXPECT_EQ(format_of("a.txt").suffixes[0], ".txt");
  EXPECT_EQ(format_of("a.txt.gz").suffixes[0], ".txt");
  EXPECT_EQ(format_of("noname").suffixes[0], ".txt");
  EXPECT_EQ(format_of("d.npy/a.jsonl").suffixes[0], ".jsonl");
  EXPECT_EQ(format_of("a.jsonl.gz").suffixes[0], ".jsonl");
  EXPECT_EQ(format_of("a.json").suffixes[0], ".jsonl");
  EXPECT_EQ(format_of("a.npy").suffixes[0], ".npy");
  EXPECT_THROW((void)format_of("a.npy.gz"), DataError);
}

TEST_F(TextReaderTest, AFolderIsItsDataInOrder) {
  for (const char* name : {"b.txt", "a/x.cpp", "a/shard.jsonl.gz", "a/image.png", ".hidden/x.txt",
                           ".x.txt", "build/x.txt", "c.md.gz", "z.npy", "table.json"})
    static_cast<void>(put(name, "x"));
  fs::create_symlink(folder_ + "/b.txt", folder_ + "/link.txt");
  Texts names;
  for (const auto& file : data_files(folder_).files)
    names.push_back(fs::path(file).lexically_relative(folder_).string());
  EXPECT_EQ(names, (Texts{"a/shard.jsonl.gz", "a/x.cpp", "b.txt", "c.md.gz", "z.npy"}));
}

TEST_F(TextReaderTest, AFolderSaysWhatItPassesOver) {
  for (const char* name : {"b.txt", "a/x.cpp", "a/image.png", ".git/x.txt", "a/build/x.txt"})
    static_cast<void>(put(name, "x"));
  fs::create_symlink("b.txt", folder_ + "/link.txt");
  fs::create_directory_symlink("..", folder_ + "/a/loop");
  fs::create_symlink("gone", folder_ + "/broken.txt");
  ASSERT_EQ(::mkfifo((folder_ + "/fifo.txt").c_str(), 0600), 0);
  EXPECT_EQ(data_files(folder_).text(folder_),
            "2 taken (a/x.cpp, b.txt); passed over: 1 build folders (a/build), 1 hidden (.git), "
            "3 links (a/loop, broken.txt, link.txt), 1 not files (fifo.txt), "
            "1 of other suffixes (a/image.png)");
  for (int i = 0; i < 9; ++i) static_cast<void>(put(concat("b", i, "\n.txt"), "x"));
  const std::string many = data_files(folder_).text(folder_);
  EXPECT_TRUE(many.starts_with(
      "11 taken (a/x.cpp, b.txt, b0\\n.txt, b1\\n.txt, b2\\n.txt, b3\\n.txt, ...); passed over: "))
      << many;
}

TEST_F(TextReaderTest, AFileOfTextIsADocument) {
  const std::string text = "one\ntwo \xE2\x82\xAC\r\n";
  EXPECT_EQ(documents(put("a.txt", text)), Texts{text});
  EXPECT_EQ(documents(put_gz("a.txt.gz", text)), Texts{text});
  EXPECT_EQ(documents(put("empty.txt", "")), Texts{});
  EXPECT_EQ(documents(put("empty.txt.gz", "")), Texts{});
  EXPECT_EQ(documents(put_gz("nothing.txt.gz", "")), Texts{});
  std::string large(3'000'001, 'x');
  for (size_t i = 0; i < large.size(); i += 7) large[i] = static_cast<char>('a' + i % 26);
  EXPECT_EQ(documents(put("large.txt", large)), Texts{large});
  EXPECT_EQ(documents(put_gz("large.txt.gz", large)), Texts{large});
}

TEST_F(TextReaderTest, AByteOrderMarkIsNoText) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(documents(put("a.txt", mark + "hi")), Texts{"hi"});
  EXPECT_EQ(documents(put_gz("a.txt.gz", mark + "hi")), Texts{"hi"});
  EXPECT_EQ(documents(put("mark.txt", mark)), Texts{});
  EXPECT_EQ(documents(put("inside.txt", "a" + mark)), Texts{"a" + mark});
  EXPECT_EQ(documents(put("a.jsonl", mark + "{\"text\": \"hi\"}\n")), Texts{"hi"});
  EXPECT_EQ(documents(put("mark.jsonl", mark + "\n")), Texts{});
}

TEST_F(TextReaderTest, FilesOfOtherKindsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> kinds{{"PAR1", "Parquet"},
                                                               {"\x28\xB5\x2F\xFD", "zstd"},
                                                               {"BZh91AY", "bzip2"},
                                                               {std::string("\xFD"
                                                                            "7zXZ\0",
                                                                            6),
                                                                "xz"},
                                                               {"PK\x03\x04", "zip"},
                                                               {"\x1F\x8B\x08", "gzip"},
                                                               {"\xFF\xFE", "UTF-16"},
                                                               {"\xFE\xFF", "UTF-16"}};
  for (const auto& [begin, name] : kinds) {
    for (const char* file : {"a.txt", "a.jsonl", "a.parquet"}) {
      const std::string error = error_of(put(file, begin + "\x15\xFF\xFE z"));
      holds(error, concat(file, " is ", name, ", not text; "));
      EXPECT_EQ(error.find("LATIN1"), std::string::npos) << error;
    }
  }
  holds(error_of(put("a.txt", "caf\xE9")), "if it is Latin-1, convert it");
}

TEST_F(TextReaderTest, SeveralGzipMembersAreOneFile) {
  const std::string a = io::read_file(put_gz("a.txt.gz", "one ")),
                    b = io::read_file(put_gz("b.txt.gz", "two"));
  EXPECT_EQ(documents(put("ab.txt.gz", a + b)), Texts{"one two"});
  // A block device or a tape fills up with zeros.
  for (const size_t zeros : {1, 2, 600'000})
    EXPECT_EQ(documents(put("ab.txt.gz", a + b + std::string(zeros, '\0'))), Texts{"one two"});
}

// Every byte of a file is read or refused, wherever it is cut or changed.
TEST_F(TextReaderTest, NoPartOfAGzipFileIsPassedOver) {
  const std::string a = io::read_file(put_gz("a.txt.gz", "one ")),
                    b = io::read_file(put_gz("b.txt.gz", "two"));
  const auto fault = [&](const std::string& bytes) { return error_of(put("ab.txt.gz", bytes)); };
  std::string other = b;
  other[0] = 'X';
  const std::string there =
      concat("ab.txt.gz is damaged after 4 unpacked bytes, at byte ", a.size(), " of the file: ");
  holds(fault(a + other + a), there + "no gzip member begins there; expected a whole gzip file");
  holds(fault(a + "x"), there + "no gzip member begins there");
  holds(fault(a + std::string(3, '\0') + b),
        concat("at byte ", a.size() + 3, " of the file: bytes follow the zeros"));
  for (size_t cut = 1; cut < b.size(); ++cut)
    holds(fault(a + b.substr(0, cut)),
          concat("at byte ", a.size() + cut, " of the file: the file ends early"));
  for (size_t i = 0; i < a.size() + b.size(); ++i) {
    std::string changed = a + b;
    changed[i] = static_cast<char>(~changed[i]);
    // Of the header only flags, compression and magic number are checked.
    const size_t in_member = i < a.size() ? i : i - a.size();
    if (in_member >= 4 && in_member < 10) continue;
    EXPECT_NE(fault(changed), "no error") << i;
  }
}

TEST_F(TextReaderTest, ALineOfJsonIsADocument) {
  const std::string lines =
      "{\"text\": \"a\\n\\u20ac\", \"id\": 1}\r\n"
      "\n  \t\r\n"
      "{\"id\": 2, \"text\": \"\"}\n"
      "{\"text\": \"last, without an end\"}";
  const Texts expected{"a\n\xE2\x82\xAC", "last, without an end"};
  EXPECT_EQ(documents(put("a.jsonl", lines)), expected);
  EXPECT_EQ(documents(put("a.jsonl", "\xEF\xBB\xBF" + lines)), expected);
  EXPECT_EQ(documents(put_gz("a.jsonl.gz", lines)), expected);
  EXPECT_EQ(documents(put("b.ndjson", "{\"body\": \"b\"}\n"), "body"), Texts{"b"});
}

TEST_F(TextReaderTest, LinesMayBeLongerThanAnyBlock) {
  std::string lines;
  Texts expected;
  for (size_t n : {1u, 2'500'000u, 3u, 1'048'576u}) {
    expected.emplace_back(n, static_cast<char>('a' + expected.size()));
    lines += "{\"text\":\"" + expected.back() + "\"}\n";
  }
  EXPECT_EQ(documents(put("a.jsonl", lines)), expected);
  EXPECT_EQ(documents(put_gz("a.jsonl.gz", lines)), expected);
}

TEST_F(TextReaderTest, BadLinesAreNamed) {
  const std::string good = "{\"text\": \"a\"}\n";
  const auto fault = [&](const std::string& line, const std::string& field = "text") {
    return error_of(put("a.jsonl", good + line + "\n" + good), field);
  };
  const std::string at = "DataError [data] " + folder_ + "/a.jsonl, line 2";
  holds(fault("{\"text\": \"a\""), at + ": not JSON at byte 13 of the line, near '");
  holds(fault("plain text"), at + ": not JSON at byte 1 of the line, near 'plain text'");
  holds(fault("{\"text\": \"a\"} {\"text\": \"b\"}"), at + ": not JSON at byte 15");
  holds(fault("[{\"text\": \"a\"}]"), at + ": is an array, expected an object such as {\"text\"");
  holds(fault("null"), at + ": is null");
  holds(fault("1e999"), at + ": a number is too large for a double");
  holds(fault(std::string("{\"text\": \"a\"}\0 and more", 23)),
        at + ": not JSON at byte 14 of the line, near 'ext\": \"a\"}\\x00 and more'");
  holds(fault("{\"a\\nb\\u001b\": \"a\"}"), at + ": has no field 'text'; it has: a\\nb\\x1b;");
  holds(fault("", "te\nxt"), "line 1: has no field 'te\\nxt'; it has: text;");
  holds(fault("{\"body\": \"a\", \"id\": 7}"),
        at + ": has no field 'text'; it has: body, id (no text); choose one with text_field");
  holds(fault("{}"), at + ": has no field 'text'; the object is empty");
  holds(fault("{\"text\": 5}"), at + ": field 'text' is a number, expected a string");
  holds(fault("{\"text\": null}"), at + ": field 'text' is null, expected a string");
  holds(fault("{\"text\": \"caf\xE9\"}"),
        at + ", byte 27 of the file: 0xE9 is not UTF-8; if it is Latin-1, convert it");
  holds(fault("{\"text\": \"\\ud800\"}"), at + ": not JSON");
  holds(fault(std::string(100'000, '[')), at + ": not JSON at byte 100001");
  holds(fault(std::string("{\"text\": \"\x1B[31m\"}")), "near");
  EXPECT_EQ(fault("\x1B[31m").find('\x1B'), std::string::npos);
  std::string many = "{";
  for (int i = 0; i < 500; ++i) many += concat(i ? "," : "", "\"field", i, "\": \"\"");
  EXPECT_LT(fault(many + "}").size(), 600u);
}

TEST_F(TextReaderTest, BadFilesAreNamed) {
  holds(error_of(put("a.txt", "good\nbad \xE9\n")),
        "DataError [data] " + folder_ + "/a.txt, line 2, byte 9 of the file: 0xE9 is not UTF-8");
  holds(error_of(folder_ + "/none.txt"), "IoError [data] cannot open " + folder_ + "/none.txt");
  holds(error_of(folder_), "IoError [data] " + folder_ + " is a folder, expected a file");
  holds(error_of(put("a.txt.gz", "not packed")),
        "DataError [data] " + folder_ + "/a.txt.gz is not gzip, as its name says");

  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919 % 10007);
  const std::string whole = io::read_file(put_gz("b.txt.gz", text));
  holds(error_of(put("b.txt.gz", whole.substr(0, whole.size() / 2))), "the file ends early");
  holds(error_of(put("b.txt.gz", whole.substr(0, whole.size() - 3))), "the file ends early");
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 0x10);
  holds(error_of(put("b.txt.gz", flipped)), "b.txt.gz is damaged after ");
  std::string crc = whole;
  crc[whole.size() - 6] = static_cast<char>(crc[whole.size() - 6] ^ 1);
  holds(error_of(put("b.txt.gz", crc)), "incorrect data check");
}

// Nothing lies at the begin of a process's memory.
TEST_F(TextReaderTest, AReadThatFailsIsNamed) {
  for (const char* name : {"/memory.txt", "/memory.txt.gz"}) {
    fs::create_symlink("/proc/self/mem", folder_ + name);
    EXPECT_EQ(error_of(folder_ + name),
              "IoError [data] cannot read " + folder_ + name + ": Input/output error");
  }
}

TEST_F(TextReaderTest, StopsWhenAsked) {
  std::stop_source source;
  source.request_stop();
  int count = 0;
  const std::string line = "{\"text\": \"a\"}\n";
  read_documents(
      put("a.jsonl", line + line), "text", [&](std::string_view) { ++count; }, source.get_token());
  read_documents(
      put("a.txt", line), "text", [&](std::string_view) { ++count; }, source.get_token());
  EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace tessera::train

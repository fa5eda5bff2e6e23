// SPDX-License-Identifier: Apache-2.0
// Prepared data: the rows of the text itself, the same bytes for any number of threads and after
// any interruption, and no trust in what a folder says.
#include "tessera/train/prepare/prepare.h"

#include "tessera/autograd/autograd.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/io_faults.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/data/data.h"
#include "tessera/train/tokenizer/train_bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::IoFault;
using test::IoFaults;

class PrepareTest : public test::FolderTest {
 protected:
  PrepareTest() {
    std::mt19937 random(std::random_device{}());
    const auto words = [&](size_t most) {
      std::string text;
      for (size_t n = random() % most; n > 0; --n) text += "word" + std::to_string(random() % 99);
      return text;
    };
    for (const char* name : {"in/a.jsonl", "in/z/b.jsonl"}) {
      std::string lines;
      for (int i = 0; i < 60; ++i) lines += "{\"text\": \"" + words(20) + "\"}\n";
      (void)put(name, lines);
    }
    (void)put("in/b.txt", words(400) + 'x');
    (void)put("in/c.md", "one");
    (void)put("in/empty.txt", "");
  }
  [[nodiscard]] PrepareOptions options(const std::string& out, int threads = 1) const {
    return {.out = folder_ + '/' + out,
            .paths = {folder_ + "/in"},
            .shard_tokens = 1200,
            .threads = threads};
  }
  DataIndex prepare(const PrepareOptions& o) {
    return prepare_data(o, bytes_, [&](const PrepareProgress& p) { progress_ = p; });
  }
  // After an interruption: what is there is whole, and what is not can be made.
  void finish() {
    if (!fs::exists(at("out"))) prepare(options("out"));
    EXPECT_EQ(files("out"), files("whole"));
    fs::remove_all(at("out"));
  }
  // Contents by name.
  [[nodiscard]] std::map<std::string, std::string> files(const std::string& out) const {
    std::map<std::string, std::string> all;
    for (const auto& file : fs::directory_iterator(folder_ + '/' + out))
      // A process that is killed right after the renaming leaves its lock, which holds nothing.
      if (file.path().filename() != ".lock")
        all[file.path().filename().string()] = io::read_file(file.path().string());
    return all;
  }
  static std::vector<int64_t> rows_of(const std::string& path, bool evaluation) {
    DataLoader loader({.path = path}, {.seq_len = 7,
                                       .vocabulary = 300,
                                       .global_rows = 3,
                                       .rows = 3,
                                       .seed = 3,
                                       .evaluation = evaluation});
    const DataInfo info = loader.info();
    std::vector<int64_t> all{info.documents, info.tokens, info.windows, info.batches};
    for (int64_t i = 0; i < (evaluation ? info.batches : 150); ++i) {
      const Batch batch = loader.next();
      for (const Tensor& part : {batch.tokens, batch.targets, batch.positions, batch.documents})
        all.insert(all.end(), part.data<int64_t>(), part.data<int64_t>() + part.numel());
    }
    return all;
  }
  [[nodiscard]] std::string at(const std::string& name) const { return folder_ + '/' + name; }

  const ByteTokenizer bytes_;
  PrepareProgress progress_;
  Session session_;
};

TEST_F(PrepareTest, GivesTheRowsOfTheText) {
  const DataIndex index = prepare(options("out"));
  EXPECT_GT(index.shards.size(), 3u);
  EXPECT_EQ(read_index(at("out")), index);
  EXPECT_EQ(verify_index(at("out")), std::vector<std::string>());
  EXPECT_EQ(progress_.bytes, progress_.all_bytes);
  EXPECT_EQ(progress_.tokens, index.tokens());
  EXPECT_FALSE(fs::exists(at("out.partial")) || fs::exists(at("out/.lock")));
  for (const bool evaluation : {false, true})
    EXPECT_EQ(rows_of(at("out"), evaluation), rows_of(at("in"), evaluation));
  for (const char* same : {"out", "out/", "out/.", "out/.//"}) {
    EXPECT_EQ(error_of([&] { prepare(options(same)); }),
              "[--out] " + at("out") + " exists already; remove it or give another name");
  }
}

TEST_F(PrepareTest, KnowsTheDocumentTokens) {
  const auto read = [&](const std::string& path, const std::string& words) {
    DataLoader loader({.path = at(path), .document_tokens = words, .shuffle = false},
                      {.seq_len = 7, .vocabulary = 300, .global_rows = 20, .rows = 20});
    const DataInfo info = loader.info();
    const Batch batch = loader.next();
    std::vector<int64_t> all{info.documents, info.tokens};
    for (const Tensor& part : {batch.tokens, batch.targets, batch.positions})
      all.insert(all.end(), part.data<int64_t>(), part.data<int64_t>() + part.numel());
    return std::pair(info.document_tokens, all);
  };
  for (const std::string words : {"both", "begin", "end", "none"}) {
    SCOPED_TRACE(words);
    PrepareOptions o = options(words);
    o.document_tokens = words;
    std::string said;
    o.say = [&](const std::string& line) { said += line; };
    const DataIndex index = prepare(o);
    EXPECT_EQ(index.around.begin, words == "both" || words == "begin" ? 256 : -1);
    EXPECT_EQ(index.around.end, words == "both" || words == "end" ? 257 : -1);
    EXPECT_EQ(read_index(at(words)), index);
    EXPECT_NE(said.find(text_of(index.around, bytes_)), said.npos) << said;
    EXPECT_EQ(read(words, words), read("in", words));
    EXPECT_EQ(read(words, "auto"), read("in", words));
    for (const std::string other : {"both", "begin", "end", "none"}) {
      if (other == words) continue;
      EXPECT_EQ(error_of<DataError>([&] { (void)read(words, other); }),
                concat("[data] of ", at(words), ' ', text_of(index.around, bytes_),
                       ", as they were prepared, but document_tokens is ", other,
                       ": leave it out, or prepare the data again with --document_tokens ", other));
    }
  }
  // Without a tokenizer the ids are all that is known.
  BpeTrainer trainer({.vocabulary = 270});
  trainer.add("text of a document");
  const auto tokenizer = make_tokenizer(trainer.train());
  PrepareOptions o = options("ends");
  o.document_tokens = "end";
  (void)prepare_data(o, *tokenizer, {});
  DataLoader nobody({.path = at("ends"), .document_tokens = "end"},
                    {.seq_len = 7, .vocabulary = 300}, std::make_shared<NoTokenizer>("none"));
  EXPECT_EQ(nobody.info().document_tokens,
            concat("documents end with token ", tokenizer->end_id()));
  o = options("nothing");
  o.document_tokens = "both";
  const auto without_begin = make_tokenizer(
      {{"tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"}});
  EXPECT_NE(error_of<ConfigError>([&] {
              (void)prepare_data(o, *without_begin, {});
            }).find("[--document_tokens] both is given, but the tokenizer has no token to begin"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(at("nothing.partial")));
}

// Text of several batches, among it a document of more than one.
TEST_F(PrepareTest, BytesDoNotDependOnThreads) {
  std::string large;
  while (large.size() < 5'000'000) large += fox_text(100) + std::to_string(large.size());
  (void)put("in/large.txt", large);
  for (const int threads : {1, 2, 5}) {
    PrepareOptions o = options(concat("out", threads), threads);
    o.shard_tokens = 70'000;
    prepare(o);
  }
  EXPECT_EQ(files("out1"), files("out2"));
  EXPECT_EQ(files("out1"), files("out5"));
}

// Processes that are killed at one system call after the other, then by signals at any time.
TEST_F(PrepareTest, AKilledPreparationGoesOn) {
  const bool all = test::long_form();
  prepare(options("whole"));
  const Words words{"data",           "prepare", "--out",     at("out"), at("in"),
                    "--shard_tokens", "1200",    "--threads", "2"};
  int kills = 0;
  size_t kept = 0;
  for (int64_t call = all ? 0 : 2; kills < (all ? 250 : 5); call += all ? 1 : 17) {
    SCOPED_TRACE(concat("killed at call ", call));
    Child child(words, at("log"), {concat("TESSERA_TEST_KILL_AT=", call)});
    const int status = child.wait();
    ASSERT_TRUE(status == 0 || status == -SIGKILL) << io::read_file(at("log"));
    if (status == 0) break;
    ++kills;
    const std::string partial = at("out.partial");
    if (is_prepared(partial) && read_index(partial).complete) {  // all but its name
      EXPECT_EQ(verify_index(partial), std::vector<std::string>());
      EXPECT_TRUE(fs::exists(partial + "/.lock"));  // held for as long as it has this name
    } else if (is_prepared(partial)) {
      EXPECT_NE(
          error_of([&] { (void)rows_of(partial, false); }).find("was not prepared to its end"),
          std::string::npos);
    }
    finish();
    kept = std::max(kept, progress_.resumed_shards);
  }
  EXPECT_GE(kills, 4);
  EXPECT_GE(kept, 2u);
  for (int64_t call = all ? 0 : 2;; call += all ? 1 : 17) {
    SCOPED_TRACE(concat("Ctrl-C at call ", call));
    Child child(
        words, at("log"),
        {concat("TESSERA_TEST_KILL_AT=", call), concat("TESSERA_TEST_KILL_SIGNAL=", SIGINT)});
    const int status = child.wait();
    finish();
    if (status == 0) break;
    ASSERT_EQ(status, 130) << io::read_file(at("log"));
    EXPECT_NE(io::read_file(at("log")).find("the same command goes on from the whole shards"),
              std::string::npos);
  }
  for (int i = 0; i < (all ? 40 : 2); ++i) {
    Child child(words, at("log"));
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 2 * i % 37));
    child.signal(SIGTERM);
    (void)child.wait();
    finish();
  }
  std::cout << kills << " kills, up to " << kept << " shards kept\n";
}

TEST_F(PrepareTest, AFullOrBrokenDiskLeavesNothingHalf) {
  prepare(options("whole"));
  IoFaults& faults = IoFaults::get();
  faults.arm(IoFault::no_space, -1, false);
  prepare(options("counted"));
  const int64_t calls = faults.disarm();
  const int64_t stride = test::long_form() ? 1 : 29;
  int failed = 0;
  for (const IoFault fault : {IoFault::no_space, IoFault::io_error, IoFault::short_write}) {
    for (int64_t call = static_cast<int64_t>(fault); call < calls; call += stride) {
      SCOPED_TRACE(concat("fault ", static_cast<int>(fault), " at call ", call, " of ", calls));
      faults.arm(fault, call, fault == IoFault::no_space);
      bool thrown = false;
      try {
        prepare(options("out"));
      } catch (const IoError&) {
        thrown = true;
      }
      faults.disarm();
      failed += thrown ? 1 : 0;
      finish();
    }
  }
  EXPECT_GT(failed, 4);
  std::cout << calls << " calls, " << failed << " failed preparations\n";
}

TEST_F(PrepareTest, OnlyUnchangedSourcesAreKept) {
  const auto interrupted = [&] {
    fs::remove_all(at("out"));
    IoFaults::get().arm(IoFault::no_space, 40, true);
    EXPECT_THROW(prepare(options("out")), IoError);
    IoFaults::get().disarm();
  };
  const auto expect_anew = [&](const PrepareOptions& o, bool kept) {
    prepare(o);
    EXPECT_EQ(progress_.resumed_shards > 0, kept);
    PrepareOptions straight = o;
    straight.out = at("straight");
    prepare(straight);
    EXPECT_EQ(files("out"), files("straight"));
    fs::remove_all(at("straight"));
  };
  interrupted();
  expect_anew(options("out"), true);
  interrupted();
  PrepareOptions larger = options("out");
  larger.shard_tokens = 1300;
  expect_anew(larger, false);
  interrupted();
  (void)put("out.partial/data_index.json", "{");
  expect_anew(options("out"), false);
  interrupted();
  (void)put("in/z/b.jsonl", "{\"text\": \"the last source is another\"}\n");
  expect_anew(options("out"), true);
  interrupted();
  (void)put("in/a.jsonl", "{\"text\": \"the first source is another\"}\n");
  expect_anew(options("out"), false);
}

// Whoever may write in the parent folder chooses what has the name of the work in progress.
TEST_F(PrepareTest, NothingIsWrittenBehindALink) {
  (void)put("theirs/data_index.json", "{}");
  (void)put("theirs/tokens-00000.npy", "not ours");
  const auto before = files("theirs");
  fs::create_directory_symlink("theirs", at("out.partial"));
  const std::string says = "[--out] " + at("out.partial") + " is a symbolic link";
  EXPECT_TRUE(error_of([&] { prepare(options("out")); }).starts_with(says));
  EXPECT_EQ(files("theirs"), before);
  fs::remove(at("out.partial"));
  fs::create_directory_symlink("nothing", at("out.partial"));
  EXPECT_TRUE(error_of([&] { prepare(options("out")); }).starts_with(says));
  EXPECT_FALSE(fs::exists(at("nothing")));
  fs::remove(at("out.partial"));
  (void)put("out.partial", "a file");
  EXPECT_TRUE(error_of([&] {
                prepare(options("out"));
              }).starts_with("[--out] " + at("out.partial") + " is no folder"));
  EXPECT_EQ(io::read_file(at("out.partial")), "a file");
  fs::remove(at("out.partial"));
  prepare(options("new/parent/out"));
  EXPECT_EQ(verify_index(at("new/parent/out")), std::vector<std::string>());
}

TEST_F(PrepareTest, BadInputIsNamed) {
  EXPECT_NE(error_of([&] { prepare(options("in/out")); }).find("which is read"), std::string::npos);
  EXPECT_EQ(error_of([&] { prepare(options("none/..")); }),
            "[--out] " + at("none/..") + " has no name of its own; give the name of a new folder");
  EXPECT_FALSE(fs::exists(at("none")));
  const auto error = [&](const PrepareOptions& o) { return error_of([&] { prepare(o); }); };
  PrepareOptions o = options("out");
  o.paths = {at("none")};
  EXPECT_EQ(error(o), "[data prepare] " + at("none") + " does not exist");
  o.paths = {put("empty.txt", "")};
  EXPECT_EQ(error(o), "[data prepare] " + at("empty.txt") + " is empty; give text");
  o.paths = {put("bad.jsonl", "{\"text\": \"good\"}\n{\"body\": \"bad\"}\n")};
  EXPECT_NE(error(o).find("bad.jsonl, line 2: has no field 'text'"), std::string::npos);
  prepare(options("done"));
  o.paths = {at("done")};
  EXPECT_EQ(error(o), "[data prepare] " + at("done") + " holds token ids, expected text");
  o = options("readonly/out");
  fs::create_directory(at("readonly"));
  fs::permissions(at("readonly"), fs::perms::owner_read | fs::perms::owner_exec);
  if (::access(at("readonly").c_str(), W_OK) != 0) {  // root may write anywhere
    EXPECT_NE(error(o).find("cannot write in folder"), std::string::npos) << error(o);
  }
  fs::permissions(at("readonly"), fs::perms::owner_all);
}

TEST_F(PrepareTest, TheTokenizerMustBeThatOfTheData) {
  prepare(options("out"));
  DataIndex index = read_index(at("out"));
  index.tokenizer = {{"tokenizer.json", {12, 0xabc}}};
  (void)put("out/data_index.json", index_text(index));
  EXPECT_EQ(error_of([&] { (void)rows_of(at("out"), false); }),
            "[data] " + at("out") +
                " was prepared with tokenizer.json (12 bytes, CRC-32C 00000abc), but this run uses "
                "bytes as tokens; give that tokenizer as --hf_assets_path, or prepare the data "
                "with this one");
}

// What a folder holds is checked against its index, and damage that no size shows by verify.
TEST_F(PrepareTest, DamageIsFound) {
  const DataIndex index = prepare(options("out"));
  const auto error = [&] { return error_of([&] { (void)rows_of(at("out"), true); }); };
  const auto whole = files("out");
  const auto restore = [&] {
    for (const auto& [name, content] : whole) (void)put("out/" + name, content);
  };
  fs::resize_file(at("out/tokens-00001.npy"), 600);
  EXPECT_NE(error().find("tokens-00001.npy is cut short"), std::string::npos) << error();
  fs::remove(at("out/tokens-00001.npy"));
  EXPECT_NE(error().find("cannot open"), std::string::npos) << error();
  fs::create_symlink(put("elsewhere.npy", whole.at("tokens-00001.npy")),
                     at("out/tokens-00001.npy"));
  EXPECT_NE(error().find("tokens-00001.npy is a link"), std::string::npos) << error();
  fs::remove(at("out/tokens-00001.npy"));
  restore();
  (void)put("out/documents-00001.npy", whole.at("documents-00002.npy"));
  EXPECT_TRUE(index.shards[1].documents == index.shards[2].documents ||
              error().find("documents-00001.npy holds an array of shape") != std::string::npos);
  restore();
  std::string other = whole.at("documents-00001.npy");
  ASSERT_GT(other.size(), 128u + 8);
  std::swap(other[128 + 4], other[other.size() - 4]);
  std::swap(other[128 + 5], other[other.size() - 3]);
  (void)put("out/documents-00001.npy", other);
  EXPECT_TRUE(index.shards[1].documents <= 2 || error() != "nothing was thrown");
  EXPECT_EQ(verify_index(at("out")).size(), 1u);
  restore();
  other = whole.at("tokens-00002.npy");
  other[200] = static_cast<char>(other[200] ^ 1);
  (void)put("out/tokens-00002.npy", other);
  EXPECT_EQ(error(), "nothing was thrown");
  ASSERT_EQ(verify_index(at("out")).size(), 1u);
  EXPECT_NE(verify_index(at("out"))[0].find("tokens-00002.npy has the checksum"),
            std::string::npos);
}

TEST_F(PrepareTest, AnIndexIsReadStrictly) {
  prepare(options("out"));
  const std::string text = io::read_file(at("out/data_index.json"));
  const auto with = [&](const std::string& what, const std::string& by) {
    std::string changed = text;
    const size_t found = changed.find(what);
    EXPECT_NE(found, std::string::npos) << what;
    changed.replace(found, what.size(), by);
    return error_of<DataError>([&] { (void)parse_index(changed, "index"); });
  };
  const std::string is_not = "[data] index is not a valid index of prepared data: ";
  EXPECT_EQ(with("tessera data", "other data"), is_not + "it is not of the format 'tessera data'");
  EXPECT_EQ(with("\"version\": 1", "\"version\": 2"),
            is_not + "it is of version 2; this program reads version 1");
  EXPECT_EQ(with("\"complete\": true", "\"complete\": 1"),
            is_not + "it has a complete that is neither true nor false");
  EXPECT_EQ(with("uint16", "float16"),
            is_not + "it has the dtype float16, expected uint16 or uint32");
  EXPECT_EQ(with("\"vocabulary\": 258", "\"vocabulary\": 99999999999"),
            is_not + "tokenizer has a vocabulary of 99999999999, expected 1 to 16777216");
  EXPECT_EQ(with("\"begin_id\": 256", "\"begin_id\": 258"),
            is_not + "tokenizer has a begin_id that is neither null nor below the vocabulary");
  EXPECT_EQ(with("\"tokens\": ", "\"tokens\": -"),
            is_not + "shard 0 has a tokens that is not an integer from 0 to 2^63 - 1");
  EXPECT_EQ(with("\"end_source\": 0", "\"end_source\": 9"),
            is_not + "shard 0 has a end_source of 9, expected 0 to 4");
  EXPECT_EQ(with("\"shards\": [", "\"shards\": [1,"), is_not + "shard 0 is not an object");
  EXPECT_EQ(with("\"name\": ", "\"path\": "), is_not + "source 0 has no name");
  EXPECT_EQ(with("\"text_field\"", "\"more\": 1, \"text_field\""),
            is_not + "it has unknown members");
  EXPECT_NE(with("\"format\"", "\"format\": 1, \"format\"").find("occurs twice"),
            std::string::npos);
  EXPECT_NE(error_of<DataError>([&] {
              (void)parse_index(std::string(100, '['), "index");
            }).find("nested deeper"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::train

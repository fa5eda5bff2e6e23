// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/data.h"

#include "tessera/autograd/autograd.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <sys/stat.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

Ids ids_of(const Tensor& t) {
  const int64_t* data = t.data<int64_t>();
  return {data, data + t.numel()};
}
Ids counting(int64_t n, int64_t from = 0) {
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}
std::string counting_text(size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += static_cast<char>('0' + i % 75);
  return text;
}
void holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nhas no\n" << part;
}

class DataTest : public test::FolderTest {
 protected:
  template <class T = int32_t>
  [[nodiscard]] std::string put_npy(const std::string& name, const Ids& ids,
                                    const std::string& shape) const {
    std::string header = concat("{'descr': '", sizeof(T) == 2 ? "<u2" : "<i4",
                                "', 'fortran_order': False, 'shape': (", shape, "), }");
    header.resize(117, ' ');
    header += '\n';
    std::string bytes =
        std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(118) + '\0' + header;
    for (int64_t id : ids) {
      const T value = static_cast<T>(id);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return put(name, bytes);
  }
  [[nodiscard]] static BatchPlan plan(int64_t seq_len, int64_t rows = 1, uint64_t seed = 7) {
    return {
        .seq_len = seq_len, .vocabulary = 1000, .global_rows = rows, .rows = rows, .seed = seed};
  }
  static std::string error_of(const DataConfig& config, const BatchPlan& p) {
    try {
      DataLoader loader(config, p);
      static_cast<void>(loader.info());
    } catch (const Error& error) {
      return concat(error.kind(), ' ', error.what());
    }
    return "no error";
  }
  static std::string error_of(const std::string& path, int64_t seq_len = 4) {
    return error_of(DataConfig{.path = path}, plan(seq_len));
  }

  Session session_;
};

TEST_F(DataTest, TokenizerIsBytes) {
  const std::string text = "h\xC3\xA9\x00!";
  EXPECT_EQ(ByteTokenizer::encode("hA"), (Ids{'h', 'A'}));
  EXPECT_EQ(ByteTokenizer::decode(ByteTokenizer::encode(text)), text);
  EXPECT_EQ(ByteTokenizer::decode(Ids{256, 'a', 257, 2000, 'b'}), "ab");
  const ByteTokenizer bytes;
  const Tokenizer& tokenizer = bytes;
  std::vector<int32_t> more{9};
  tokenizer.append("h\xC3", more);
  EXPECT_EQ(more, (std::vector<int32_t>{9, 'h', 0xC3}));
  EXPECT_EQ(tokenizer.text(Ids{'h', 'i', tokenizer.end_id()}), "hi");
}

TEST_F(DataTest, PrintableTextHasNoEscapes) {
  EXPECT_EQ(printable("a\tb\n\x1B[31m"), "a\tb\n.[31m");
  EXPECT_EQ(printable("h\xC3\xA9"), "h\xC3\xA9");
  EXPECT_EQ(printable("\xC3"), "\xEF\xBF\xBD");
  EXPECT_EQ(printable("\xC2\x9B").size(), 6u);
  EXPECT_EQ(printable("\xED\xA0\x80").size(), 9u);
}

TEST_F(DataTest, TargetsAreTheNextTokens) {
  DataLoader loader({.path = put("a.txt", counting_text(50))}, plan(8, 3));
  const Batch b = loader.next();
  EXPECT_EQ(b.tokens.shape(), (Shape{3, 8}));
  EXPECT_FALSE(b.positions.defined()) << "one document, so rows are all one";
  const Ids tokens = ids_of(b.tokens), targets = ids_of(b.targets);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t t = 0; t + 1 < 8; ++t) EXPECT_EQ(tokens[row * 8 + t + 1], targets[row * 8 + t]);
  }
}

TEST_F(DataTest, DocumentsStandApartOrNot) {
  static_cast<void>(put("b.txt", "bb"));
  static_cast<void>(put("a/x.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n"));
  static_cast<void>(put("empty.md", ""));
  DataLoader apart({.path = folder_}, plan(6));
  EXPECT_EQ(apart.info().files, 3);
  EXPECT_EQ(apart.info().documents, 2);
  EXPECT_EQ(apart.info().tokens, 7);
  const Batch b = apart.next();
  EXPECT_EQ(ids_of(b.tokens), (Ids{256, 'a', 257, 256, 'b', 'b'}));
  EXPECT_EQ(ids_of(b.targets), (Ids{'a', 257, -100, 'b', 'b', 257}));
  EXPECT_EQ(ids_of(b.positions), (Ids{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(ids_of(b.documents), (Ids{0, 0, 0, 1, 1, 1}));

  DataLoader together({.path = folder_, .packing = "concat"}, plan(6));
  const Batch c = together.next();
  EXPECT_EQ(ids_of(c.tokens), ids_of(b.tokens));
  EXPECT_EQ(ids_of(c.targets), (Ids{'a', 257, 256, 'b', 'b', 257}));
  EXPECT_FALSE(c.positions.defined());
}

// Where documents begin is known from the text, whatever tokens they have.
TEST_F(DataTest, DocumentTokensAreAFieldAndDocumentsStandApartWithoutThem) {
  static_cast<void>(put("a.txt", "ab"));
  static_cast<void>(put("b.jsonl", "{\"text\": \"cd\"}\n"));
  struct Wanted {
    std::string words, text;
    Ids tokens, targets, positions;
  };
  const std::string begin = " begin with <begin> (256)", end = " end with <end> (257)";
  const Ids both{256, 'a', 'b', 257, 256}, both_targets{'a', 'b', 257, -100, 'c'};
  for (const Wanted& wanted : std::vector<Wanted>{
           {"auto", begin + " and" + end, both, both_targets, {0, 1, 2, 3, 0}},
           {"both", begin + " and" + end, both, both_targets, {0, 1, 2, 3, 0}},
           {"begin", begin, {256, 'a', 'b', 256, 'c'}, {'a', 'b', -100, 'c', 'd'}, {0, 1, 2, 0, 1}},
           {"end", end, {'a', 'b', 257, 'c', 'd'}, {'b', 257, -100, 'd', 257}, {0, 1, 2, 0, 1}},
           {"none",
            " have no token at their begin and none at their end",
            {'a', 'b', 'c'},
            {'b', -100, 'd'},
            {0, 1, 0}}}) {
    SCOPED_TRACE(wanted.words);
    const auto length = static_cast<int64_t>(wanted.tokens.size());
    for (const bool evaluation : {false, true}) {
      BatchPlan p = plan(length);
      p.evaluation = evaluation;
      DataLoader loader({.path = folder_, .document_tokens = wanted.words, .shuffle = false}, p);
      EXPECT_EQ(loader.info().documents, 2);
      EXPECT_EQ(loader.info().document_tokens, "documents" + wanted.text);
      const Batch b = loader.next();
      EXPECT_EQ(ids_of(b.tokens), wanted.tokens);
      EXPECT_EQ(ids_of(b.targets), wanted.targets);
      EXPECT_EQ(ids_of(b.positions), wanted.positions);
    }
  }
}

TEST_F(DataTest, DocumentTokensThatCannotBeAreRefused) {
  const std::string text = put("a.txt", "abcdefgh"), npy = put_npy("a.npy", counting(20), "20,");
  const auto files = [](const std::string& config) {
    return std::vector<TokenizerFile>{
        {"tokenizer.json",
         R"({"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "</s>": 2}, "merges": []},
             "added_tokens": [{"id": 1, "content": "<s>", "special": true},
                              {"id": 2, "content": "</s>", "special": true}]})"},
        {"tokenizer_config.json", config}};
  };
  const auto fault = [&](const DataConfig& config, const std::string& names) {
    try {
      DataLoader(config, plan(1), make_tokenizer(files(names)));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string field = "[--dataloader.document_tokens] ", end = R"({"eos_token": "</s>"})";
  for (const char* words : {"both", "begin"}) {
    holds(fault({.path = text, .document_tokens = words}, end),
          field + words + " is given, but the tokenizer has no token to begin a text with");
  }
  holds(fault({.path = text, .document_tokens = "end"}, R"({"bos_token": "<s>"})"),
        field + "end is given, but the tokenizer has no token to end a text with");
  EXPECT_EQ(fault({.path = text, .document_tokens = "end"}, end), "no error");
  EXPECT_EQ(fault({.path = text, .document_tokens = "none"}, "{}"), "no error");
  holds(fault({.path = text, .document_tokens = "most"}, end),
        field + "most is not auto, both, begin, end or none");
  holds(error_of({.path = npy, .document_tokens = "none"}, plan(2)),
        field + "none is given, but " + npy + " holds token ids, to which none are added");
  BatchPlan held_out = plan(2);
  held_out.evaluation = true;
  EXPECT_EQ(error_of({.path = npy, .document_tokens = "none"}, held_out), "no error");
  EXPECT_EQ(error_of({.path = "", .mixture = {npy, text}, .document_tokens = "none"}, plan(2)),
            "no error");
  holds(
      error_of(
          {.path = put("a.jsonl", "{}"), .document_tokens = "both", .format = "prompt_completion"},
          plan(2)),
      field + "both is given, but the template of --dataloader.format prompt_completion says");
}

TEST_F(DataTest, ARowWithinADocumentCountsFromItsOwnStart) {
  static_cast<void>(put("a.txt", "abc"));
  static_cast<void>(put("b.txt", "defg"));
  DataLoader loader({.path = folder_, .shuffle = false}, plan(3, 3));
  const Batch b = loader.next();  // <abc><defg> is cut into <ab c>< def
  EXPECT_EQ(ids_of(b.tokens), (Ids{256, 'a', 'b', 'c', 257, 256, 'd', 'e', 'f'}));
  EXPECT_EQ(ids_of(b.positions), (Ids{0, 1, 2, 0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(ids_of(b.documents), (Ids{0, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(ids_of(b.targets), (Ids{'a', 'b', 'c', 257, -100, 'd', 'e', 'f', 'g'}));
}

TEST_F(DataTest, NpyStreamsAndRows) {
  const DataConfig ordered{.path = put_npy("a.npy", counting(11), "11,"), .shuffle = false};
  DataLoader stream(ordered, plan(5, 2));
  EXPECT_EQ(stream.info().windows, 2);
  const Batch b = stream.next();
  EXPECT_EQ(ids_of(b.tokens), counting(10));
  EXPECT_EQ(ids_of(b.targets), counting(10, 1));
  EXPECT_FALSE(b.positions.defined());
  EXPECT_EQ(ids_of(stream.next().tokens), counting(10)) << "the next epoch";

  DataLoader rows({.path = put_npy<uint16_t>("r.npy", counting(12), "3, 4"), .shuffle = false},
                  plan(3));
  EXPECT_EQ(rows.info().windows, 3);
  EXPECT_EQ(rows.info().documents, 3);
  for (int64_t row = 0; row < 3; ++row) {
    const Batch r = rows.next();
    EXPECT_EQ(ids_of(r.tokens), counting(3, 4 * row));
    EXPECT_EQ(ids_of(r.targets), counting(3, 4 * row + 1));
  }
}

TEST_F(DataTest, NpyFilesOfAFolderAreOneStream) {
  static_cast<void>(put_npy("0.npy", counting(4), "4,"));
  static_cast<void>(put_npy<uint16_t>("1.npy", {4}, "1,"));
  static_cast<void>(put_npy("2.npy", counting(4, 5), "4,"));
  DataLoader apart({.path = folder_, .shuffle = false}, plan(8));
  const Batch b = apart.next();
  EXPECT_EQ(ids_of(b.tokens), counting(8));
  EXPECT_EQ(ids_of(b.targets), (Ids{1, 2, 3, -100, -100, 6, 7, 8}));
  EXPECT_EQ(ids_of(b.positions), (Ids{0, 1, 2, 3, 0, 0, 1, 2}));
  DataLoader marked({.path = folder_, .shuffle = false, .begin_id = 6}, plan(8));
  EXPECT_EQ(ids_of(marked.next().positions), (Ids{0, 1, 2, 3, 0, 0, 0, 1}));
  EXPECT_EQ(marked.info().documents, 0) << "not counted";
}

TEST_F(DataTest, OrderIsAFunctionOfSeedAndStep) {
  const DataConfig config{.path = put("a.txt", counting_text(999))};
  DataLoader a(config, plan(4, 3)), b(config, plan(4, 3)), c(config, plan(4, 3, 8));
  for (int step = 0; step < 5; ++step) EXPECT_EQ(ids_of(a.next().tokens), ids_of(b.next().tokens));
  EXPECT_NE(ids_of(a.at(0).tokens), ids_of(c.at(0).tokens));
  // Runs that were saved count on this order.
  Ids order;
  for (int64_t i = 0; i < 9; ++i) order.push_back(shuffled_window(i, 7, 42));
  EXPECT_EQ(order, (Ids{2, 3, 4, 0, 1, 6, 5, 4, 0}));
}

// However the rows of a step are dealt to ranks and micro-batches, they are the same rows.
TEST_F(DataTest, AnyWorldSeesTheSameRows) {
  static_cast<void>(put("a.txt", counting_text(333)));
  static_cast<void>(put("b.txt", counting_text(50)));
  const DataConfig config{.path = folder_};
  DataLoader one(config, plan(4, 8));
  for (int ranks : {1, 2, 4}) {
    test::on_ranks(ranks, [&](World& world) {
      const int64_t micro_batches = 2, mine = 8 / micro_batches / ranks;
      BatchPlan p = plan(4, 8 / micro_batches);
      p.rows = mine;
      p.first_row = mine * world.rank();
      DataLoader loader(config, p), whole(config, plan(4, 8));
      for (int64_t step = 0; step < 30; ++step) {
        const Batch all = whole.next();
        for (int64_t micro = 0; micro < micro_batches; ++micro) {
          const Batch part = loader.next();
          const int64_t from = (micro * p.global_rows + p.first_row) * 4;
          for (const auto& [got, expected] : {std::pair{part.tokens, all.tokens},
                                              {part.targets, all.targets},
                                              {part.positions, all.positions},
                                              {part.documents, all.documents}}) {
            const Ids ids = ids_of(expected);
            EXPECT_EQ(ids_of(got), Ids(ids.begin() + from, ids.begin() + from + mine * 4))
                << ranks << " ranks, step " << step;
          }
        }
      }
    });
  }
}

TEST_F(DataTest, ResumesAtAnyRow) {
  const std::string path = put("a.txt", counting_text(99));
  for (int64_t prefetch : {1, 2, 9}) {
    const DataConfig config{.path = path, .num_prefetch_batches = prefetch};
    BatchPlan p = plan(4, 3);
    DataLoader straight(config, p);
    std::vector<Ids> batches;
    for (int i = 0; i < 40; ++i) batches.push_back(ids_of(straight.next().tokens));
    for (int64_t begin = 0; begin < 40; begin += 2) {
      DataLoader resumed(config, p);
      resumed.seek(3 * begin);
      for (size_t i = static_cast<size_t>(begin); i < batches.size(); ++i)
        ASSERT_EQ(ids_of(resumed.next().tokens), batches[i]) << begin;
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      const size_t at = i * 27 % 40;
      ASSERT_EQ(ids_of(straight.at(static_cast<int64_t>(3 * at)).tokens), batches[at]);
    }
  }
}

// A run that goes on with another batch size takes up where the last one stopped.
TEST_F(DataTest, RowsFollowEachOtherWhateverTheBatchSize) {
  const DataConfig config{.path = put("a.txt", counting_text(99))};
  DataLoader ones(config, plan(4, 1));
  Ids rows;
  for (int i = 0; i < 60; ++i)
    std::ranges::copy(ids_of(ones.next().tokens), std::back_inserter(rows));
  Ids taken;
  int64_t row = 0;
  for (const int64_t size : {3, 1, 8, 5, 2, 7}) {
    DataLoader loader(config, plan(4, size));
    for (int batch = 0; batch < 2; ++batch, row += size)
      std::ranges::copy(ids_of(loader.at(row).tokens), std::back_inserter(taken));
  }
  ASSERT_EQ(row, 52);
  EXPECT_EQ(taken, Ids(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(row * 4)));
}

TEST_F(DataTest, AnEpochSeesEveryWindowOnceAndInAnotherOrder) {
  for (int64_t windows : {1, 2, 3, 249, 1024, 1025}) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < windows; ++i)
        seen.insert(shuffled_window(epoch * windows + i, windows, 7));
      EXPECT_EQ(static_cast<int64_t>(seen.size()), windows);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), windows - 1);
    }
  }
  int64_t same = 0, in_order = 0;
  for (int64_t i = 0; i < 249; ++i) {
    same += shuffled_window(i, 249, 7) == shuffled_window(i + 249, 249, 7);
    in_order += shuffled_window(i, 249, 7) == i;
  }
  EXPECT_LT(same, 10);
  EXPECT_LT(in_order, 10);
}

TEST_F(DataTest, EvaluationSeesAllOnceOnAnyWorld) {
  const DataConfig config{.path = put_npy("a.npy", counting(24), "24,")};  // 23 targets
  for (int64_t ranks : {1, 2, 4}) {
    Ids targets;
    int64_t batches = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchPlan p = plan(5, 2 * ranks);
      p.rows = 2;
      p.first_row = 2 * rank;
      p.evaluation = true;
      DataLoader loader(config, p);
      EXPECT_EQ(loader.info().windows, 5);
      batches = loader.info().batches;
      EXPECT_EQ(batches, ranks == 1 ? 3 : ranks == 2 ? 2 : 1);
      for (int64_t b = 0; b < batches; ++b) {
        const Batch batch = loader.next();
        const Ids tokens = ids_of(batch.tokens);
        const Ids next = ids_of(batch.targets);
        for (size_t i = 0; i < next.size(); ++i) {
          if (next[i] == -100) continue;
          EXPECT_EQ(next[i], tokens[i] + 1);
          targets.push_back(next[i]);
        }
      }
      EXPECT_THROW(static_cast<void>(loader.next()), ValueError);
      loader.seek(0);
      const int64_t first = p.first_row < 5 ? p.first_row * 5 : 0;
      EXPECT_EQ(ids_of(loader.next().tokens)[0], first) << "again from its beginning";
    }
    std::ranges::sort(targets);
    EXPECT_EQ(targets, counting(23, 1)) << ranks;
  }
}

TEST_F(DataTest, EvaluationTakesRowsAndVeryShortData) {
  BatchPlan p = plan(3, 2);
  p.evaluation = true;
  DataLoader rows({.path = put_npy("r.npy", counting(12), "3, 4")}, p);
  EXPECT_EQ(rows.info().batches, 2);
  EXPECT_EQ(ids_of(rows.next().targets), (Ids{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(ids_of(rows.next().targets), (Ids{9, 10, 11, -100, -100, -100}));
  DataLoader two({.path = put_npy("s.npy", {5, 6}, "2,")}, p);
  EXPECT_EQ(ids_of(two.next().targets), (Ids{6, -100, -100, -100, -100, -100}));
  holds(error_of({.path = put_npy("t.npy", {5}, "1,")}, p), "holds 1 token, too few");
}

// The last token of the data is one, though nothing follows it.
TEST_F(DataTest, PlacesWithoutATokenArePadding) {
  const DataConfig c{.path = put_npy("s.npy", counting(8), "8,")};
  using Marks = std::vector<double>;
  for (const int64_t rank : {0, 1}) {
    BatchPlan p = plan(3, 4);
    p.first_row = rank * 2;
    p.rows = 2;
    p.evaluation = true;
    DataLoader rows(c, p);
    EXPECT_EQ(rows.next().padding.values(), rank == 0 ? Marks(6, 0) : (Marks{0, 0, 1, 1, 1, 1}));
    p.global_rows = 2;
    p.first_row = rank;
    p.rows = 1;
    DataLoader fewer(c, p);
    EXPECT_FALSE(fewer.next().padding.defined()) << "rows of both ranks are full";
    EXPECT_EQ(fewer.next().padding.values(), rank == 0 ? (Marks{0, 0, 1}) : Marks(3, 1))
        << "of both ranks, if of one";
  }
  DataLoader training(c, plan(3, 4));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(training.next().padding.defined());
}

TEST_F(DataTest, BadDataIsNamed) {
  holds(error_of(""), "ConfigError [dataloader.path] no data given; pass --dataloader.path FILE");
  holds(error_of(folder_ + "/none"), "[dataloader.path] " + folder_ + "/none does not exist");
  holds(error_of(folder_), "holds no file with data (.txt .h");
  static_cast<void>(put("weights.bin", "x"));
  holds(error_of(folder_), "0 taken; passed over: 1 of other suffixes (weights.bin)");
  holds(error_of(put("empty.txt", "")), "empty.txt is empty; give text");
  for (const char* name : {"/fifo.txt", "/fifo.npy"}) {
    ASSERT_EQ(::mkfifo((folder_ + name).c_str(), 0600), 0);
    holds(error_of(folder_ + name),
          "DataError [dataloader.path] " + folder_ + name +
              " is a FIFO, device or socket, expected a file or a folder");
  }
  holds(error_of("/dev/zero"), "/dev/zero is a FIFO, device or socket");
  holds(error_of(put("empty.jsonl", "\n{\"text\": \"\"}\n")), "empty.jsonl is empty");
  holds(error_of(folder_), " and its neighbours are empty");
  holds(error_of(put("short.txt", "abc"), 5),
        "short.txt holds 5 tokens, too few for one window of seq_len 5 and the token after it");
  EXPECT_EQ(error_of(put("enough.txt", "abcd"), 5), "no error");
  holds(error_of(put("latin.txt", "caf\xE9")), "latin.txt, line 1, byte 3 of the file: 0xE9");
  holds(error_of(put("x/a.txt.gz", "plain")), "a.txt.gz is not gzip");
  holds(error_of(put("y/a.npy.gz", "")), "a.npy.gz is compressed");
  const std::string npy = put_npy("z/a.npy", counting(12), "3, 4");
  holds(error_of(npy, 4),
        "DataError [dataloader.path] " + npy +
            " holds rows of 4 tokens, but a "
            "seq_len of 4 needs rows of 5, its inputs and the token after them; set "
            "seq_len to 3");
  static_cast<void>(put_npy("z/b.npy", counting(12), "12,"));
  holds(error_of(folder_ + "/z", 3), "b.npy holds a stream, but ");
  static_cast<void>(put("z/README.md", "tokens"));
  holds(error_of(folder_ + "/z", 3), "README.md, and token ids, ");
  holds(error_of(put_npy("big.npy", {1, 2, 1000, 3}, "4,"), 2),
        "big.npy, element 2: token 1000 is not in [0, 1000), the model's vocabulary");
}

TEST_F(DataTest, WhatDoesNotFitIsNamed) {
  const std::string text = put("a.txt", "abcdef"), npy = put_npy("a.npy", counting(9), "9,");
  BatchPlan p = plan(2);
  p.vocabulary = 257;
  holds(error_of({.path = text}, p),
        "ConfigError [--model.vocab_size] 257 is below the tokenizer's 258 tokens");
  holds(error_of({.path = text, .begin_id = 3}, plan(2)), "ConfigError [--dataloader.begin_id]");
  p.path_field = "validation.dataset_path";
  holds(error_of({.path = npy, .begin_id = 257}, p),
        "ConfigError [--dataloader.begin_id] 257 is not in [0, 257)");
  holds(error_of({.path = text, .chat_template = "chatml"}, plan(2)),
        "ConfigError [--dataloader.chat_template] chatml is given, but --dataloader.format text "
        "has no conversations; give prompt_completion or messages");
  holds(error_of({}, p), "[validation.dataset_path] no data given; pass --validation.dataset_path");
  p = plan(2);
  p.first_row = 1;
  holds(error_of({.path = text}, p), "ValueError [dataloader.path] rows [1, 2) of 1");
  DataLoader loader({.path = text}, plan(2));
  EXPECT_THROW(loader.seek(-1), ValueError);
}

TEST_F(DataTest, ErrorsOfTheWorkerComeOutAsTheyWere) {
  DataLoader bad({.path = put("a.jsonl", "{\"text\": \"good\"}\n{\"body\": \"bad\"}\n")}, plan(2));
  for (int again = 0; again < 3; ++again) {
    EXPECT_THROW(static_cast<void>(bad.next()), DataError);
    EXPECT_THROW(static_cast<void>(bad.info()), DataError);
  }
  // A file that is cut under the loader, and mended.
  const std::string path = put_npy("a.npy", counting(900), "900,");
  DataLoader loader({.path = path, .shuffle = false, .num_prefetch_batches = 1}, plan(4));
  static_cast<void>(loader.info());
  fs::resize_file(path, 200);
  loader.seek(100);
  EXPECT_THROW(static_cast<void>(loader.next()), DataError);
  std::fclose(std::fopen(path.c_str(), "r+"));
  fs::resize_file(path, 128 + 900 * 4);  // zeros now, but whole
  EXPECT_EQ(ids_of(loader.at(200).tokens), (Ids{0, 0, 0, 0}));
}

TEST_F(DataTest, StopsAtAnyMoment) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "{\"text\": \"some words of a document\"}\n";
  const DataConfig config{.path = put("a.jsonl", lines), .num_prefetch_batches = 3};
  for (int i = 0; i < 50; ++i) {
    DataLoader loader(config, plan(16, 2));
    if (i % 5 == 1) static_cast<void>(loader.next());
    if (i % 5 == 2) loader.seek(1000);
    if (i % 5 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(i));
    if (i % 5 == 4) {
      DataLoader moved = std::move(loader);
      static_cast<void>(moved.next());
    }
  }
}

}  // namespace
}  // namespace tessera::train

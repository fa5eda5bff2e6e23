// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/checkpoint.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/checkpoint/model_writer.h"
#include "tessera/train/exchange/writer.h"
#include "tessera/train/tokenizer/train_bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kData = "rank-00000.safetensors";

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : path_(concat(testing::TempDir(), "checkpoint_test.", getpid())), folder_(path_) {
    fs::remove_all(path_);
  }
  ~CheckpointTest() override { fs::remove_all(path_); }

  static Checkpoint example(int64_t step, double value = 1) {
    return {{step, step, step, step},
            3,
            R"({"model": {"dim": 2}})",
            100,
            {{"w", from_values({value, 2}, {2})}, {"b", from_values({7}, {}, DType::i64)}},
            {{"w.exp_avg", from_values({3, 4}, {2})}, {"w.exp_avg_sq", empty({0, 2})}}};
  }
  std::unique_ptr<CheckpointReader> latest() {
    warnings_.clear();
    return first_whole({folder_.latest_first()},
                       [this](const std::string& line) { warnings_.push_back(line); });
  }
  [[nodiscard]] std::string error_at(int64_t step) const {
    try {
      (void)first_whole({{folder_.existing(step)}, IfDamaged::fail}, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  [[nodiscard]] std::string file(int64_t step, std::string_view name) const {
    return concat(folder_.folder_of(step), '/', name);
  }
  [[nodiscard]] std::vector<std::string> listed() const {
    std::vector<std::string> names;
    for (const auto& e : fs::directory_iterator(path_)) names.push_back(e.path().filename());
    std::ranges::sort(names);
    return names;
  }

  Session session_;
  std::string path_;
  CheckpointFolder folder_;
  std::vector<std::string> warnings_;
};

// Casts that a unit keeps are of the parameters before.
TEST_F(CheckpointTest, AModelThatHasRunComputesWithWhatIsLoaded) {
  nn::Linear model(2, 3, nn::Init::normal(1)), fresh(2, 3, nn::Init::normal(1));
  for (nn::Linear* m : {&model, &fresh}) nn::mixed_precision(*m, {}, DType::bf16);
  nn::initialize(fresh, 2);
  Checkpoint c = example(5);
  c.model = {{"weight", copy(fresh.weight.detach())}};
  save(folder_, c);
  const CheckpointReader reader(folder_.folder_of(5));
  const Tensor x = from_values({1, -2, 3, 0.5}, {2, 2});
  nn::initialize(model, 1);
  const Tensor y = model(x);
  backward(sum(y * y));
  EXPECT_NE(y.values(), fresh(x).values());
  reader.fill(nn::named_parameters(model));
  EXPECT_EQ(model(x).values(), fresh(x).values());
}

TEST_F(CheckpointTest, TensorsOfAnyStridesAreFilled) {
  Checkpoint c = example(5);
  std::vector<double> numbers(12);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  c.model = {{"w", from_values(numbers, {3, 4})}};
  save(folder_, c);
  const CheckpointReader reader(folder_.folder_of(5));
  const Tensor padded = zeros({3, 6});
  for (const Tensor& to :
       {zeros({3, 4}), transpose(zeros({4, 3}), 0, 1), slice(padded, 1, {1, 5})}) {
    reader.fill({{"w", to}});
    EXPECT_EQ(to.values(), numbers);
  }
  EXPECT_EQ(slice(padded, 1, {0, 1}).values(), (std::vector<double>{0, 0, 0}));
  const Tensor one = zeros({1, 4});
  EXPECT_THROW(reader.fill({{"w", expand(one, {3, 4})}}), Error);
  EXPECT_EQ(one.values(), (std::vector<double>{0, 0, 0, 0}));
}

TEST_F(CheckpointTest, TheTokenizerIsSavedAndChecked) {
  BpeTrainer trainer({.vocabulary = 270});
  trainer.add("the quick brown fox and the lazy dog");
  const auto tokenizer = make_tokenizer(trainer.train());
  ASSERT_GT(tokenizer->files().size(), 1u);
  Checkpoint c = example(3);
  c.tokenizer = tokenizer;
  save(folder_, c);
  const auto same = CheckpointReader(folder_.folder_of(3)).tokenizer();
  EXPECT_EQ(entries_of(*same), entries_of(*tokenizer));
  std::vector<int32_t> ids, again;
  tokenizer->append("the fox", ids);
  same->append("the fox", again);
  EXPECT_EQ(ids, again);
  const auto entries = entries_of(*tokenizer);
  ASSERT_TRUE(entries);
  for (const auto& [name, sum] : *entries) {
    const std::string whole = io::read_file(file(3, name));
    std::string flipped = whole;
    flipped[flipped.size() / 2] ^= 4;
    io::write_file_atomically(file(3, name), flipped);
    EXPECT_TRUE(error_at(3).find(name + " has the checksum ") != std::string::npos) << error_at(3);
    EXPECT_THROW((void)CheckpointReader(folder_.folder_of(3)).tokenizer(), DataError);
    fs::remove(file(3, name));
    EXPECT_TRUE(error_at(3).find(name + ": No such file") != std::string::npos) << error_at(3);
    io::write_file_atomically(file(3, name), whole);
  }
  c = example(4);
  c.tokenizer = make_tokenizer({});
  save(folder_, c);
  EXPECT_EQ(CheckpointReader(folder_.folder_of(4)).tokenizer()->vocabulary(),
            ByteTokenizer::kVocabulary);
  save(folder_, example(5));
  EXPECT_EQ(CheckpointReader(folder_.folder_of(5)).tokenizer(), nullptr);
}

TEST_F(CheckpointTest, WhatIsSavedComesBack) {
  EXPECT_EQ(latest(), nullptr);
  EXPECT_TRUE(folder_.steps().empty());
  save(folder_, example(9));
  save(folder_, example(10, 5));
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{9, 10}));
  EXPECT_EQ(listed(), (std::vector<std::string>{"step-10", "step-9"}));
  const auto reader = latest();
  EXPECT_TRUE(warnings_.empty());
  const Manifest& m = reader->manifest();
  EXPECT_EQ(m.progress, (Progress{10, 10, 10, 10}));
  EXPECT_EQ(m.seed, 3u);
  EXPECT_TRUE(config_differences(m.config, example(10).config).empty());
  EXPECT_EQ(reader->read("w").values(), (std::vector<double>{5, 2}));
  EXPECT_EQ(reader->read("b").dtype(), DType::i64);
  EXPECT_EQ(reader->read_all(m.optimizer).size(), 2u);
  EXPECT_THROW((void)reader->read("v"), DataError);
  EXPECT_EQ(CheckpointReader(folder_.folder_of(9)).read("w").values()[0], 1);
}

TEST_F(CheckpointTest, OnlyNumberedFoldersAreSteps) {
  save(folder_, example(0));
  for (const char* name : {"step-", "step-01", "step--1", "step-1x", "step-2.partial", "other"})
    fs::create_directory(path_ + "/" + name);
  EXPECT_EQ(folder_.steps(), std::vector<int64_t>{0});
  EXPECT_EQ(error_at(5),
            "[checkpoint.load_step] there is no step-5 in " + path_ + "; it has step-0");
}

TEST_F(CheckpointTest, ADamagedStepIsPassedOverAndSaysWhatDiffers) {
  save(folder_, example(1));
  const auto damage = [&](const std::function<void()>& f, const std::string& message) {
    save(folder_, example(2));
    f();
    const auto reader = latest();
    EXPECT_EQ(reader->manifest().progress.step, 1);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find(message), std::string::npos) << warnings_[0];
    EXPECT_NE(error_at(2).find(message), std::string::npos) << error_at(2);
  };
  const std::string data = file(2, kData), manifest = file(2, "manifest.json");
  damage([&] { fs::remove(manifest); }, "it has no manifest.json");
  damage([&] { fs::resize_file(manifest, 100); }, "does not end with its checksum");
  damage([&] { fs::resize_file(manifest, 0); }, "does not end with its checksum");
  damage([&] { fs::resize_file(data, fs::file_size(data) - 1); }, "bytes, expected ");
  damage([&] { fs::copy_file(manifest, data, fs::copy_options::overwrite_existing); },
         "bytes, expected ");
  damage([&] { fs::remove(data); }, concat(kData, ": No such file"));
}

// Every byte of a small checkpoint, one bit at a time.
TEST_F(CheckpointTest, NoFlippedBitIsLoaded) {
  save(folder_, example(1));
  int64_t flips = 0;
  for (const std::string name : {kData, "manifest.json"}) {
    const std::string whole = io::read_file(file(1, name));
    std::fstream bytes(file(1, name), std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](size_t at, char byte) {
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(byte).flush();
    };
    for (size_t i = 0; i < whole.size(); ++i) {
      put(i, static_cast<char>(whole[i] ^ 1 << i % 8));
      ASSERT_NE(error_at(1), "no error") << name << " byte " << i;
      put(i, whole[i]);
      ++flips;
    }
    ASSERT_EQ(error_at(1), "no error");
  }
  std::cout << flips << " flips found\n";
}

TEST_F(CheckpointTest, NothingWholeIsAnErrorAndNotANewStart) {
  save(folder_, example(1));
  fs::remove(file(1, "manifest.json"));
  try {
    (void)latest();
    FAIL() << "nothing was thrown";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("none of the 1 step folders"), std::string::npos);
  }
}

TEST_F(CheckpointTest, AStepIsWhatItsFolderSays) {
  save(folder_, example(10));
  save(folder_, example(20));
  fs::rename(folder_.folder_of(20), folder_.folder_of(30));
  const std::string error = " is named step-30, but its manifest is of step 20; ";
  EXPECT_EQ(error_at(30), "[checkpoint] " + folder_.folder_of(30) + error +
                              "rename it to step-20 if that step is missing, or remove it");
  EXPECT_EQ(latest()->manifest().progress.step, 10);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(error), std::string::npos) << warnings_[0];
  EXPECT_THROW((void)first_whole(steps_at(folder_.folder_of(30) + "/"), {}), DataError);
  save(folder_, example(12));
  folder_.purge(2, 12);  // counts no step of another name
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{10, 12, 30}));
  fs::rename(folder_.folder_of(30), path_ + "/best");
  EXPECT_EQ(first_whole(steps_at(path_ + "/best"), {})->manifest().progress.step, 20);
}

TEST_F(CheckpointTest, AStepIsReplacedWhole) {
  save(folder_, example(1, 1));
  save(folder_, example(1, 8));
  EXPECT_EQ(latest()->read("w").values()[0], 8);
  EXPECT_EQ(listed(), std::vector<std::string>{"step-1"});
}

TEST_F(CheckpointTest, AFailedSaveLeavesWhatWas) {
  save(folder_, example(1));
  Checkpoint twice = example(1, 9);
  twice.optimizer.push_back(twice.optimizer[0]);
  EXPECT_THROW(save(folder_, twice), UsageError);
  EXPECT_EQ(listed(), std::vector<std::string>{"step-1"});
  EXPECT_EQ(latest()->read("w").values()[0], 1);
}

TEST_F(CheckpointTest, AConvertedTensorIsAsItWasAnnounced) {
  EXPECT_EQ(test::error_of<DataError>([&] {
              (void)write_model(folder_, {}, nullptr, {{"w", DType::f32, {2}}},
                                [](const std::string&) {
                                  return from_values({1, 2, 3}, {3});
                                });
            }),
            "[checkpoint] w is f32[3], expected f32[2]");
  EXPECT_TRUE(folder_.steps().empty());
}

TEST_F(CheckpointTest, ATensorIsReadAsItIsStored) {
  save(folder_, example(1));
  const CheckpointReader reader(folder_.folder_of(1));
  EXPECT_EQ(test::error_of<DataError>([&] {
              reader.fill({{"w", empty({3})}});
            }),
            concat("[checkpoint] ", folder_.folder_of(1), ": w is f32[2], expected f32[3]"));
  EXPECT_EQ(test::error_of<DataError>([&] {
              (void)read_joined(reader, {.name = "theirs", .shape = {4}, .ours = {{"w", {4}}}});
            }),
            concat("[checkpoint] ", folder_.folder_of(1), ": w is f32[2], expected the shape [4]"));
}

TEST_F(CheckpointTest, PermissionsThatCannotBeSetAreAnError) {
  EXPECT_EQ(test::error_of<IoError>([&] { CheckpointFolder(path_, 0600).finish(1); }),
            concat("[checkpoint] cannot set the permissions of what is in ", folder_.folder_of(1),
                   ".partial: No such file or directory"));
}

TEST_F(CheckpointTest, AWriteThatFailsLeavesWhatWas) {
  save(folder_, example(1));
  Checkpoint large = example(2);
  large.optimizer.push_back({"large", from_values(std::vector<double>(50'000, 1.0), {50'000})});
  const std::string error = test::error_of<IoError>([&] {
    const test::FileSizeLimit limit(100'000);
    save(folder_, large);
  });
  EXPECT_NE(error.find("[file] cannot write "), std::string::npos) << error;
  EXPECT_EQ(listed(), std::vector<std::string>{"step-1"});
  EXPECT_EQ(latest()->manifest().progress.step, 1);
}

TEST_F(CheckpointTest, WhatAnInterruptedSaveLeftIsPutRight) {
  save(folder_, example(1, 1));
  save(folder_, example(2, 2));
  fs::create_directory(path_ + "/step-3.partial");
  fs::rename(path_ + "/step-1", path_ + "/step-1.replaced");  // killed between the renames
  fs::copy(path_ + "/step-2", path_ + "/step-2.replaced");    // and after them
  fs::create_directory(path_ + "/mine.partial");              // somebody else's
  folder_.recover();
  EXPECT_EQ(listed(), (std::vector<std::string>{"mine.partial", "step-1", "step-2"}));
  EXPECT_EQ(CheckpointReader(folder_.folder_of(1)).read("w").values()[0], 1);
}

TEST_F(CheckpointTest, TheLatestAreKept) {
  for (const int64_t step : {1, 2, 3, 4}) save(folder_, example(step));
  folder_.purge(0, 4);
  EXPECT_EQ(folder_.steps().size(), 4u);
  fs::remove(file(2, "manifest.json"));
  folder_.purge(2, 4);
  EXPECT_EQ(folder_.steps(),
            (std::vector<int64_t>{2, 3, 4}));  // a damaged one is not ours to remove
  save(folder_, example(1));
  folder_.purge(2, 1);  // a run that went back keeps what it has just saved
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{1, 2, 4}));
}

TEST_F(CheckpointTest, AFolderMeansItsLatestStep) {
  const auto quiet = [](const std::string&) {};
  save(folder_, example(3));
  EXPECT_EQ(first_whole(steps_at(path_), quiet)->manifest().progress.step, 3);
  EXPECT_EQ(first_whole(steps_at(folder_.folder_of(3)), quiet)->manifest().progress.step, 3);
  fs::create_directories(path_ + "/run/checkpoint");
  fs::rename(folder_.folder_of(3), path_ + "/run/checkpoint/step-3");
  EXPECT_EQ(first_whole(steps_at(path_ + "/run"), quiet)->manifest().progress.step, 3);
  EXPECT_THROW((void)first_whole(steps_at(path_), quiet), DataError);
  EXPECT_THROW((void)first_whole(steps_at(path_ + "/none"), quiet), ConfigError);
}

TEST_F(CheckpointTest, DifferencesAreAllNamed) {
  save(folder_, example(1));
  const auto differences =
      tensor_differences(latest()->manifest().model,
                         {{"w", from_values({1, 2}, {2, 1})}, {"v", from_values({1}, {1})}});
  EXPECT_EQ(differences,
            (std::vector<std::string>{"w is f32[2], expected f32[2, 1]", "v is missing",
                                      "b, i64[], is not in this run"}));
  EXPECT_EQ(tensor_differences({{"w", {DType::f32, {}}}}, {{"w", empty({}, DType::bf16)}}),
            std::vector<std::string>{"w is f32[], expected bf16[]"});
  const auto fields = config_differences(R"({"a": 1, "m": {"x": "y", "z": 2}})",
                                         R"({"a": 1, "m": {"x": "w"}, "n": null})");
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].field + fields[0].before + fields[0].now, "m.x\"y\"\"w\"");
  EXPECT_EQ(fields[1].field + fields[1].before + fields[1].now, "m.z2");
  EXPECT_EQ(fields[2].field + fields[2].before + fields[2].now, "nnull");
}

TEST_F(CheckpointTest, RoomIsAskedForFirst) {
  fs::create_directories(path_);
  io::require_space(path_, 1, "checkpoint");
  try {
    io::require_space(path_, uint64_t{1} << 62, "checkpoint");
    FAIL() << "nothing was thrown";
  } catch (const IoError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("it needs 4611686018427387904 bytes, "), std::string::npos) << text;
  }
  EXPECT_THROW(io::require_space(path_ + "/none", 1, "checkpoint"), IoError);
}

TEST_F(CheckpointTest, AFolderIsLockedForOne) {
  auto first = std::make_unique<io::FolderLock>(path_, "dump_folder");
  try {
    const io::FolderLock second(path_, "dump_folder");
    FAIL() << "nothing was thrown";
  } catch (const IoError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("is used by another run (process " + std::to_string(getpid()) + " on "),
              std::string::npos)
        << text;
  }
  first.reset();
  const io::FolderLock third(path_, "dump_folder");
}

TEST(CheckpointFields, ConflictsAreNamed) {
  CheckpointConfig c;
  EXPECT_TRUE(c.conflicts().empty());
  EXPECT_FALSE(c.excludes("optimizer"));
  c.exclude_from_loading = "optimizer,lr_scheduler";
  EXPECT_TRUE(c.conflicts().empty());
  EXPECT_TRUE(c.warnings().empty());
  EXPECT_TRUE(c.excludes("optimizer") && c.excludes("lr_scheduler") && !c.excludes("dataloader"));
  c.folder = "";
  c.exclude_from_loading = "train_state,lr";
  c.export_dtype = "bfloat16";
  c.keep_latest_k = 1;
  EXPECT_EQ(c.conflicts().size(), 4u);
  ASSERT_EQ(c.warnings().size(), 1u);
  EXPECT_TRUE(c.warnings()[0].starts_with("checkpoint.export_dtype bfloat16 is not used"));
}

}  // namespace
}  // namespace tessera::train

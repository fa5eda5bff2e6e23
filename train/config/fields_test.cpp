// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/config/fields.h"

#include "tessera/dist/launch/run.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/files.h"
#include "tessera/train/config/config.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <limits>

namespace tessera::train {
namespace {

using Words = std::vector<std::string>;

std::string error_of(const Words& words) {
  try {
    (void)parse_config(words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, FieldsAreSet) {
  const Config c = parse_config(Words{"--training.steps", "60", "--optimizer.lr=1e-3",
                                      "--debug.deterministic", "--lr_scheduler.decay_ratio", "none",
                                      "--dump_folder", "x/y", "--training.seq_len", "1_024"});
  EXPECT_EQ(c.training.steps, 60);
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_TRUE(c.debug.deterministic);
  EXPECT_FALSE(c.lr_scheduler.decay_ratio);
  EXPECT_EQ(c.dump_folder, "x/y");
  EXPECT_EQ(c.training.seq_len, 1024);
}

TEST(Config, DeadlinesReachTheWorld) {
  const Config plain = parse_config(Words{});
  EXPECT_EQ(world_options(plain).init_timeout, std::chrono::seconds(300));
  EXPECT_EQ(world_options(plain).train_timeout, std::chrono::seconds(100));
  const Config c =
      parse_config(Words{"--comm.init_timeout_seconds", "7", "--comm.train_timeout_seconds", "5"});
  run_ranks(
      1,
      [](World& world) {
        EXPECT_EQ(world.group().timeout(), std::chrono::seconds(7));
        world.first_step_done();
        EXPECT_EQ(world.group().timeout(), std::chrono::seconds(5));
      },
      world_options(c));
}

TEST(Config, TheRecipeSetsDefaultsWhereverItStands) {
  const Config c = parse_config(Words{"--training.steps", "3", "--recipe", "llama3_debugmodel"});
  EXPECT_EQ(c.recipe, "llama3_debugmodel");
  EXPECT_EQ(c.training.steps, 3);
  EXPECT_EQ(c.model.as<llama3::Config>().dim, 256);
  EXPECT_EQ(c.lr_scheduler.warmup_steps, 2);
}

TEST(Config, FaultsSayWhatIsWrongAndHowToFixIt) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--training.stepz", "3"},
       "[--training.stepz] unknown field; did you mean --training.steps?"},
      {{"--training.dataset_path", "x"},
       "[--training.dataset_path] unknown field; here it is --dataloader.path"},
      {{"--learning_rate", "1"}, "[--learning_rate] unknown field; here it is --optimizer.lr"},
      {{"--training.lr", "3"}, "[--training.lr] unknown field; did you mean --optimizer.lr?"},
      {{"--qwertyuiop", "3"}, "[--qwertyuiop] unknown field; --help lists all of them"},
      {{"--training.steps", "many"}, "[--training.steps] 'many' is not valid: expected integer"},
      {{"--training.steps", "2.5"}, "[--training.steps] '2.5' is not valid: expected integer"},
      {{"--training.steps", "0"},
       "[--training.steps] 0 is out of range: expected 1 to 1000000000000"},
      {{"--training.steps"}, "[--training.steps] no value given: expected integer"},
      {{"--training.max_norm", "0"}, "[--training.max_norm] 0 is out of range: expected above 0"},
      {{"--optimizer.lr", "nan"}, "[--optimizer.lr] nan is out of range: expected 0 to 1000000"},
      {{"--debug.deterministic", "maybe"},
       "[--debug.deterministic] 'maybe' is not valid: expected true or false"},
      {{"--lr_scheduler.decay_type", "cubic"},
       "[--lr_scheduler.decay_type] 'cubic' is not one of linear | sqrt | cosine"},
      {{"steps", "3"},
       "[steps] not a field: expected --section.field value\n[3] not a field: expected "
       "--section.field value"},
      {{"--recipe", "llama3_debugmodle"},
       "[--recipe] there is no recipe 'llama3_debugmodle'; did you mean llama3_debugmodel?"},
      {{"--training.seq_len", "200000"},
       "[--training.seq_len] 200000 is above --model.max_seq_len 131072"},
      {{"--model.n_kv_heads", "3"},
       "[--model.n_heads] 16 is not a multiple of --model.n_kv_heads 3"},
  };
  for (const auto& [words, message] : cases) EXPECT_EQ(error_of(words), message);
}

TEST(Config, ListsOfNumbersAreSetAndSurviveTheDump) {
  const Words longrope{"--model.rope_scaling", "longrope"};
  const auto with = [&](Words words) {
    words.insert(words.end(), longrope.begin(), longrope.end());
    return words;
  };
  Config c = parse_config(with({"--model.rope_short_factors", "1,1.05,0.1,3,2.5e-300,5e1,7,8",
                                "--model.rope_long_factors",
                                "[1, 1.05, 0.1, 3.0, 1e-7, 123456.789, 7, 0.30000000000000004]"}));
  const RopeScaling& r = c.model.as<llama3::Config>().rope_scaling;
  EXPECT_EQ(r.short_factors, (std::vector<double>{1, 1.05, 0.1, 3, 2.5e-300, 50, 7, 8}));
  EXPECT_EQ(r.long_factors,
            (std::vector<double>{1, 1.05, 0.1, 3, 1e-7, 123456.789, 7, 0.30000000000000004}));
  const std::string text = c.fields().dump();
  Config again = parse_run_config(text, "dump");
  EXPECT_EQ(again.fields().dump(), text);
  EXPECT_EQ(again.model.as<llama3::Config>().rope_scaling.short_factors, r.short_factors);
  EXPECT_EQ(again.model.as<llama3::Config>().rope_scaling.long_factors, r.long_factors);
  // What a field says of itself is what it takes.
  config::Fields fields = c.fields(), others = again.fields();
  config::Field& field = *fields.find("model.rope_long_factors");
  EXPECT_EQ(field.type(), "list of numbers");
  EXPECT_EQ(field.text(), "[1.0,1.05,0.1,3.0,1e-07,123456.789,7.0,0.30000000000000004]");
  EXPECT_EQ(others.find("model.rope_short_factors")->assign(field.text()), std::nullopt);
  EXPECT_EQ(again.model.as<llama3::Config>().rope_scaling.short_factors, r.long_factors);
  for (const char* none : {"", "[]"}) {
    EXPECT_EQ(field.assign(none), std::nullopt);
    EXPECT_TRUE(r.long_factors.empty());
    EXPECT_EQ(field.text(), "");
  }

  const std::string list = "--model.rope_short_factors";
  const auto invalid = [&](const std::string& value) {
    return concat('[', list, "] '", value, "' is not valid: expected list of numbers");
  };
  for (const char* value : {"1,x", "1,,2", "1, 2", "[1, \"2\"]", "[1", "[null]", "none"})
    EXPECT_EQ(error_of({list, value}), invalid(value));
  EXPECT_EQ(error_of({list, "1,-2"}),
            concat('[', list, "] -2 is out of range: expected above 0 and at most 1000000"));
  EXPECT_EQ(error_of({list, "1,nan"}),
            concat('[', list, "] nan is out of range: expected above 0 and at most 1000000"));
  EXPECT_TRUE(
      error_of({list, "1", list, "2"})
          .starts_with(concat('[', list, "] is given twice, 1 and 2: give one list, with ")));
  EXPECT_THROW((void)parse_run_config(R"({"model": {"rope_short_factors": "1,2"}})", "here"),
               DataError);
  std::vector<double> any{1};
  config::Field free{"any", &any, "", {}};
  EXPECT_EQ(free.assign("2,inf"), "[--any] inf is no finite number");
  EXPECT_EQ(any, std::vector<double>{1});
}

TEST(Config, KindsOfRopeScalingAskForTheirNumbers) {
  const Words eight{"--model.rope_short_factors", "1,1,1,1,1,1,1,1", "--model.rope_long_factors",
                    "2,2,2,2,2,2,2,2"};
  const auto error = [&](const std::string& kind, Words more) {
    more.insert(more.end(), {"--model.rope_scaling", kind});
    return error_of(more);
  };
  for (const char* kind : {"none", "llama", "yarn", "linear"})
    EXPECT_EQ(error(kind, {}), "no error");
  EXPECT_EQ(error("longrope", eight), "no error");
  EXPECT_EQ(error("longrope", {eight[0], "1,1,1"}),
            "[--model.rope_short_factors] 3 numbers: expected 8, one for each pair of a head\n"
            "[--model.rope_long_factors] 0 numbers: expected 8, one for each pair of a head");
  EXPECT_EQ(
      error("yarn", {eight[0], "1"}),
      "[--model.rope_short_factors] 1 number, which only --model.rope_scaling longrope reads");
  EXPECT_EQ(error("yarn", {"--model.rope_beta_slow", "40"}),
            "[--model.rope_beta_slow] 40 is above --model.rope_beta_fast 32");
  EXPECT_EQ(error("linear", {"--model.rope_beta_slow", "40"}), "no error");
  EXPECT_EQ(error("linear", {"--model.rope_scaling_factor", "0.5"}),
            "[--model.rope_scaling_factor] 0.5 is out of range: expected 1 to 1000000");
}

TEST(Config, AllFaultsAreReportedAtOnce) {
  EXPECT_EQ(error_of({"--training.steps", "0", "--optimizer.lr", "x", "--no.such", "1"}),
            "[--training.steps] 0 is out of range: expected 1 to 1000000000000\n"
            "[--optimizer.lr] 'x' is not valid: expected number\n"
            "[--no.such] unknown field; --help lists all of them");
}

TEST(Config, TheDumpReadsBackAsItself) {
  Config c = parse_config(Words{"--optimizer.lr", "0.1", "--sample.prompt", "a \"b\"\n",
                                "--lr_scheduler.decay_ratio", "none", "--debug.detect_anomaly"});
  const std::string text = c.fields().dump();
  const std::string path = testing::TempDir() + "config.json";
  io::write_file_atomically(path, text);
  Config again = read_config(path);
  EXPECT_EQ(again.fields().dump(), text);
  EXPECT_EQ(again.sample.prompt, "a \"b\"\n");

  io::write_file_atomically(path, R"({"training": {"steps": -1}, "nothing": 1})");
  EXPECT_THROW((void)read_config(path), DataError);
  io::write_file_atomically(path, "[1, 2]");
  EXPECT_THROW((void)read_config(path), DataError);
}

TEST(Config, EveryFieldIsDocumentedAndHasAGoodDefault) {
  for (const Recipe& r : recipes()) {
    Config c = r.make();
    const config::Fields fields = c.fields();
    EXPECT_TRUE(fields.check().empty()) << r.name;
    EXPECT_TRUE(c.conflicts().empty()) << r.name;
    const std::string help = fields.help();
    for (const config::Field& f : fields.all()) {
      EXPECT_FALSE(f.help.empty()) << f.path;
      EXPECT_NE(help.find("--" + f.path), help.npos);
    }
  }
}

// "dtype of the moments", never "of both moments": a help text names the thing first.
TEST(Config, EveryHelpTextNamesTheThing) {
  for (const models::Family& family : models::families()) {
    Config c = parse_config(
        Words{"--model.name", family.name, "--model.flavor", family.flavors[0].flavor()});
    const config::Fields fields = c.fields();
    for (const config::Field& f : fields.all()) {
      const std::string first = f.help.substr(0, f.help.find(' '));
      for (const char* word : {"of", "what", "where", "how", "that", "older"})
        EXPECT_NE(first, word) << f.path << ": " << f.help;
    }
  }
  const std::string help = recipe("llama3_debugmodel").fields().help();
  for (const char* text :
       {"steps between checkpoints", "checkpoint folder, below dump_folder",
        "checkpoints to keep; 0 keeps all", "which activations are recomputed in backward",
        "dtype of parameters, gradients and activations", "are scaled by the full factor"})
    EXPECT_NE(help.find(text), help.npos) << text;
}

TEST(Config, InfinitiesNonesAndListsSurviveTheDump) {
  Config c = parse_config(Words{"--training.max_norm", "inf", "--lr_scheduler.total_steps", "none",
                                "--optimizer.param_groups", "norm lr=0,[wv].* weight_decay=0.5",
                                "--training.dtype", "bfloat16", "--debug.no-deterministic"});
  EXPECT_EQ(c.optimizer.param_groups, (Words{"norm lr=0", "[wv].* weight_decay=0.5"}));
  EXPECT_EQ(c.model.dtype(), DType::bf16);
  const std::string text = c.fields().dump(), path = testing::TempDir() + "inf.json";
  EXPECT_NE(text.find("\"max_norm\": \"inf\""), text.npos);
  io::write_file_atomically(path, text);
  Config again = read_config(path);
  EXPECT_EQ(again.fields().dump(), text);
  EXPECT_EQ(again.training.max_norm, std::numeric_limits<double>::infinity());
  const Words list{"--optimizer.param_groups", R"(["a{1,2} lr=1"])"};
  EXPECT_EQ(parse_config(list).optimizer.param_groups, Words{"a{1,2} lr=1"});
}

TEST(Config, AFileOfManyFaultsShowsTheFirst) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += concat(i == 0 ? "{" : ",", "\"f", i, "\": {\"x\": 1}");
  try {
    (void)parse_run_config(text + "}", "here");
    FAIL() << "accepted";
  } catch (const DataError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("[here] [--f49.x] unknown field"), what.npos);
    EXPECT_TRUE(what.ends_with("; [here] only the first 50 faults are shown")) << what.size();
  }
}

TEST(Config, TextsHoldNoNulBytes) {
  EXPECT_EQ(error_of({"--dataloader.path", std::string("a\0b", 3)}),
            "[--dataloader.path] holds a NUL byte");
  EXPECT_EQ(error_of({"--optimizer.param_groups", std::string("[\"a\"]\0", 6)}),
            "[--optimizer.param_groups] '[\"a\"]\\x00' is not valid: expected list of texts");
  Config c;
  c.model = models::families()[0].flavor("debugmodel");
  c.dump_folder = std::string("out\0", 4);
  EXPECT_EQ(faults(c), Words{"[--dump_folder] holds a NUL byte"});
}

TEST(Config, AFileStandsBetweenRecipeAndCommandLine) {
  const std::string path = testing::TempDir() + "partial.json";
  io::write_file_atomically(path,
                            R"({"recipe": "llama3_1b", "training": {"steps": 7, "seq_len": 64}})");
  const Config c = parse_config(Words{"--training.steps=9", "--config", path});
  EXPECT_EQ(c.recipe, "llama3_1b");
  EXPECT_EQ(c.model.as<llama3::Config>().dim, 2048);
  EXPECT_EQ(c.training.steps, 9);
  EXPECT_EQ(c.training.seq_len, 64);
}

TEST(Config, RecipesHoldThePublishedPresets) {
  const Config c = recipe("llama3_405b");
  EXPECT_EQ(c.model.as<llama3::Config>().n_layers, 126);
  EXPECT_EQ(c.optimizer.lr, 8e-5);
  EXPECT_EQ(c.lr_scheduler.warmup_steps, 600);
  EXPECT_EQ(c.training.steps, 3000);
  EXPECT_EQ(recipe("llama3_8b").training.seq_len, 8192);
  EXPECT_EQ(recipe("llama3_70b").optimizer.lr, 1.5e-4);
  EXPECT_TRUE(recipe("llama3_3b").model.as<llama3::Config>().enable_weight_tying);
}

TEST(DidYouMean, KnowsSwappedLettersAndKeepsQuietWhenFar) {
  const Words names{"steps", "seq_len", "seed"};
  EXPECT_EQ(config::did_you_mean("setps", names), "steps");
  EXPECT_EQ(config::did_you_mean("seqlen", names), "seq_len");
  EXPECT_EQ(config::did_you_mean("temperature", names), std::nullopt);
}

TEST(Config, ModelIsFoundWhereverItIsNamed) {
  const Config c = parse_config(Words{"--model.n_layers", "3", "--model.flavor", "1B",
                                      "--training.steps", "5", "--model.name=llama3"});
  EXPECT_EQ(c.model.family(), "llama3");
  EXPECT_EQ(c.model.flavor(), "1B");
  EXPECT_EQ(c.model.as<llama3::Config>().dim, 2048);
  EXPECT_EQ(c.model.as<llama3::Config>().n_layers, 3);
  EXPECT_EQ(c.recipe, "");  // the plain defaults
  EXPECT_EQ(c.title(), "llama3 1B");
  EXPECT_EQ(c.training.seq_len, 2048);
  // Beside a recipe the model alone is another.
  const Config both = parse_config(
      Words{"--model.flavor", "1B", "--training.dtype", "bfloat16", "--recipe", "llama3_8b"});
  EXPECT_EQ(both.recipe, "llama3_8b");
  EXPECT_EQ(both.model.as<llama3::Config>().n_layers, 16);
  EXPECT_EQ(both.model.dtype(), DType::bf16);
  EXPECT_EQ(both.training.seq_len, 8192);
}

TEST(Config, AModelThatIsNotThereIsAFaultBesideOthers) {
  const std::string text = error_of({"--model.name", "lama3", "--model.flavor", "1B",
                                     "--training.steps", "0", "--model.dim", "2"});
  EXPECT_NE(text.find("[--model.name] there is no 'lama3': did you mean llama3?"), text.npos)
      << text;
  EXPECT_NE(text.find("[--training.steps] 0 is out of range"), text.npos) << text;
}

TEST(Config, NamesOfOtherProgramsLeadToFields) {
  Config c = parse_config(Words{});
  config::Fields fields = c.fields();
  EXPECT_FALSE(fields.other_names().empty());
  for (const config::OtherName& other : fields.other_names()) {
    const bool leads = fields.find(other.field) || other.field == "config";
    EXPECT_NE(leads, !other.note.empty()) << other.name;
    EXPECT_EQ(fields.find(other.name), nullptr) << other.name;
  }
}

TEST(Config, NamesOfWhatIsNotHereSaySo) {
  const auto what = [](const std::string& name) { return error_of({"--" + name, "1"}); };
  EXPECT_EQ(what("optimizer.name"),
            "[--optimizer.name] unknown field; AdamW is the only optimizer: leave it out");
  for (const char* name : {"compile.enable", "compile.components", "training.compile"})
    EXPECT_NE(what(name).find("there is no compiler"), std::string::npos) << what(name);
  EXPECT_EQ(what("seq_len"),
            "[--seq_len] unknown field; did you mean --training.seq_len or --validation.seq_len?");
  // Several sections have a field `enable`, so the last word says nothing of another section.
  EXPECT_EQ(what("fault_tolerance.enable"),
            "[--fault_tolerance.enable] unknown field; --help lists all of them");
}

TEST(Config, AFieldIsGivenOnce) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--training.local_batch_size", "2", "--training.local_batch_size=4"},
       "[--training.local_batch_size] is given twice, 2 and 4: give one of them"},
      {{"--metrics.step_line", "a", "--metrics.step_line", "b"},
       "[--metrics.step_line] is given twice, a and b: give one list, with commas between"},
      {{"--checkpoint.enable", "--checkpoint.no-enable"},
       "[--checkpoint.enable] is given twice, true and false: give one of them"}};
  for (const auto& [words, message] : cases) EXPECT_EQ(error_of(words), message);
}

TEST(Config, FilesFromBeforeFamiliesHadNamesAreOfTheFirst) {
  Config c = parse_config(Words{"--model.dim", "64", "--model.n_kv_heads", "8"});
  std::string dump = c.fields().dump();
  for (const char* line : {"    \"name\": \"llama3\",\n", "    \"flavor\": \"debugmodel\",\n"}) {
    const size_t at = dump.find(line);
    ASSERT_NE(at, dump.npos) << dump;
    dump.erase(at, std::string_view(line).size());
  }
  const Config again = parse_run_config(dump, "dump");
  EXPECT_EQ(again.model.family(), "llama3");
  EXPECT_EQ(again.model.flavor(), "");
  EXPECT_EQ(again.model.as<llama3::Config>().dim, 64);
  EXPECT_EQ(again.model.as<llama3::Config>().n_kv_heads, 8);
}

// Tests run at the same time, each in a process.
std::string file_of(const std::string& json) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = concat(testing::TempDir(), test->name(), ".json");
  io::write_file_atomically(path, json);
  return path;
}

TEST(Config, AFileThatNamesTheFamilyKeepsTheRecipesSize) {
  const std::string same = file_of(R"({"model": {"name": "llama3", "n_heads": 8}})");
  const Config c = parse_config(Words{"--recipe", "llama3_8b", "--config", same});
  EXPECT_EQ(c.model.flavor(), "8B");
  EXPECT_EQ(c.model.as<llama3::Config>().n_heads, 8);
  EXPECT_EQ(c.model.as<llama3::Config>().n_layers, 32);
  const std::string other = file_of(R"({"recipe": "llama3_8b", "model": {"name": "gpt2"}})");
  EXPECT_NE(error_of({"--config", other}).find("[--model.flavor] is missing: give a size of gpt2"),
            std::string::npos);
}

TEST(Config, AFilesModelFieldsAreOfTheModelThatTheWordsName) {
  const std::string file = file_of(R"({"model": {"n_heads": 4, "residual_dropout": 0.1}})");
  const Config c =
      parse_config(Words{"--config", file, "--model.name", "gpt2", "--model.flavor", "debugmodel"});
  EXPECT_EQ(c.model.as<gpt2::Config>().n_heads, 4);
  EXPECT_EQ(c.model.as<gpt2::Config>().residual_dropout, 0.1);
  const std::string named = file_of(R"({"model": {"name": "llama3", "flavor": "1B"}})");
  EXPECT_NE(error_of({"--config", named, "--model.flavor", "3B"})
                .find("[--model.flavor] 3B conflicts with --config"),
            std::string::npos);
  EXPECT_EQ(parse_config(Words{"--config", named}).recipe, "");
}

TEST(Config, AFamilyWithoutAFlavorStillHasItsFields) {
  const std::string text =
      error_of({"--model.name", "qwen3", "--model.head_dim", "12", "--model.num_experts", "8"});
  EXPECT_TRUE(text.starts_with("[--model.flavor] is missing: give a size of qwen3: ")) << text;
  EXPECT_EQ(text.find("unknown field"), text.npos) << text;
}

TEST(Config, NameAndFlavorSuffice) {
  for (const models::Family& family : models::families()) {
    for (const models::ModelConfig& m : family.flavors) {
      EXPECT_EQ(error_of({"--model.name", family.name, "--model.flavor", m.flavor()}), "no error")
          << family.name << ' ' << m.flavor();
    }
  }
  EXPECT_EQ(parse_config(Words{"--model.name", "gpt2", "--model.flavor", "124M"}).training.seq_len,
            1024);
}

}  // namespace
}  // namespace tessera::train

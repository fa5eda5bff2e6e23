// SPDX-License-Identifier: Apache-2.0
// What a run says if it goes on otherwise than it began: with rows of the data in another order, or
// with other learning rates. What changes neither is no warning.
#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <map>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class ResumeChanges : public TinyRunTest {
 protected:
  ResumeChanges() {
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += concat("{\"text\": \"", i, " and ", i * i, "\", \"body\": \"other ", i,
                      "\", \"prompt\": \"", i, "\", \"completion\": \"", i * i, "\"}\n");
    io::write_file_atomically(path("lines.jsonl"), lines);
    io::write_file_atomically(path("chat.json"),
                              R"({"roles": {"user": {"prefix": ["?"]}, "assistant": {}}})");
    std::string npy("\x93NUMPY\x01\x00v\x00", 10), header;
    header = "{'descr': '<u2', 'fortran_order': False, 'shape': (400,), }";
    header.resize(117, ' ');
    npy += header + '\n';
    for (int i = 0; i < 400; ++i) npy += {static_cast<char>(i % 37), '\0'};
    io::write_file_atomically(path("tokens.npy"), npy);
  }

  // The warnings of a run that begins in this way, with steps so far done.
  std::string warnings(const std::string& dump, const Words& more, int ranks = 1, int steps = 0) {
    std::string found;
    run_ranks(ranks, [&](World&) {
      const auto print = [&](const std::string& line) {
        if (line.starts_with("warning: ")) found += line + '\n';
      };
      Trainer trainer(config(dump, more), print);
      for (int i = 0; i < steps; ++i) trainer.step();
      if (steps > 0) trainer.save();
    });
    return found;
  }
  // A run of two steps; it goes on from there any number of times, as nothing more is saved.
  void begin(const Words& words) {
    fs::remove_all(path("a"));
    (void)warnings("a", words, 1, 2);
  }
  std::string resumed(const Words& words, int ranks = 1) { return warnings("a", words, ranks); }
  std::string step_2() const { return path("a/checkpoint/step-2"); }
  std::string rows_warning(const std::string& changes) const {
    return concat("warning: the rows of the data are not those of ", step_2(), ": ", changes,
                  ": its order differs from here on\n");
  }
  std::string rates_warning(const std::string& changes) const {
    return concat("warning: the learning rates are not those of ", step_2(), ": ", changes, '\n');
  }
  // Changes the configuration that the checkpoint of step 2 holds.
  void change_stored(const std::function<void(nlohmann::ordered_json&)>& change) const {
    const std::string file = step_2() + "/manifest.json";
    Manifest m = parse_manifest(io::read_file(file), file);
    auto json = nlohmann::ordered_json::parse(m.config);
    change(json);
    m.config = json.dump();
    io::write_file_atomically(file, manifest_text(m));
  }
};

struct Case {
  Words beside;  // in both runs
  std::string before, now;
};

TEST_F(ResumeChanges, EachFieldThatDecidesRowsIsNamed) {
  const Words lines{"--dataloader.path", path("lines.jsonl")};
  const Words pairs = joined(lines, {"--dataloader.format", "prompt_completion"});
  const std::string text = path("text.txt"), other = path("lines.jsonl");
  const auto parts = [&](const char* weight) {
    return nlohmann::json(Words{text + weight, other}).dump();
  };
  const std::map<std::string, Case> cases{
      {"training.seq_len", {{}, "16", "17"}},
      {"debug.seed", {{}, "7", "8"}},
      {"dataloader.mixture", {{"--dataloader.path", ""}, parts(" weight=2"), parts(" weight=3")}},
      {"dataloader.text_field", {lines, "text", "body"}},
      {"dataloader.format", {lines, "text", "prompt_completion"}},
      {"dataloader.document_tokens", {lines, "auto", "none"}},
      {"dataloader.chat_template", {pairs, "plain", path("chat.json")}},
      {"dataloader.long_examples", {pairs, "cut", "drop"}},
      {"dataloader.packing", {{}, "documents", "concat"}},
      {"dataloader.shuffle", {{}, "true", "false"}},
      {"dataloader.begin_id", {{"--dataloader.path", path("tokens.npy")}, "-1", "5"}},
  };
  Config plain = config("none");
  const config::Fields fields = plain.fields();
  for (const config::Field& field : fields.all()) {
    SCOPED_TRACE(field.path);
    const auto at = cases.find(field.path);
    ASSERT_EQ(at != cases.end(), field.limits.decides_rows) << "a case here for each such field";
    if (at == cases.end()) continue;
    const Case& c = at->second;
    const auto with = [&](const std::string& value) {
      return joined(c.beside, {"--" + field.path, value});
    };
    begin(with(c.before));
    EXPECT_EQ(resumed(with(c.before)), "");
    const std::string said = resumed(with(c.now));
    TESSERA_EXPECT_HOLDS(said, concat(" are not those of ", step_2(), ": "));
    TESSERA_EXPECT_HOLDS(said, concat(field.path, " from ", c.before, " to ", c.now));
    EXPECT_TRUE(said.ends_with(": its order differs from here on\n")) << said;
  }
}

TEST_F(ResumeChanges, OneLineNamesAllOfThem) {
  begin({});
  EXPECT_EQ(resumed({"--debug.seed", "5", "--training.seq_len", "32"}),
            rows_warning("training.seq_len from 16 to 32, debug.seed from 7 to 5, windows from 505 "
                         "to 252"));
}

// Other ranks, other batches, the same data elsewhere, and the same values in other words.
TEST_F(ResumeChanges, WhatMeansTheSameIsNoWarning) {
  begin({"--training.global_batch_size", "4", "--optimizer.param_groups", "norm lr=1e-3"});
  const Words group{"--optimizer.param_groups", "norm lr=0.001"};
  const auto said = [&](const Words& words, int ranks = 1) {
    return resumed(joined(group, words), ranks);
  };
  EXPECT_EQ(said({"--training.global_batch_size", "4", "--training.local_batch_size", "1"}, 2), "");
  EXPECT_EQ(said({"--training.global_batch_size", "8"}, 2), "");
  EXPECT_EQ(said({"--parallelism.tensor_parallel_degree", "2"}, 2), "");
  EXPECT_EQ(said({"--dataloader.num_prefetch_batches", "5", "--optimizer.lr", "0.010"}), "");
  EXPECT_EQ(said({"--optimizer.param_groups", "norm lr=1.0e-3,wq weight_decay=0"}), "");
  fs::create_directory(path("moved"));
  for (const char* file : {"text.txt", "lines.jsonl", "chat.json"})
    fs::copy(path(file), path(concat("moved/", file)));
  EXPECT_EQ(said({"--dataloader.path", path("moved/text.txt")}), "");
  EXPECT_EQ(said({"--dataloader.path", "", "--dataloader.mixture", path("text.txt")}), "");

  const auto mixture = [&](const char* folder, const char* first, const char* second) {
    return Words{"--dataloader.path", "", "--dataloader.mixture",
                 concat(path(folder), "text.txt weight=", first, ',', path(folder),
                        "lines.jsonl weight=", second)};
  };
  begin(mixture("", "2", "1"));
  EXPECT_EQ(resumed(mixture("moved/", "0.50", "0.25")), "");
  const auto pairs = [&](const char* folder) {
    return Words{"--dataloader.path",          path("lines.jsonl"),
                 "--dataloader.format",        "prompt_completion",
                 "--dataloader.chat_template", path(concat(folder, "chat.json"))};
  };
  begin(pairs(""));
  EXPECT_EQ(resumed(pairs("moved/")), "");
  begin({"--dataloader.no-shuffle"});
  EXPECT_EQ(resumed({"--dataloader.no-shuffle", "--debug.seed", "8"}), "");
}

TEST_F(ResumeChanges, LearningRatesAreNamedWithTheNextOne) {
  const Words linear{"--training.steps",
                     "4",
                     "--lr_scheduler.warmup_steps",
                     "0",
                     "--lr_scheduler.decay_ratio",
                     "none",
                     "--optimizer.lr",
                     "0.01"};
  begin(linear);
  const auto changed = [&](const Words& now) { return resumed(joined(linear, now)); };
  EXPECT_EQ(changed({"--training.steps", "8"}),
            rates_warning("training.steps from 4 to 8: the next step has 0.0075, and was going to "
                          "have 0.005"));
  EXPECT_EQ(changed({"--lr_scheduler.total_steps", "8"}),
            rates_warning("lr_scheduler.total_steps from none to 8: the next step has 0.0075, and "
                          "was going to have 0.005"));
  EXPECT_EQ(changed({"--lr_scheduler.total_steps", "8", "--training.steps", "6"}),
            rates_warning("training.steps from 4 to 6, lr_scheduler.total_steps from none to 8: "
                          "the next step has 0.0075, and was going to have 0.005"));
  EXPECT_EQ(changed({"--lr_scheduler.total_steps", "4"}), "");
  EXPECT_EQ(changed({"--optimizer.lr", "0.02"}),
            rates_warning("optimizer.lr from 0.01 to 0.02: the next step has 0.01, and was going "
                          "to have 0.005"));
  EXPECT_EQ(changed({"--lr_scheduler.min_lr_factor", "0.5"}),
            rates_warning("lr_scheduler.min_lr_factor from 0 to 0.5: the next step has 0.0075, and "
                          "was going to have 0.005"));
  for (const auto& [field, value, told] : {std::array{"decay_type", "sqrt", "linear to sqrt"},
                                           {"decay_ratio", "0.5", "none to 0.5"},
                                           {"warmup_steps", "4", "0 to 4"}}) {
    TESSERA_EXPECT_HOLDS(changed({concat("--lr_scheduler.", field), value}),
                         concat("lr_scheduler.", field, " from ", told, ": the next step has "));
  }
  EXPECT_EQ(changed({"--optimizer.param_groups", "norm lr=0.1"}),
            rates_warning("optimizer.param_groups from none to [\"norm lr=0.1\"]: the next step "
                          "has 0.05 for layers.0.attention_norm.weight, and was going to have "
                          "0.005"));
}

// A longer run whose schedule has a length of its own, a warm-up that is over, no decay at all.
TEST_F(ResumeChanges, WhatChangesNoRateIsNoWarning) {
  const Words total{"--lr_scheduler.total_steps", "9", "--training.steps", "3"};
  begin(total);
  EXPECT_EQ(resumed(joined(total, {"--training.steps", "5"})), "");
  const Words flat{"--lr_scheduler.decay_ratio", "0"};
  begin(joined(flat, {"--training.steps", "5", "--lr_scheduler.warmup_steps", "2"}));
  EXPECT_EQ(resumed(flat), "");  // of 20 steps, whose warm-up ends with the next one
  EXPECT_EQ(resumed(joined(flat, {"--lr_scheduler.min_lr_factor", "0.1"})), "");
}

TEST_F(ResumeChanges, PartsThatAreNotLoadedAreNotCompared) {
  const Words other{"--debug.seed", "8", "--training.seq_len", "8", "--optimizer.lr", "1"};
  begin({});
  const auto without = [&](const std::string& parts) {
    return resumed(joined(other, {"--checkpoint.exclude_from_loading", parts}));
  };
  EXPECT_EQ(without("dataloader,lr_scheduler"), "");
  EXPECT_TRUE(without("dataloader").starts_with("warning: the learning rates are not those of "));
  EXPECT_TRUE(without("lr_scheduler").ends_with("its order differs from here on\n"));
  // Nor are those of a run that has no step left.
  EXPECT_EQ(resumed(joined(other, {"--training.steps", "2", "--lr_scheduler.warmup_steps", "1"})),
            "");
}

TEST_F(ResumeChanges, AnotherRunsCheckpointIsComparedIfItIsContinued) {
  begin({});
  const Words from{
      "--checkpoint.initial_load_path", path("a"), "--debug.seed", "8", "--training.steps", "30"};
  EXPECT_EQ(warnings("model", from), "");
  const std::string said =
      warnings("whole", joined(from, {"--checkpoint.no-initial_load_model_only"}));
  TESSERA_EXPECT_HOLDS(said, rows_warning("debug.seed from 7 to 8"));
  TESSERA_EXPECT_HOLDS(said, "training.steps from 20 to 30: the next step has ");
}

// As of an earlier version, or of a later one.
TEST_F(ResumeChanges, AFieldThatACheckpointDoesNotHaveHadItsDefault) {
  begin({});
  change_stored([](nlohmann::ordered_json& config) {
    config["dataloader"].erase("shuffle");
    config["dataloader"].erase("packing");
    config["lr_scheduler"].erase("decay_type");
    for (int i = 0; i < 60; ++i) config[concat("of_later", i)] = i;
    config["later"] = {{"x", 1}};
    const auto debug = config["debug"];  // behind them
    config.erase("debug");
    config["debug"] = debug;
  });
  EXPECT_EQ(resumed({}), "");
  TESSERA_EXPECT_HOLDS(resumed({"--dataloader.no-shuffle"}),
                       "dataloader.shuffle from true to false");
  change_stored([](nlohmann::ordered_json& config) {
    config["dataloader"]["mixture"] = {"text.txt weight=none"};
    config["optimizer"]["param_groups"] = {"( lr=1"};
  });
  const std::string said = resumed({});
  TESSERA_EXPECT_HOLDS(said, "dataloader.mixture from [\"text.txt weight=none\"] to none");
  TESSERA_EXPECT_HOLDS(said,
                       "optimizer.param_groups from [\"( lr=1\"] to none: the next step has ");
}

// Of its kind of RoPE's scaling an earlier version knew no numbers but those of Llama 3.1.
TEST_F(ResumeChanges, ANewFieldOfTheModelHadItsDefaultInAnEarlierCheckpoint) {
  const auto as_before = [](nlohmann::ordered_json& config) {
    for (const char* field : {"beta_fast", "beta_slow", "truncate", "attention_factor", "mscale",
                              "mscale_all_dim", "short_factors", "long_factors"})
      EXPECT_EQ(config["model"].erase(concat("rope_", field)), 1u) << field;
  };
  // The lines of a run that goes on for two steps, and the parameters that it ends with.
  const auto go_on = [&](const Words& more, std::string& lines) {
    std::map<std::string, std::vector<double>> values;
    run_ranks(1, [&](World&) {
      Trainer trainer(config("a", more), [&](const std::string& line) { lines += line + '\n'; });
      for (int i = 0; i < 2; ++i) trainer.step();
      for (const nn::NamedParameter& p : nn::named_parameters(trainer.model()))
        values[p.name] = trial::whole_values(p.tensor);
    });
    return values;
  };
  for (const char* kind : {"llama", "none"}) {
    const Words scaling{"--model.rope_scaling", kind};
    begin(scaling);
    std::string with, without, ignored;
    const auto want = go_on(scaling, with);
    change_stored(as_before);
    EXPECT_EQ(go_on(scaling, without), want);
    EXPECT_EQ(without.find("rope_"), without.npos) << without;
    const auto fault = [&](const Words& more) {
      return test::error_of<DataError>([&] { (void)go_on(joined(scaling, more), ignored); });
    };
    TESSERA_EXPECT_HOLDS(fault({"--model.rope_beta_fast", "16"}),
                         "does not fit this run: model.rope_beta_fast is 32, the default, there "
                         "and 16.0 here");
    TESSERA_EXPECT_HOLDS(fault({"--model.rope_scaling", "yarn"}),
                         concat("does not fit this run: model.rope_scaling is \"", kind,
                                "\" there and \"yarn\" here"));
  }
}

}  // namespace
}  // namespace tessera::train

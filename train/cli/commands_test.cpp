// SPDX-License-Identifier: Apache-2.0
// The commands beside training, on what a small run of two ranks left behind.
#include "tessera/train/cli/commands.h"

#include "tessera/nn/io/files.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trace_faults.h"
#include "tessera/train/data/data_kinds.h"
#include "tessera/train/monitor/chrome_trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class CommandsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = testing::TempDir() + "commands_test." + std::to_string(::getpid());
    fs::remove_all(folder());
    fs::create_directories(folder());
    io::write_file_atomically(folder() + "/text.txt", fox_text(50));
    const Words words = joined({"train", "--ranks", "2", "--threads", "1", "--dataloader.path",
                                folder() + "/text.txt", "--dump_folder", folder() + "/run"},
                               tiny_model());
    const Words options{"--training.steps",
                        "6",
                        "--training.local_batch_size",
                        "2",
                        "--training.seq_len",
                        "16",
                        "--sample.tokens",
                        "0",
                        "--metrics.summary",
                        "layers",
                        "--metrics.enable_tensorboard",
                        "--profiler.enable_profiling",
                        "--profiler.profile_freq",
                        "5"};
    const auto [status, out, err] = run(joined(words, options));
    EXPECT_EQ(status, 0) << err;
    trained() = out;
  }
  static void TearDownTestSuite() { fs::remove_all(folder()); }

  static std::string& folder() {
    static std::string path;
    return path;
  }
  static std::string& trained() {
    static std::string out;
    return out;
  }
  static std::tuple<int, std::string, std::string> run(const Words& words) {
    std::ostringstream out, err;
    const int status = run_cli(words, out, err);
    return {status, out.str(), err.str()};
  }
  static std::string generated(const Words& more) {
    const auto [status, out, err] =
        run(joined({"generate", "--checkpoint", folder() + "/run", "--threads", "1"}, more));
    EXPECT_EQ(status, 0) << err;
    return out;
  }
};

TEST_F(CommandsTest, ARunShowsWhatPeopleWant) {
  for (const char* part : {"parameters; memory: parameters ", "layers.0 to 1 (2 alike)",
                           "ceiling: ", "  mfu: ", "  eta: ", "profiler: wrote ",
                           "memory at its peak ", ", activations "})
    EXPECT_NE(trained().find(part), std::string::npos) << part << " in\n" << trained();
  EXPECT_EQ(trained().find('\033'), std::string::npos);
  EXPECT_TRUE(fs::is_directory(folder() + "/run/tb"));
}

TEST_F(CommandsTest, TracesOfAllRanksAreJoined) {
  const std::string traces = folder() + "/run/profiling/traces/iteration_5";
  const auto [status, out, err] = run({"trace", traces});
  ASSERT_EQ(status, 0) << err;
  EXPECT_NE(out.find("of 2 ranks"), std::string::npos);
  for (const char* file : {"/trace.json", "/rank0_trace.json", "/rank1_trace.json"})
    EXPECT_EQ(test::trace_faults(io::read_file(traces + file)), std::vector<std::string>()) << file;
  const auto json = nlohmann::json::parse(io::read_file(traces + "/trace.json"));
  std::map<int, std::map<std::string, int>> names;
  for (const auto& e : json["traceEvents"]) {
    ++names[e["pid"]][e["name"]];
    if (e["name"] == "linear_cross_entropy" && e["ph"] == "X") {
      EXPECT_TRUE(e["args"].contains("module"));
    }
  }
  ASSERT_EQ(names.size(), 2u);
  for (auto& [rank, of_rank] : names) {
    for (const char* phase : {"data", "forward", "backward", "gradients", "optimizer", "step 5"})
      EXPECT_EQ(of_rank[phase], 1) << phase << " of rank " << rank;
    EXPECT_GT(of_rank["all_reduce"], 0);
    EXPECT_GT(of_rank["tensor memory (bytes)"], 0);
  }
  const auto [none, no_traces, why] = run({"trace", folder()});
  EXPECT_EQ(none, 1);
  EXPECT_NE(why.find("no folder iteration_<step> below it does"), std::string::npos) << why;
  EXPECT_EQ(std::get<0>(run({"trace", "/no/such"})), 2);
  EXPECT_EQ(std::get<0>(run({"trace"})), 2);
}

TEST_F(CommandsTest, TracesAreFoundBelowARun) {
  const std::string dump = folder() + "/run", traces = dump + "/profiling/traces",
                    last = traces + "/iteration_10";
  fs::create_directories(last);
  fs::create_directories(traces + "/iteration_20");  // whose ranks wrote nothing
  fs::copy(traces + "/iteration_5/rank1_trace.json", last);
  for (const auto& [given, found] : std::map<std::string, std::string>{
           {dump, "profiling/traces/iteration_5 profiling/traces/iteration_10; taking "},
           {traces, "iteration_5 iteration_10; taking "}}) {
    fs::remove(last + "/trace.json");
    const auto [status, out, err] = run({"trace", given});
    ASSERT_EQ(status, 0) << err;
    EXPECT_EQ(out, concat("iterations below ", given, ": ", found, last, "\nwrote ", last,
                          "/trace.json, of 1 rank\n"));
    EXPECT_TRUE(fs::exists(last + "/trace.json"));
  }
  fs::remove_all(last);
}

TEST_F(CommandsTest, Plots) {
  const auto [status, out, err] = run({"plot", folder() + "/run", "--height", "12"});
  ASSERT_EQ(status, 0) << err;
  EXPECT_EQ(std::ranges::count(out, '\n'), 12);
  EXPECT_EQ(std::get<0>(run({"plot", folder() + "/run", "--metric", "lr", "--log_scale"})), 0);
  const std::string svg = folder() + "/lr.svg";
  EXPECT_EQ(std::get<0>(run({"plot", folder() + "/run", "--metric", "lr", "--svg", svg})), 0);
  EXPECT_TRUE(io::read_file(svg).starts_with("<svg"));
  EXPECT_EQ(std::get<0>(run({"plot"})), 2);
  EXPECT_EQ(std::get<0>(run({"plot", folder() + "/run", "--colour", "red"})), 2);
  const auto [missing, nothing, why] = run({"plot", folder() + "/run", "--metric", "loos"});
  EXPECT_EQ(missing, 1);
  EXPECT_NE(why.find("no step with a number called \"loos\""), std::string::npos) << why;
  EXPECT_EQ(std::get<0>(run({"plot", folder()})), 1);
}

TEST_F(CommandsTest, PlotsSeveralRunsOverOneAnother) {
  const std::string a = folder() + "/run", b = folder() + "/longer";
  fs::create_directories(b);
  io::write_file_atomically(b + "/metrics.jsonl",
                            "{\"step\": 1, \"loss\": 9}\n{\"step\": 20, \"loss\": 1}\n");
  const auto [status, out, err] = run({"plot", a, b, "--height", "20"});
  ASSERT_EQ(status, 0) << err;
  EXPECT_EQ(std::ranges::count(out, '\n'), 20);
  EXPECT_NE(out.find("\nA " + a + "  "), out.npos) << out;
  EXPECT_NE(out.find("\nB " + b + "  9 at step 1 \u2192 1 at step 20\n"), out.npos) << out;
  const std::string svg = folder() + "/both.svg";
  EXPECT_EQ(std::get<0>(run({"plot", a, "--folder", b, "--svg", svg})), 0);
  EXPECT_NE(io::read_file(svg).find(">" + b + ": 9 at step 1"), std::string::npos);
  const auto [missing, nothing, why] = run({"plot", a, folder() + "/none"});
  EXPECT_EQ(missing, 2);
  EXPECT_EQ(why, "error: [--folder] " + folder() + "/none does not exist\n");
}

TEST_F(CommandsTest, GeneratesForSeveralPromptsAtOnce) {
  const Words draws{"--tokens", "12", "--temperature", "1", "--top_p", "0.9", "--seed", "3"};
  const Words one = joined({"--prompt", "the "}, draws);
  const Words several = joined({"--prompt", "the ", "--prompt=fox", "--prompt", "dog "}, draws);
  const std::string alone = generated(one), all = generated(several);
  EXPECT_TRUE(alone.starts_with("the "));
  EXPECT_EQ(generated(one), alone);
  EXPECT_TRUE(all.starts_with("[1] " + alone)) << all;
  for (const char* heading : {"[1] the ", "[2] fox", "[3] dog "})
    EXPECT_NE(all.find(heading), std::string::npos) << all;
  EXPECT_EQ(generated({"--prompt", "a\xC3\xA9", "--tokens", "0"}), "a\xC3\xA9\n");
  EXPECT_TRUE(generated({"--tokens", "3", "--temperature", "0"}).ends_with('\n'));
}

TEST_F(CommandsTest, ShowsSchedulesAndReadsThemBack) {
  const Words own{"schedule",
                  "--name",
                  "1F1B",
                  "--ranks",
                  "2",
                  "--micro_batches",
                  "2",
                  "--out",
                  folder() + "/new/own.csv",
                  "--actions",
                  folder() + "/all.csv"};
  const auto [status, out, err] = run(own);
  EXPECT_EQ(status, 0) << err;
  EXPECT_EQ(out,
            "1F1B: stages 2, ranks 2, micro-batches 2, a step takes 9\n"
            "rank      busy              idle    idle in span  in flight  stages\n"
            "   0         6        3 (33.3 %)               3          2  0\n"
            "   1         6        3 (33.3 %)               0          1  1\n\n"
            "0 0F0 0F1 ........0B0---- ....0B1---- \n"
            "1 ....1F0 1B0---- 1F1 1B1---- ........\n"
            "wrote " +
                folder() + "/new/own.csv\nwrote " + folder() + "/all.csv\n");
  EXPECT_EQ(io::read_file(folder() + "/new/own.csv"), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_TRUE(io::read_file(folder() + "/all.csv").starts_with("0UNSHARD,0F0,0SEND_F0,0F1,"));
  const auto [again, same, none] = run({"schedule", "--csv", folder() + "/new/own.csv"});
  EXPECT_EQ(again, 0) << none;
  EXPECT_EQ(same.substr(same.find('\n')),
            out.substr(out.find('\n'), same.size() - same.find('\n')));
  for (const auto& [words, error] :
       {std::pair{Words{},
                  "[--name] give a schedule by --name, a file by --csv or a run by --from"},
        {{"--name", "GPipe", "--stages", "6"}, "[--stages] 6 are not the same number on each of 4"},
        {{"--name", "GPipe", "--stages", "8"}, "GPipe does not fit 8 stages on 4 ranks and 8"},
        {{"--csv", folder() + "/text.txt"}, "line 1, cell 1: [pipeline schedule] '"}}) {
    const auto [refused, nothing, why] = run(joined({"schedule"}, words));
    EXPECT_EQ(refused, 2) << why;
    EXPECT_NE(why.find(error), std::string::npos) << why;
  }
}

// Two stages of a rank take as long as one of a schedule with a stage per rank.
TEST_F(CommandsTest, DrawsSchedulesOverOneAnother) {
  const Words both{"schedule",
                   "--name",
                   "1F1B,ZBVZeroBubble",
                   "--ranks",
                   "2",
                   "--micro_batches",
                   "4",
                   "--forward",
                   "2",
                   "--backward_input",
                   "2",
                   "--backward_weight",
                   "2",
                   "--svg",
                   folder() + "/new/both.svg"};
  const auto [status, out, err] = run(both);
  EXPECT_EQ(status, 0) << err;
  for (const char* part :
       {"1F1B: stages 2, ranks 2, micro-batches 4, a step takes 30\n",
        "\n\nZBVZeroBubble: stages 4, ranks 2, micro-batches 4, a step takes 25\n", "  0 3\n",
        "both.svg\n"})
    EXPECT_NE(out.find(part), std::string::npos) << part << " in\n" << out;
  const std::string svg = io::read_file(folder() + "/new/both.svg");
  for (const char* part :
       {">1F1B<", ">ZBVZeroBubble<", "ranks idle 20 % of it", "ranks idle 4 % of it", ">0B3: "})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  const auto [refused, nothing, why] = run(joined(both, {"--out", folder() + "/both.csv"}));
  EXPECT_EQ(refused, 2);
  EXPECT_NE(why.find("[--out] is for one schedule, and there are 2"), std::string::npos) << why;
}

TEST_F(CommandsTest, WrongUsageOfGenerateIsFoundAtOnce) {
  const auto [status, out, err] =
      run({"generate", "--top_k", "0", "--top_p", "0", "--temperature", "-1", "--prompt"});
  EXPECT_EQ(status, 2);
  EXPECT_EQ(out, "");
  for (const char* part : {"top_k", "top_p", "temperature", "--prompt] no value", "--checkpoint]"})
    EXPECT_NE(err.find(part), std::string::npos) << part << " in\n" << err;
}

TEST_F(CommandsTest, ACycleThatDoesNotFitIsWrongUsage) {
  const auto [status, out, err] =
      run({"config", "--profiler.enable_profiling", "--profiler.profile_freq", "3"});
  EXPECT_EQ(status, 2);
  EXPECT_NE(err.find("[--profiler.profile_freq] 3 is below"), std::string::npos) << err;
}

TEST(Commands, EachIsInTheUsageAndInTheReadme) {
  std::ostringstream out, err;
  ASSERT_EQ(run_cli(Words{"--help"}, out, err), 0);
  const std::string readme = io::read_file("train/README.md");
  // Not as the begin of a longer name.
  const auto named = [&](const std::string& words) {
    size_t at = readme.find(words);
    while (at != std::string::npos && std::isalpha(readme[at + words.size()]))
      at = readme.find(words, at + 1);
    return at != std::string::npos;
  };
  for (const Command& c : commands()) {
    EXPECT_NE(out.str().find(concat("\n  ", c.name, ' ')), std::string::npos) << c.name;
    EXPECT_TRUE(named(concat("tessera ", c.name))) << c.name;
    std::ostringstream help;
    EXPECT_EQ(run_cli(Words{std::string(c.name), "--help"}, help, err), 0) << c.name;
    EXPECT_TRUE(help.str().starts_with(concat("usage: tessera ", c.name, c.arguments, '\n')));
  }
}

// The texts in backquotes of a line's first cell; empty if the line is none of a table.
std::vector<std::string> names_in_first_cell(std::string_view line) {
  std::vector<std::string> names;
  if (!line.starts_with("| `")) return names;
  const std::string_view cell = line.substr(2, line.find(" |", 2) - 2);
  for (size_t open = cell.find('`'); open != cell.npos; open = cell.find('`', open)) {
    const size_t close = cell.find('`', open + 1);
    if (close == cell.npos) break;
    names.emplace_back(cell.substr(open + 1, close - open - 1));
    open = close + 1;
  }
  return names;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// A table whose head is `--section.` lists the fields of that section, all of them.
TEST(Commands, TablesOfTheReadmeListTheFieldsOfTheirSection) {
  Config config = recipe(recipes()[0].name);
  const config::Fields fields = config.fields();
  std::string section;
  std::map<std::string, std::multiset<std::string>> listed;
  for (const std::string& line : lines_of(io::read_file("train/README.md"))) {
    const std::vector<std::string> names = names_in_first_cell(line);
    if (names.size() == 1 && names[0].starts_with("--") && names[0].ends_with('.')) {
      section = names[0].substr(2);
    } else if (!line.starts_with('|')) {
      section.clear();
    } else if (!section.empty()) {
      listed[section].insert(names.begin(), names.end());
    }
  }
  ASSERT_TRUE(listed.contains("parallelism."));
  for (const auto& [of, names] : listed) {
    std::multiset<std::string> expected;
    for (const config::Field& field : fields.all())
      if (field.path.starts_with(of)) expected.insert(field.path.substr(of.size()));
    EXPECT_EQ(names, expected) << of;
  }
}

TEST(Commands, TheReadmeNamesFieldsThatExist) {
  std::set<std::string> known{"--model.name", "--model.flavor"};
  for (const models::Family& family : models::families()) {
    for (const models::ModelConfig& model : family.flavors) {
      Config config;
      config.model = model;
      const config::Fields fields = config.fields();
      for (const config::Field& field : fields.all()) known.insert("--" + field.path);
    }
  }
  for (const char* file : {"README.md", "train/README.md"}) {
    const std::string text = io::read_file(file);
    for (size_t at = text.find("--"); at != text.npos; at = text.find("--", at)) {
      size_t end = at + 2;
      while (end < text.size() && (std::isalnum(text[end]) || text[end] == '_' || text[end] == '.'))
        ++end;
      std::string name = text.substr(at, end - at);
      while (name.ends_with('.')) name.pop_back();
      at = end;
      if (name.find('.') == name.npos) continue;
      EXPECT_TRUE(known.contains(name)) << file << ": " << name;
    }
  }
}

// The table of files lists the formats' suffixes.
TEST(Commands, TheReadmeListsTheFormatsOfData) {
  std::set<std::string> listed;
  for (const std::string& line : lines_of(io::read_file("train/README.md"))) {
    for (const std::string& names : names_in_first_cell(line)) {
      for (std::istringstream words(names); !words.eof();) {
        std::string word;
        words >> word;
        if (word.starts_with('.')) listed.insert(word);
      }
    }
  }
  for (const DataFormat& format : data_formats())
    for (const std::string_view suffix : format.suffixes)
      EXPECT_TRUE(listed.contains(std::string(suffix))) << suffix;
}

}  // namespace
}  // namespace tessera::train

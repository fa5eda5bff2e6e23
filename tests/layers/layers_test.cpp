// SPDX-License-Identifier: Apache-2.0
// The layers of this repository hold; and each rule tells of what is planted against it in a small
// tree, at its place and with what to do.
#include "tessera/tests/layers/layers.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <unistd.h>

namespace tessera::layers {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Findings& findings) {
  std::ostringstream os;
  for (const Finding& finding : findings) os << finding << '\n';
  return os.str();
}

TEST(Layers, EveryIncludeOfThisRepositoryGoesDown) {
  EXPECT_EQ(text_of(check_includes(read_tree("."))), "");
}

TEST(Layers, FoldersOfThisRepositoryAreSmall) {
  const Tree tree = read_tree(".");
  EXPECT_EQ(text_of(check_sizes(tree, {"dist", "kernels", "nn", "models", "train"}, 25)), "");
  EXPECT_EQ(text_of(check_sizes(tree, {"core"}, 60)), "");
}

TEST(Layers, PrivateHeadersOfThisRepositoryStayInTheirFolders) {
  EXPECT_EQ(text_of(check_private_headers(read_tree("."))), "");
}

TEST(Layers, NoFileAboveModelsNamesAFamily) {
  std::vector<std::string> exceptions;
  std::ifstream in("tests/layers/may_name_families.txt");
  ASSERT_TRUE(in);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line[0] != '#') exceptions.push_back(line);
  }
  EXPECT_EQ(text_of(check_family_names(read_tree("."), exceptions)), "");
}

// A tree of two modules without a finding: `low` with folders a < b, files first < last around
// them; `models` with families red and blue above low; `top` above both.
class Planted : public testing::Test {
 protected:
  Planted() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) /
            (std::string("layers.") + test->name() + '.' + std::to_string(getpid()));
    fs::remove_all(root_);
    put("low/CMakeLists.txt", "# a comment\ntessera_module(low)\n");
    put("low/layers.txt", "# lowest first\nfirst\na\nb  # above a\nlast\n");
    put("low/first.h", "");
    put("low/a/a.h", "#include \"tessera/low/first.h\"\n#include <vector>\n");
    put("low/a/a_test.cpp", "#include \"tessera/low/last.h\"\n#include \"tessera/top/run.h\"\n");
    put("low/b/b.cpp", "#include \"tessera/low/a/a.h\"\n");
    put("low/last.h", "#include \"tessera/low/b/b.h\"\n");
    put("low/_template/x.h", "#include \"tessera/top/run.h\"\n");
    put("models/CMakeLists.txt", "tessera_module(models low)\n");
    put("models/layers.txt", "model\nparts\n*\nmodels\n");
    put("models/model.h", "#include \"tessera/low/last.h\"\n");
    put("models/parts/loss_impl.h", "#include \"tessera/models/model.h\"\n");
    put("models/red/red.h", "#include \"tessera/models/parts/loss_impl.h\"\n");
    put("models/blue/blue.h", "#include \"tessera/models/red/red.h\"\n");
    put("models/models.cpp", "#include \"tessera/models/blue/blue.h\"\n");
    put("top/CMakeLists.txt", "tessera_module(top models)\n");
    put("top/layers.txt", ".\n");
    put("top/run.h", "#include \"tessera/models/model.h\"\n#include \"tessera/low/a/a.h\"\n");
  }
  ~Planted() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& bytes) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << bytes;
  }
  [[nodiscard]] Tree tree() const { return read_tree(root_); }
  /// The findings on #include lines: one line each.
  [[nodiscard]] std::string includes() const { return text_of(check_includes(tree())); }

  fs::path root_;
};

TEST_F(Planted, NothingIsFoundWhereAllIsWell) {
  EXPECT_EQ(includes(), "");
  EXPECT_EQ(text_of(check_private_headers(tree())), "");
  EXPECT_EQ(text_of(check_sizes(tree(), {"low", "models", "top"}, 2)), "");
  EXPECT_EQ(text_of(check_family_names(tree(), {})), "");
}

TEST_F(Planted, AnArrowUpBetweenModules) {
  put("low/b/b.cpp", "\n#include \"tessera/top/run.h\"\n");
  EXPECT_EQ(includes(),
            "low/b/b.cpp:2: includes tessera/top/run.h, but module low does not use top "
            "(low/CMakeLists.txt:2): the arrow runs up. Move what is needed into low or below, or "
            "let the caller hand it in\n");
}

TEST_F(Planted, AnArrowUpBetweenFolders) {
  put("low/a/a.cpp", "#include \"tessera/low/b/b.h\"\n");
  EXPECT_EQ(includes(),
            "low/a/a.cpp:1: includes tessera/low/b/b.h, but in low/layers.txt b (line 4) does not "
            "lie below a (line 3): the arrow runs up. Move what is needed to a or below, let the "
            "caller hand it in, or set the lines in another order\n");
}

TEST_F(Planted, ArrowsUpToAndFromTheModulesOwnFiles) {
  put("low/first.cpp", "#  include <tessera/low/a/a.h>\n");
  put("low/b/b.h", "#include \"tessera/low/last_impl.h\"\n");
  const std::string found = includes();
  EXPECT_NE(found.find("low/first.cpp:1: includes tessera/low/a/a.h"), std::string::npos) << found;
  EXPECT_NE(found.find("low/b/b.h:1: includes tessera/low/last_impl.h"), std::string::npos)
      << found;
}

TEST_F(Planted, NamesOfOneLineDoNotIncludeEachOther) {
  put("low/layers.txt", "first\na b\nlast\n");
  const std::string found = includes();
  EXPECT_NE(found.find("low/b/b.cpp:1: includes tessera/low/a/a.h"), std::string::npos) << found;
}

TEST_F(Planted, ACircleOfFoldersUnderTheStar) {
  put("models/red/red.cpp", "#include \"tessera/models/blue/blue.h\"\n");
  EXPECT_EQ(includes(),
            "models/blue/blue.h:1: closes a circle of folders: blue -> red (models/blue/blue.h:1) "
            "-> blue (models/red/red.cpp:1); move what both need below them\n");
}

TEST_F(Planted, ACircleOfModules) {
  put("low/CMakeLists.txt", "tessera_module(low top)\n");
  EXPECT_EQ(includes(),
            "low/CMakeLists.txt:1: modules use each other in a circle: low -> top "
            "(low/CMakeLists.txt:1) -> models (top/CMakeLists.txt:1) -> low "
            "(models/CMakeLists.txt:1); take one use away, and move what both need below them\n");
}

TEST_F(Planted, AFolderThatNoLineNames) {
  put("low/c/c.h", "");
  EXPECT_EQ(includes(),
            "low/c/c.h: c is not in low/layers.txt: put it on a line above all that it includes\n");
}

TEST_F(Planted, ALineThatNamesNothing) {
  put("low/layers.txt", "first\na\nb\nlast\ngone\n");
  EXPECT_EQ(includes(),
            "low/layers.txt:5: names gone, which is neither a folder nor a file of low/: take it "
            "out\n");
}

TEST_F(Planted, AModuleWithoutLayers) {
  fs::remove(root_ / "top/layers.txt");
  EXPECT_EQ(includes().substr(0, 29), "top/layers.txt: is missing: n");
}

TEST_F(Planted, HeadersOfTestsAndOtherSpellings) {
  put("top/run.cpp",
      "#include \"tessera/tests/support/bits.h\"\n#include \"run.h\"\n"
      "#include \"tessera/tessera.h\"\n");
  const std::string found = includes();
  EXPECT_NE(found.find("top/run.cpp:1: includes tessera/tests/support/bits.h, but tests/ is no "
                       "module: only tests include it"),
            std::string::npos)
      << found;
  EXPECT_NE(found.find("top/run.cpp:2: includes \"run.h\": our headers are spelled"),
            std::string::npos)
      << found;
  EXPECT_NE(found.find("top/run.cpp:3: includes tessera/tessera.h, but the umbrella header"),
            std::string::npos)
      << found;
}

TEST_F(Planted, AFolderWithTooManySources) {
  for (const char* name : {"a", "b", "c"}) put(std::string("low/b/") + name + ".cuh", "");
  put("low/b/d_test.cpp", "");
  put("top/a.cpp", "");
  put("top/b.cu", "");
  EXPECT_EQ(text_of(check_sizes(tree(), {"low", "top"}, 2)),
            "low/b: holds 4 sources (.h, .cpp, .cu, .cuh; tests do not count), 2 at most: give "
            "what belongs together a folder of its own\n"
            "top: holds 3 sources (.h, .cpp, .cu, .cuh; tests do not count), 2 at most: give what "
            "belongs together a folder of its own\n");
  EXPECT_EQ(text_of(check_sizes(tree(), {"topp"}, 2)),
            "topp: is no module: take it out of the list of sizes\n");
}

TEST_F(Planted, APrivateHeaderOfAnotherFolderUnderTheStar) {
  put("models/blue/blue.cpp",
      "#include \"tessera/models/blue/own_impl.h\"\n#include \"tessera/models/red/red_impl.h\"\n"
      "#include \"tessera/models/red/red.cuh\"\n");
  EXPECT_EQ(text_of(check_private_headers(tree())),
            "models/blue/blue.cpp:2: includes tessera/models/red/red_impl.h, a private header of "
            "models/red: include its public header, or move what both need to a folder that "
            "models/layers.txt names below them\n"
            "models/blue/blue.cpp:3: includes tessera/models/red/red.cuh, a private header of "
            "models/red: include its public header, or move what both need to a folder that "
            "models/layers.txt names below them\n");
}

TEST_F(Planted, AFamilyNamedAboveModels) {
  put("top/run.cpp", "// trains any model\nRed::Config red;\nint blue;\n");
  put("top/recipes.cpp", "constexpr auto kName = \"RED_debugmodel\";\n");
  put("top/run_test.cpp", "// red\n");
  put("low/b/b.h", "// below, where red is a colour\n");
  const std::string run =
      "top/run.cpp:2: names the model family red: above models/ a model is known by "
      "models/model.h alone; families are data of recipes and of models/models.cpp\n";
  EXPECT_EQ(text_of(check_family_names(tree(), {"top/recipes."})), run);
  EXPECT_EQ(text_of(check_family_names(tree(), {"top/recipes.", "top/other.cpp"})),
            run + "top/other.cpp: names no model family: take it out of the exceptions\n");
}

}  // namespace
}  // namespace tessera::layers

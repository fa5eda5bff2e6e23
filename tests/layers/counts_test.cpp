// SPDX-License-Identifier: Apache-2.0
// No sentence of a source counts `1 files`: a number and its noun come from counted(), or, where
// the number has a form of its own, from noun_after() (core/message.h).
#include "tessera/tests/layers/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

namespace tessera::layers {
namespace {

// Where `text` puts a number before a noun in the plural: `{} files`, or `n, " files"`. Constants,
// which are above 1, may stand there.
std::vector<Finding> plurals(const std::string& file, const std::string& text) {
  static const std::string kNouns =
      "((query|key|global|optimizer|distinct) )?"
      "(axes|batches|bytes|checkpoints|chunks|classes|conversations|copies|devices|dims|documents|"
      "elements|entries|examples|experts|faults|fields|files|folders|gradients|groups|heads|hosts|"
      "inputs|keys|layers|letters|lines|lists|micro-batches|operands|ops|outputs|parameters|parts|"
      "pieces|places|processes|ranks|records|rows|sequences|shards|steps|tensors|terms|threads|"
      "tokens|values|windows|words)\\b";
  // Within a line: std::regex takes stack for each character that it repeats.
  static const std::regex kFormat("\\{[^{}\"\n]*\\} " + kNouns),
      kParts(R"(([\w)\]>]+)\s*(,|<<)\s*" )" + kNouns), kConstant(R"(k[A-Z]\w*)");
  std::vector<Finding> findings;
  const auto find = [&](const std::regex& pattern, bool named) {
    for (std::sregex_iterator m(text.begin(), text.end(), pattern), end; m != end; ++m) {
      if (named && std::regex_match((*m)[1].str(), kConstant)) continue;
      const auto line = std::count(text.begin(), text.begin() + m->position(), '\n') + 1;
      findings.push_back({file, static_cast<int>(line), m->str() + ": write counted(n, noun)"});
    }
  };
  find(kFormat, false);
  find(kParts, true);
  return findings;
}

TEST(Counts, AreInTheSingularForOne) {
  const Tree tree = read_tree(".");
  for (const auto& [name, module] : tree.modules) {
    for (const Source& source : module.sources) {
      if (source.test || !source.path.ends_with(".cpp")) continue;
      std::ostringstream text;
      text << std::ifstream(source.path).rdbuf();
      ASSERT_FALSE(text.str().empty()) << source.path;
      for (const Finding& finding : plurals(source.path, text.str())) ADD_FAILURE() << finding;
    }
  }
}

TEST(Counts, ArePlantedAndFound) {
  EXPECT_EQ(plurals("a.cpp", "format(\"{} of {:>4} documents\", n, m)").size(), 1U);
  EXPECT_EQ(plurals("a.cpp", "\nconcat(\"has \", x.size(),\n   \" micro-batches\")").size(), 1U);
  EXPECT_EQ(plurals("a.cpp", "out << n << \" query heads\"").size(), 1U);
  EXPECT_EQ(plurals("a.cpp", "concat(\"at most \", kMost, \" rows\")").size(), 0U);
  EXPECT_EQ(plurals("a.cpp", "concat(\"the rows of \", name, \" rowspan\")").size(), 0U);
  EXPECT_EQ(plurals("a.cpp", "concat(counted(n, \"row\"), \" of \", m)").size(), 0U);
}

}  // namespace
}  // namespace tessera::layers

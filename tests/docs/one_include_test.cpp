// SPDX-License-Identifier: Apache-2.0
// All ops come with tessera.h: from there, #include lines lead to each public header of a room and
// to the ops of dist/.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The headers that `header` includes, itself or through others, as `kernels/fill/fill.h`.
void follow(const std::string& header, std::set<std::string>& reached) {
  static const std::regex kInclude(R"re(^#include "tessera/([^"]+)"$)re");
  if (!reached.insert(header).second) return;
  std::ifstream in(header == "kernels/rooms.h" ? TESSERA_ROOMS_H : header);
  ASSERT_TRUE(in) << header << " cannot be read";
  std::smatch match;
  for (std::string line; std::getline(in, line);)
    if (std::regex_match(line, match, kInclude)) follow(match[1].str(), reached);
}

TEST(OneInclude, BringsAllOps) {
  std::set<std::string> reached;
  follow("tessera.h", reached);
  std::set<std::string> wanted{"dist/exchange_rows.h"};
  for (const auto& folder : fs::directory_iterator("kernels")) {
    const std::string room = folder.path().filename().string();
    if (!folder.is_directory() || room.starts_with('_')) continue;
    for (const auto& file : fs::directory_iterator(folder)) {
      const std::string name = file.path().filename().string();
      if (name.ends_with(".h") && !name.ends_with("_impl.h"))
        wanted.insert("kernels/" + room + '/' + name);
    }
  }
  EXPECT_GT(wanted.size(), 40U);
  EXPECT_TRUE(wanted.contains("kernels/matmul/einsum.h"));
  for (const std::string& header : wanted)
    EXPECT_TRUE(reached.contains(header)) << "tessera.h does not bring " << header;
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The table of a wrapper library: from none, and from one of another build, there is none.
#include "tessera/dist/library/open_library_impl.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

struct Api {
  int version;
};
const Api* entry() {
  static const Api api{3};
  return &api;
}

TEST(OpenLibrary, WhatCannotBeUsedIsNamedWithItsRemedy) {
  OpenedLibrary opened = open_library("libtessera_none.so", "entry");
  EXPECT_FALSE(opened.symbol);
  EXPECT_NE(opened.why_not.find("libtessera_none.so"), std::string::npos) << opened.why_not;
  const auto error = [&](int version) {
    return test::error_of([&] {
      EXPECT_EQ(&table_of<Api>(opened, version, "libtessera_none.so", "build it"), entry());
    });
  };
  EXPECT_EQ(error(3),
            "[launch] libtessera_none.so cannot be used: " + opened.why_not + "; build it");
  opened.symbol = reinterpret_cast<void*>(&entry);
  EXPECT_EQ(error(3), "nothing was thrown");
  EXPECT_EQ(error(4),
            "[launch] libtessera_none.so is of another build of Tessera (table 3, expected 4): "
            "install both from one build");
}

}  // namespace
}  // namespace tessera

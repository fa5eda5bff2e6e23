// SPDX-License-Identifier: Apache-2.0
// Rooms that order, count or number elements, or take slices by index, against PyTorch.
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/histogram/histogram.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/searchsorted/searchsorted.h"
#include "tessera/kernels/sort/sort.h"
#include "tessera/tests/goldens/golden.h"

namespace tessera {
namespace {

class OrderGolden : public Golden {
 protected:
  /// Compares what has no gradient.
  void compare(const std::string& room, const std::function<Tensor()>& f) {
    open(room);
    for (const auto& name : cases_) {
      case_ = name;
      expect_close(f(), get("y"), room + '/' + case_);
    }
  }
};

TEST_F(OrderGolden, Sort) {
  each("sort", {"x"}, [&](const X& x) -> Results {
    const auto [y, indices] = sort(x[0], integer("dim"), flag("descending"));
    return {{"y", y}, {"indices", indices}};
  });
}

TEST_F(OrderGolden, Cumsum) {
  each("cumsum", {"x"}, [&](const X& x) -> Results {
    return {{"y", cumsum(x[0], integer("dim"), flag("reverse"))}};
  });
}

TEST_F(OrderGolden, IndexSelect) {
  each("index_select", {"x"}, [&](const X& x) -> Results {
    return {{"y", index_select(x[0], integer("dim"), get("index"))}};
  });
}

TEST_F(OrderGolden, IndexAdd) {
  each("index_add", {"x", "src"}, [&](const X& x) -> Results {
    return {{"y", index_add(x[0], integer("dim"), get("index"), x[1])}};
  });
}

TEST_F(OrderGolden, Arange) {
  compare("arange", [&] {
    return arange(number("start"), number("stop"), number("step"), get("y").dtype());
  });
}

TEST_F(OrderGolden, Bincount) {
  compare("bincount", [&] { return bincount(get("x"), integer("bins")); });
}

TEST_F(OrderGolden, Histogram) {
  compare("histogram",
          [&] { return histogram(get("x"), integer("bins"), number("low"), number("high")); });
}

TEST_F(OrderGolden, SearchSorted) {
  compare("searchsorted", [&] { return searchsorted(get("sorted"), get("x"), flag("right")); });
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/point_to_point.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(MeshMessages, FollowAnAxisAndAreTraced) {
  test::on_ranks(4, [](World& w) {
    const Mesh mesh = Mesh::make({{"pp", 2}, {"dp", 2}});
    const int pp = mesh.index("pp"), stage = mesh.coordinate(pp);
    const CommTrace trace;
    const Tensor y = empty({3, 2});
    if (stage == 0) {
      const Tensor x = from_values({1, 2, 3, 4, 5, 6}, {2, 3}) + w.rank();
      (void)send(mesh, pp, transpose(x, 0, 1), 1, 7);  // a view that is not contiguous
    } else {
      (void)recv(mesh, pp, y, 0, 7);
      const double r = w.rank() - 2;  // of the sender
      EXPECT_EQ(y.values(), (std::vector<double>{1 + r, 4 + r, 2 + r, 5 + r, 3 + r, 6 + r}));
    }
    ASSERT_EQ(trace.count(), 1);
    const CommEntry& e = trace.entries()[0];
    EXPECT_EQ(e.op, stage == 0 ? "send" : "recv");
    EXPECT_EQ(e.axes, "pp");
    EXPECT_EQ(e.peer, 1 - stage);
    EXPECT_EQ(e.message, 7);
    EXPECT_EQ(e.bytes, 24);
    EXPECT_EQ(e.tag, "forward");
    const std::string title = stage == 0 ? "send to 1 (7)" : "recv from 0 (7)";
    EXPECT_NE(trace.table().find(title), std::string::npos) << trace.table();
  });
}

}  // namespace
}  // namespace tessera

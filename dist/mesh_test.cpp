// SPDX-License-Identifier: Apache-2.0
// Meshes against brute force: every factorisation of 1 to 8 ranks, size-1 axes anywhere, and every
// way to ask for a mesh that cannot be.
#include "tessera/dist/mesh.h"

#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/dist/world.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace tessera {
namespace {

using test::error_of;

using test::on_ranks;

// All lists of three sizes whose product is n.
std::vector<std::vector<int>> factorisations(int n) {
  std::vector<std::vector<int>> all;
  for (int a = 1; a <= n; ++a) {
    for (int b = 1; a * b <= n; ++b) {
      if (n % (a * b) == 0) all.push_back({a, b, n / (a * b)});
    }
  }
  return all;
}

std::vector<MeshAxis> axes_abc(const std::vector<int>& sizes) {
  return {{"a", sizes[0]}, {"b", sizes[1]}, {"c", sizes[2]}};
}

#define EXPECT_TEXT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// The sum of the members' world ranks, by the group itself.
int64_t sum_of_ranks(ProcessGroup& group) {
  const Tensor x = empty({1}, DType::i64);
  x.data<int64_t>()[0] = World::current().rank();
  group.all_reduce(x)->wait();
  return x.data<int64_t>()[0];
}

TEST(Mesh, CoordinatesAreThoseOfARowMajorArray) {
  for (int n = 1; n <= 8; ++n) {
    on_ranks(n, [n](World& world) {
      for (const auto& s : factorisations(n)) {
        const Mesh mesh = Mesh::make(axes_abc(s));
        const int r = world.rank();
        EXPECT_EQ(mesh.size(), n);
        EXPECT_EQ(mesh.coordinate(0), r / (s[1] * s[2]));
        EXPECT_EQ(mesh.coordinate(1), r / s[2] % s[1]);
        EXPECT_EQ(mesh.coordinate(2), r % s[2]);
        for (int p = 0; p < n; ++p) EXPECT_EQ(mesh.coordinate_at(p, 1), p / s[2] % s[1]);
        EXPECT_EQ(mesh, Mesh::make(axes_abc(s))) << "equal meshes are one object";
      }
    });
  }
}

TEST(Mesh, GroupsHoldTheRanksThatDifferOnTheirAxesAlone) {
  for (const int n : {1, 2, 6, 8}) {
    on_ranks(n, [n](World& world) {
      for (const auto& s : factorisations(n)) {
        const Mesh mesh = Mesh::make(axes_abc(s));
        std::vector<int> order{0, 1, 2};
        do {
          for (size_t k = 1; k <= 3; ++k) {
            const std::span<const int> axes(order.data(), k);
            // Brute force: all ranks that agree with this one elsewhere, sorted by the listed axes.
            std::vector<std::pair<std::vector<int>, int>> expected;
            for (int p = 0; p < n; ++p) {
              bool member = true;
              for (int a = 0; a < 3; ++a) {
                if (!std::ranges::count(axes, a))
                  member = member && mesh.coordinate_at(p, a) == mesh.coordinate(a);
              }
              std::vector<int> at;
              for (const int a : axes) at.push_back(mesh.coordinate_at(p, a));
              if (member) expected.emplace_back(at, p);
            }
            std::ranges::sort(expected);
            ProcessGroup& group = mesh.group(axes);
            ASSERT_EQ(group.size(), static_cast<int>(expected.size()));
            int64_t sum = 0;
            for (size_t i = 0; i < expected.size(); ++i) {
              EXPECT_EQ(group.ranks()[i], expected[i].second);
              sum += expected[i].second;
            }
            EXPECT_EQ(group.ranks()[static_cast<size_t>(group.rank())], world.rank());
            EXPECT_EQ(sum_of_ranks(group), sum);
            EXPECT_EQ(&group, &mesh.group(axes)) << "a group is made once";
          }
        } while (std::ranges::next_permutation(order).found);
      }
    });
  }
}

TEST(Mesh, SlicesHoldThisRankAndShareCommunicators) {
  on_ranks(8, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"cp", 2}, {"tp", 2}});
    const int r = world.rank();
    const Mesh tp = mesh.slice({"tp"});
    EXPECT_EQ(std::vector<int>(tp.ranks().begin(), tp.ranks().end()),
              (std::vector<int>{r / 2 * 2, r / 2 * 2 + 1}));
    EXPECT_EQ(&tp.group(0), &mesh.group(2));
    EXPECT_EQ(tp.coordinate(0), mesh.coordinate(2));
    // In the order asked for, a slice of a slice, and a mesh by its own name.
    const Mesh swapped = mesh.slice({"tp", "dp"});
    EXPECT_EQ(swapped.coordinate(0), mesh.coordinate(2));
    EXPECT_EQ(swapped.coordinate(1), mesh.coordinate(0));
    EXPECT_EQ(swapped.slice({"dp"}), mesh.slice({"dp"}));
    EXPECT_EQ(tp.slice({"tp"}), tp);
    EXPECT_EQ(mesh.slice({"dp", "cp", "tp"}), mesh);
    EXPECT_EQ(&swapped.group(std::vector<int>{1, 0}), &mesh.group(std::vector<int>{0, 2}));
    // A group of all ranks in order is the world's own.
    EXPECT_EQ(&mesh.group(std::vector<int>{0, 1, 2}), &world.group());
  });
}

TEST(Mesh, FlattenedAxesNeedNotBeNeighboursAndKeepTheirName) {
  on_ranks(8, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"cp", 2}, {"tp", 2}});
    const int dp = world.rank() / 4, cp = world.rank() / 2 % 2, tp = world.rank() % 2;
    const Mesh flat = mesh.flatten({"dp", "tp"}, "dp_tp");
    ASSERT_EQ(flat.axes(), 2);
    EXPECT_EQ(flat.axis(0), (MeshAxis{"dp_tp", 4}));
    EXPECT_EQ(flat.axis(1), (MeshAxis{"cp", 2}));
    EXPECT_EQ(flat.coordinate(0), dp * 2 + tp);
    EXPECT_EQ(flat.coordinate(1), cp);
    EXPECT_EQ(&flat.group(0), &mesh.group(std::vector<int>{0, 2}));
    EXPECT_EQ(sum_of_ranks(flat.group(0)), cp == 0 ? 0 + 1 + 4 + 5 : 2 + 3 + 6 + 7);
    // The name is known to the mesh, and to slices that keep its axes.
    EXPECT_EQ(mesh.slice({"dp_tp"}).size(), 4);
    EXPECT_EQ(mesh.slice({"dp_tp", "cp"}), flat);
    EXPECT_EQ(mesh.slice({"tp", "dp"}).slice({"dp_tp"}), mesh.slice({"dp_tp"}));
    EXPECT_EQ(mesh.flatten({"dp", "tp"}, "dp_tp"), flat);
    // The first listed is the slowest, so the other order is another mesh of other groups.
    const Mesh other = mesh.flatten({"tp", "dp"}, "tp_dp");
    EXPECT_EQ(other.coordinate(other.index("tp_dp")), tp * 2 + dp);
    EXPECT_EQ(other.axis(0).name, "cp");
    // Flattening what is flattened.
    const Mesh all = mesh.flatten({"dp_tp", "cp"}, "all");
    EXPECT_EQ(all.axes(), 1);
    EXPECT_EQ(all.coordinate(0), (dp * 2 + tp) * 2 + cp);
  });
}

TEST(Mesh, UnflattenIsTheInverseOfFlatten) {
  for (const int n : {1, 4, 6, 8}) {
    on_ranks(n, [n](World&) {
      for (const auto& s : factorisations(n)) {
        const Mesh mesh = Mesh::make(axes_abc(s));
        const Mesh flat = mesh.flatten({"b", "c"}, "bc");
        EXPECT_EQ(flat.unflatten("bc", {{"b", s[1]}, {"c", s[2]}}), mesh);
        EXPECT_EQ(mesh.flatten({"a", "b", "c"}, "abc").unflatten("abc", axes_abc(s)), mesh);
      }
    });
  }
}

TEST(Mesh, DenseAndSparseViewsOfTheSameRanksShareGroups) {
  on_ranks(8, [](World&) {
    const Mesh dense = Mesh::make({{"pp", 2}, {"dp", 2}, {"cp", 1}, {"tp", 2}});
    const Mesh sparse = dense.represent({{"pp", 2}, {"edp", 1}, {"ep", 4}});
    EXPECT_EQ(sparse.size(), 8);
    EXPECT_EQ(&sparse.group(2), &dense.group(std::vector<int>{1, 3}));
    EXPECT_EQ(sparse.coordinate(0), dense.coordinate(0));
    EXPECT_EQ(sparse.represent({{"pp", 2}, {"dp", 2}, {"cp", 1}, {"tp", 2}}), dense);
    // Of a slice too: the ranks of this pipeline stage alone.
    const Mesh stage = dense.slice({"dp", "cp", "tp"}).represent({{"edp", 2}, {"ep", 2}});
    EXPECT_EQ(stage.size(), 4);
    EXPECT_EQ(&stage.group(1), &dense.group(3));
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)dense.represent({{"edp", 2}, {"ep", 2}});
                }),
                "multiply to 4, but there are 8 ranks");
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)dense.represent({{"tp", 2}, {"rest", 4}});
                }),
                "axis tp of (tp=2, rest=4) does not run over the same ranks");
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)dense.represent({{"pp", 4}, {"ep", 2}});
                }),
                "axis pp");
  });
}

// PyTorch #169381: with sizes of 1, strides alone cannot tell axes apart.
TEST(Mesh, AxesOfSizeOneAreAxesLikeOthers) {
  for (const int n : {1, 2, 3}) {
    on_ranks(n, [n](World& world) {
      for (int at = 0; at < 4; ++at) {
        std::vector<MeshAxis> axes{{"d1", 1}, {"d2", 1}, {"d3", 1}, {"d4", 1}};
        axes[static_cast<size_t>(at)].size = n;
        const Mesh mesh = Mesh::make(axes);
        const Mesh flat = mesh.flatten({"d2", "d3"}, "d23");
        EXPECT_EQ(flat.axes(), 3);
        EXPECT_EQ(mesh.slice({"d1", "d23", "d4"}), flat);
        EXPECT_EQ(mesh.slice({"d4", "d1"}).axes(), 2);
        EXPECT_EQ(mesh.slice({"d4", "d3", "d2", "d1"}).size(), n);
        int64_t product = 1;
        for (int a = 0; a < 4; ++a) {
          product *= mesh.group(a).size();
          EXPECT_EQ(mesh.coordinate(a), a == at ? world.rank() : 0);
        }
        EXPECT_EQ(product, n);
        EXPECT_EQ(mesh.represent({{"x", 1}, {"d1", axes[0].size}, {"y", n / axes[0].size}}).size(),
                  n);
      }
    });
  }
}

TEST(Mesh, TakesAnyArrayOfRanks) {
  on_ranks(7, [](World& world) {
    // Two islands in an odd order; rank 3 is in neither and makes no mesh.
    const std::vector<int> island =
        world.rank() % 2 ? std::vector<int>{5, 1} : std::vector<int>{6, 0, 2, 4};
    if (world.rank() == 3) return;
    const Mesh mesh = Mesh::make({{"x", static_cast<int>(island.size()) / 2}, {"y", 2}}, island);
    const auto self = std::ranges::find(island, world.rank()) - island.begin();
    EXPECT_EQ(mesh.coordinate(0), self / 2);
    EXPECT_EQ(mesh.coordinate(1), self % 2);
    EXPECT_EQ(mesh.group(std::vector<int>{0, 1}).rank(), self);
    EXPECT_EQ(sum_of_ranks(mesh.group(1)), island[static_cast<size_t>(self / 2 * 2)] +
                                               island[static_cast<size_t>(self / 2 * 2 + 1)]);
    EXPECT_TEXT(mesh.text(), "of ranks [");
  });
}

TEST(Mesh, MakeMakesTheGroupsOfAxesAndProducts) {
  on_ranks(8, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"cp", 2}, {"tp", 2}, {"pp", 1}},
                                 {{"batch", {"dp", "cp"}}, {"one", {"pp"}}});
    const FlightRecorder& recorder = world.group().recorder();
    const uint64_t before = recorder.count();  // making a group ends with a barrier
    for (int a = 0; a < 3; ++a) EXPECT_EQ(mesh.group(a).size(), 2);
    EXPECT_EQ(mesh.group(std::vector<int>{0, 1}).size(), 4);
    EXPECT_EQ(mesh.slice({"batch"}).group(0).size(), 4);
    EXPECT_EQ(mesh.slice({"tp", "one"}).size(), 2);
    EXPECT_EQ(recorder.count(), before);
    EXPECT_EQ(mesh.group(std::vector<int>{1, 0}).size(), 4);  // of no product: on first use
    EXPECT_EQ(recorder.count(), before + 1);
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)Mesh::make({{"dp", 8}}, {{"loss", {"dp", "cp"}}});
                }),
                "no axis cp");
    EXPECT_TEXT(
        error_of<CollectiveMismatch>([&] {
          (void)Mesh::make({{"dp", 4}, {"tp", 2}}, {{world.rank() == 3 ? "a" : "b", {"dp", "tp"}}});
        }),
        "a = dp tp");
  });
}

// Ranks may start collectives of several groups in different orders, as long as each group sees one
// order; groups that were made on first use would meet in the wrong order here.
TEST(Mesh, RanksMayUseTheirGroupsInDifferentOrders) {
  on_ranks(4, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor x = from_values({1}, {1}, DType::i64), y = from_values({1}, {1}, DType::i64);
    const int first = world.rank() == 0 || world.rank() == 3 ? 0 : 1;
    const Ref<Work> a = mesh.group(first).all_reduce(first == 0 ? x : y);
    const Ref<Work> b = mesh.group(1 - first).all_reduce(first == 0 ? y : x);
    a->wait();
    b->wait();
    EXPECT_EQ(x.values(), (std::vector<double>{2}));
    EXPECT_EQ(y.values(), (std::vector<double>{2}));
  });
}

TEST(Mesh, ChannelsAreOtherCommunicatorsOfTheSameRanks) {
  on_ranks(4, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    ProcessGroup& reduce = mesh.group(0);
    ProcessGroup& gather = mesh.group(0, "gather");
    EXPECT_NE(&gather, &reduce);
    EXPECT_EQ(&gather, &mesh.group(0, "gather"));
    EXPECT_EQ(&gather, &mesh.slice({"dp"}).group(0, "gather"));
    EXPECT_TRUE(std::ranges::equal(gather.ranks(), reduce.ranks()));
    EXPECT_TEXT(gather.name(), "(gather)");
    const std::vector<int> both{0, 1};
    EXPECT_EQ(&mesh.group(both), &world.group());
    EXPECT_NE(&mesh.group(both, "gather"), &world.group());
    // Neither waits for the other: each order is its own.
    const Tensor x = from_values({1}, {1}, DType::i64), y = from_values({1}, {1}, DType::i64);
    const bool odd = world.rank() % 2 == 1;
    const Ref<Work> a = (odd ? gather : reduce).all_reduce(odd ? y : x);
    const Ref<Work> b = (odd ? reduce : gather).all_reduce(odd ? x : y);
    a->wait();
    b->wait();
    EXPECT_EQ(sum_of_ranks(gather), sum_of_ranks(reduce));
  });
}

// The ranks of a world inside another are counted from 0 in it.
TEST(Mesh, OfAWorldInsideAWorldCountsItsOwnRanks) {
  on_ranks(4, [](World& outer) {
    const std::vector<int> odd{3, 1}, even{0, 2};
    const auto group = outer.group().subgroup(outer.rank() % 2 ? odd : even, "half");
    World inner(group, {}, 2, group->rank());
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 1}});
    EXPECT_EQ(std::vector<int>(mesh.ranks().begin(), mesh.ranks().end()), (std::vector<int>{0, 1}));
    EXPECT_EQ(mesh.coordinate(0), inner.rank());
    EXPECT_EQ(&mesh.group(0), &inner.group());
    EXPECT_EQ(sum_of_ranks(mesh.group(0)), 1);
    EXPECT_EQ(Mesh::make({{"x", 2}}, {1, 0}).coordinate(0), 1 - inner.rank());
  });
}

TEST(Mesh, RanksThatDisagreeAreNamedOnEveryRank) {
  on_ranks(4, [](World& world) {
    const bool odd = world.rank() == 2;
    const std::string text = error_of<CollectiveMismatch>([&] {
      (void)Mesh::make({{"dp", odd ? 4 : 2}, {"tp", odd ? 1 : 2}});
    });
    EXPECT_TEXT(text, "ranks [0, 1, 3] ask for (dp=2, tp=2)");
    EXPECT_TEXT(text, "rank [2] asks for (dp=4, tp=1)");
    // The groups are unharmed.
    EXPECT_EQ(Mesh::make({{"dp", 2}, {"tp", 2}}).size(), 4);
  });
  // An invalid wish of one rank is a disagreement too, so nobody waits for it.
  on_ranks(3, [](World& world) {
    EXPECT_TEXT(error_of<CollectiveMismatch>([&] {
                  (void)Mesh::make({{"dp", world.rank() == 1 ? 7 : 3}});
                }),
                "rank [1] asks for (dp=7)");
  });
  // The same ranks in another order.
  on_ranks(2, [](World& world) {
    const auto ranks = world.rank() ? std::vector<int>{1, 0} : std::vector<int>{0, 1};
    EXPECT_TEXT(error_of<CollectiveMismatch>([&] {
                  (void)Mesh::make({{"dp", 2}}, ranks);
                }),
                "over [1, 0]");
  });
}

TEST(Mesh, WhatCannotBeAMeshSaysWhy) {
  on_ranks(4, [](World& world) {
    const auto error = [](std::vector<MeshAxis> axes) {
      return error_of<LayoutError>([&] { (void)Mesh::make(std::move(axes)); });
    };
    EXPECT_TEXT(error({{"dp", 3}}), "multiply to 3, but there are 4 ranks");
    EXPECT_TEXT(error({{"dp", 65536}, {"tp", 65536}, {"cp", 65536}}), "but there are 4 ranks");
    EXPECT_TEXT(error({{"dp", 2}, {"dp", 2}}), "the name dp is used twice");
    EXPECT_TEXT(error({{"", 4}}), "has no name");
    EXPECT_TEXT(error({{"dp", 0}}), "has size 0");
    EXPECT_TEXT(error({{"dp", -4}, {"tp", -1}}), "has size -4");
    EXPECT_TEXT(error({}), "1 to 6 axes");
    EXPECT_TEXT(error({{"a", 4}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}, {"g", 1}}),
                "1 to 6 axes");
    const auto array_error = [](std::vector<int> ranks) {
      const int n = static_cast<int>(ranks.size());
      return error_of<LayoutError>([&] { (void)Mesh::make({{"x", n}}, std::move(ranks)); });
    };
    EXPECT_TEXT(array_error({0, 1, 2, 2}), "rank 2 occurs twice");
    EXPECT_TEXT(array_error({0, 1, 2, 4}), "expected 0 to 3");
    EXPECT_TEXT(array_error({-1, 0}), "expected 0 to 3");
    EXPECT_TEXT(array_error({(world.rank() + 1) % 4, (world.rank() + 2) % 4}), "is not among");
    EXPECT_TEXT(array_error({}), "is not among");

    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.index("cp"); }),
                "no axis cp in mesh(dp=2, tp=2)");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.slice({"dp", "dp"}); }), "used twice");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.slice({"ep"}); }), "no axis ep");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.slice({}); }), "1 to 6 axes");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.flatten({}, "x"); }), "no axes");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.flatten({"dp"}, "tp"); }),
                "has one of that");
    (void)mesh.flatten({"dp", "tp"}, "x");
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)mesh.flatten({"tp", "dp"}, "x");
                }),
                "already names the axes dp, tp");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.slice({"x", "tp"}); }), "used twice");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.index("x"); }), "names 2 axes");
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)mesh.unflatten("tp", {{"a", 3}});
                }),
                "multiply to 3, but there are 2 ranks");
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)mesh.unflatten("tp", {{"dp", 2}});
                }),
                "the name dp is used twice");
    EXPECT_TEXT(error_of<LayoutError>([&] { (void)mesh.group(2); }), "axis 2 is not in");
    EXPECT_TEXT(error_of<LayoutError>([&] {
                  (void)mesh.group(std::vector<int>{1, 1});
                }),
                "used twice");
  });
}

TEST(Mesh, WithoutAWorldThereIsNoMesh) {
  const Context context;
  EXPECT_THROW((void)Mesh::make({{"dp", 1}}), UsageError);
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/docs/ops_page.h"

#include "tessera/tests/support/expect_golden.h"

#include <gtest/gtest.h>

namespace tessera::docs {
namespace {

TEST(Headers, AFunctionHasTheCommentAboveIt) {
  const Header h = read_header(R"(// SPDX-License-Identifier: Apache-2.0
// What the room is for,
// in two lines.
#pragma once
#include "a.h"

namespace tessera {

/// Twice x,
/// in two lines.
TESSERA_API Tensor twice(const Tensor& x, std::initializer_list<int> dims = {},
                         bool keepdim = false);
inline Tensor half(const Tensor& x) { return "}" ? call(op::Half{}, {x}) : x; }

Tensor alone(const Tensor& x);

}  // namespace tessera
)");
  EXPECT_EQ(h.opening, "What the room is for, in two lines.");
  ASSERT_EQ(h.items.size(), 3U);
  const Public &twice = h.items[0].entry, &half = h.items[1].entry, &alone = h.items[2].entry;
  EXPECT_EQ(twice.declaration,
            "Tensor twice(const Tensor& x, std::initializer_list<int> dims = {}, bool keepdim = "
            "false)");
  EXPECT_EQ(twice.name, "twice");
  EXPECT_EQ(twice.doc, "Twice x, in two lines.");
  EXPECT_EQ(half.declaration, "Tensor half(const Tensor& x)");
  EXPECT_EQ(half.doc, "");
  EXPECT_EQ(alone.name, "alone");
}

TEST(Headers, AStructOfAnOpHasItsNameItsCommentAndItsExpression) {
  const Header h = read_header(R"(// Opening.
namespace tessera {
namespace op {

/// x / (1 + |x|).
struct Softsign : Fused<Softsign> {
  static constexpr std::string_view name = "softsign", backward_name = "softsign_backward";
  template <class T> TESSERA_MATH static T f(T x) { return x / (T(1) + std::abs(x)); }
  template <class T> TESSERA_MATH static T pull(T x, T dy) {
    const T d = T(1) + std::abs(x);
    return dy / (d * d);
  }
};

}  // namespace op
namespace detail {
int hidden(int x);
}  // namespace detail
}  // namespace tessera
)");
  ASSERT_EQ(h.structs.size(), 1U);
  const OpStruct& op = h.structs[0];
  EXPECT_EQ(op.type, "Softsign");
  EXPECT_EQ(op.base, "Fused");
  EXPECT_EQ(op.name, "softsign");
  EXPECT_EQ(op.backward_name, "softsign_backward");
  EXPECT_EQ(op.doc, "x / (1 + |x|).");
  EXPECT_EQ(op.f, "x / (1 + abs(x))");
  EXPECT_EQ(op.pull, "") << "more than one expression is no formula";
  EXPECT_TRUE(h.items.empty()) << "nothing here is public";
}

TEST(Headers, ACommentBeforeABlankLineIsAParagraph) {
  const Header h = read_header(R"(// Opening.

namespace tessera {

/// Of all that follow.

Tensor f(const Tensor& x);

}  // namespace tessera
)");
  ASSERT_EQ(h.items.size(), 2U);
  EXPECT_EQ(h.items[0].paragraph, "Of all that follow.");
  EXPECT_EQ(h.items[1].entry.doc, "");
}

TEST(Headers, AStructWithoutFunctionsShowsItsFields) {
  const Header h = read_header(R"(// Opening.
namespace tessera {
struct Options {
  double p = 0.5;  ///< (0, 1)
};
struct Handle {
  int get() const;
};
}  // namespace tessera
)");
  ASSERT_EQ(h.items.size(), 2U);
  EXPECT_EQ(h.items[0].entry.fields, "{\n  double p = 0.5;  ///< (0, 1)\n}");
  EXPECT_EQ(h.items[1].entry.fields, "");
}

TEST(Headers, DefaultValuesDoNotTellOverloadsApart) {
  EXPECT_EQ(without_defaults("Tensor f(int a = max<int>(), Shape s = {1, 2}, bool b = g(1, 2))"),
            "Tensor f(int a, Shape s, bool b)");
}

TEST(OpsPage, AFunctionWithoutACommentIsSaidByItsOpOrItsExpression) {
  const Header h = read_header(R"(// Opening.
namespace tessera {
namespace op {
struct Add : Binary<Add> {
  static constexpr std::string_view name = "add";
  template <class T> TESSERA_MATH static T f(T a, T b) { return a + b; }
};
}  // namespace op

inline Tensor add(const Tensor& a, const Tensor& b) { return call(op::Add{}, {a, b}); }

inline Tensor twice(const Tensor& a) { return add(a, a); }
inline Tensor more(const Tensor& a) {
  log(a);
  return a;
}

/// x = x + y.
Tensor add_(const Tensor& x, const Tensor& y);
Tensor add_(const Tensor& x, double y);

}  // namespace tessera
)");
  EXPECT_EQ(said_of(h.items[0].entry, h.structs), "`a + b`");
  EXPECT_EQ(said_of(h.items[1].entry, h.structs), "`add(a, a)`");
  EXPECT_EQ(said_of(h.items[2].entry, h.structs), "");
  EXPECT_EQ(said_of(h.items[3].entry, h.structs), "x = x + y.");
  EXPECT_EQ(said_of(h.items[4].entry, h.structs), "x = x + y.");
}

TEST(OpsPage, SaysSomethingOfEveryPublicFunction) {
  for (const std::string& name : ops_page(read_rooms("kernels"), "tests/laws").silent)
    ADD_FAILURE() << name << ": write a /// comment above it";
}

TEST(OpsPage, IsTrue) {
  test::expect_golden("docs/ops.md", ops_page(read_rooms("kernels"), "tests/laws").text);
}

}  // namespace
}  // namespace tessera::docs

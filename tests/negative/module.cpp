// SPDX-License-Identifier: Apache-2.0
// A complete module, and ways past its hooks that do not compile.
#include "tessera/nn/layers.h"

namespace tessera::nn {

struct Scaled final : Layer<Scaled> {
  Linear inner{2, 2};
  void visit(Visitor& v) override { v.child("inner", inner); }
  [[nodiscard]] Tensor entry(const Tensor& x) const {
    double two = 2;
    (void)two;
#ifdef RUNS_A_CAPTURE
    return run([&two](const Tensor& in) { return in * two; }, x);
#else
    return run([](const Tensor& in, double by) { return in * by; }, x, two);
#endif
  }
#ifdef CHANGES_AN_ARGUMENT
  [[nodiscard]] Tensor forward(const Tensor& x, double& by) const { return inner(x * ++by); }
#else
  [[nodiscard]] Tensor forward(const Tensor& x, double by) const { return inner(x * by); }
#endif
};

#ifdef NAMES_ANOTHER
struct Other final : Layer<Scaled> {
  void visit(Visitor&) override {}
};
#else
struct Other final : Layer<Other> {
  void visit(Visitor&) override {}
};
#endif

inline Tensor use(const Scaled& m, const Tensor& x, double& by) {
  const Other other;
#ifdef CALLS_FORWARD
  return m.inner.forward(x);
#else
  return m(x, by);
#endif
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// Random programs on random layouts and meshes: every value and every gradient is that of one rank,
// whether ops may send or must refuse to. TESSERA_TEST_SEED repeats a run, TESSERA_EXHAUSTIVE=1
// makes it forty times as long.
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/trials.h"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>

namespace tessera {
namespace {

using namespace trial;

// A value on one rank, and the same over all.
struct Pair {
  Tensor one, all;
};

struct Tally {
  int ops = 0, refused = 0, gradients = 0;
};

class Program {
 public:
  Program(uint64_t seed, Mesh mesh) : random_(seed), mesh_(mesh) {}

  /// What went wrong, with the program up to there; nothing if all is well.
  std::optional<std::string> run(Tally& tally) {
    for (int i = 0; i < 3; ++i) leaf();
    for (int step = 0; step < 14; ++step) {
      if (auto wrong = grow(tally)) return text_ + *wrong;
    }
    return gradients(tally);
  }

 private:
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;

  int below(int n) {
    const uint64_t bits = random_();
    return n > 0 ? static_cast<int>(bits % static_cast<uint64_t>(n)) : 0;
  }
  Layout layout(int rank, bool partial) {
    const auto all = all_layouts(
        mesh_, rank, partial ? std::vector{ReduceOp::sum, ReduceOp::avg} : std::vector<ReduceOp>{});
    return Layout::intern(mesh_, all[static_cast<size_t>(below(static_cast<int>(all.size())))]);
  }
  int64_t size() {
    return below(20) ? std::array<int64_t, 6>{1, 2, 3, 4, 6, 7}[static_cast<size_t>(below(6))] : 0;
  }
  Tensor on_mesh(const Tensor& whole) { return distribute(whole, layout(whole.rank(), false)); }

  Pair leaf(std::optional<Shape> shape = {}) {
    if (!shape) shape = below(3) ? Shape{size(), size()} : Shape{size(), size(), size()};
    const Tensor whole = numbers(*shape, static_cast<double>(leaves_.size()));
    leaves_.push_back({variable(whole), on_mesh(whole).set_requires_grad()});
    text_ += concat("leaf ", values_.size(), ": ", describe(leaves_.back()), '\n');
    values_.push_back(leaves_.back());
    return leaves_.back();
  }
  static std::string describe(const Pair& p) {
    return concat(p.one.meta(), ' ', layout_of(p.all).text());
  }
  // The index of a value of this many dims at least.
  size_t pick() { return static_cast<size_t>(below(static_cast<int>(values_.size()))); }

  std::optional<std::string> grow(Tally& tally) {
    const size_t at = pick();
    const Pair x = values_[at];
    const Shape& shape = x.one.shape();
    const int rank = shape.rank(), last = rank - 1, dim = rank ? below(rank) : 0;
    if (rank == 0) return {};
    const auto constant = [&](const Tensor& whole) { return Pair{whole, on_mesh(whole)}; };
    std::vector<Pair> in{x};
    Function f;
    std::string name;
    const auto as = [&](std::string n, Function g) {
      name = std::move(n);
      f = std::move(g);
    };
    switch (below(26)) {
      case 0: as("tanh", [](const auto& v) { return tanh(v[0]); }); break;
      case 1: as("silu", [](const auto& v) { return silu(v[0]); }); break;
      case 2:
        as("affine",
           [a = below(5) - 2.0, b = below(3) - 1.0](const auto& v) { return affine(v[0], a, b); });
        break;
      case 3:
      case 4: {  // with itself transformed, another value of the shape, or a broadcast one
        Shape other = shape;
        if (below(2)) other[dim] = 1;
        if (below(4) == 0) other = Shape{shape.back()};
        in.push_back(below(3) == 0 ? x : leaf(other));
        if (below(2)) std::swap(in[0], in[1]);
        const int which = below(3);
        as(which == 0   ? "add"
           : which == 1 ? "sub"
                        : "mul",
           [which](const auto& v) {
             return which == 0 ? add(v[0], v[1]) : which == 1 ? sub(v[0], v[1]) : mul(v[0], v[1]);
           });
        break;
      }
      case 5:
      case 6: {
        const bool ta = below(2) && rank == 2, tb = below(2);
        const int64_t k = ta ? shape[0] : shape.back(), n = size();
        in.push_back(leaf(tb ? Shape{n, k} : Shape{k, n}));
        if (rank < 2) return {};
        as(concat("matmul ", ta, tb),
           [ta, tb](const auto& v) { return tanh(matmul(v[0], v[1], ta, tb)); });
        break;
      }
      case 7: as("softmax", [dim](const auto& v) { return softmax(v[0], dim); }); break;
      case 8:
        as(concat("sum ", dim),
           [dim, keep = below(2) == 0](const auto& v) { return tanh(sum(v[0], {dim}, keep)); });
        break;
      case 9:
        if (shape[dim] == 0) return {};
        as(concat("mean ", dim), [dim](const auto& v) { return mean(v[0], {dim}, true); });
        break;
      case 10:
        as("transpose", [dim, last](const auto& v) { return transpose(v[0], dim, last); });
        break;
      case 11:
        if (rank < 2) return {};
        as("merge", [shape](const auto& v) {
          Shape to{shape[0] * shape[1]};
          for (int d = 2; d < shape.rank(); ++d) to.push_back(shape[d]);
          return reshape(v[0], to);
        });
        break;
      case 12:
        if (rank > 3 || shape[dim] % 2) return {};
        as("split", [shape, dim](const auto& v) {
          Shape to;
          for (int d = 0; d < shape.rank(); ++d) {
            if (d == dim) to.push_back(2);
            to.push_back(d == dim ? shape[d] / 2 : shape[d]);
          }
          return reshape(v[0], to);
        });
        break;
      case 13: {
        const int64_t a = below(static_cast<int>(shape[dim]));
        as(concat("slice ", dim, ' ', a), [dim, a](const auto& v) {
          return slice(v[0], dim, {a, a + 3});
        });
        break;
      }
      case 14:
        in.push_back(leaf(shape));
        as("cat", [dim](const auto& v) { return cat({v[0], v[1]}, dim); });
        break;
      case 15:
        in.push_back(leaf(Shape{shape.back()}));
        as("rms_norm", [](const auto& v) { return rms_norm(v[0], v[1]); });
        break;
      case 16:
        in.push_back(leaf(shape));
        as("swiglu", [](const auto& v) { return swiglu(v[0], v[1]); });
        break;
      case 17:
        if (shape[dim] < 2) return {};
        as("max", [dim](const auto& v) { return max(v[0], dim, true)[0]; });
        break;
      case 18: {
        if (rank != 2 || shape[0] == 0) return {};
        std::vector<double> ids;
        for (int i = 0; i < 6; ++i) ids.push_back(below(static_cast<int>(shape[0])));
        in.push_back(constant(from_values(ids, {2, 3}, DType::i64)));
        as("embedding", [](const auto& v) { return embedding(v[0], v[1]); });
        break;
      }
      case 19: {
        if (rank != 3) return {};
        const bool inner = below(2), causal = below(2);
        const double cap = below(2) ? 0.8 : 0;
        const int64_t heads = shape[inner ? 1 : 0], keys = size(), own = shape.back();
        // (T, H, D) or (H, T, D), one batch; keys and values of as many heads.
        const Shape kv = inner ? Shape{1, keys, heads, own} : Shape{1, heads, keys, own};
        in.push_back(leaf(kv));
        in.push_back(leaf(kv));
        as(concat("attention ", inner, causal, cap), [=](const auto& v) {
          const Shape q{1, inner ? shape[0] : heads, inner ? heads : shape[1], own};
          return scaled_dot_product_attention(
              reshape(v[0], q), v[1], v[2],
              {.mask = causal ? AttentionMask::causal() : AttentionMask(),
               .heads_inner = inner,
               .soft_cap = cap,
               .query_start = keys});
        });
        break;
      }
      case 20: {
        if (rank < 2 || shape.back() == 0) return {};
        std::vector<double> ids;
        const int64_t rows = shape.numel() / std::max<int64_t>(shape.back(), 1);
        for (int64_t i = 0; i < rows; ++i)
          ids.push_back(below(4) ? below(static_cast<int>(shape.back())) : -100);
        in.push_back(constant(from_values(ids, shape.without(last), DType::i64)));
        as("cross_entropy", [](const auto& v) { return cross_entropy(v[0], v[1]).sum; });
        break;
      }
      case 21: {
        if (shape[dim] == 0) return {};
        std::vector<double> ids;
        Shape taken = shape;
        taken[dim] = 3;
        for (int64_t i = 0; i < taken.numel(); ++i)
          ids.push_back(below(static_cast<int>(shape[dim])));
        in.push_back(constant(from_values(ids, taken, DType::i64)));
        as(concat("gather ", dim), [dim](const auto& v) { return gather(v[0], dim, v[1]); });
        break;
      }
      case 22:
        if (shape[dim] < 2) return {};
        as(concat("topk ", dim), [dim](const auto& v) { return topk(v[0], 2, dim)[0]; });
        break;
      case 23:
        in.push_back(leaf(shape));
        as("where", [](const auto& v) { return where(less(v[0], v[1]), v[0], v[1]); });
        break;
      case 24:
        as(concat("logsumexp ", dim), [dim](const auto& v) { return logsumexp(v[0], {dim}); });
        break;
      default: {
        const Layout to = layout(rank, true);
        text_ += concat("redistribute ", at, " to ", to.placements_text(), '\n');
        values_.push_back({x.one, redistribute(x.all, to)});
        return check(values_.back());
      }
    }
    text_ += concat(values_.size(), " = ", name, " of");
    for (const Pair& p : in) text_ += concat(' ', describe(p));
    text_ += '\n';
    std::vector<Tensor> one, all;
    for (const Pair& p : in) {
      one.push_back(p.one);
      all.push_back(p.all);
    }
    Pair y{f(one), {}};
    for (const double v : y.one.values()) {
      if (!std::isfinite(v)) return {};  // of nothing: a maximum or a mean of no element
    }
    std::optional<AutoRedistribute> wish;
    if (below(2)) wish.emplace();
    try {
      y.all = f(all);
    } catch (const LayoutError& e) {
      if (wish) return concat("refused where it may send: ", e.what());
      text_ += "  refused\n";
      ++tally.refused;
      return {};
    }
    ++tally.ops;
    values_.push_back(y);
    return check(y);
  }

  static std::optional<std::string> difference(const Tensor& got, const Tensor& want) {
    if (!(got.shape() == want.shape()))
      return concat("is of shape ", got.shape(), " instead of ", want.shape());
    if (!(local(got).shape() == layout_of(got).local_shape(got.shape())))
      return concat("holds ", local(got).shape(), " of ", got.shape(), " as ",
                    layout_of(got).text());
    const auto a = full_tensor(got).values(), b = want.values();
    for (size_t i = 0; i < b.size(); ++i) {
      if (a[i] != b[i] && !(std::abs(a[i] - b[i]) <= 1e-9 * (1 + std::abs(b[i]))))
        return concat("element ", i, " is ", a[i], " instead of ", b[i], ", lying ",
                      layout_of(got).text());
    }
    return {};
  }
  std::optional<std::string> check(const Pair& p) {
    if (auto d = difference(p.all, p.one)) return "  value " + *d;
    return {};
  }

  Tensor squares_of_gradients(const Tensor& loss, Tensor Pair::*side) const {
    std::vector<Tensor> inputs;
    for (const Pair& p : leaves_) inputs.push_back(p.*side);
    Tensor total;
    for (const Tensor& g : grad({loss}, inputs, {.create_graph = true, .allow_unused = true})) {
      if (!g.defined()) continue;
      const Tensor squares = sum(mul(g, g), {});
      total = total.defined() ? add(total, squares) : squares;
    }
    return total;
  }

  std::optional<std::string> gradients(Tally& tally) {
    const AutoRedistribute wish;
    Pair loss;
    for (size_t i = values_.size() / 2; i < values_.size(); ++i) {
      const Tensor weights = numbers(values_[i].one.shape(), 0.3 * static_cast<double>(i));
      const Pair w{weights, on_mesh(weights)};
      const Pair product{mul(values_[i].one, w.one), mul(values_[i].all, w.all)};
      const Pair term{sum(product.one, {}), sum(product.all, {})};
      text_ += concat("loss += sum of ", describe(values_[i]), " times ", describe(w), " as ",
                      describe(product), " as ", describe(term), '\n');
      for (const Pair& p : {product, term}) {
        if (auto d = check(p)) return text_ + *d;
      }
      loss = loss.one.defined() ? Pair{add(loss.one, term.one), add(loss.all, term.all)} : term;
    }
    if (auto d = check(loss)) return text_ + "loss:" + *d;
    if (!loss.one.requires_grad()) return {};
    if (below(3) == 0) {
      text_ += "of the gradients' squares:\n";
      try {
        loss.one = squares_of_gradients(loss.one, &Pair::one);
        if (!loss.one.requires_grad()) return {};
        backward(loss.one);
      } catch (const AutogradError&) {
        return {};  // a fused op is differentiated once only
      }
      loss.all = squares_of_gradients(loss.all, &Pair::all);
      if (auto d = check(loss)) return text_ + *d;
    } else {
      backward(loss.one);
    }
    backward(loss.all);
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const Tensor one = leaves_[i].one.grad(), all = leaves_[i].all.grad();
      if (one.defined() != all.defined())
        return concat(text_, "the gradient of leaf ", i, " is ", all.defined() ? "" : "not ",
                      "there");
      if (!one.defined()) continue;
      ++tally.gradients;
      if (auto d = difference(all, one)) return concat(text_, "the gradient of leaf ", i, ' ', *d);
      // Whole where its leaf is cut, a gradient would cost the memory that the cut saves. Where
      // axes cut it otherwise, it is for the optimizer to send.
      const Layout lies = layout_of(all), leaf = layout_of(leaves_[i].all);
      bool same_cuts = true, whole = false;
      for (int a = 0; a < mesh_.axes(); ++a) {
        const Placement &g = lies.placement(a), &l = leaf.placement(a);
        same_cuts &= g.kind != Placement::Kind::shard || g == l;
        whole |= g == Replicate() && l.kind == Placement::Kind::shard;
      }
      for (int d = 0; d < one.rank(); ++d) same_cuts &= leaf.axes_of(d).size() < 2;
      if (same_cuts && whole)
        return concat(text_, "the gradient of leaf ", i, " lies ", lies.text(), ", the leaf ",
                      leaf.text());
    }
    return {};
  }

  std::mt19937_64 random_;
  Mesh mesh_;
  std::vector<Pair> leaves_, values_;
  std::string text_;
};

TEST(RandomGraphs, ValuesAndGradientsAreThoseOfOneRank) {
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 20261;
  const int programs = exhaustive() ? 2000 : 50;
  WorldOptions options;
  options.init_timeout = std::chrono::seconds(60);  // ranks that disagree end in an error
  for (const auto& axes : std::vector<std::vector<MeshAxis>>{{{"a", 3}},
                                                             {{"a", 2}, {"b", 2}},
                                                             {{"a", 3}, {"b", 1}, {"c", 2}},
                                                             {{"a", 2}, {"b", 2}, {"c", 2}}}) {
    int ranks = 1;
    for (const MeshAxis& a : axes) ranks *= a.size;
    test::on_ranks(
        ranks,
        [&](World& world) {
          const Mesh mesh = Mesh::make(axes);
          Tally tally;
          for (int i = 0; i < programs; ++i) {
            const uint64_t own = seed + static_cast<uint64_t>(i);
            Program program(own, mesh);
            std::optional<std::string> wrong;
            try {
              wrong = program.run(tally);
            } catch (const Error& e) {
              wrong = concat("threw ", e.what());
            }
            ASSERT_FALSE(wrong) << "TESSERA_TEST_SEED=" << own << " on " << mesh.text() << '\n'
                                << *wrong;
          }
          if (world.rank() == 0) {
            std::cout << mesh.text() << ": " << programs << " programs, " << tally.ops << " ops, "
                      << tally.refused << " refused, " << tally.gradients << " gradients\n";
          }
        },
        options);
  }
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Checkpointing: the same bits as without it in every mode, what runs again, what is stored, and
// what is caught when a function does not do the same twice.
#include "tessera/autograd/checkpoint.h"

#include "tessera/autograd/checkpoint_impl.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <pthread.h>
#include <random>

namespace tessera {
namespace {

constexpr int64_t kB = 2, kT = 5, kD = 12;

// A block with what matters to checkpointing: products, attention, views, a statistic, random
// numbers.
struct Block {
  explicit Block(uint64_t seed) {
    uint64_t stream = 0;
    for (Tensor* t : {&wq, &wo, &w1, &w2})
      *t = normal({kD, kD}, {seed, stream++}, 0, 0.3).set_requires_grad();
    norm = ones({kD}).set_requires_grad();
  }
  [[nodiscard]] std::vector<Tensor> parameters() const { return {wq, wo, w1, w2, norm}; }
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    const ModuleScope scope("block");
    Context& context = Context::current();
    const Tensor q = reshape(linear(rms_norm(x, norm), wq), {kB, kT, 3, 4});
    const Tensor a = scaled_dot_product_attention(
        q, q, q, {.mask = AttentionMask::causal(), .heads_inner = true});
    const Tensor h = x + linear(reshape(a, {kB, kT, kD}), wo);
    const Tensor mask = uniform(h.shape(), context.call_keys.next(context.module_path));
    return h + linear(silu(linear(h * mask, w1)), w2);
  }
  Tensor wq, wo, w1, w2, norm;
};

Tensor input() { return normal({kB, kT, kD}, {3, 3}).set_requires_grad(); }

// Gradients of two blocks, the first inside `options`; no options: not checkpointed.
std::vector<std::vector<double>> gradients(const std::optional<CheckpointOptions>& options) {
  const Session session;
  Context::current().call_keys.set_seed(11);
  auto first = std::make_shared<Block>(1), second = std::make_shared<Block>(2);
  const Tensor x = input();
  const auto run = [&](const std::shared_ptr<Block>& block, const Tensor& in) {
    if (!options) return block->forward(in);
    return checkpoint([block](Tensors t) { return TensorList{block->forward(t[0])}; }, {in},
                      *options)[0];
  };
  const Tensor y = run(second, run(first, x));
  backward(sum(y * y));
  std::vector<std::vector<double>> result{x.grad().values(), y.values()};
  for (const auto& block : {first, second}) {
    for (const Tensor& p : block->parameters()) result.push_back(p.grad().values());
  }
  return result;
}

TEST(Checkpoint, EveryModeGivesTheSameBits) {
  const auto expected = gradients({});
  EXPECT_EQ(gradients(CheckpointOptions{}), expected);
  EXPECT_EQ(gradients(CheckpointOptions{.keep = keep_every_second_matmul()}), expected);
  EXPECT_EQ(gradients(CheckpointOptions{.keep = [](const CheckpointedOp&) { return true; }}),
            expected);
  for (double budget : {0.0, 0.2, 0.5, 0.8, 1.0})
    EXPECT_EQ(gradients(CheckpointOptions{.memory_budget = budget}), expected) << budget;
  EXPECT_EQ(gradients(CheckpointOptions{.debug = true}), expected);
  EXPECT_EQ(gradients(CheckpointOptions{.early_stop = false}), expected);
  EXPECT_NE(gradients(CheckpointOptions{.preserve_rng_state = false}), expected);
}

class Counts {
 public:
  Counts() {
    Context::current().op_hook = [this](const OpRow& row, const void*, Tensors, Tensors) {
      ++counts_[row.name];
    };
  }
  ~Counts() { Context::current().op_hook = nullptr; }
  Counts(const Counts&) = delete;
  Counts& operator=(const Counts&) = delete;
  int operator[](std::string_view name) { return counts_[name]; }

 private:
  std::map<std::string_view, int> counts_;
};

// A profiler: counts what it is told of, and names the module of each node.
class Watch final : public Interceptor {
 public:
  Watch() : before_(std::exchange(Context::current().interceptor, this)) {}
  ~Watch() override { Context::current().interceptor = before_; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  bool replay(const OpRow&, const void*, Tensors, TensorList&) override {
    ++begun;
    return false;
  }
  void observe(const OpRow& row, const void*, Tensors, Tensors out) override {
    ++ended[row.name];
    std::string path;
    for (const auto& part : Context::current().module_path) path += part;
    ++modules[path];
    if (!out.empty() && out[0].impl().node)
      static_cast<Node&>(*out[0].impl().node).module_path = path;
  }
  int begun = 0;
  std::map<std::string_view, int> ended;
  std::map<std::string, int> modules;

 private:
  Interceptor* before_;
};

TEST(Checkpoint, AnInterceptorAroundItSeesEveryOp) {
  constexpr std::string_view kAttention = "scaled_dot_product_attention";
  const Session session;
  auto block = std::make_shared<Block>(1);
  const Tensor x = input();
  Watch watch;
  const auto inner = [block](Tensors t) {
    return checkpoint([block](Tensors u) { return TensorList{block->forward(u[0])}; }, {t[0]});
  };
  const Tensor y = checkpoint(inner, {x})[0];
  EXPECT_EQ(watch.ended[kAttention], 1);
  {
    const OutsideCheckpoint outside;
    EXPECT_EQ(Context::current().interceptor, &watch);
  }
  watch.modules.clear();
  Counts counts;
  backward(sum(y));
  EXPECT_GT(counts[kAttention], 0);
  // Each recompute is seen once, and backward's ops run under the module of their forward.
  EXPECT_EQ(watch.ended[kAttention] - 1, counts[kAttention]);
  EXPECT_GT(watch.modules["block"], 20);
  EXPECT_EQ(Context::current().interceptor, &watch);
  EXPECT_TRUE(Context::current().module_path.empty());
}

TEST(Checkpoint, AFunctionsBackwardRunsUnderItsModuleWhereOneWatches) {
  const Session session;
  Watch watch;
  const Tensor x = input();
  std::vector<std::string> seen;
  const Function twice{"twice",
                       [](FunctionContext&, Tensors in) { return TensorList{in[0] * 2.0}; },
                       [&](FunctionContext&, const Grads& dy) {
                         seen = Context::current().module_path;
                         return Grads{dy[0] * 2.0};
                       }};
  const Tensor y = [&] {
    const ModuleScope outer("a"), here("b");
    return apply(twice, {x})[0];
  }();
  backward(sum(y));
  EXPECT_EQ(seen, (std::vector<std::string>{"a.b"}));
}

TEST(Checkpoint, OutsideItAnInterceptorOfTheProgramStays) {
  const Session session;
  Watch watch;
  const Tensor x = input();
  const auto fn = [&](Tensors t) {
    {
      const OutsideCheckpoint outside;
      EXPECT_EQ(Context::current().interceptor, &watch);
    }
    EXPECT_NE(Context::current().interceptor, &watch);
    return TensorList{t[0] * 2.0};
  };
  (void)checkpoint(fn, {x});
}

int attention_runs(const std::optional<CheckpointOptions>& options, std::string_view op) {
  const Session session;
  auto block = std::make_shared<Block>(1);
  const Tensor x = input();
  const Tensor y = options
                       ? checkpoint([block](Tensors t) { return TensorList{block->forward(t[0])}; },
                                    {x}, *options)[0]
                       : block->forward(x);
  Counts counts;
  backward(sum(y));
  return counts[op];
}

TEST(Checkpoint, RunsAgainWhatIsNotKept) {
  const std::string_view attention = "scaled_dot_product_attention", matmul = "matmul";
  const int plain = attention_runs({}, matmul);
  EXPECT_EQ(attention_runs({}, attention), 0);
  EXPECT_EQ(attention_runs(CheckpointOptions{}, attention), 1);
  EXPECT_EQ(attention_runs(CheckpointOptions{}, matmul), plain + 3);  // stops before w2
  EXPECT_EQ(attention_runs(CheckpointOptions{.early_stop = false}, matmul), plain + 4);
  const CheckpointOptions kept{.keep = keep_every_second_matmul()};
  EXPECT_EQ(attention_runs(kept, attention), 0);
  EXPECT_EQ(attention_runs(kept, matmul), plain + 1);  // wo: the second one
  const CheckpointOptions forced{.keep = keep_every_second_matmul({"block"})};
  EXPECT_EQ(attention_runs(forced, matmul), plain + 3);
  EXPECT_EQ(attention_runs(CheckpointOptions{.memory_budget = 0}, attention), 1);
}

TEST(Checkpoint, StoresItsInputsAndWhatIsKept) {
  const Session session;
  const auto stored = [&](const std::optional<CheckpointOptions>& options) {
    auto block = std::make_shared<Block>(1);
    const Tensor x = input();
    const Ref<Allocator>& memory = Context::current().allocator(kCpu);
    const int64_t before = memory->stats().live;
    const Tensor y =
        options ? checkpoint([block](Tensors t) { return TensorList{block->forward(t[0])}; }, {x},
                             *options)[0]
                : block->forward(x);
    return memory->stats().live - before;
  };
  const int64_t activation = kB * kT * kD * 4;
  const int64_t output = stored(CheckpointOptions{});  // rounded up to its size class
  EXPECT_GE(output, activation);
  EXPECT_LT(output, 2 * activation);
  const int64_t all = stored({});
  // Kept: two products, attention's output and its lse.
  EXPECT_LT(stored(CheckpointOptions{.keep = keep_every_second_matmul()}), 5 * output);
  int64_t last = output;
  for (double budget : {0.25, 0.5, 0.75}) {
    const int64_t now = stored(CheckpointOptions{.memory_budget = budget});
    EXPECT_GE(now, last) << budget;
    EXPECT_LE(static_cast<double>(now - output), budget * static_cast<double>(all)) << budget;
    last = now;
  }
}

TEST(Checkpoint, DropsWhatItComputedWithTheNodes) {
  const Session session;
  auto block = std::make_shared<Block>(1);
  const Tensor x = input();
  const Ref<Allocator>& memory = Context::current().allocator(kCpu);
  Tensor y = checkpoint([block](Tensors t) { return TensorList{block->forward(t[0])}; }, {x})[0];
  const int64_t before = memory->stats().live;
  backward(sum(y), {.retain_graph = true});
  int64_t leaf_grads = 0;
  for (const Tensor& p : block->parameters()) leaf_grads += p.grad().storage().bytes();
  leaf_grads += x.grad().storage().bytes();
  EXPECT_LE(memory->stats().live - before, leaf_grads + 6 * 64);
  const auto first = x.grad().values();
  backward(sum(y));  // computes again
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(x.grad().values()[i], 2 * first[i]);
  EXPECT_THROW(backward(sum(y)), AutogradError);
}

TEST(Checkpoint, Nests) {
  const auto run = [](int depth) {
    const Session session;
    auto a = std::make_shared<Block>(1), b = std::make_shared<Block>(2);
    const Tensor x = input();
    const CheckpointedFunction inner = [a](Tensors t) { return TensorList{a->forward(t[0])}; };
    const CheckpointedFunction middle = [=](Tensors t) {
      const Tensor h =
          depth > 1 ? checkpoint(inner, {t[0] * 2.0})[0] : inner(TensorList{t[0] * 2.0})[0];
      return TensorList{b->forward(h) * h};
    };
    const CheckpointedFunction outer = [=](Tensors t) {
      const Tensor h = depth > 2
                           ? checkpoint(middle, {t[0]}, {.keep = keep_every_second_matmul()})[0]
                           : middle(t)[0];
      return TensorList{silu(h)};
    };
    const Tensor y = depth > 0 ? checkpoint(outer, {x})[0] : outer(TensorList{x})[0];
    backward(sum(y * y));
    return std::pair{x.grad().values(), a->w1.grad().values()};
  };
  const auto expected = run(0);
  for (int depth : {1, 2, 3}) EXPECT_EQ(run(depth), expected) << depth;
}

TEST(Checkpoint, HooksRunOnceAndGraphsOfGraphsWork) {
  const auto run = [](bool checkpointed) {
    const Session session;
    const Tensor x = tensor({0.5, -1, 2}).set_requires_grad();
    int calls = 0;
    const CheckpointedFunction f = [&calls](Tensors t) {
      const Tensor y = silu(t[0]) * t[0];
      if (y.requires_grad()) {
        register_hook(y, [&calls](const Tensor& g) {
          ++calls;
          return g * 3.0;
        });
      }
      return TensorList{exp(y)};
    };
    const Tensor y = checkpointed ? checkpoint(f, {x})[0] : f(TensorList{x})[0];
    const Tensor g = grad({sum(y)}, {x}, {.create_graph = true})[0];
    EXPECT_EQ(calls, 1);
    backward(sum(g * g));
    return x.grad().values();
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Checkpoint, SeveralOutputsAndUndefinedInputs) {
  const Session session;
  const Tensor x = tensor({1, 2, 3}).set_requires_grad();
  const TensorList y = checkpoint(
      [](Tensors t) {
        EXPECT_FALSE(t[1].defined());
        return TensorList{exp(t[0]), t[0] * t[0]};
      },
      {x, Tensor()});
  backward(sum(y[1]));
  EXPECT_EQ(x.grad().values(), (std::vector<double>{2, 4, 6}));
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Checkpoint, CatchesAFunctionThatChanges) {
  const Session session;
  const Tensor x = tensor({1, 2, 3, 4}).set_requires_grad();
  const auto run = [&](bool debug, bool check, const std::function<Tensor(Tensor, bool)>& body) {
    return message_of([&] {
      auto again = std::make_shared<bool>(false);
      const Tensor y = checkpoint(
          [&, again](Tensors t) {
            const ModuleScope scope("odd");
            return TensorList{body(t[0], std::exchange(*again, true))};
          },
          {x}, {.determinism_check = check, .debug = debug})[0];
      backward(sum(y));
    });
  };
  const auto shorter = [](const Tensor& t, bool again) {
    const Tensor part = again ? slice(t, 0, {0, 3}) : t;
    return sum(exp(part * part));
  };
  const std::string plain = run(false, true, shorter);
  EXPECT_NE(plain.find("saved tensor 0 was f32[4] in forward and is f32[3] in recompute"),
            plain.npos)
      << plain;
  EXPECT_NE(plain.find("set `debug` to list"), plain.npos) << plain;
  const std::string debug = run(true, true, shorter);
  EXPECT_NE(
      debug.find("0 > forward   mul(f32[4], f32[4]) -> f32[4] in odd\n      recompute slice("),
      debug.npos)
      << debug;
  const auto fewer = [](const Tensor& t, bool again) { return again ? sum(t) : sum(exp(t)); };
  EXPECT_NE(run(false, true, fewer).find("forward saved 1 tensor, recompute 0"), plain.npos);
  EXPECT_NE(run(false, false, fewer).find("forward saved 1 tensor, recompute 0"), plain.npos);
  // Unchecked, a tensor of another shape reaches the op's gradient, which says what it got.
  EXPECT_EQ(run(false, false, shorter).find("saved tensor 0"), plain.npos);
}

TEST(Checkpoint, CatchesWritesInBetween) {
  const Session session;
  const Tensor w = tensor({1, 2}).set_requires_grad(), x = tensor({3, 4}).set_requires_grad();
  const CheckpointedFunction f = [w](Tensors t) { return TensorList{exp(t[0] * w)}; };
  for (const Tensor& written : {w, x}) {
    const Tensor y = checkpoint(f, {x})[0];
    {
      const NoGrad guard;
      scale_({written}, 2);
    }
    EXPECT_THROW(backward(sum(y)), InPlaceError);
  }
}

// tanh saves its output alone, so no saved tensor would show that the bias is another one.
TEST(Checkpoint, CatchesWritesToWhatNoGradientNeeds) {
  const Session session;
  const Tensor x = tensor({3, 4}).set_requires_grad(), leaf = tensor({1, 2}).set_requires_grad();
  for (const Tensor& bias : {leaf, tensor({1, 2})}) {
    for (const CheckpointOptions& options :
         {CheckpointOptions{}, {.keep = keep_ops({"add"})}, {.memory_budget = 0.5}}) {
      const Tensor y = checkpoint(
          [bias](Tensors t) { return TensorList{tanh(t[0] + bias) * t[0]}; }, {x}, options)[0];
      backward(sum(y), {.retain_graph = true});
      {
        const NoGrad guard;
        scale_({bias}, 2);
      }
      EXPECT_THROW(backward(sum(y)), InPlaceError) << bias.requires_grad();
    }
  }
}

// What code that is no op makes within, as a collective does, is not held until backward.
TEST(Checkpoint, HoldsNoBytesThatWereMadeWithin) {
  const Session session;
  const Tensor x = tensor({3, 4}).set_requires_grad();
  int alive = 0;
  const auto made = [&alive] {
    auto* bytes = new std::array<double, 2>{1, 2};
    ++alive;
    return from_blob(bytes->data(), {2}, DType::f64, [bytes, &alive](void*) {
      delete bytes;
      --alive;
    });
  };
  const Tensor y = checkpoint([&](Tensors t) { return TensorList{exp(t[0] * made())}; },
                              {cast(x, DType::f64)})[0];
  EXPECT_EQ(alive, 0);
  backward(sum(y));
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(alive, 0);
}

// What the function computes may be written, by itself and by others that hold it.
TEST(Checkpoint, WritesToItsOwnResultsAreNobodysError) {
  const Session session;
  const Tensor x = tensor({3, 4}).set_requires_grad();
  const Tensor y = checkpoint(
      [](Tensors t) {
        const Tensor noise = full({2}, 3);
        scale_({noise}, 2);
        return TensorList{exp(t[0] * noise)};
      },
      {x})[0];
  backward(sum(y));
  EXPECT_TRUE(x.grad().defined());
}

TEST(Checkpoint, CatchesWritesToWhatIsKeptAndToConstants) {
  const Session session;
  const Tensor x = tensor({3, 4}).set_requires_grad(), scale = tensor({1, 2});
  const CheckpointedFunction f = [scale](Tensors t) { return TensorList{exp(t[0] * scale)}; };
  const Tensor y = checkpoint(f, {x})[0];
  scale_({scale}, 2);
  EXPECT_THROW(backward(sum(y)), InPlaceError);
  const Tensor z = checkpoint(f, {x}, {.keep = keep_ops({"mul", "exp"})})[0];
  {
    const NoGrad guard;
    scale_({z.detach()}, 2);
  }
  EXPECT_THROW(backward(sum(z)), InPlaceError);
}

// A Function may save what none of its ops reads.
TEST(Checkpoint, CatchesWritesToWhatAFunctionSaves) {
  const Session session;
  const Tensor x = tensor({3, 4}).set_requires_grad(), scale = tensor({1, 2});
  const Function scaled{"scaled",
                        [](FunctionContext& c, Tensors in) {
                          c.save({in[1]});
                          return TensorList{in[0] * 1};
                        },
                        [](FunctionContext& c, const Grads& dy) {
                          return Grads{dy[0] * c.saved()[0], Tensor()};
                        }};
  const Tensor y = checkpoint(
      [&](Tensors t) {
        return TensorList{apply(scaled, {t[0], scale})[0]};
      },
      {x})[0];
  scale_({scale}, 2);
  EXPECT_EQ(message_of([&] { backward(sum(y)); }),
            "[checkpoint] a tensor that the function reads, f32[2], was written in place since "
            "forward; write it after backward");
}

TEST(Checkpoint, HooksOnInputsAreRegisteredOnce) {
  const auto run = [](bool checkpointed) {
    const Session session;
    const Tensor x = tensor({1, 2}).set_requires_grad();
    const Tensor h = x * 3.0;
    const CheckpointedFunction f = [](Tensors t) {
      register_hook(t[0], [](const Tensor& g) { return g * 2.0; });
      return TensorList{exp(t[0])};
    };
    backward(sum(checkpointed ? checkpoint(f, {h})[0] : f(TensorList{h})[0]));
    return x.grad().values();
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Checkpoint, BackwardInsideIsRefused) {
  const Session session;
  const Tensor x = tensor({1, 2}).set_requires_grad();
  const std::string message = message_of([&] {
    (void)checkpoint(
        [](Tensors t) {
          const Tensor y = exp(t[0]);
          backward(sum(y));
          return TensorList{y};
        },
        {x});
  });
  EXPECT_NE(message.find("backward was called inside"), message.npos) << message;
  bool again = false;
  const Tensor y = checkpoint(
      [&](Tensors t) {
        const Tensor h = exp(t[0]);
        if (std::exchange(again, true)) backward(sum(h));
        return TensorList{exp(h)};
      },
      {x})[0];
  EXPECT_EQ(message_of([&] { backward(sum(y)); }),
            "[checkpoint] backward was called inside the checkpointed function: call it outside");
}

TEST(Checkpoint, RegathersReleasedBytes) {
  const auto run = [](bool checkpointed) {
    const Session session;
    const Tensor x = normal({3, 4}, {1, 1}).set_requires_grad();
    const Tensor whole = normal({4, 4}, {1, 2});
    const Tensor w = copy(whole).set_requires_grad();
    const CheckpointedFunction f = [w, whole](Tensors t) {
      if (w.storage().released()) {
        w.storage().regain_bytes();
        std::memcpy(w.raw_data(), whole.raw_data(), 64);  // as a gather does: no write of a value
      }
      const Tensor y = silu(linear(t[0], w));
      return TensorList{linear(y, w)};
    };
    const Tensor y =
        checkpointed ? checkpoint(f, {x}, {.early_stop = false})[0] : f(TensorList{x})[0];
    if (checkpointed) w.storage().release_bytes();
    backward(sum(y * 1.5));
    return std::pair{x.grad().values(), w.grad().values()};
  };
  EXPECT_EQ(run(true), run(false));
}

// Runs `f` on a thread whose stack is small.
void on_small_stack(const std::function<void()>& f) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  pthread_t thread;
  const auto call = [](void* at) -> void* {
    (*static_cast<const std::function<void()>*>(at))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, call, const_cast<std::function<void()>*>(&f)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// Backward, or dropping the graph, frees the frames of a long chain one by one, not one inside the
// other.
TEST(Checkpoint, LongChainsAreFreedWithoutRecursion) {
  for (const bool runs_backward : {true, false}) {
    for (const bool detaches : {true, false}) {
      on_small_stack([=] {
        const Session session({.threads = 1});
        const Tensor x = tensor({1, 2}).set_requires_grad();
        // A frame keeps its inputs, also where no gradient flows to them.
        const CheckpointedFunction f = [detaches](Tensors t) {
          return TensorList{maximum(t[0], detaches ? t[1].detach() : t[1])};
        };
        Tensor y = x;
        for (int i = 0; i < 10'000; ++i) y = checkpoint(f, {x, y})[0];
        if (!runs_backward) return;
        backward(sum(y));
        EXPECT_EQ(x.grad().values(), std::vector<double>(2, detaches ? 0.5 : 1));
      });
    }
  }
}

TEST(Checkpoint, RefusesBudgetsThatAreNone) {
  const Session session;
  const Tensor x = tensor({1}).set_requires_grad();
  const CheckpointedFunction f = [](Tensors t) { return TensorList{exp(t[0])}; };
  EXPECT_THROW((void)checkpoint(f, {x}, {.memory_budget = 1.5}), ValueError);
  EXPECT_THROW((void)checkpoint(f, {x}, {.memory_budget = std::nan("")}), ValueError);
  EXPECT_THROW((void)checkpoint(f, {x}, {.keep = keep_ops({"exp"}), .memory_budget = 0.5}),
               ValueError);
}

TEST(Checkpoint, BudgetIsSpentBest) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Choice> choices(random() % 9);
    for (Choice& c : choices)
      c = {static_cast<int64_t>(random() % 50), static_cast<double>(random() % 100) + 1};
    const int64_t budget = trial % 5 ? 100 : 0;
    const auto kept = choose_kept(choices, budget);
    double time = 0, best = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (kept[i]) time += choices[i].seconds, bytes += choices[i].bytes;
    }
    for (uint32_t mask = 0; mask < 1u << choices.size(); ++mask) {
      double t = 0;
      int64_t b = 0;
      for (size_t i = 0; i < choices.size(); ++i) {
        if (mask >> i & 1) t += choices[i].seconds, b += choices[i].bytes;
      }
      if (b <= budget) best = std::max(best, t);
    }
    EXPECT_LE(bytes, budget);
    EXPECT_EQ(time, best) << trial;
  }
}

}  // namespace
}  // namespace tessera

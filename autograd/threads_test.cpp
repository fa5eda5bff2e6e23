// SPDX-License-Identifier: Apache-2.0
// Tensors that several ranks or Sessions reach as threads: refused where autograd would race, and
// allowed where one Session follows another.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

namespace tessera {
namespace {

// The message of the UsageError that `f` throws; "" if it throws none.
template <class F> std::string refusal(F f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

// Runs `f` in a Session of another thread.
template <class F> std::string refusal_on_a_thread(F f) {
  std::string message;
  std::thread([&] {
    const Session session;
    message = refusal(f);
  }).join();
  return message;
}

TEST(LeavesOfThreads, ALeafInUseIsRefusedElsewhere) {
  const Session session;
  const Tensor w = ones({3, 5}).set_requires_grad();
  const Tensor y = sum(w * 2.0);
  const std::string message = refusal_on_a_thread([&] { (void)(w * 3.0); });
  EXPECT_NE(message.find("f32[3, 5]"), message.npos) << message;
  EXPECT_NE(message.find("another thread"), message.npos) << message;
  backward(y);
  EXPECT_EQ(w.grad().values(), std::vector<double>(15, 2));
}

TEST(LeavesOfThreads, OneOfManyThreadsGetsALeafMadeOutside) {
  const Session session;
  const Tensor w = ones({7}).set_requires_grad();
  constexpr int kThreads = 4;
  std::barrier all(kThreads);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const Session own;
      all.arrive_and_wait();
      if (refusal([&] { backward(sum(w * 2.0)); }).empty())
        EXPECT_EQ(w.grad().values(), std::vector<double>(7, 2));
      else ++refused;
      all.arrive_and_wait();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(refused, kThreads - 1);
}

TEST(LeavesOfThreads, RecordedTensorsAreRefusedElsewhere) {
  const Session session;
  const Tensor w = ones({3}).set_requires_grad();
  const Tensor h = w * 2.0;
  const auto use = [&] { (void)(h + 1.0); };
  EXPECT_NE(refusal_on_a_thread(use), "");
  EXPECT_NE(refusal_on_a_thread([&] { backward(h, {.gradient = ones({3})}); }), "");
}

TEST(LeavesOfThreads, ReadingWithoutAutogradIsFree) {
  const Session session;
  const Tensor w = ones({3}).set_requires_grad();
  const Tensor y = w * 2.0;
  EXPECT_EQ(refusal_on_a_thread([&] {
              const NoGrad guard;
              EXPECT_EQ((w + y).values(), std::vector<double>(3, 3));
              EXPECT_EQ(sum(w.detach()).item(), 3);
            }),
            "");
}

TEST(LeavesOfThreads, SessionsMayFollowOneAnother) {
  Tensor w;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(refusal_on_a_thread([&] {
                if (!w.defined()) w = ones({3}).set_requires_grad();
                backward(sum(w * 2.0));
              }),
              "");
  }
  EXPECT_EQ(w.grad().values(), std::vector<double>(3, 6));
}

TEST(LeavesOfThreads, AnInnerSessionOfTheThreadMayUseThem) {
  const Session session;
  const Tensor w = ones({3}).set_requires_grad();
  const Tensor h = w * 2.0;
  const Session inner;
  backward(sum(h * 2.0) + sum(w));
  EXPECT_EQ(w.grad().values(), std::vector<double>(3, 5));
}

}  // namespace
}  // namespace tessera

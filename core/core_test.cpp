// SPDX-License-Identifier: Apache-2.0
// Shapes, storages, allocators, tensors and contexts.
#include "tessera/core/context.h"
#include "tessera/core/message.h"
#include "tessera/core/meta_memory.h"
#include "tessera/core/process.h"
#include "tessera/core/rng.h"
#include "tessera/core/rule.h"
#include "tessera/core/scalar.h"
#include "tessera/core/tensor.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <thread>

namespace tessera {
namespace {

TEST(Counted, TheNounFitsTheNumber) {
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(size_t{2}, "query head"), "2 query heads");
  EXPECT_EQ(counted(-1, "token"), "-1 tokens");
  EXPECT_EQ(counted(1.0, "element"), "1 element");
  EXPECT_EQ(counted(2, "entry"), "2 entries");
  EXPECT_EQ(counted(2, "key"), "2 keys");
  EXPECT_EQ(counted(2, "axis"), "2 axes");
  EXPECT_EQ(counted(2, "class"), "2 classes");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(noun_after(1, "micro-batch"), "micro-batch");
}

TEST(Shape, SizesAreChecked) {
  const Context context;
  EXPECT_THROW((void)empty({-1, 2}), ShapeError);
  EXPECT_THROW((void)empty({int64_t{1} << 40, int64_t{1} << 40}), ShapeError);
  EXPECT_THROW((void)empty({int64_t{1} << 61}, DType::f64), ShapeError);
  EXPECT_EQ(empty({0, int64_t{1} << 40}).numel(), 0);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), ShapeError);
}

TEST(Shape, DimsCountFromTheEndAndAreBounded) {
  EXPECT_EQ(normalize_dim(-1, 3, "op"), 2);
  EXPECT_EQ(normalize_dim(-1, 0, "op"), 0);
  EXPECT_THROW(normalize_dim(3, 3, "op"), IndexError);
  try {
    normalize_dim(-4, 3, "softmax");
  } catch (const IndexError& e) {
    EXPECT_STREQ(e.what(), "[softmax] dim -4 is out of range for rank 3: expected -3 to 2");
  }
}

// `x[0] = y` would set a handle that nobody keeps.
static_assert(std::is_assignable_v<Tensor&, Tensor> && std::is_assignable_v<Tensor&, Tensor&>);
static_assert(!std::is_assignable_v<Tensor, Tensor> && !std::is_assignable_v<Tensor, Tensor&>);

TEST(Tensor, LiteralsReadBack) {
  const Context context;
  const Tensor x = tensor({{1, 2}, {3, 4.5}});
  EXPECT_EQ(x.values(), (std::vector<double>{1, 2, 3, 4.5}));
  EXPECT_EQ(tensor(3, DType::i64).item(), 3);
  EXPECT_THROW((void)x.item(), ShapeError);
  EXPECT_THROW((void)x.data<double>(), DTypeError);
  EXPECT_THROW((void)tensor({{1, 2}, {3}}), ShapeError);
  EXPECT_EQ(tensor({{1}, {2}}).shape(), (Shape{2, 1}));
  EXPECT_EQ(tensor({1}).shape(), Shape{1});
  EXPECT_EQ(tensor({9007199254740993}, DType::i64).to_vector<int64_t>()[0], 9007199254740993);
  EXPECT_THROW((void)Tensor().shape(), UsageError);
}

TEST(Scalar, KeepsIntegersAndDoubles) {
  constexpr int64_t kBig = 9007199254740993;  // no double holds it
  EXPECT_EQ(Scalar(kBig).whole(), kBig);
  EXPECT_EQ(concat(Scalar(kBig)), "9007199254740993");
  EXPECT_EQ((-Scalar(kBig)).whole(), -kBig);
  EXPECT_EQ(Scalar(0.5).real(), 0.5);
  EXPECT_FALSE(Scalar(0.5).is_whole());
  EXPECT_TRUE(Scalar(2.0).is_whole());
  EXPECT_TRUE(std::signbit((-Scalar(0)).real()));
  EXPECT_FALSE(Scalar(std::numeric_limits<uint64_t>::max()).is_whole());
  EXPECT_FALSE(Scalar(0x1p63).fits(DType::i64));
  EXPECT_FALSE(Scalar(INFINITY).fits(DType::i64));
  EXPECT_TRUE(Scalar(-1).fits(DType::i32));
  EXPECT_FALSE(Scalar(int64_t{1} << 31).fits(DType::i32));
  EXPECT_FALSE(Scalar(-1).fits(DType::u8));
  EXPECT_EQ(Scalar(true), Scalar(1));
}

TEST(Tensor, ValuesAndGradientsMustFit) {
  const Context context;
  EXPECT_EQ(test::error_of<ShapeError>([] {
              (void)from_values({1, 2, 3}, {2, 2});
            }),
            "[from_values] 3 values cannot fill [2, 2], which holds 4");
  Tensor x = tensor({1, 2}).set_requires_grad();
  EXPECT_EQ(test::error_of<ShapeError>([&] {
              x.set_grad(tensor({1, 2}, DType::f64));
            }),
            "[set_grad] the gradient of f32[2] cannot be f64[2]");
  x.set_grad(tensor({3, 4}));
  EXPECT_EQ(x.grad().values(), (std::vector<double>{3, 4}));
}

TEST(DType, ADispatchTakesTheTypesOfItsSetAlone) {
  EXPECT_EQ(dispatch<kFloats>(DType::f64, []<class T>() { return sizeof(T); }), 8u);
  EXPECT_EQ(test::error_of<DTypeError>(
                [] { (void)dispatch<kFloats>(DType::i64, []<class T>() { return sizeof(T); }); }),
            "[dispatch] no kernel for dtype i64");
}

TEST(Saved, WhatSavesDoesNotDeclareIsNotRead) {
  const Tensor none;
  const Saved saved(Tensors(&none, 1), Tensors(&none, 1), Metas(nullptr, 0), Metas(nullptr, 0));
  EXPECT_EQ(test::error_of<UsageError>([&] { (void)saved.input(0); }),
            "[vjp] reads input 0, which `saves` does not declare or which was not given");
  EXPECT_EQ(test::error_of<UsageError>([&] { (void)saved.output(); }),
            "[vjp] reads output 0, which `saves` does not declare or which was not given");
}

TEST(Tensor, SpansAndVectorsKeepAllBits) {
  const Context context;
  const std::vector<int64_t> ids{1, 9007199254740993, -9007199254740993, 4};
  const Tensor x = from_span(ids, {2, 2});
  EXPECT_EQ(x.dtype(), DType::i64);
  EXPECT_EQ(x.to_vector<int64_t>(), ids);
  EXPECT_EQ(alias(x, {2}, {2}, 1).to_vector<int64_t>(), (std::vector<int64_t>{ids[1], ids[3]}));
  EXPECT_EQ(tensor<int64_t>({9007199254740993}).item<int64_t>(), 9007199254740993);
  EXPECT_EQ(tensor<int32_t>(5).dtype(), DType::i32);
  EXPECT_EQ(from_span(std::vector<float>{}).shape(), (Shape{0}));
  EXPECT_EQ(tensor({1, 0}, DType::bool_).to_vector<bool>(), (std::vector<bool>{true, false}));
  EXPECT_THROW((void)x.to_vector<int32_t>(), DTypeError);
  EXPECT_THROW((void)x.item<int64_t>(), ShapeError);
  EXPECT_THROW((void)from_span(ids, {3}), ShapeError);
}

TEST(Tensor, ABlobIsNotCopiedAndGoesBackToItsOwner) {
  const Context context;
  std::vector<float> memory{1, 2, 3, 4};
  std::vector<void*> given_back;
  const auto keep = [&](void* p) { given_back.push_back(p); };
  {
    const Tensor x = from_blob(memory.data(), {2, 2}, DType::f32, keep);
    const Tensor view = alias(x, {2}, {1}, 2);
    memory[2] = 5;
    EXPECT_EQ(view.values(), (std::vector<double>{5, 4}));
    EXPECT_EQ(x.data<float>(), memory.data());
  }
  EXPECT_EQ(given_back, (std::vector<void*>{memory.data()}));
  (void)from_blob(nullptr, {0}, DType::f32, keep);  // no bytes: told of all the same
  EXPECT_EQ(given_back.size(), 2u);
  EXPECT_EQ(from_blob(memory.data(), {4}, DType::f32).values()[0], 1);
  EXPECT_THROW((void)from_blob(nullptr, {1}, DType::f32), ValueError);
  EXPECT_THROW((void)from_blob(reinterpret_cast<char*>(memory.data()) + 1, {1}, DType::f32),
               ValueError);
  EXPECT_THROW((void)from_blob(memory.data(), {4}, DType::f32, {}, kMeta), DeviceError);
}

TEST(Tensor, MetaTensorsHaveShapeAndNoBytes) {
  const Context context;
  const Tensor x = empty({int64_t{1} << 40}, DType::bf16, kMeta);
  EXPECT_EQ(x.numel(), int64_t{1} << 40);
  EXPECT_THROW((void)x.data<bf16>(), DeviceError);
}

TEST(Tensor, EachSideGetsTheAddressesOfItsOwnTensorsAlone) {
  const Context context;
  std::array<float, 4> memory{1, 2, 3, 4};
  const Tensor there = from_blob(memory.data(), {2, 2}, DType::f32, {}, cuda(1));
  const std::string host_error =
      "[data] f32[2, 2]@cuda:1 is on a device, whose bytes the host cannot read or write: "
      "values(), "
      "item() and to_vector() wait for the device and read them, to_device(x, kCpu) copies them";
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)there.data<float>(); }), host_error);
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)there.raw_data(); }), host_error);
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)there.read_data(); }), host_error);
  EXPECT_THROW((void)there.device_data<double>(), DTypeError);
  EXPECT_EQ(there.device_data<float>(), memory.data());
  const Tensor column = alias(there, {2}, {2}, 1);
  EXPECT_EQ(column.device_data<float>(), memory.data() + 1);
  EXPECT_EQ(column.raw_device_data(), memory.data() + 1);
  EXPECT_EQ(column.settled_address(Access::read), memory.data() + 1);
  EXPECT_EQ(column.address(), memory.data() + 1);

  const Tensor here = tensor({1, 2});
  const std::string device_error =
      "[device_data] f32[2] is on the CPU, expected a tensor of a device: copy it there by "
      "to_device(x, cuda()), or read it by data()";
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)here.device_data<float>(); }), device_error);
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)here.raw_device_data(); }), device_error);
  EXPECT_EQ(here.settled_address(Access::write), here.data<float>());
  const Tensor meta = empty({2}, DType::f32, kMeta);
  EXPECT_THROW((void)meta.device_data<float>(), DeviceError);
  there.storage().release_bytes();
  EXPECT_THROW((void)there.device_data<float>(), StorageError);
}

TEST(Tensor, OnADeviceThatIsNotHereIsATypedError) {
  const Context context;
  EXPECT_THROW((void)empty({2}, DType::f32, cuda(127)), DeviceError);
  if (!Process::get().cuda_available()) {
    EXPECT_THROW((void)empty({2}, DType::f32, cuda(0)), DeviceError);
  }
}

TEST(Storage, ReleasesAndRegainsItsBytesUnderItsViews) {
  const Context context;
  const Tensor x = tensor({1, 2, 3, 4}), view = alias(x, {2}, {1}, 2);
  const uint32_t version = x.storage().version();
  x.storage().release_bytes();
  EXPECT_TRUE(view.storage().released());
  EXPECT_THROW((void)view.data<float>(), StorageError);
  x.storage().regain_bytes();
  x.data<float>()[3] = 7;
  EXPECT_EQ(view.data<float>()[1], 7);
  EXPECT_EQ(x.storage().version(), version);
}

// Ranks with smaller shards count as many writes.
TEST(Storage, ACopyOfNoBytesIsAWrite) {
  Context context;
  const Tensor none = empty({0, 3});
  const uint32_t before = none.storage().version();
  copy_bytes(none, empty({0, 3}));
  EXPECT_EQ(none.storage().version(), before + 1);
}

TEST(Storage, ARefillKeepsTheVersionAndIsOfReleasedBytesAlone) {
  const Context context;
  const Tensor x = tensor({1, 2, 3, 4}), values = tensor({1, 2, 3, 4});
  const uint32_t version = x.storage().version();
  EXPECT_THROW(Storage::Refill{x.storage()}, StorageError);
  x.storage().release_bytes();
  {
    const Storage::Refill refill(x.storage());
    copy_bytes(x, values);
    EXPECT_EQ(x.storage().version(), version);
  }
  copy_bytes(x, values);
  EXPECT_EQ(x.storage().version(), version + 1);
  x.storage().release_bytes();
  try {
    const Storage::Refill refill(x.storage());
    fail<ValueError>("test", "it does not come");
  } catch (const ValueError&) {
  }
  EXPECT_TRUE(x.storage().released());
}

// An operation that ends when the test says so.
class Job final : public PendingUse {
 public:
  [[nodiscard]] std::string text() const override { return "job"; }
  int waits = 0;

 private:
  bool advance() override { return ended(); }
  void block() override {
    ++waits;
    end();
  }
};

TEST(Storage, WaitsForWhatIsInTheWay) {
  const Context context;
  const Tensor x = tensor({1, 2, 3, 4});
  const auto reads = make_ref<Job>(), writes = make_ref<Job>();
  x.storage().add_use(reads, Access::read, {0, 8});
  EXPECT_EQ(x.values()[0], 1);  // beside a read
  (void)alias(x, {2}, {1}, 2).data<float>();
  EXPECT_EQ(reads->waits, 0);
  (void)x.data<float>();
  EXPECT_EQ(reads->waits, 1);
  x.storage().add_use(writes, Access::write, {8, 12});
  EXPECT_EQ(alias(x, {2}, {2}, 1).values()[0], 2);  // elements 1 and 3, and what lies between
  EXPECT_EQ(writes->waits, 1);
  EXPECT_EQ(x.values()[3], 4);
  EXPECT_TRUE(x.storage().ready());
  EXPECT_EQ(writes->waits, 1);
}

TEST(Storage, AnErrorUnderWayIsThrownOnce) {
  const Context context;
  const Tensor x = tensor({1, 2, 3, 4});
  const auto writes = make_ref<Job>();
  x.storage().add_use(writes, Access::write, {0, 16});
  writes->end(std::make_exception_ptr(PeerFailed("it left")));
  EXPECT_THROW((void)x.values(), PeerFailed);
  EXPECT_EQ(x.values()[0], 1);
}

TEST(Storage, BytesInUseOutliveTheirStorage) {
  Context context;
  const auto live = [&] { return context.allocator(kCpu)->stats().live; };
  const int64_t before = live();
  for (const bool released : {true, false}) {
    const auto job = make_ref<Job>();
    {
      const Tensor x = empty({1000});
      x.storage().add_use(job, Access::read, x.byte_range());
      if (released) x.storage().release_bytes();
    }
    EXPECT_GT(live(), before);
    job->end();
    EXPECT_EQ(live(), before);
  }
}

TEST(Storage, PartsAreStoragesOfTheirOwn) {
  Context context;
  const auto live = [&] { return context.allocator(kCpu)->stats().live; };
  const int64_t before = live();
  const auto job = make_ref<Job>();
  Tensor flat = tensor({1, 2, 3, 4, 5, 6});
  flat.storage().add_use(job, Access::write, {0, 24});
  Tensor a = carve(flat, 0, {2}), b = carve(flat, 2, {2, 2});
  EXPECT_EQ(b.address(), static_cast<float*>(flat.address()) + 2);
  EXPECT_EQ(job->waits, 0);
  EXPECT_EQ(b.values(), (std::vector<double>{3, 4, 5, 6}));
  EXPECT_EQ(job->waits, 1);
  EXPECT_EQ(a.storage().use_count(), 1u);
  copy_bytes(a, tensor({7, 8}));
  EXPECT_EQ(b.storage().version(), 0u);
  EXPECT_EQ(flat.values()[1], 8);
  EXPECT_THROW((void)carve(flat, 3, {4}), ShapeError);
  EXPECT_THROW((void)carve(alias(flat, {3}, {2}, 0), 0, {1}), UsageError);
  EXPECT_EQ(carve(flat, 6, {0, 3}).numel(), 0);
  const Tensor released = tensor({1, 2});
  released.storage().release_bytes();
  EXPECT_EQ(test::error_of<StorageError>([&] { (void)carve(released, 0, {1}); }),
            "[storage] a part of released bytes: regain them before");
  flat = a = {};
  EXPECT_EQ(b.values()[3], 6);
  EXPECT_GT(live(), before);
  b = {};
  EXPECT_EQ(live(), before);
}

TEST(Storage, PartsOnTheMetaDeviceKeepTheCountOfTheWhole) {
  Context context;
  const MetaMemory memory;
  Tensor flat = empty({1000}, DType::f32, kMeta);
  const int64_t whole = memory.stats().live;
  Tensor a = carve(flat, 0, {600}), b = carve(flat, 600, {400});
  flat = a = {};
  EXPECT_EQ(memory.stats().live, whole);
  b = {};
  EXPECT_EQ(memory.stats().live, 0);
}

TEST(Allocator, ReusesBlocksAndCountsThem) {
  Context context;
  const auto& allocator = context.allocator(kCpu);
  const auto before = allocator->stats();
  void* first = nullptr;
  {
    const Tensor x = empty({1000});
    first = x.raw_data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    EXPECT_GE(allocator->stats().live - before.live, 4000);
  }
  EXPECT_EQ(allocator->stats().live, before.live);
  EXPECT_EQ(empty({1000}).raw_data(), first);
  const void* large = nullptr;
  {
    const Tensor x = empty({1 << 20});
    large = x.raw_data();
  }
  EXPECT_EQ(empty({(1 << 20) - 1000}).raw_data(), large);
  allocator->empty_cache();
  EXPECT_EQ(allocator->stats().cached, 0);
}

// Also where a step frees many blocks of one size at once: the next has them again.
TEST(Allocator, AStepThatRepeatsTakesNothingFromTheSystem) {
  Context context;
  const auto& allocator = context.allocator(kCpu);
  int64_t held = 0;
  for (int step = 0; step < 3; ++step) {
    for (const int64_t bytes : {64, 5000, 32 << 10, 64 << 10, 1 << 20}) {
      std::vector<Tensor> all;
      for (int i = 0; i < 60; ++i) all.push_back(empty({bytes}, DType::u8));
    }
    const MemoryStats now = allocator->stats();
    if (step > 0) {
      EXPECT_EQ(now.live + now.cached, held);
    }
    held = now.live + now.cached;
  }
}

// Freed memory serves any size.
TEST(Allocator, SmallBlocksMakeRoomForLargeOnes) {
  Context context;
  const auto& allocator = context.allocator(kCpu);
  constexpr int64_t kSmall = 64 << 10, kCount = 2000;
  {
    std::vector<Tensor> all;
    for (int64_t i = 0; i < kCount; ++i) all.push_back(empty({kSmall}, DType::u8));
  }
  const int64_t held = allocator->stats().cached;
  EXPECT_GE(held, kCount * kSmall);
  (void)empty({kCount * kSmall / 3}, DType::u8);
  EXPECT_EQ(allocator->stats().cached, held);
}

TEST(Allocator, BlocksComeHomeFromOtherThreadsAndOutliveTheirContext) {
  Tensor survivor;
  {
    Context context;
    Tensor x = empty({100});
    const void* block = x.raw_data();
    std::thread([t = std::move(x)]() mutable { t = Tensor(); }).join();
    EXPECT_EQ(empty({100}).raw_data(), block);
    survivor = empty({100});
    survivor.data<float>()[0] = 5;
  }
  EXPECT_EQ(survivor.data<float>()[0], 5);
}

TEST(Context, MayEndInAnyOrder) {
  auto first = std::make_unique<Context>();
  auto second = std::make_unique<Context>();
  first.reset();
  EXPECT_EQ(&Context::current(), second.get());
  second.reset();
  EXPECT_EQ(Context::current_or_null(), nullptr);
}

// Asks, while it goes, what was made before it, and makes what was not there.
struct EarlyState {
  std::vector<std::string>* log = nullptr;
  ~EarlyState() { log->emplace_back("early"); }
};
struct NewState {
  int value = 3;
};
struct LateState {
  ~LateState() {
    auto* log = Context::current().state<EarlyState>().log;
    log->push_back("late, new " + std::to_string(Context::current().state<NewState>().value));
  }
};
TEST(Context, StatesGoBackToFront) {
  std::vector<std::string> log;
  {
    Context context;
    context.state<EarlyState>().log = &log;
    (void)context.state<LateState>();
  }
  EXPECT_EQ(log, (std::vector<std::string>{"late, new 3", "early"}));
}

TEST(Context, ThreadsWithoutOneGetATypedError) {
  std::thread([] { EXPECT_THROW((void)empty({2}), UsageError); }).join();
}

TEST(Context, ThreadsAreCountedFromZero) {
  EXPECT_EQ(test::error_of<ValueError>([] { const Context context({.threads = -1}); }),
            "[context] threads is -1: expected 0 (all cores) or more");
}

TEST(Process, AnInstructionSetBeyondTheMachinesIsAnError) {
  const Isa before = Process::get().isa(), beyond = static_cast<Isa>(255);
  EXPECT_EQ(test::error_of<ValueError>([&] { Process::get().limit_isa(beyond); }),
            "[process] this machine lacks the instruction set that was asked for");
  EXPECT_EQ(Process::get().isa(), before);
}

TEST(Rng, IsAFunctionOfKeyAndIndex) {
  const RngKey key{7, stream_of("layers.0.attention.wq.weight")};
  const auto a = rng::normal4(key, 3), b = rng::normal4(key, 3),
             c = rng::normal4({8, key.stream}, 3);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(a.v[i], b.v[i]);
    EXPECT_NE(a.v[i], c.v[i]);
  }
  // Philox 4x32-10 of counter 0 and key 0, from the reference implementation's test vectors.
  const auto p = rng::philox({0, 0}, 0);
  EXPECT_EQ(p.v[0], 0x6627e8d5u);
  EXPECT_EQ(p.v[1], 0xe169c58du);
  EXPECT_EQ(p.v[2], 0xbc57ac4cu);
  EXPECT_EQ(p.v[3], 0x9b00dbd8u);
}

TEST(Rng, NormalsHaveTheMomentsOfANormal) {
  double sum = 0, square = 0, fourth = 0;
  constexpr int kBlocks = 100000;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    for (float v : rng::normal4({1, 2}, i).v) {
      const double x = v;
      sum += x;
      square += x * x;
      fourth += x * x * x * x;
    }
  }
  constexpr double kN = 4.0 * kBlocks;
  EXPECT_NEAR(sum / kN, 0, 0.01);
  EXPECT_NEAR(square / kN, 1, 0.01);
  EXPECT_NEAR(fourth / kN, 3, 0.06);
}

TEST(Rule, ReadsFactorsFromTextAndShapes) {
  const TensorMeta a{{2, 5, 7}, DType::f32, kCpu}, b{{7, 6}, DType::f32, kCpu};
  const TensorMeta* both[] = {&a, &b};
  const ShardingRule r = rule("... m k, k n -> ... m n", Metas(both, 2));
  EXPECT_EQ(r.inputs(), 2);
  EXPECT_EQ(r.operands(), 3);
  EXPECT_EQ(r.text(), "(f0 m k), (k n) -> (f0 m n)");
  EXPECT_EQ(r.factors()[0].size, 2);
}

TEST(Rule, AnInputOfAnotherRankDoesNotFit) {
  const TensorMeta a{{2, 5, 7}, DType::f32, kCpu}, b{{7}, DType::f32, kCpu};
  const TensorMeta* both[] = {&a, &b};
  EXPECT_EQ(test::error_of<ShapeError>([&] {
              (void)rule("... m k, k n -> ... m n", {both, 2});
            }),
            "[rule] \"... m k, k n -> ... m n\" does not fit input 1 of shape [7]");
}

TEST(Rule, ADimOfSizeOneIsBroadcast) {
  const TensorMeta a{{2, 1}, DType::f32, kCpu}, b{{2, 6}, DType::f32, kCpu};
  const TensorMeta* both[] = {&a, &b};
  EXPECT_EQ(pointwise_rule(Metas(both, 2), {2, 6}).text(), "(f0 1), (f0 f1) -> (f0 f1)");
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Memory and streams of core/cuda on emulated devices, whose streams run in random order unless
// events bind them: a block that is reused too early, and a copy that is read too early, show in
// the bytes. The sources are compiled in, since libtessera_cuda.so shows nothing of them.
#include "tessera/core/cuda/kernel_table_impl.h"
#include "tessera/core/cuda/lanes_impl.h"
#include "tessera/core/error.h"
#include "tessera/core/storage.h"
#include "tessera/tests/support/error_of.h"

#include "cuda_runtime.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

extern "C" tessera::CudaBackend* tessera_cuda_backend();

namespace tessera {

CudaBackend::Kernel find_cuda_kernel(std::string_view) { return nullptr; }

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kDeviceMiB = 96;

void never_returns() {
  if (threadIdx.x == 0) __syncthreads();
}

class DeviceStreams : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("TESSERA_EMULATED_DEVICES", "2", 1);
    setenv("TESSERA_EMULATED_MEMORY_MB", std::to_string(kDeviceMiB).c_str(), 1);
    unsetenv("TESSERA_NO_CUDA_MEMORY_CACHING");  // the cache is what is tested
  }
  void SetUp() override {
    (void)cudaDeviceReset();
    (void)lane_of(1);
    (void)lane_of(0);
    for (Stream& s : others_) s = cuda_.take_stream(0);
    cuda_.allocator(0)->empty_cache();
    cuda_.allocator(0)->reset_peak();
  }
  void TearDown() override {
    (void)cudaDeviceReset();
    for (const Stream s : others_) cuda_.give_stream(s);
  }

  [[nodiscard]] Stream mine() { return cuda_.stream(0); }
  static cudaStream_t handle(Stream s) { return static_cast<cudaStream_t>(s.handle); }
  [[nodiscard]] Ref<Storage> make(int64_t bytes) {
    return make_ref<Storage>(cuda_.allocator(0), bytes, cuda(0));
  }
  /// New memory that the host fills.
  [[nodiscard]] Ref<Storage> upload(const std::vector<uint8_t>& bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    auto storage = make_ref<Storage>(cuda_.upload_allocator(0), size, cuda(0));
    cuda_.upload(storage->data(), 0, bytes.data(), size);
    return storage;
  }
  static std::byte* at(const Ref<Storage>& s, int64_t offset = 0) {
    return static_cast<std::byte*>(s->data()) + offset;
  }
  static void fill(const Ref<Storage>& s, uint8_t value, Stream stream) {
    ASSERT_EQ(cudaMemsetAsync(s->data(), value, static_cast<size_t>(s->bytes()), handle(stream)),
              cudaSuccess);
  }
  static void copy_byte(std::byte* to, const std::byte* from, Stream stream) {
    ASSERT_EQ(cudaMemcpyAsync(to, from, 1, cudaMemcpyDeviceToDevice, handle(stream)), cudaSuccess);
  }
  [[nodiscard]] std::vector<uint8_t> read(const Ref<Storage>& s) {
    std::vector<uint8_t> bytes(static_cast<size_t>(s->bytes()));
    cuda_.copy(bytes.data(), kCpu, s->data(), cuda(0), s->bytes());
    return bytes;
  }
  static int64_t free_bytes(int device) {
    const OnDevice there(device);
    size_t free = 0, all = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
    return static_cast<int64_t>(free);
  }
  size_t below(size_t n) { return random_() % n; }

  // Blocks of any size, used on any of four streams and freed without a wait. Gives how many of the
  // bytes that were read are not those that the program wrote last.
  int wrong_bytes(bool recorded);

  CudaBackend& cuda_ = *tessera_cuda_backend();
  std::array<Stream, 3> others_;
  std::mt19937 random_{std::random_device{}()};
};

int DeviceStreams::wrong_bytes(bool recorded) {
  constexpr size_t kReads = 400;
  struct Block {
    Ref<Storage> storage;
    uint8_t value;
  };
  std::vector<Block> blocks;
  std::vector<uint8_t> expected;
  const Ref<Storage> seen = make(kReads);
  fill(seen, 0, mine());
  for (const Stream s : others_) cuda_.order(mine(), s);
  const auto use = [&](const Block& block) {
    const size_t which = below(others_.size() + 1);
    const Stream stream = which == others_.size() ? mine() : others_[which];
    if (recorded) {
      cuda_.record_stream(*block.storage, stream);
    } else {  // read in order, but freed as if only this thread's stream had used it
      for (const Stream s : others_) cuda_.order(s, stream);
      cuda_.order(mine(), stream);
    }
    return stream;
  };
  while (expected.size() < kReads) {
    const size_t what = below(8);
    if (blocks.empty() || what < 3) {
      const auto bytes = static_cast<int64_t>(1 + below(size_t{1} << (1 + below(18))));
      Block block{make(bytes), static_cast<uint8_t>(below(256))};
      fill(block.storage, block.value, mine());
      blocks.push_back(std::move(block));
      continue;
    }
    Block& block = blocks[below(blocks.size())];
    if (what == 3) {
      const Stream stream = use(block);
      block.value = static_cast<uint8_t>(below(256));
      fill(block.storage, block.value, stream);
    } else if (what < 6) {
      const Stream stream = use(block);
      copy_byte(at(seen, static_cast<int64_t>(expected.size())),
                at(block.storage,
                   static_cast<int64_t>(below(static_cast<size_t>(block.storage->bytes())))),
                stream);
      expected.push_back(block.value);
    } else {
      std::swap(block, blocks.back());
      blocks.pop_back();
    }
    if (below(200) == 0) cuda_.allocator(0)->empty_cache();
  }
  blocks.clear();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint8_t> got = read(seen);
  return std::inner_product(got.begin(), got.end(), expected.begin(), 0, std::plus<>(),
                            std::not_equal_to<>());
}

TEST_F(DeviceStreams, AreAllDoneWithABlockBeforeItIsReused) {
  const MemoryStats before = cuda_.allocator(0)->stats();
  for (int trial = 0; trial < 30; ++trial) EXPECT_EQ(wrong_bytes(true), 0);
  EXPECT_EQ(cuda_.allocator(0)->stats().live, before.live);
  // The test would notice: without the record of other streams bytes are lost.
  int wrong = 0;
  for (int trial = 0; trial < 30 && wrong == 0; ++trial) wrong += wrong_bytes(false);
  EXPECT_GT(wrong, 0);
}

TEST_F(DeviceStreams, ReuseTheirOwnBlocksAtOnce) {
  std::set<const void*> addresses;
  const int64_t free = [&] {
    const Ref<Storage> first = make(5000);
    addresses.insert(first->data());
    return free_bytes(0);
  }();
  for (int i = 0; i < 20; ++i) {
    const Ref<Storage> next = make(4900 + i);
    fill(next, 1, mine());
    addresses.insert(next->data());
  }
  EXPECT_EQ(addresses.size(), 1u);
  EXPECT_EQ(free_bytes(0), free);
}

TEST_F(DeviceStreams, PartsOfABlockAreUsesOfIt) {
  const Ref<Storage> seen = make(60);
  fill(seen, 0, mine());
  cuda_.order(mine(), others_[0]);
  for (int i = 0; i < 60; ++i) {
    Ref<Storage> whole = make(3000);
    fill(whole, static_cast<uint8_t>(i), mine());
    {
      const Ref<Storage> part = Storage::part(whole, {1000, 2000});
      cuda_.record_stream(*part, others_[0]);
      copy_byte(at(seen, i), at(part, 999), others_[0]);
    }
    whole = nullptr;
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint8_t> got = read(seen);
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(got[i], i);
}

TEST_F(DeviceStreams, CopyFromTheHostBesideWhatIsComputed) {
  const Ref<Storage> seen = make(200), work = make(1000);
  int beside = 0;
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k < 10; ++k) fill(work, 1, mine());
    const Ref<Storage> batch = upload(std::vector<uint8_t>(700, static_cast<uint8_t>(i)));
    ASSERT_EQ(cudaStreamSynchronize(lane_of(0).copy_stream), cudaSuccess);
    beside += cudaStreamQuery(handle(mine())) == cudaErrorNotReady ? 1 : 0;
    copy_byte(at(seen, i), at(batch, 699), mine());
  }
  const std::vector<uint8_t> got = read(seen);
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(got[i], i);
  EXPECT_GT(beside, 100);  // what was computed had not ended
}

// In the order of the stream where the bytes were there before, but the host does not wait.
TEST_F(DeviceStreams, CopyFromTheHostWithoutAWaitOfTheHost) {
  const Ref<Storage> seen = make(100), work = make(1000);
  int ahead = 0;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 10; ++k) fill(work, 255, mine());
    std::vector<uint8_t> bytes(1000, static_cast<uint8_t>(i));
    cuda_.copy(work->data(), cuda(0), bytes.data(), kCpu, 1000);
    std::ranges::fill(bytes, 254);
    ahead += cudaStreamQuery(handle(mine())) == cudaErrorNotReady ? 1 : 0;
    copy_byte(at(seen, i), at(work, 999), mine());
  }
  const std::vector<uint8_t> got = read(seen);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(got[i], i);
  EXPECT_GT(ahead, 50);
}

// Batches come and go while the device is behind.
TEST_F(DeviceStreams, KeepABatchUntilItHasBeenRead) {
  const Ref<Storage> seen = make(250);
  for (int i = 0; i < 250; ++i) {
    const Ref<Storage> batch = upload(std::vector<uint8_t>(5000, static_cast<uint8_t>(i)));
    copy_byte(at(seen, i), at(batch, 4999), mine());
  }
  const std::vector<uint8_t> got = read(seen);
  for (size_t i = 0; i < 250; ++i) EXPECT_EQ(got[i], i);
  EXPECT_LT(kDeviceMiB * kMiB - free_bytes(0), 16 * kMiB);
}

TEST_F(DeviceStreams, OfOtherThreadsGoOnAfterThoseTheyTakeTensorsFrom) {
  for (int trial = 0; trial < 40; ++trial) {
    Ref<Storage> made = make(100'000);
    fill(made, 7, mine());
    std::vector<uint8_t> got;
    std::thread other([&] {
      const Ref<Storage> copy = make(100'000);
      cuda_.copy(copy->data(), cuda(0), made->data(), cuda(0), 100'000);
      made = nullptr;  // freed here, and its stream may reuse it
      got = read(copy);
    });
    other.join();
    fill(make(100'000), 9, mine());
    EXPECT_EQ(std::ranges::count(got, 7), 100'000);
  }
}

TEST_F(DeviceStreams, OfAThreadReuseWhatAnotherHasFreedWithoutUsingIt) {
  for (int trial = 0; trial < 20; ++trial) {
    const Ref<Storage> seen = make(1);
    Ref<Storage> made = make(40'000);
    fill(made, 3, mine());
    copy_byte(at(seen), at(made, 39'999), mine());
    std::thread([gone = std::move(made)]() mutable { gone = nullptr; }).join();
    const Ref<Storage> next = make(40'000);
    fill(next, 4, mine());
    EXPECT_EQ(read(seen)[0], 3);
  }
}

TEST_F(DeviceStreams, OfManyThreadsShareADevice) {
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Ref<Storage>> blocks;
      for (int i = 0; i < 150; ++i) {
        blocks.push_back(make(static_cast<int64_t>(1 + random() % 60'000)));
        fill(blocks.back(), static_cast<uint8_t>(i), mine());
        if (random() % 2 == 0) {
          std::swap(blocks[random() % blocks.size()], blocks.back());
          const std::vector<uint8_t> got = read(blocks.back());
          wrong[t] += static_cast<int>(std::ranges::count(got, got[0])) !=
                      static_cast<int>(blocks.back()->bytes());
          blocks.pop_back();
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

TEST_F(DeviceStreams, AreOrderedByTheCallThatSaysSo) {
  const Ref<Storage> x = make(1);
  for (int i = 0; i < 60; ++i) {
    fill(x, 1, others_[0]);
    cuda_.order(others_[0], others_[1]);
    fill(x, 2, others_[1]);
    cuda_.order(others_[1], mine());
    EXPECT_EQ(read(x)[0], 2);
  }
  // Of two devices, from whichever device is the current one.
  const Stream there = cuda_.take_stream(1);
  (void)lane_of(0);
  cuda_.order(there, mine());
  cuda_.order(mine(), there);
  int current = -1;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
  cuda_.give_stream(there);
}

TEST_F(DeviceStreams, ThatCannotBeOrderedAreAnError) {
  const Ref<Storage> x = make(100);
  const cudaLaunchConfig_t config{1, 32, 0, handle(others_[0])};
  ASSERT_EQ(cudaLaunchKernelEx(&config, never_returns), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(handle(others_[0])), cudaErrorLaunchFailure);
  EXPECT_THROW(cuda_.order(others_[0], mine()), DeviceError);
  EXPECT_THROW(cuda_.record_stream(*x, others_[0]), DeviceError);
}

TEST_F(DeviceStreams, CopyBetweenDevicesWithoutAWaitOfTheHost) {
  const Ref<Storage> here = make(500);
  Ref<Storage> there = make_ref<Storage>(cuda_.allocator(1), 500, cuda(1));
  for (int i = 0; i < 60; ++i) {
    fill(here, static_cast<uint8_t>(i), mine());
    cuda_.copy(there->data(), cuda(1), here->data(), cuda(0), 500);
    fill(here, 255, mine());
    std::vector<uint8_t> got(500);
    cuda_.copy(got.data(), kCpu, there->data(), cuda(1), 500);
    EXPECT_EQ(std::ranges::count(got, i), 500);
  }
}

TEST_F(DeviceStreams, TakeMemoryOfTheDeviceThatIsUsedAlone) {
  const int64_t before = free_bytes(1);
  const Ref<Storage> x = make(kMiB);
  EXPECT_EQ(free_bytes(1), before);
  EXPECT_LT(free_bytes(0), kDeviceMiB * kMiB);
}

// --- a device that is full -------------------------------------------------------------------------

TEST_F(DeviceStreams, ThatFindNoMemoryTakeWhatOthersHaveCached) {
  std::thread([&] { (void)make(60 * kMiB); }).join();  // its lane keeps the segment
  EXPECT_LT(free_bytes(0), 40 * kMiB);
  const Ref<Storage> x = make(60 * kMiB);
  EXPECT_NE(x->data(), nullptr);
}

TEST_F(DeviceStreams, ThatFindNoMemoryTakeWhatIsFreedButStillUsed) {
  const Ref<Storage> seen = make(1);
  fill(seen, 0, mine());
  for (int i = 0; i < 10; ++i) {
    Ref<Storage> large = make(50 * kMiB);
    fill(large, static_cast<uint8_t>(i), mine());
    cuda_.record_stream(*large, others_[0]);
    cuda_.record_stream(*seen, others_[0]);
    copy_byte(at(seen), at(large, 50 * kMiB - 1), others_[0]);
    large = nullptr;
    const Ref<Storage> next = make(60 * kMiB);
    fill(next, 255, mine());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(read(seen)[0], i);
  }
}

TEST_F(DeviceStreams, ThatFindNoMemorySayWhereItIs) {
  const Ref<Storage> x = make(10 * kMiB);
  const int64_t live = cuda_.allocator(0)->stats().live;
  const std::string text = test::error_of<StorageError>([&] { (void)make(kDeviceMiB * kMiB); });
  for (const std::string& part :
       {concat("[allocate] cuda:0 is out of memory: ", kDeviceMiB * kMiB, " bytes asked, ", live,
               " in use by tensors"),
        std::string(" cached"), concat("the device has ", kDeviceMiB * kMiB, " bytes"),
        std::string("use a smaller batch")})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(cuda_.allocator(0)->stats().live, live);
  EXPECT_NO_THROW((void)make(10 * kMiB));
}

TEST_F(DeviceStreams, CountWhatIsInUseAndCached) {
  const Ref<Allocator>& memory = cuda_.allocator(0);
  const int64_t before = memory->stats().live;
  {
    const Ref<Storage> x = make(3 * kMiB), y = make(2 * kMiB);
    EXPECT_EQ(memory->stats().live, before + 5 * kMiB);
  }
  EXPECT_EQ(memory->stats().live, before);
  EXPECT_EQ(memory->stats().peak, before + 5 * kMiB);
  EXPECT_GE(memory->stats().cached, 5 * kMiB);
  memory->reset_peak();
  EXPECT_EQ(memory->stats().peak, before);
  memory->empty_cache();
  EXPECT_LT(memory->stats().cached, kSegmentUnit);
}

// --- graphs ----------------------------------------------------------------------------------------

TEST_F(DeviceStreams, AreCapturedOnceAndLaunchedOften) {
  const Ref<Storage> in = make(1000), out = make(1000);
  fill(in, 1, mine());
  fill(out, 0, mine());
  Ref<Storage> kept;
  const int64_t live = cuda_.allocator(0)->stats().live;
  Ref<CudaGraph> graph;
  {
    cuda_.begin_capture(0, kMiB);
    const Ref<Storage> between = make(1000);
    kept = make(1000);
    for (const auto& [to, from] : {std::pair(between, in), std::pair(kept, between)})
      cuda_.copy(to->data(), cuda(0), from->data(), cuda(0), 1000);
    cuda_.copy(out->data(), cuda(0), kept->data(), cuda(0), 1000);
    graph = cuda_.end_capture(0);
  }
  EXPECT_EQ(read(out)[0], 0);  // nothing has run
  for (uint8_t i = 2; i < 40; ++i) {
    fill(in, i, mine());
    std::vector<Ref<Storage>> others;  // of no memory of the graph's
    for (const int64_t bytes : {500, 1000, 60'000}) {
      others.push_back(make(bytes));
      fill(others.back(), 99, mine());
    }
    graph->launch();
    EXPECT_EQ(read(out)[999], i);
    EXPECT_EQ(read(kept)[0], i);
    for (const Ref<Storage>& other : others)
      EXPECT_EQ(std::ranges::count(read(other), 99), other->bytes());
  }
  graph = nullptr;
  EXPECT_EQ(read(kept)[0], 39);
  EXPECT_EQ(cuda_.allocator(0)->stats().live, live + 1024);
  kept = nullptr;
  EXPECT_EQ(cuda_.allocator(0)->stats().live, live);
}

TEST_F(DeviceStreams, ThatAreCapturedRefuseWhatAGraphCannotRepeat) {
  const Ref<Storage> x = make(1000);
  std::vector<uint8_t> bytes(1000);
  const auto in_capture = [&](const std::function<void()>& work) {
    cuda_.begin_capture(0, 0);
    std::string text = test::error_of<UsageError>(work);
    (void)cuda_.end_capture(0);  // no such call has reached the device
    return text;
  };
  const std::string from_host =
      "[capture] a copy from the host inside a captured graph: each launch would copy what the "
      "host had then; write a tensor of the device between launches";
  EXPECT_EQ(in_capture([&] { (void)upload(bytes); }), from_host);
  EXPECT_EQ(in_capture([&] { cuda_.copy(x->data(), cuda(0), bytes.data(), kCpu, 1000); }),
            from_host);
  EXPECT_EQ(
      in_capture([&] { (void)read(x); }),
      "[capture] a read of a device's tensor inside a captured graph: read it after a launch");
  EXPECT_EQ(in_capture([&] { cuda_.synchronize(0); }),
            "[capture] a wait for the device inside a captured graph: wait after a launch");
  EXPECT_EQ(in_capture([&] { cuda_.begin_capture(0, 0); }),
            "[capture] this thread captures its work on cuda:0 already");
  EXPECT_THROW((void)cuda_.end_capture(0), UsageError);
  fill(x, 5, mine());
  EXPECT_EQ(read(x)[0], 5);  // all is as before
}

TEST_F(DeviceStreams, ThatAreCapturedTakeNoMemoryOfTheDevice) {
  (void)make(4 * kMiB);
  const int64_t free = free_bytes(0);
  cuda_.begin_capture(0, 0);
  { const Ref<Storage> cached = make(3 * kMiB); }
  const std::string text = test::error_of<StorageError>([&] { (void)make(20 * kMiB); });
  EXPECT_NE(text.find("do the same work once before it, or reserve more"), std::string::npos)
      << text;
  const Ref<Storage> again = make(3 * kMiB);
  const Ref<CudaGraph> graph = cuda_.end_capture(0);
  EXPECT_EQ(free_bytes(0), free);
  // The memory is the graph's: what comes after it takes other.
  const Ref<Storage> other = make(3 * kMiB);
  EXPECT_LT(free_bytes(0), free);
}

// Blocks that the captured stream has used cannot be ordered before the capture ends.
TEST_F(DeviceStreams, ThatAreCapturedKeepBatchesThatAreFreedMeanwhile) {
  const Ref<Storage> seen = make(100);
  std::vector<Ref<CudaGraph>> graphs;
  for (int i = 0; i < 50; ++i) {
    Ref<Storage> batch = upload(std::vector<uint8_t>(3000, static_cast<uint8_t>(i)));
    copy_byte(at(seen, 2 * i), at(batch, 2999), mine());
    cuda_.begin_capture(0, 0);
    batch = nullptr;
    fill(seen, 200, mine());
    graphs.push_back(cuda_.end_capture(0));
    const Ref<Storage> next = upload(std::vector<uint8_t>(3000, 100));
    copy_byte(at(seen, 2 * i + 1), at(next), mine());
  }
  const std::vector<uint8_t> got = read(seen);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(got[2 * i], i);
    EXPECT_EQ(got[2 * i + 1], 100);
  }
}

}  // namespace
}  // namespace tessera

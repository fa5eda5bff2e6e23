// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/graph_impl.h"

#include <utility>

namespace tessera {
namespace {

class Graph final : public CudaGraph {
 public:
  Graph(cudaGraph_t captured, Ref<StreamAllocator> memory, int device, cudaStream_t stream)
      : memory_(std::move(memory)), device_(device), stream_(stream) {
    TESSERA_CUDA_CALL(cudaGraphInstantiate(&graph_, captured, 0));
  }
  // A launch may still run. At the end of the process CUDA may be gone already.
  ~Graph() override {
    if (cudaStreamSynchronize(stream_) != cudaSuccess ||
        cudaGraphExecDestroy(graph_) != cudaSuccess)
      (void)cudaGetLastError();
  }
  void launch() override {
    const Lane& lane = lane_of(device_);
    if (lane.stream != stream_)
      fail<UsageError>("launch",
                       "this thread's stream is not the one that the graph was recorded "
                       "on: launch it on that thread");
    if (lane.captured) fail<UsageError>("launch", "a graph inside a captured graph");
    TESSERA_CUDA_CALL(cudaGraphLaunch(graph_, stream_));
  }

 private:
  Ref<StreamAllocator> memory_;
  const int device_;
  const cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

// The thread's arenas as they were, whatever became of the capture.
Ref<StreamAllocator> end_memory(Lane& lane) {
  lane.captured->close();
  lane.memory = lane.arena;
  lane.arena->hold(false);
  lane.upload_arena->hold(false);
  return std::exchange(lane.captured, nullptr);
}

}  // namespace

void begin_capture(Lane& lane, int device, int64_t reserve) {
  if (lane.captured)
    fail<UsageError>("capture", "this thread captures its work on cuda:", device, " already");
  lane.captured = Ref(new StreamAllocator(lane.arena, reserve));
  lane.memory = lane.captured;
  lane.arena->hold(true);
  lane.upload_arena->hold(true);
  const cudaError_t status = cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal);
  if (status == cudaSuccess) return;
  (void)end_memory(lane);
  check_cuda(status, "cudaStreamBeginCapture");
}

Ref<CudaGraph> end_capture(Lane& lane, int device) {
  if (!lane.captured) fail<UsageError>("capture", "this thread captures nothing on cuda:", device);
  cudaGraph_t captured = nullptr;
  const cudaError_t status = cudaStreamEndCapture(lane.stream, &captured);
  Ref<StreamAllocator> memory = end_memory(lane);
  check_cuda(status, "cudaStreamEndCapture");
  const struct Owned {
    cudaGraph_t graph;
    ~Owned() { (void)cudaGraphDestroy(graph); }
  } owned{captured};
  return Ref<CudaGraph>(new Graph(captured, std::move(memory), device, lane.stream));
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// A World attaches the rank's CommState to its Context, whose op calls then advance collectives. A
// nested World takes the CommState over and returns it at its end.
#include "tessera/dist/world.h"

#include "tessera/core/process.h"
#include "tessera/dist/nccl/nccl.h"
#include "tessera/dist/one_rank/one_rank_group_impl.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/dist/process_group/comm_state_impl.h"

#include <algorithm>
#include <exception>

namespace tessera {
namespace {

struct CurrentWorld {
  World* world = nullptr;
};

Context::Options context_options(const WorldOptions& o, int local_ranks) {
  const int share = std::max(1, Process::get().cores() / std::max(1, local_ranks));
  return {.threads = o.threads > 0 ? o.threads : share,
          .deterministic = o.deterministic,
          .anomaly = o.anomaly};
}

// The back ends for tensors of a device; the first that fits is taken.
struct DeviceBackEnd {
  bool (*fits)(int ranks, Device device);
  Ref<ProcessGroup> (*make)(const Ref<ProcessGroup>& host, std::shared_ptr<CommState> comm,
                            Device device);
};
constexpr DeviceBackEnd kDeviceBackEnds[] = {
    {[](int ranks, Device) { return ranks == 1; }, make_one_rank_group},
    {[](int, Device) { return true; },
     [](const Ref<ProcessGroup>& host, std::shared_ptr<CommState>, Device device) {
       return make_nccl_group(host, device);
     }}};

Ref<ProcessGroup> device_group(const Ref<ProcessGroup>& host, std::shared_ptr<CommState> comm,
                               Device device) {
  return std::ranges::find_if(kDeviceBackEnds,
                              [&](const DeviceBackEnd& b) { return b.fits(host->size(), device); })
      ->make(host, std::move(comm), device);
}

}  // namespace

World::World(Ref<ProcessGroup> group, const WorldOptions& options, int local_ranks, int local_rank)
    : group_(std::move(group)),
      options_(options),
      local_ranks_(local_ranks),
      local_rank_(local_rank),
      exceptions_(std::uncaught_exceptions()),
      planner_(std::make_unique<Planner>()),
      session_(context_options(options, local_ranks)) {
  CommState& comm = group_->comm();
  Context& context = session_.context();
  const int busy = local_ranks * context.options.threads, cores = Process::get().cores();
  comm.may_spin = busy <= cores;
  comm.recorder.set_folder(options.flight_folder);
  comm.make_device_group = device_group;
  outer_timeout_ms_ = comm.timeout_ms.load(std::memory_order_relaxed);
  group_->set_timeout(options.init_timeout);
  outer_ = comm.attached();
  if (outer_) {
    comm.move_to(context);
  } else {
    comm.attach(context, options.progress == ProgressThread::always ||
                             (options.progress == ProgressThread::idle_cores && cores > busy &&
                              group_->size() > 1));
    if (group_->size() > 1 && comm.board()) comm.waits.start(options.exit_if_stuck);
  }
  context.state<CurrentWorld>().world = this;
  context.state<CurrentGroup>().group = group_.get();
  context.distributor = planner_.get();
}

World::~World() {
  if (!finished_) {
    if (std::uncaught_exceptions() > exceptions_) {
      group_->comm().fail_world("an exception ended it");
    } else {
      try {
        finish();
      } catch (const std::exception& e) {
        group_->comm().fail_world(e.what());
      }
    }
  }
  CommState& comm = group_->comm();
  if (outer_) {
    comm.move_to(*outer_);
    comm.timeout_ms.store(outer_timeout_ms_, std::memory_order_relaxed);
  } else {
    comm.drop_device_groups();
    comm.detach();
  }
}

void World::finish() {
  finished_ = true;
  group_->comm().drain();
  if (!outer_) group_->comm().leave();
}

void World::first_step_done() { group_->set_timeout(options_.train_timeout); }

World& World::current() {
  Context* context = Context::current_or_null();
  World* world = context ? context->state<CurrentWorld>().world : nullptr;
  if (!world) {
    fail<UsageError>(
        "world", "this thread is not a rank: call this inside run_ranks, or make a World first");
  }
  return *world;
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The back end `fake`: one rank of a world without other ranks. Operations transfer nothing and are
// complete at once; outputs have the right shapes and repeat this rank's values.
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/comm_state_impl.h"

#include <cstring>

namespace tessera {
namespace {

class FakeWork final : public Work {
 public:
  bool test() override { return true; }
  void wait() override {}
};

class FakeGroup final : public ProcessGroup {
 public:
  FakeGroup(int rank, std::vector<int> ranks, std::string name, std::shared_ptr<CommState> comm)
      : ProcessGroup(rank, std::move(ranks), std::move(name), std::move(comm)) {}
  [[nodiscard]] std::string_view backend() const override { return "fake"; }
  void abort(std::string_view why) override {
    recorder().dump(concat("group ", name(), " was aborted: ", why));
  }

 private:
  [[nodiscard]] bool accepts(Device) const override { return true; }

  Ref<Work> start(Collective c) override {
    if (c.out.defined() && c.in.data != c.out.data) fill(c);
    recorder().started(c.record);
    recorder().ended(c.record, false);
    c.use->end();
    return make_ref<FakeWork>();
  }

  static void fill(const Collective& c) {
    if (!c.out.device.is_cpu()) return;  // plans on other devices look at shapes alone
    const int64_t item = item_size(c.dtype);
    const auto bytes = static_cast<size_t>(c.out.numel() * item);
    const auto given = c.in.defined() ? static_cast<size_t>(c.in.numel() * item) : 0;
    auto* out = c.out.data;
    const auto* in = given > 0 ? c.in.data : nullptr;
    if (!in && bytes > 0) std::memset(out, 0, bytes);
    for (size_t at = 0; in && at < bytes; at += given)
      std::memmove(out + at, in, std::min(given, bytes - at));
  }

  Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) override {
    std::vector<int> world;
    int mine = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      world.push_back(ranks()[static_cast<size_t>(members[i])]);
      if (members[i] == rank()) mine = static_cast<int>(i);
    }
    return make_ref<FakeGroup>(mine, std::move(world), std::move(name), shared_comm());
  }
};

}  // namespace

void run_fake(int world_size, int rank, const std::function<void(World&)>& fn,
              const WorldOptions& options) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    fail<LaunchError>("run_fake", "rank ", rank, " of a world of ", world_size,
                      ": expected 0 <= rank < world size");
  }
  std::vector<int> ranks(static_cast<size_t>(world_size));
  for (int r = 0; r < world_size; ++r) ranks[static_cast<size_t>(r)] = r;
  World world(make_ref<FakeGroup>(rank, std::move(ranks), "world",
                                  std::make_shared<CommState>(rank, nullptr)),
              options, 1, 0);
  fn(world);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/laws/lockstep.h"

#include "tessera/core/context.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace tessera::laws {
namespace {

class Room {
 public:
  explicit Room(size_t n) : given_(n), there_(n, false) {}

  void join(size_t piece, const Tensor& x, Join join) {
    std::unique_lock lock(mutex_);
    const size_t round = round_;
    given_[piece] = {x, join};
    there_[piece] = true;
    if (static_cast<size_t>(std::ranges::count(there_, true)) == there_.size()) finish();
    else changed_.wait(lock, [&] { return round_ != round || left_ > 0; });
    if (round_ == round) fail<UsageError>("lockstep", "a piece left while others join");
    if (odd_) fail<CollectiveMismatch>("lockstep", "the pieces join unlike tensors");
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    ++left_;
    changed_.notify_all();
  }

 private:
  struct Given {
    Tensor x;
    Join join = Join::sum;
  };
  void finish() {
    const Given& first = given_[0];
    odd_ = std::ranges::any_of(given_, [&](const Given& g) {
      return g.join != first.join || g.x.shape() != first.x.shape() ||
             g.x.dtype() != first.x.dtype();
    });
    if (!odd_) {
      auto all = first.x.values();
      for (size_t i = 1; i < given_.size(); ++i) {
        const auto v = given_[i].x.values();
        for (size_t k = 0; k < v.size(); ++k) {
          all[k] = first.join == Join::sum   ? all[k] + v[k]
                   : first.join == Join::max ? std::max(all[k], v[k])
                                             : std::min(all[k], v[k]);
        }
      }
      const Tensor joined = from_values(all, first.x.shape(), first.x.dtype());
      for (const Given& g : given_) copy_bytes(g.x, joined);
    }
    there_.assign(there_.size(), false);
    ++round_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Given> given_;
  std::vector<bool> there_;
  size_t round_ = 0, left_ = 0;
  bool odd_ = false;
};

class LockstepJoiner : public Joiner {
 public:
  LockstepJoiner(Room& room, size_t piece) : room_(room), piece_(piece) {}
  void all_reduce(const Tensor& x, Join join) override { room_.join(piece_, x, join); }

 private:
  Room& room_;
  size_t piece_;
};

}  // namespace

std::vector<TensorVector> run_in_lockstep(
    size_t n, const std::function<TensorVector(size_t, std::shared_ptr<Joiner>)>& body) {
  Room room(n);
  std::vector<TensorVector> results(n);
  std::mutex first;
  std::exception_ptr error;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < n; ++i) {
    threads.emplace_back([&, i] {
      const Context context({.threads = 1});
      try {
        results[i] = body(i, std::make_shared<LockstepJoiner>(room, i));
      } catch (...) {
        const std::lock_guard lock(first);
        if (!error) error = std::current_exception();
      }
      room.leave();
    });
  }
  for (auto& t : threads) t.join();
  if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace tessera::laws

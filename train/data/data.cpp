// SPDX-License-Identifier: Apache-2.0
// Row n of a run over W windows is window P(n mod W), with P a permutation of key (seed, n / W)
// computed for one window at a time. A thread prepares rows in a bounded queue; a seek empties the
// queue and drops the row in progress. The rank creates the tensors, in its Context.
#include "tessera/train/data/data.h"

#include "tessera/core/rng.h"
#include "tessera/train/data/rows.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

// The image of `i` under a seeded permutation of [0, n): a Feistel network on the next power of
// four, iterated until the value is inside. Needs no table, so an epoch of any size costs nothing.
uint64_t permuted(uint64_t i, uint64_t n, RngKey key) {
  const auto half = std::max<uint64_t>(1, (static_cast<uint64_t>(std::bit_width(n - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = rng::philox(key, right << 8 | round).v[0] & mask;
      left = std::exchange(right, left ^ mixed);
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

// A micro-batch from the worker thread, which has no Context and so cannot create tensors.
struct Rows {
  std::vector<int64_t> tokens, targets, positions, documents;
};

// Signals are handled by the program's threads, never by a worker.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// The rows of this rank in the micro-batch that begins at row `begin` of the run.
Rows make_rows(const RowSource& source, const BatchPlan& plan, bool shuffle, int64_t begin) {
  const int64_t t = plan.seq_len, windows = source.info().windows;
  const auto length = static_cast<size_t>(t), size = static_cast<size_t>(plan.rows) * length;
  const size_t optional = source.has_positions() ? size : 0;
  Rows rows{std::vector<int64_t>(size), std::vector<int64_t>(size, kNoTarget),
            std::vector<int64_t>(optional), std::vector<int64_t>(optional)};
  for (int64_t r = 0; r < plan.rows; ++r) {
    int64_t row = begin + plan.first_row + r;
    const auto part = [&](std::vector<int64_t>& values) {
      return values.empty() ? std::span<int64_t>()
                            : std::span(values).subspan(static_cast<size_t>(r) * length, length);
    };
    const RowSpans spans{part(rows.tokens), part(rows.targets), part(rows.positions),
                         part(rows.documents)};
    if (plan.evaluation && row >= windows) {  // beyond the end: a document without targets
      std::iota(spans.positions.begin(), spans.positions.end(), 0);
      continue;
    }
    if (!plan.evaluation) row = shuffle ? shuffled_window(row, windows, plan.seed) : row % windows;
    source.make(row, spans);
  }
  return rows;
}

void check(const BatchPlan& p) {
  if (p.seq_len < 1 || p.rows < 1 || p.first_row < 0 || p.first_row + p.rows > p.global_rows) {
    fail<ValueError>(p.path_field, "rows [", p.first_row, ", ", p.first_row + p.rows, ") of ",
                     p.global_rows, ", seq_len ", p.seq_len,
                     "; expected at least one of each, and rows of the micro-batch");
  }
}

DataFiles find_checked(const DataConfig& config, const BatchPlan& plan,
                       const Tokenizer& tokenizer) {
  const std::string& path_field = plan.path_field;
  if (config.path.empty())
    fail<DataError>(path_field, "no data given; pass --", path_field, " FILE or FOLDER");
  DataFiles files = find_data(config.path, path_field);
  if (!files.npy && tokenizer.vocabulary() > plan.vocabulary) {
    fail<ConfigError>("--model.vocab_size", plan.vocabulary, " is below the tokenizer's ",
                      tokenizer.vocabulary(), " tokens; give at least as many");
  }
  if (config.begin_id < 0) return files;
  const std::string field = "--dataloader.begin_id";
  if (!files.npy) {
    fail<ConfigError>(field, config.begin_id, " is given, but ", config.path,
                      " is text, whose documents are known; leave it out");
  }
  if (config.begin_id >= plan.vocabulary) {
    fail<ConfigError>(field, config.begin_id, " is not in [0, ", plan.vocabulary,
                      "), the model's vocabulary");
  }
  return files;
}

}  // namespace

void DataConfig::fields(config::Fields& f) {
  f.add("path", path,
        "training data: a text file, .jsonl (also .gz), .npy of token ids, or a folder of these");
  f.add("text_field", text_field, "field of each .jsonl line that contains the document");
  f.add("packing", packing,
        "documents: tokens attend only within their document; concat: to all earlier tokens of the "
        "sequence",
        {.choices = {"documents", "concat"}});
  f.add("shuffle", shuffle,
        "shuffle the sequences anew in each epoch; false: keep the order of the data");
  f.add("begin_id", begin_id, "token id that begins each document of .npy data; -1: none",
        {.min = -1, .max = 1 << 24});
  f.add("num_prefetch_batches", num_prefetch_batches, "batches prepared ahead of training",
        {.min = 1, .max = 1024});
}

int64_t shuffled_window(int64_t row, int64_t windows, uint64_t seed) {
  const RngKey key{seed, stream_of("data") + static_cast<uint64_t>(row / windows)};
  return static_cast<int64_t>(
      permuted(static_cast<uint64_t>(row % windows), static_cast<uint64_t>(windows), key));
}

// Owns the thread. The queue contains micro-batches in the order of requests, each with its error,
// if any; a seek starts a new generation.
class DataLoader::Worker {
 public:
  Worker(const DataConfig& config, const BatchPlan& plan,
         std::shared_ptr<const Tokenizer> tokenizer)
      : config_(config), plan_(plan), tokenizer_(std::move(tokenizer)) {
    if (const Context* context = Context::current_or_null()) threads_ = context->options.threads;
    check(plan_);
    files_ = find_checked(config_, plan_, *tokenizer_);
    const SignalsBlocked while_starting;
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }

  const DataInfo& info() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return source_ || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    return info_;
  }

  Batch next() {
    const DataInfo& data = info();
    std::unique_lock lock(mutex_);
    if (plan_.evaluation && next_taken_ >= data.windows) {
      fail<ValueError>(plan_.path_field, config_.path, " holds ", data.windows,
                       " rows, asked for those from ", next_taken_);
    }
    changed_.wait(lock, [&] { return !queue_.empty(); });
    const Made made = std::move(queue_.front());
    queue_.pop_front();
    next_taken_ += plan_.global_rows;
    lock.unlock();
    changed_.notify_all();
    if (made.error) std::rethrow_exception(made.error);
    const auto optional = [&](const std::vector<int64_t>& values) {
      return values.empty() ? Tensor() : tensor_of(values);
    };
    return {tensor_of(made.rows.tokens), tensor_of(made.rows.targets),
            optional(made.rows.positions), optional(made.rows.documents)};
  }

  void seek(int64_t row) {
    if (row < 0) fail<ValueError>(plan_.path_field, "rows are counted from 0: asked for row ", row);
    {
      const std::scoped_lock lock(mutex_);
      if (row == next_taken_) return;
      queue_.clear();
      next_taken_ = next_made_ = row;
      ++generation_;
    }
    changed_.notify_all();
  }

 private:
  struct Made {
    Rows rows;
    std::exception_ptr error;
  };

  void work(const std::stop_token& stop) {
    try {
      auto source = open_rows(files_, config_, plan_, *tokenizer_, threads_, stop);
      if (!source) return;
      const std::scoped_lock lock(mutex_);
      source_ = std::move(source);
      info_ = source_->info();
      info_.batches =
          plan_.evaluation ? (info_.windows + plan_.global_rows - 1) / plan_.global_rows : 0;
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
    while (!failure_ && make_one(stop)) continue;
  }

  // Waits for space, makes a micro-batch and queues it; false after a stop request.
  bool make_one(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto room = [&] {
      return static_cast<int64_t>(queue_.size()) < config_.num_prefetch_batches &&
             (!plan_.evaluation || next_made_ < info_.windows);
    };
    if (!changed_.wait(lock, stop, room)) return false;
    const int64_t row = next_made_, generation = generation_;
    next_made_ += plan_.global_rows;
    lock.unlock();
    Made made;
    try {
      made.rows = make_rows(*source_, plan_, config_.shuffle, row);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    if (generation == generation_) queue_.push_back(std::move(made));
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  [[nodiscard]] Tensor tensor_of(const std::vector<int64_t>& values) const {
    Tensor tensor = empty({plan_.rows, plan_.seq_len}, DType::i64);  // (B, T)
    std::ranges::copy(values, tensor.data<int64_t>());
    return tensor;
  }

  DataConfig config_;
  BatchPlan plan_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int threads_ = 1;  // that tokenise text: the rank's
  DataFiles files_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::unique_ptr<const RowSource> source_;  // set once, when all is read
  DataInfo info_;                            // as well
  std::exception_ptr failure_;               // of reading: final
  std::deque<Made> queue_;
  int64_t next_made_ = 0, next_taken_ = 0;  // first rows of micro-batches
  int64_t generation_ = 0;
  std::jthread thread_;  // last, so that it stops before members that it uses are destroyed
};

DataLoader::DataLoader(const DataConfig& config, const BatchPlan& plan,
                       std::shared_ptr<const Tokenizer> tokenizer)
    : worker_(std::make_unique<Worker>(
          config, plan, tokenizer ? std::move(tokenizer) : std::make_shared<ByteTokenizer>())) {}
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

const DataInfo& DataLoader::info() { return worker_->info(); }
Batch DataLoader::next() { return worker_->next(); }
void DataLoader::seek(int64_t row) { worker_->seek(row); }
Batch DataLoader::at(int64_t row) {
  worker_->seek(row);
  return worker_->next();
}

}  // namespace tessera::train

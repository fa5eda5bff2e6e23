// SPDX-License-Identifier: Apache-2.0
// Row n of a data set of W windows is window P(n mod W), with P a permutation of key (seed, n / W)
// computed for one window at a time; a mixture says which data set gives a row of the run. A thread
// prepares rows ahead. The rank creates the tensors, in its Context.
#include "tessera/train/data/data.h"

#include "tessera/core/message.h"
#include "tessera/core/rng.h"
#include "tessera/models/config/collect_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/chat/chat_template.h"
#include "tessera/train/data/ahead_queue.h"
#include "tessera/train/data/fine_tuning_rows.h"
#include "tessera/train/data/rows.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
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
  std::vector<int64_t> filled;  // tokens of each row; empty if all rows of all ranks are full
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

// The data sets of a run and the order of their rows.
class RowsOfRun {
 public:
  RowsOfRun(std::vector<std::unique_ptr<const RowSource>> sources, const Mixture& mixture,
            const BatchPlan& plan, bool shuffle)
      : sources_(std::move(sources)), mixture_(mixture), plan_(plan), shuffle_(shuffle) {
    for (const auto& source : sources_) positions_ |= source->has_positions();
  }

  // Those of this rank in the micro-batch that begins at row `begin` of the run.
  [[nodiscard]] Rows make(int64_t begin) const {
    const auto length = static_cast<size_t>(plan_.seq_len);
    const size_t size = static_cast<size_t>(plan_.rows) * length, optional = positions_ ? size : 0;
    Rows rows{std::vector<int64_t>(size),
              std::vector<int64_t>(size, kNoTarget),
              std::vector<int64_t>(optional),
              std::vector<int64_t>(optional),
              {}};
    for (int64_t r = 0; r < plan_.rows; ++r) {
      const auto part = [&](std::vector<int64_t>& values) {
        return values.empty() ? std::span<int64_t>()
                              : std::span(values).subspan(static_cast<size_t>(r) * length, length);
      };
      RowSpans spans{part(rows.tokens), part(rows.targets), part(rows.positions),
                     part(rows.documents)};
      const auto place = at(begin + plan_.first_row + r);
      // One document; beyond the end of an evaluation, one without targets.
      if (!place || !place->source->has_positions()) {
        std::iota(spans.positions.begin(), spans.positions.end(), 0);
        spans.positions = spans.documents = {};
      }
      if (place) place->source->make(place->index, spans);
    }
    // The same on all ranks, which must run the same ops.
    bool padded = false;
    for (int64_t r = 0; r < plan_.global_rows; ++r)
      padded = padded || tokens_of(begin + r) < plan_.seq_len;
    for (int64_t r = 0; padded && r < plan_.rows; ++r)
      rows.filled.push_back(tokens_of(begin + plan_.first_row + r));
    return rows;
  }

  // The rows that make(begin) will read.
  void will_need(int64_t begin) const {
    for (int64_t r = 0; r < plan_.rows; ++r) {
      if (const auto place = at(begin + plan_.first_row + r))
        place->source->will_need(place->index);
    }
  }

 private:
  struct Place {
    const RowSource* source;
    int64_t index;  // of its row
  };
  // Of a row of the run; none beyond the end of an evaluation.
  [[nodiscard]] std::optional<Place> at(int64_t row) const {
    const auto [source, index] = mixture_.at(row);
    const RowSource& rows = *sources_[source];
    const int64_t windows = rows.info().windows;
    if (plan_.evaluation)
      return index < windows ? std::optional(Place{&rows, index}) : std::nullopt;
    return Place{&rows,
                 shuffle_ ? shuffled_window(index, windows, plan_.seed, source) : index % windows};
  }

  // Of a row of the run.
  [[nodiscard]] int64_t tokens_of(int64_t row) const {
    const auto place = at(row);
    return place ? place->source->tokens(place->index) : 0;
  }

  std::vector<std::unique_ptr<const RowSource>> sources_;
  Mixture mixture_;
  BatchPlan plan_;
  bool shuffle_, positions_ = false;
};

void check(const BatchPlan& p) {
  if (p.seq_len < 1 || p.rows < 1 || p.first_row < 0 || p.first_row + p.rows > p.global_rows) {
    fail<ValueError>(p.path_field, "rows [", p.first_row, ", ", p.first_row + p.rows, ") of ",
                     p.global_rows, ", seq_len ", p.seq_len,
                     "; expected at least one of each, and rows of the micro-batch");
  }
}

// A data set of the run, before it is read.
struct Part {
  DataFiles files;
  DataConfig config;  // with its path
  BatchPlan plan;     // with its field
  double share;
};

Part find_checked(const DataConfig& config, const MixturePart& part, const BatchPlan& plan,
                  const Tokenizer& tokenizer) {
  if (part.path.empty())
    fail<ConfigError>(part.field, "no data given; pass --", part.field, " FILE or FOLDER");
  Part found{find_data(part.path, part.field), config, plan, 1};
  found.config.path = part.path;
  found.plan.path_field = part.field;
  if (found.files.kind->is_text && !tokenizer.missing().empty())
    fail<DataError>(part.field, part.path, " is text, but ", tokenizer.missing());
  if (config.format != "text") check_fine_tuning(found.files, found.config, found.plan, tokenizer);
  if (!found.files.kind->knows_documents) return found;
  if (tokenizer.missing().empty())
    (void)document_tokens(config.document_tokens, tokenizer, kDocumentTokensField);
  found.config.begin_id = -1;
  if (tokenizer.vocabulary() > plan.vocabulary) {
    fail<ConfigError>("--model.vocab_size", plan.vocabulary, " is below the tokenizer's ",
                      counted(tokenizer.vocabulary(), "token"), "; give at least as many");
  }
  return found;
}

std::vector<Part> find_checked(const DataConfig& config, const BatchPlan& plan,
                               const Tokenizer& tokenizer) {
  if (config.format == "text" && config.chat_template != DataConfig().chat_template) {
    fail<ConfigError>("--dataloader.chat_template", io::excerpt(config.chat_template),
                      " is given, but --dataloader.format text has no conversations; give "
                      "prompt_completion or messages");
  }
  const std::vector<MixturePart> mixture = config.parts(plan.path_field);
  if (plan.evaluation && mixture.size() > 1)
    fail<ConfigError>(plan.path_field, "an evaluation reads one data set, not a mixture");
  std::vector<Part> parts;
  int64_t weights = 0;
  for (const MixturePart& part : mixture) weights += part.weight;
  for (const MixturePart& part : mixture) {
    parts.push_back(find_checked(config, part, plan, tokenizer));
    parts.back().share = static_cast<double>(part.weight) / static_cast<double>(weights);
  }
  const auto is_ids = [](const Part& p) { return !p.files.kind->knows_documents; };
  if (config.document_tokens != kTokensOfTokenizer && std::ranges::all_of(parts, is_ids) &&
      !plan.evaluation) {
    fail<ConfigError>(kDocumentTokensField, config.document_tokens, " is given, but ",
                      parts[0].config.path,
                      " holds token ids, to which none are added; leave it out");
  }
  if (config.begin_id < 0) return parts;
  const std::string field = "--dataloader.begin_id";
  if (std::ranges::none_of(parts, is_ids)) {
    fail<ConfigError>(field, config.begin_id, " is given, but ", parts[0].config.path, " is ",
                      parts[0].files.kind->name, ", whose documents are known; leave it out");
  }
  if (config.begin_id >= plan.vocabulary) {
    fail<ConfigError>(field, config.begin_id, " is not in [0, ", plan.vocabulary,
                      "), the model's vocabulary");
  }
  return parts;
}

DataInfo sum_of(std::span<const DataInfo> sources) {
  DataInfo sum = sources[0];
  for (const DataInfo& info : sources.subspan(1)) {
    sum.path += ", " + info.path;
    sum.share += info.share;
    sum.files += info.files;
    sum.documents = sum.documents > 0 && info.documents > 0 ? sum.documents + info.documents : 0;
    sum.tokens += info.tokens;
    sum.windows += info.windows;
    sum.listing = sum.details = sum.document_tokens = {};
  }
  return sum;
}

Mixture mixture_of(const DataConfig& config, const BatchPlan& plan) {
  std::vector<int64_t> weights;
  for (const MixturePart& part : config.parts(plan.path_field)) weights.push_back(part.weight);
  return Mixture(weights);
}

}  // namespace

void DataConfig::fields(config::Fields& f) {
  f.add("path", path,
        concat("training data: ", formats_help(),
               ", a folder of these, or one that `tessera data prepare` made"));
  f.add(
      "mixture", mixture,
      "several data sets in place of a path, each 'PATH [weight=W]': they give rows in proportion "
      "to their weights",
      {.decides_rows = true});
  reading_fields(f);
  f.add("shuffle", shuffle,
        "shuffle the sequences anew in each epoch; false: keep the order of the data",
        {.decides_rows = true});
  f.add("num_prefetch_batches", num_prefetch_batches, "batches prepared ahead of training",
        {.min = 1, .max = 1024});
}

void DataConfig::reading_fields(config::Fields& f) {
  f.add("text_field", text_field, "field of each .jsonl line that contains the document",
        {.decides_rows = true});
  f.add("document_tokens", document_tokens, kDocumentTokensHelp,
        {.choices = document_token_words(), .decides_rows = true});
  f.add("format", format,
        "kind of .jsonl lines: text: a document in text_field; prompt_completion and messages: an "
        "example for fine-tuning, {\"prompt\": ..., \"completion\": ...} or {\"messages\": "
        "[{\"role\": ..., \"content\": ...}, ...]}, of which only completions and the assistant's "
        "messages are learned",
        {.choices = {"text", "prompt_completion", "messages"}, .decides_rows = true});
  f.add(
      "chat_template", chat_template,
      concat("form in which the model reads conversations: ", chat_template_names(),
             ", or a JSON file (train/README.md); a prompt is a user's message and its completion "
             "the assistant's"),
      {.decides_rows = true});
  f.add("long_examples", long_examples,
        "examples for fine-tuning that are longer than a sequence: cut them at its end, drop them, "
        "or refuse the set",
        {.choices = {"cut", "drop", "refuse"}, .decides_rows = true});
  f.add("packing", packing,
        "documents: tokens attend only within their document; concat: to all earlier tokens of the "
        "sequence",
        {.choices = {"documents", "concat"}, .decides_rows = true});
  f.add("begin_id", begin_id, "token id that begins each document of .npy and .bin data; -1: none",
        {.min = -1, .max = 1 << 24, .decides_rows = true});
}

std::vector<std::string> DataInfo::notes(std::string_view what) const {
  std::vector<std::string> lines;
  if (!details.empty()) lines.push_back(what == "data" ? details : concat(what, ' ', details));
  if (!listing.empty()) lines.push_back(data_files_line(listing, what));
  return lines;
}

std::vector<MixturePart> DataConfig::parts(const std::string& path_field) const {
  if (!mixture.empty()) return parse_mixture(mixture, "dataloader.mixture");
  return {{path, 1, path_field}};
}

std::vector<std::string> DataConfig::conflicts() const {
  std::vector<std::string> faults;
  if (!mixture.empty() && !path.empty()) {
    faults.emplace_back(
        "[--dataloader.mixture] and --dataloader.path are both given; give one of them");
  }
  config::collect(faults, [&] { (void)parts(); });
  return faults;
}

int64_t shuffled_window(int64_t row, int64_t windows, uint64_t seed, size_t source) {
  const uint64_t stream = stream_of(source == 0 ? "data" : concat("data.", source));
  const RngKey key{seed, stream + static_cast<uint64_t>(row / windows)};
  return static_cast<int64_t>(
      permuted(static_cast<uint64_t>(row % windows), static_cast<uint64_t>(windows), key));
}

// Owns the thread, which makes micro-batches, each with its error, if any.
class DataLoader::Worker {
 public:
  Worker(const DataConfig& config, const BatchPlan& plan,
         std::shared_ptr<const Tokenizer> tokenizer)
      : config_(config),
        plan_(plan),
        tokenizer_(std::move(tokenizer)),
        queue_(config.num_prefetch_batches, plan.global_rows) {
    if (const Context* context = Context::current_or_null()) threads_ = context->options.threads;
    check(plan_);
    parts_ = find_checked(config_, plan_, *tokenizer_);
    const SignalsBlocked while_starting;
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }

  [[nodiscard]] bool is_of_text() const {
    return std::ranges::any_of(parts_, [](const Part& p) { return p.files.kind->knows_documents; });
  }
  const DataInfo& info() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return rows_ || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    return info_;
  }
  std::span<const DataInfo> sources() {
    (void)info();
    return sources_;
  }

  Batch next() {
    const DataInfo& data = info();
    if (queue_.next_row() >= end_of(data)) {
      fail<ValueError>(plan_.path_field, data.path, " holds ", counted(data.windows, "row"),
                       ", asked for those from ", queue_.next_row());
    }
    const Made made = queue_.take();
    if (made.error) std::rethrow_exception(made.error);
    const auto optional = [&](const std::vector<int64_t>& values) {
      return values.empty() ? Tensor() : tensor_of(values);
    };
    return {tensor_of(made.rows.tokens), tensor_of(made.rows.targets),
            optional(made.rows.positions), optional(made.rows.documents),
            padding_behind(made.rows.filled)};
  }

  void seek(int64_t row) {
    if (row < 0) fail<ValueError>(plan_.path_field, "rows are counted from 0: asked for row ", row);
    queue_.seek(row);
  }

 private:
  struct Made {
    Rows rows;
    std::exception_ptr error;
  };

  void work(const std::stop_token& stop) {
    try {
      std::vector<std::unique_ptr<const RowSource>> opened;
      std::vector<DataInfo> infos;
      for (const Part& part : parts_) {
        auto rows = open_rows(part.files, part.config, part.plan, *tokenizer_, threads_, stop);
        if (!rows) return;
        infos.push_back(rows->info());
        infos.back().path = part.config.path;
        infos.back().share = part.share;
        opened.push_back(std::move(rows));
      }
      auto rows = std::make_unique<const RowsOfRun>(std::move(opened), mixture_of(config_, plan_),
                                                    plan_, config_.shuffle);
      const std::scoped_lock lock(mutex_);
      sources_ = std::move(infos);
      info_ = sum_of(sources_);
      if (plan_.evaluation)
        info_.batches = (info_.windows + plan_.global_rows - 1) / plan_.global_rows;
      rows_ = std::move(rows);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
    while (!failure_ && make_one(stop)) continue;
  }

  // The row of the run at which no micro-batch begins any more.
  [[nodiscard]] int64_t end_of(const DataInfo& data) const {
    return plan_.evaluation ? data.windows : std::numeric_limits<int64_t>::max();
  }

  // Waits for room, makes a micro-batch and queues it; false after a stop request.
  bool make_one(const std::stop_token& stop) {
    const auto order = queue_.order(stop, end_of(info_));
    if (!order) return false;
    Made made;
    try {
      rows_->will_need(order->row + plan_.global_rows);
      made.rows = rows_->make(order->row);
    } catch (...) {
      made.error = std::current_exception();
    }
    queue_.put(*order, std::move(made));
    return true;
  }

  [[nodiscard]] Tensor tensor_of(const std::vector<int64_t>& values) const {
    Tensor tensor = empty({plan_.rows, plan_.seq_len}, DType::i64);  // (B, T)
    std::ranges::copy(values, tensor.data<int64_t>());
    return tensor;
  }

  [[nodiscard]] Tensor padding_behind(const std::vector<int64_t>& filled) const {
    if (filled.empty()) return {};
    Tensor padding = empty({plan_.rows, plan_.seq_len}, DType::bool_);  // (B, T)
    bool* to = padding.data<bool>();
    for (const int64_t tokens : filled) {
      to = std::fill_n(to, tokens, false);
      to = std::fill_n(to, plan_.seq_len - tokens, true);
    }
    return padding;
  }

  DataConfig config_;
  BatchPlan plan_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int threads_ = 1;  // that tokenise text: the rank's
  std::vector<Part> parts_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Set once, when all is read.
  std::unique_ptr<const RowsOfRun> rows_;
  std::vector<DataInfo> sources_;
  DataInfo info_;
  std::exception_ptr failure_;  // of reading: final
  AheadQueue<Made> queue_;
  std::jthread thread_;  // last, so that it stops before members that it uses are destroyed
};

DataLoader::DataLoader(const DataConfig& config, const BatchPlan& plan,
                       std::shared_ptr<const Tokenizer> tokenizer)
    : worker_(std::make_unique<Worker>(
          config, plan, tokenizer ? std::move(tokenizer) : std::make_shared<ByteTokenizer>())) {}
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

bool DataLoader::is_of_text() const { return worker_->is_of_text(); }
const DataInfo& DataLoader::info() { return worker_->info(); }
std::span<const DataInfo> DataLoader::sources() { return worker_->sources(); }
Batch DataLoader::next() { return worker_->next(); }
void DataLoader::seek(int64_t row) { worker_->seek(row); }
Batch DataLoader::at(int64_t row) {
  worker_->seek(row);
  return worker_->next();
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// An example of n tokens has n - 1 inputs, since its last token predicts nothing. Threads parse and
// tokenise lines; examples are stored, and faults reported, in the order of the file.
#include "tessera/train/data/fine_tuning_rows.h"

#include "tessera/core/error.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/data/text_reader.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

constexpr size_t kMostLineBytes = size_t{64} << 20;
constexpr size_t kTogether = size_t{4} << 20;  // bytes of lines that threads share

class FineTuningRows final : public RowSource {
 public:
  FineTuningRows(const DataFiles& files, const DataConfig& config, const BatchPlan& plan,
                 const Tokenizer& tokenizer, int threads, const std::stop_token& stop)
      : encoder_(chat_encoder_of(config, tokenizer)),
        form_(config.format == "messages" ? LineForm::messages : LineForm::prompt_completion),
        long_examples_(config.long_examples),
        seq_len_(static_cast<size_t>(plan.seq_len)),
        threads_(threads) {
    for (const std::string& path : files.paths) {
      const auto add_line = [&](std::string_view text, int64_t number) {
        waiting_.push_back({std::string(text), number, {}, {}});
        waiting_bytes_ += text.size();
        if (waiting_bytes_ >= kTogether) encode_waiting(path);
      };
      read_lines(path, add_line, stop, kMostLineBytes);
      if (stop.stop_requested()) return;
      encode_waiting(path);
    }
    pack(files, config, plan);
  }

  [[nodiscard]] const DataInfo& info() const override { return info_; }
  [[nodiscard]] bool has_positions() const override { return true; }

  [[nodiscard]] int64_t tokens(int64_t index) const override {
    int64_t sum = 0;
    for (const int64_t example : packing_.row(index)) sum += inputs_of(example);
    return sum;
  }
  void make(int64_t index, const RowSpans& row) const override {
    size_t at = 0;
    int64_t document = 0;
    const auto put = [&](int64_t token, int64_t target, int64_t position) {
      row.tokens[at] = token;
      row.targets[at] = target;
      row.positions[at] = position;
      row.documents[at++] = document;
    };
    for (const int64_t example : packing_.row(index)) {
      const size_t begin = begin_of(example), end = ends_[static_cast<size_t>(example)];
      for (size_t i = begin; i + 1 < end; ++i)
        put(ids_[i], answers_[i + 1] != 0 ? ids_[i + 1] : kNoTarget,
            static_cast<int64_t>(i - begin));
      ++document;
    }
    // What is left of the row is a document without targets.
    for (int64_t position = 0; at < seq_len_; ++position) put(0, kNoTarget, position);
  }

 private:
  struct Line {
    std::string text;
    int64_t number = 0;
    EncodedConversation made;
    std::exception_ptr error;
  };

  [[nodiscard]] size_t begin_of(int64_t example) const {
    return example == 0 ? 0 : ends_[static_cast<size_t>(example) - 1];
  }

  // The last token predicts nothing.
  [[nodiscard]] int64_t inputs_of(int64_t example) const {
    return static_cast<int64_t>(ends_[static_cast<size_t>(example)] - begin_of(example)) - 1;
  }

  void encode_waiting(const std::string& path) {
    share_among_threads(waiting_.size(), threads_, [&](size_t i) {
      Line& line = waiting_[i];
      try {
        line.made = encoded(line.text, concat(path, ", line ", line.number));
      } catch (...) {
        line.error = std::current_exception();
      }
    });
    for (Line& line : waiting_) {
      if (line.error) std::rethrow_exception(line.error);
      add(std::move(line.made), path, line.number);
    }
    waiting_.clear();
    waiting_bytes_ = 0;
  }
  [[nodiscard]] EncodedConversation encoded(std::string_view text, const std::string& place) const {
    const Conversation conversation = parse_conversation(text, form_, place);
    try {
      return encoder_.encode(conversation);
    } catch (const DataError& error) {
      fail<DataError>("data", place, ": ", error.what());
    }
  }

  void add(EncodedConversation made, const std::string& path, int64_t line) {
    ++read_;
    const size_t most = seq_len_ + 1;
    if (made.ids.size() > most) {
      if (long_examples_ == "refuse") {
        fail<DataError>("data", path, ", line ", line, " is ", made.ids.size(),
                        " tokens, but a row of seq_len ", seq_len_, " has room for ", most,
                        "; give a larger seq_len, or --dataloader.long_examples cut or drop");
      }
      ++long_;
      if (long_examples_ == "drop") return;
      made.ids.resize(most);
      made.answers.resize(most);
    }
    // The first token has nothing before it that could predict it.
    const int64_t targets =
        made.answers.empty() ? 0 : std::count(made.answers.begin() + 1, made.answers.end(), 1);
    if (targets == 0) {
      ++without_target_;
      return;
    }
    targets_ += targets;
    crossed_ += made.crosses_border ? 1 : 0;
    ids_.insert(ids_.end(), made.ids.begin(), made.ids.end());
    answers_.insert(answers_.end(), made.answers.begin(), made.answers.end());
    ends_.push_back(ids_.size());
  }

  void pack(const DataFiles& files, const DataConfig& config, const BatchPlan& plan) {
    if (ends_.empty()) {
      fail<DataError>(plan.path_field, config.path, " holds no example to learn from: ", read_,
                      " lines, of which ", without_target_, " have no target and ",
                      long_examples_ == "drop" ? long_ : 0, " are too long for seq_len ",
                      plan.seq_len);
    }
    std::vector<int64_t> inputs(ends_.size());
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = inputs_of(static_cast<int64_t>(i));
    packing_ = pack_best_fit(inputs, plan.seq_len);
    info_.files = static_cast<int64_t>(files.paths.size());
    info_.listing = files.listing;
    info_.documents = static_cast<int64_t>(ends_.size());
    info_.tokens = static_cast<int64_t>(ids_.size());
    info_.windows = packing_.rows();
    info_.details = details();
  }

  [[nodiscard]] std::string details() const {
    const auto room = info_.windows * static_cast<int64_t>(seq_len_);
    const int64_t inputs = info_.tokens - info_.documents;
    std::string text = concat("fine-tuning: ", targets_, " targets, ", inputs * 100 / room,
                              " % of the rows filled");
    const auto note = [&](int64_t count, std::string_view what) {
      if (count > 0) text += concat(", ", count, count == 1 ? " example " : " examples ", what);
    };
    note(long_,
         long_examples_ == "drop" ? "longer than a row left out" : "cut at the end of a row");
    note(without_target_, "without a target left out");
    note(crossed_, "with a token across the border of prompt and answer");
    return text;
  }

  ChatEncoder encoder_;
  LineForm form_;
  std::string long_examples_;
  size_t seq_len_;
  int threads_;
  std::vector<Line> waiting_;
  size_t waiting_bytes_ = 0;

  std::vector<int32_t> ids_;      // of all examples
  std::vector<uint8_t> answers_;  // of each id
  std::vector<size_t> ends_;      // of each example
  Packing packing_;
  DataInfo info_;
  int64_t read_ = 0, targets_ = 0, long_ = 0, without_target_ = 0, crossed_ = 0;
};

}  // namespace

ChatEncoder chat_encoder_of(const DataConfig& config, const Tokenizer& tokenizer) {
  const std::string field = "dataloader.chat_template";
  return {find_chat_template(config.chat_template, field), tokenizer, field};
}

void check_fine_tuning(const DataFiles& files, const DataConfig& config, const BatchPlan& plan,
                       const Tokenizer& tokenizer) {
  (void)chat_encoder_of(config, tokenizer);
  if (config.packing != "documents") {
    fail<ConfigError>("--dataloader.packing", config.packing,
                      " is given, but examples of --dataloader.format ", config.format,
                      " never see each other; leave it out");
  }
  for (const std::string& path : files.paths) {
    if (files.kind != DataKind::text || format_of(path) != DataFormat::jsonl) {
      fail<DataError>(plan.path_field, path, " is no .jsonl, which --dataloader.format ",
                      config.format, " needs");
    }
  }
}

std::unique_ptr<const RowSource> fine_tuning_rows(const DataFiles& files, const DataConfig& config,
                                                  const BatchPlan& plan, const Tokenizer& tokenizer,
                                                  int threads, const std::stop_token& stop) {
  try {
    auto rows = std::make_unique<FineTuningRows>(files, config, plan, tokenizer, threads, stop);
    if (stop.stop_requested()) return nullptr;
    return rows;
  } catch (const std::bad_alloc&) {
    fail<DataError>("data", "the examples of ", files.paths[0],
                    files.paths.size() > 1 ? " and its neighbours do" : " do",
                    " not fit in memory; split the set");
  }
}

}  // namespace tessera::train

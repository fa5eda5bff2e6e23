// SPDX-License-Identifier: Apache-2.0
// An example of n tokens has n - 1 inputs, since its last token predicts nothing. Threads parse and
// tokenise lines; examples are stored, and faults reported, in the order of the file.
#include "tessera/train/data/fine_tuning_rows.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/data/text_reader.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

constexpr size_t kMostLineBytes = size_t{64} << 20;
constexpr size_t kTogether = size_t{4} << 20;  // bytes of lines that threads share

// Members of a line with which other programs write another text, or train another model: no
// template here writes them.
constexpr std::array<std::string_view, 12> kRefused{
    "tools",  "functions", "documents", "chat_template", "chat_template_kwargs",
    "system", "images",    "image",     "videos",        "audio",
    "chosen", "rejected"};

class FineTuningRows final : public RowSource {
 public:
  FineTuningRows(const DataFiles& files, const DataConfig& config, const BatchPlan& plan,
                 const Tokenizer& tokenizer, int threads, const std::stop_token& stop)
      : encoder_(chat_encoder_of(config, tokenizer)),
        form_(config.format == "messages" ? LineForm::messages : LineForm::prompt_completion),
        long_examples_(config.long_examples),
        template_(config.chat_template),
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
  struct EncodedExample : EncodedConversation {
    std::vector<std::string> passed_over;  // members of the line
  };
  struct Line {
    std::string text;
    int64_t number = 0;
    EncodedExample made;
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
  [[nodiscard]] EncodedExample encoded(std::string_view text, const std::string& place) const {
    Example example = parse_example(text, form_, place);
    for (const std::string& name : example.others) {
      if (std::ranges::find(kRefused, name) == kRefused.end()) continue;
      fail<DataError>("data", place, ": has '", name, "', which the chat template ",
                      io::excerpt(template_),
                      " does not write, nor any other here; write what it "
                      "says into the messages, or leave it out");
    }
    try {
      return {encoder_.encode(example.conversation), std::move(example.others)};
    } catch (const DataError& error) {
      fail<DataError>("data", place, ": ", error.what());
    }
  }

  void add(EncodedExample made, const std::string& path, int64_t line) {
    ++counts_.read;
    constexpr size_t kMostNames = 64;  // each line of a hostile file may have others
    for (std::string& name : made.passed_over) {
      if (counts_.passed_over.size() < kMostNames || counts_.passed_over.contains(name))
        ++counts_.passed_over[std::move(name)];
    }
    const size_t most = seq_len_ + 1;
    if (made.ids.size() > most) {
      if (long_examples_ == "refuse") {
        fail<DataError>("data", path, ", line ", line, " is ", counted(made.ids.size(), "token"),
                        ", but a row of seq_len ", seq_len_, " has room for ", most,
                        "; give a larger seq_len, or --dataloader.long_examples cut or drop");
      }
      ++counts_.too_long;
      if (long_examples_ == "drop") return;
      made.ids.resize(most);
      made.answers.resize(most);
    }
    // The first token has nothing before it that could predict it.
    const int64_t targets =
        made.answers.empty() ? 0 : std::count(made.answers.begin() + 1, made.answers.end(), 1);
    if (targets == 0) {
      ++counts_.without_target;
      return;
    }
    counts_.targets += targets;
    counts_.crossed += made.crosses_border ? 1 : 0;
    ids_.insert(ids_.end(), made.ids.begin(), made.ids.end());
    answers_.insert(answers_.end(), made.answers.begin(), made.answers.end());
    ends_.push_back(ids_.size());
  }

  void pack(const DataFiles& files, const DataConfig& config, const BatchPlan& plan) {
    if (ends_.empty()) {
      fail<DataError>(plan.path_field, config.path,
                      " holds no example to learn from: ", counted(counts_.read, "line"),
                      ", of which ", counts_.without_target, " have no target and ",
                      long_examples_ == "drop" ? counts_.too_long : 0, " are too long for seq_len ",
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
    std::string text = concat("fine-tuning: ", counted(counts_.targets, "target"), ", ",
                              inputs * 100 / room, " % of the rows filled");
    const auto note = [&](int64_t count, std::string_view what) {
      if (count > 0) text += concat(", ", counted(count, "example"), " ", what);
    };
    note(counts_.too_long,
         long_examples_ == "drop" ? "longer than a row left out" : "cut at the end of a row");
    note(counts_.without_target, "without a target left out");
    note(counts_.crossed, "with a token across the border of prompt and answer");
    constexpr size_t kMost = 6, kExcerpt = 40;
    std::string_view before = "; members of lines passed over: ";
    size_t shown = 0;
    for (const auto& [name, count] : counts_.passed_over) {
      if (++shown > kMost) return text + ", ...";
      text += concat(before, io::excerpt(name, kExcerpt), " (", count, ')');
      before = ", ";
    }
    return text;
  }

  ChatEncoder encoder_;
  LineForm form_;
  std::string long_examples_, template_;
  size_t seq_len_;
  int threads_;
  std::vector<Line> waiting_;
  size_t waiting_bytes_ = 0;

  std::vector<int32_t> ids_;      // of all examples
  std::vector<uint8_t> answers_;  // of each id
  std::vector<size_t> ends_;      // of each example
  Packing packing_;
  DataInfo info_;
  struct {
    int64_t read = 0, targets = 0, too_long = 0, without_target = 0, crossed = 0;
    std::map<std::string, int64_t> passed_over;  // members of lines, and in how many
  } counts_;
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
  if (config.document_tokens != kTokensOfTokenizer) {
    fail<ConfigError>(kDocumentTokensField, config.document_tokens,
                      " is given, but the template of --dataloader.format ", config.format,
                      " says which special tokens an example gets; leave it out, or give another "
                      "--dataloader.chat_template");
  }
  for (const std::string& path : files.paths) {
    if (!files.kind->is_text || !format_of(path).lines) {
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

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace tessera::train {
namespace {

using Words = std::vector<std::string_view>;

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    out += text.substr(at, found - at);
    if (found == text.npos) return out;
    out += to;
    at = found + from.size();
  }
}

// Joins parts of a text, each a match or what lies between two, as `behavior` says.
class Joiner {
 public:
  Joiner(SplitStage::Behavior behavior, Words& words) : behavior_(behavior), words_(words) {}
  void add(std::string_view part, bool matched) {
    using Behavior = SplitStage::Behavior;
    bool join = false;  // to the word before
    switch (behavior_) {
      case Behavior::removed:
        if (!matched) words_.push_back(part);
        return;
      case Behavior::isolated: break;
      case Behavior::merged_with_previous: join = matched && !last_matched_; break;
      case Behavior::merged_with_next: join = !matched && last_matched_; break;
      case Behavior::contiguous: join = matched == last_matched_; break;
    }
    if (join && any_) words_.back() = {words_.back().data(), words_.back().size() + part.size()};
    else words_.push_back(part);
    any_ = true;
    last_matched_ = matched;
  }

 private:
  SplitStage::Behavior behavior_;
  Words& words_;
  bool any_ = false, last_matched_ = false;
};

void split_by(const SplitStage& stage, std::string_view text, Words& out) {
  Joiner joiner(stage.behavior, out);
  size_t done = 0, steps = Pattern::steps_for(text);
  while (const auto match = stage.pattern.find(text, done, steps)) {
    if (done < match->first) joiner.add(text.substr(done, match->first - done), stage.invert);
    joiner.add(text.substr(match->first, match->second - match->first), !stage.invert);
    done = match->second;
  }
  if (done < text.size()) joiner.add(text.substr(done), stage.invert);
}

void split_by_mark(const MarkStage& stage, std::string_view text, bool begins,
                   PreTokenizer::Buffers& buffers) {
  std::string marked = replaced(text, " ", stage.mark);
  const bool prepend = stage.prepend == MarkStage::Prepend::always ||
                       (stage.prepend == MarkStage::Prepend::first && begins);
  if (prepend && !marked.starts_with(stage.mark)) marked.insert(0, stage.mark);
  std::string_view rest = buffers.changed.emplace_back(std::move(marked));
  while (stage.split && !rest.empty()) {
    const size_t next = std::min(rest.find(stage.mark, 1), rest.size());
    buffers.next.push_back(rest.substr(0, next));
    rest.remove_prefix(next);
  }
  if (!rest.empty()) buffers.next.push_back(rest);
}

}  // namespace

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (step.nfc) out = step.nfc->nfc(out);
    else if (!step.from.empty()) out = replaced(out, step.from, step.to);
    else if (!out.empty()) out.insert(0, step.to);
  }
  return out;
}

bool Normalizer::allows_cuts() const {
  return std::ranges::all_of(steps_, [](const Step& s) { return s.nfc != nullptr; });
}

void PreTokenizer::add(Stage stage) { stages_.push_back(std::move(stage)); }

void PreTokenizer::split(std::string_view text, bool begins, Buffers& buffers) const {
  buffers.changed.clear();
  buffers.words.clear();
  if (!text.empty()) buffers.words.push_back(text);
  for (const Stage& stage : stages_) {
    buffers.next.clear();
    for (const std::string_view& word : buffers.words) {
      if (const auto* split = std::get_if<SplitStage>(&stage)) {
        split_by(*split, word, buffers.next);
      } else if (const auto* mark = std::get_if<MarkStage>(&stage)) {
        split_by_mark(*mark, word, begins && &word == buffers.words.data(), buffers);
      } else if (word.starts_with(' ')) {
        buffers.next.push_back(word);
      } else {
        buffers.next.push_back(buffers.changed.emplace_back(std::string(" ").append(word)));
      }
    }
    buffers.words.swap(buffers.next);
  }
}

bool PreTokenizer::allows_cuts() const {
  bool separates = false;
  for (const Stage& stage : stages_) {
    const auto* split = std::get_if<SplitStage>(&stage);
    if (!split || !split->pattern.allows_cuts()) return false;
    if (split->behavior != SplitStage::Behavior::isolated) return false;
    separates = separates || split->pattern.takes_space();
  }
  return separates;
}

}  // namespace tessera::train

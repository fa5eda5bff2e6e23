// SPDX-License-Identifier: Apache-2.0
// tokenizer.json describes a pipeline of named parts. Parts that change ids and are not known are
// an error; nothing is guessed. Vocabularies of byte-level models are written in characters that
// stand for bytes; here they become the bytes at once.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/train/tokenizer/json_value_impl.h"
#include "tessera/train/tokenizer/settings_impl.h"
#include "tessera/train/tokenizer/splits.h"
#include "tessera/train/tokenizer/tokenizer_file_impl.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace tessera::train {
namespace {

// Bounds that no tokenizer of the field comes near.
constexpr size_t kMostTokenBytes = 1 << 16, kMostStages = 64, kMostAdded = 1 << 20;
constexpr std::string_view kMark = "\xE2\x96\x81";

// The bytes that a token of a byte-level vocabulary is written for; nothing if it holds another
// character, as the names of marks do.
class ByteCharacters {
 public:
  ByteCharacters() {
    points_.fill(-1);
    const auto characters = byte_characters();
    for (size_t b = 0; b < 256; ++b)
      points_[unicode::character_at(characters[b], 0).point] = static_cast<int>(b);
  }
  [[nodiscard]] std::optional<std::string> bytes(std::string_view token) const {
    std::string out;
    for (size_t at = 0; at < token.size();) {
      const unicode::Character c = unicode::character_at(token, at);
      if (c.point >= points_.size() || points_[c.point] < 0) return std::nullopt;
      out += static_cast<char>(points_[c.point]);
      at += c.bytes;
    }
    return out;
  }

 private:
  std::array<int, 512> points_{};
};

// `<0x0A>`: the token of a byte in SentencePiece-style vocabularies; -1 for another.
int byte_of_name(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'A' && c <= 'F';
    if (!digit && !letter) return -1;
    value = value * 16 + (digit ? c - '0' : c - 'A' + 10);
  }
  return value;
}

class Reader {
 public:
  BpeParts run(std::span<const TokenizerFile> files) {
    const auto find = [&](std::string_view name) {
      const auto at = std::ranges::find(files, name, &TokenizerFile::name);
      return at == files.end() ? nullptr : &*at;
    };
    const TokenizerFile* whole = find(kTokenizerJson);
    if (!whole && !(find(kVocabJson) && find(kMergesTxt))) {
      fail<DataError>("tokenizer", "neither ", kTokenizerJson, " nor ", kVocabJson, " and ",
                      kMergesTxt, " are given");
    }
    const TokenizerSettings settings = read_settings(files, !whole);
    parts_.reads_older = settings.reads_older;
    if (whole) {
      const Json json = parsed(*whole);
      read(Value(&json, whole->name));
      if (settings.known) require_pipeline_of(settings);
    } else {
      const Json json = parsed(*find(kVocabJson));
      add_pipeline_of(settings);
      read_vocabulary(Value(&json, std::string(kVocabJson)));
      read_merges(*find(kMergesTxt));
    }
    for (const ListedToken& token : settings.listed) add_listed(token, !whole);
    for (const NamedToken& token : settings.named) add_named(token);
    choose_marks(settings);
    finish();
    return std::move(parts_);
  }

 private:
  void read(const Value& file) {
    const Value model = file.member("model");
    const std::string_view type = model.member("type").text_or("BPE");
    if (type != "BPE") model.member("type").stop("is '", io::excerpt(type, 40), "', expected BPE");
    read_normalizer(file.member("normalizer"));
    read_pre_tokenizer(file.member("pre_tokenizer"));
    read_decoder(file.member("decoder"));
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.member(name).text_or("").empty()) model.member(name).stop("is not supported");
    }
    if (const Value dropout = model.member("dropout"); !dropout.absent())
      dropout.stop("is ", dropout.kind(), ", expected null: the same text gives the same tokens");
    read_vocabulary(model.member("vocab"));
    parts_.model.whole_words = model.member("ignore_merges").flag_or(false);
    if (parts_.model.whole_words) pipeline_.emplace_back("words that are tokens stay whole");
    parts_.model.byte_fallback = model.member("byte_fallback").flag_or(false);
    parts_.model.fuse_unknown = model.member("fuse_unk").flag_or(false);
    if (const Value unknown = model.member("unk_token"); !unknown.absent())
      parts_.model.unknown = static_cast<int32_t>(id_of(unknown.text(), unknown));
    read_merges(model.member("merges"));
    read_added(file.member("added_tokens"));
    read_template(file.member("post_processor"), 0);
  }

  uint32_t id_of(std::string_view token, const Value& at) const {
    const auto id = ids_.find(std::string(token));
    if (id == ids_.end()) at.stop('\'', io::excerpt(token, 60), "' is not in the vocabulary");
    return id->second;
  }

  void read_vocabulary(const Value& vocabulary) {
    const auto& members = vocabulary.need(Json::value_t::object, "an object of tokens and ids")
                              .get_ref<const Json::object_t&>();
    // Holes are few in vocabularies of the field, and a huge id must not make a huge table.
    most_ids_ = std::min<int64_t>(kMostIds, 4 * static_cast<int64_t>(members.size()) + 65536);
    for (const auto& [token, id] : members) {
      const Value value(&id, concat(vocabulary.place(), "['", io::excerpt(token, 60), "']"));
      name(token, value.id(), value);
    }
    if (ids_.empty()) vocabulary.stop("is empty");
  }

  void name(const std::string& token, int64_t id, const Value& at) {
    if (token.size() > kMostTokenBytes)
      at.stop("has ", counted(token.size(), "byte"), ", expected at most ", kMostTokenBytes);
    if (id >= most_ids_)
      at.stop("id ", id, " is far beyond the ", counted(ids_.size(), "token"),
              " of the vocabulary");
    const auto index = static_cast<size_t>(id);
    if (index >= names_.size()) names_.resize(index + 1);
    if (!names_[index].empty())
      at.stop("id ", id, " is also that of '", io::excerpt(names_[index], 60), "'");
    names_[index] = token;
    ids_.emplace(token, static_cast<uint32_t>(id));
  }

  void add_merge(const std::string& left, const std::string& right, const Value& at) {
    const BpeModel::Merge merge{id_of(left, at), id_of(right, at), id_of(left + right, at)};
    parts_.model.merges.push_back(merge);
  }

  void read_merges(const Value& merges) {
    merges.each([&](const Value& merge) {
      if (merge.is_string()) {
        const std::string_view pair = merge.text();
        const size_t space = pair.find(' ');
        if (space == pair.npos || pair.find(' ', space + 1) != pair.npos)
          merge.stop("is ", merge.kind(), ", expected two tokens with one space between them");
        return add_merge(std::string(pair.substr(0, space)), std::string(pair.substr(space + 1)),
                         merge);
      }
      std::vector<std::string> both;
      merge.each([&](const Value& part) { both.emplace_back(part.text()); });
      if (both.size() != 2) merge.stop("has ", counted(both.size(), "token"), ", expected 2");
      add_merge(both[0], both[1], merge);
    });
  }

  void read_merges(const TokenizerFile& file) {
    std::string_view rest = file.bytes;
    for (int64_t number = 1; !rest.empty(); ++number) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with("#version") || line.empty()) continue;
      const Value at(nullptr, concat(file.name, " line ", number));
      const size_t space = line.find(' ');
      if (space == line.npos || line.find(' ', space + 1) != line.npos)
        at.stop("is '", io::excerpt(line, 60),
                "', expected two tokens with one space between them");
      add_merge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), at);
    }
  }

  void read_added(const Value& added) {
    added.each([&](const Value& token) {
      AddedToken t{.content = std::string(token.member("content").text()),
                   .id = static_cast<int32_t>(token.member("id").id()),
                   .single_word = token.member("single_word").flag_or(false),
                   .left_space = token.member("lstrip").flag_or(false),
                   .right_space = token.member("rstrip").flag_or(false),
                   .special = token.member("special").flag_or(false)};
      t.normalised = token.member("normalized").flag_or(!t.special);
      if (t.content.empty()) token.member("content").stop("is empty");
      const auto known = ids_.find(t.content);
      if (known == ids_.end()) {
        ++most_ids_;
        name(t.content, t.id, token.member("id"));
      } else if (known->second != static_cast<uint32_t>(t.id)) {
        token.member("id").stop("is ", t.id, ", but the vocabulary has '",
                                io::excerpt(t.content, 60), "' at ", known->second);
      }
      push_added(std::move(t), token.place());
    });
  }

  void read_normalizer(const Value& normalizer, size_t depth = 0) {
    if (normalizer.absent()) return;
    bound(normalizer, depth);
    const std::string_view type = normalizer.member("type").text();
    if (type == "Sequence")
      return normalizer.member("normalizers").each([&](const Value& v) {
        read_normalizer(v, depth + 1);
      });
    if (type == "NFC") return add_nfc();
    if (type == "Prepend" || type == "Replace") add_other_step(std::string(type));
    if (type == "Prepend")
      return parts_.normalizer.add_prepend(std::string(normalizer.member("prepend").text()));
    if (type == "Replace") {
      const Value from = normalizer.member("pattern").member("String");
      if (from.text_or("").empty())
        from.stop("is ", from.kind(), ", expected a text that is not empty");
      return parts_.normalizer.add_replace(std::string(from.text()),
                                           std::string(normalizer.member("content").text()));
    }
    unknown_type(normalizer, "Sequence, NFC, Prepend or Replace of a text");
  }

  void read_pre_tokenizer(const Value& p, size_t depth = 0) {
    if (p.absent()) return;
    bound(p, depth);
    const std::string_view type = p.member("type").text();
    if (type == "Sequence") {
      p.member("pretokenizers").each([&](const Value& v) { read_pre_tokenizer(v, depth + 1); });
    } else if (type == "ByteLevel") {
      add_byte_level(p.member("add_prefix_space").flag_or(true),
                     p.member("use_regex").flag_or(true), p.place());
    } else if (byte_level_) {
      // Later parts would see the characters that stand for bytes.
      p.stop("a part after ByteLevel is not supported");
    } else if (type == "Split") {
      read_split(p);
    } else if (type == "Digits") {
      const bool single = p.member("individual_digits").flag_or(false);
      add_split(single ? "\\p{N}" : "\\p{N}+", p.place());
    } else if (type == "Metaspace") {
      read_metaspace(p);
    } else {
      unknown_type(p, "Sequence, Split, ByteLevel, Digits or Metaspace");
    }
  }

  void read_split(const Value& p) {
    const Value regex = p.member("pattern").member("Regex"),
                text = p.member("pattern").member("String");
    if (regex.absent() && text.text_or("").empty())
      text.stop("is empty or missing, expected a text, or a Regex beside it");
    const std::pair<const char*, SplitStage::Behavior> behaviors[] = {
        {"Removed", SplitStage::Behavior::removed},
        {"Isolated", SplitStage::Behavior::isolated},
        {"MergedWithPrevious", SplitStage::Behavior::merged_with_previous},
        {"MergedWithNext", SplitStage::Behavior::merged_with_next},
        {"Contiguous", SplitStage::Behavior::contiguous}};
    const Value behavior = p.member("behavior");
    const auto wanted = std::ranges::find(behaviors, behavior.text(),
                                          [](const auto& b) { return std::string_view(b.first); });
    if (wanted == std::end(behaviors))
      behavior.stop(
          "is ", behavior.kind(),
          ", expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
    const bool invert = p.member("invert").flag_or(false);
    if (!regex.absent() && wanted->second == SplitStage::Behavior::isolated && !invert)
      return add_split(regex.text(), regex.place());
    add_other_step(concat("another way to split, ", p.place()));
    parts_.pre_tokenizer.add(SplitStage{regex.absent() ? Pattern::literal(text.text(), text.place())
                                                       : Pattern(regex.text(), regex.place()),
                                        wanted->second, invert});
  }

  void read_metaspace(const Value& p) {
    MarkStage stage{.mark = std::string(p.member("replacement").text_or(kMark)),
                    .split = p.member("split").flag_or(true)};
    if (stage.mark.empty() || unicode::character_at(stage.mark, 0).bytes != stage.mark.size())
      p.member("replacement")
          .stop("is ", p.member("replacement").kind(), ", expected one character");
    const Value scheme = p.member("prepend_scheme");
    const std::string_view wanted =
        scheme.text_or(p.member("add_prefix_space").flag_or(true) ? "always" : "never");
    if (wanted == "first") stage.prepend = MarkStage::Prepend::first;
    else if (wanted == "never") stage.prepend = MarkStage::Prepend::never;
    else if (wanted != "always")
      scheme.stop("is ", scheme.kind(), ", expected always, first or never");
    add_other_step("Metaspace");
    parts_.pre_tokenizer.add(std::move(stage));
  }

  void add_other_step(std::string step) {
    pipeline_.push_back(std::move(step));
    parts_.other_steps = true;
  }
  void add_nfc() {
    pipeline_.emplace_back("NFC");
    parts_.normalizer.add_nfc();
  }
  void add_split(std::string_view pattern, const std::string& place) {
    pipeline_.push_back(concat("a split by ", pattern));
    parts_.splits.emplace_back(pattern);
    parts_.pre_tokenizer.add(SplitStage{Pattern(pattern, place)});
  }
  void add_byte_level(bool prefix_space, bool use_regex, const std::string& place) {
    if (byte_level_) fail<DataError>("tokenizer", place, ": a second ByteLevel is not supported");
    byte_level_ = true;
    if (prefix_space) {
      add_other_step("a space before");
      parts_.pre_tokenizer.add(PrefixSpaceStage());
    }
    if (use_regex) add_split(byte_level_pattern(), place);
  }

  // What the class does before a word is encoded.
  void add_pipeline_of(const TokenizerSettings& settings) {
    const TokenizerClass& known = *settings.known;
    const std::string& place = settings.class_place;
    if (known.nfc) add_nfc();
    const char* pattern = find_split(known.split)->patterns[0];
    const bool own = std::string_view(pattern) != byte_level_pattern();
    if (own) add_split(pattern, place);
    add_byte_level(settings.prefix_space, !own, place);
  }
  // transformers 5 takes the class's, transformers 4 that of the file.
  void require_pipeline_of(const TokenizerSettings& settings) const {
    Reader by_class;
    by_class.add_pipeline_of(settings);
    if (by_class.pipeline_ == pipeline_) return;
    const auto text = [](const std::vector<std::string>& steps) {
      std::string all;
      for (const std::string& step : steps)
        all += (all.empty() ? "" : ", ") + io::excerpt(step, 80);
      return all.empty() ? std::string("nothing") : all;
    };
    fail<DataError>("tokenizer", settings.class_place, ": is ", settings.known->name,
                    ", which prepares text by ", text(by_class.pipeline_), ", but ", kTokenizerJson,
                    " by ", text(pipeline_),
                    ": if that file is right, write \"PreTrainedTokenizerFast\" there and take "
                    "add_prefix_space out");
  }

  // The id that the next token gets.
  int64_t next_id(std::string_view content, const std::string& place) const {
    if (ids_.size() != names_.size()) {
      fail<DataError>("tokenizer", place, ": '", io::excerpt(content, 60),
                      "' is new, but ids before the last one are free, so its id is not known");
    }
    return std::ssize(names_);
  }
  void add_new(const AddedToken& token, const std::string& place) {
    ++most_ids_;
    name(token.content, token.id, Value(nullptr, place));
  }
  // transformers appends what tokenizer.json lacks, whatever id added_tokens_decoder says.
  void add_listed(const ListedToken& listed, bool slow) {
    AddedToken token = listed.token;
    const auto known = ids_.find(token.content);
    const int64_t id =
        known != ids_.end() ? int64_t{known->second} : next_id(token.content, listed.place);
    if (known == ids_.end() && listed.decides && !slow) token.id = static_cast<int32_t>(id);
    if (id != token.id) {
      fail<DataError>("tokenizer", listed.place, ": '", io::excerpt(token.content, 60),
                      "' has the id ", token.id, " here, but ", id,
                      known != ids_.end() ? " in the vocabulary" : " is the next one that is free");
    }
    if (known == ids_.end()) add_new(token, listed.place);
    const auto there = added_at_.find(token.content);
    if (there == added_at_.end()) push_added(token, listed.place);
    else if (listed.decides) parts_.added[there->second] = token;
  }
  void add_named(const NamedToken& named) {
    const std::string& content = named.token.content;
    if (added_at_.contains(content)) return;
    AddedToken token = named.token;
    const auto known = ids_.find(content);
    token.id = static_cast<int32_t>(known != ids_.end() ? int64_t{known->second}
                                                        : next_id(content, named.place));
    if (known == ids_.end()) add_new(token, named.place);
    push_added(std::move(token), named.place);
  }
  void push_added(AddedToken token, const std::string& place) {
    if (parts_.added.size() == kMostAdded)
      fail<DataError>("tokenizer", place, ": is beyond the ", kMostAdded,
                      " tokens that may be added");
    added_at_.emplace(token.content, parts_.added.size());
    parts_.added.push_back(std::move(token));
  }

  void choose_marks(const TokenizerSettings& settings) {
    const auto id_of_role = [&](std::string_view role) -> int64_t {
      const auto at = std::ranges::find(settings.named, role, &NamedToken::role);
      return at == settings.named.end() ? int64_t{-1} : int64_t{ids_.at(at->token.content)};
    };
    if (settings.refuses_begin && parts_.begin >= 0) {
      fail<DataError>("tokenizer", *settings.refuses_begin,
                      ": is false, but the post_processor of ", kTokenizerJson, " puts '",
                      io::excerpt(names_[static_cast<size_t>(parts_.begin)], 60),
                      "' before a text: make them agree");
    }
    parts_.begins_documents = settings.begins_documents;
    if (parts_.begin >= 0) parts_.begins_documents = true;
    else parts_.begin = id_of_role("bos_token");
    if (const int64_t end = id_of_role("eos_token"); end >= 0) parts_.end = end;
  }

  void read_decoder(const Value& d, size_t depth = 0) {
    if (d.absent()) return;
    bound(d, depth);
    const std::string_view type = d.member("type").text();
    if (type == "Sequence") {
      d.member("decoders").each([&](const Value& v) { read_decoder(v, depth + 1); });
    } else if (type == "Replace") {
      const Value from = d.member("pattern").member("String");
      if (from.text() != kMark || d.member("content").text() != " ")
        d.stop("expected '", kMark, "' to be replaced by a space");
      marks_are_spaces_ = true;
    } else if (type == "Metaspace") {
      marks_are_spaces_ = true;
      parts_.drops_first_space = d.member("prepend_scheme").text_or("always") != "never";
    } else if (type == "ByteFallback") {
      names_are_bytes_ = true;
    } else if (type == "Strip") {
      parts_.drops_first_space = d.member("content").text() == " ";
    } else if (type != "Fuse" && type != "ByteLevel") {
      unknown_type(d, "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace");
    }
  }

  // Tokens that are put around a text: of `{"SpecialToken": {"id": "<s>"}}` in a template, whose
  // special_tokens have the ids.
  void read_template(const Value& p, size_t depth) {
    if (p.absent()) return;
    bound(p, depth);
    const std::string_view type = p.member("type").text();
    if (type == "Sequence")
      return p.member("processors").each([&](const Value& v) { read_template(v, depth + 1); });
    if (type != "TemplateProcessing") return;  // others change no ids of a text without marks
    bool before = true;
    p.member("single").each([&](const Value& part) {
      const Value mark = part.member("SpecialToken");
      if (mark.absent()) {
        before = false;
        return;
      }
      int64_t& side = before ? parts_.begin : parts_.end;
      if (side >= 0)
        part.stop("is a second token ", before ? "before" : "behind", " a text, expected one");
      side = id_in_template(p.member("special_tokens"), mark.member("id"));
    });
  }
  [[nodiscard]] int64_t id_in_template(const Value& all, const Value& token) const {
    if (all.absent()) return id_of(token.text(), token);
    const Value ids = all.member(token.text()).member("ids");
    std::vector<int64_t> list;
    ids.each([&](const Value& id) { list.push_back(id.id()); });
    if (list.size() != 1) ids.stop("has ", counted(list.size(), "id"), ", expected one");
    const auto id = static_cast<size_t>(list[0]);
    if (id >= names_.size() || names_[id].empty())
      ids.stop("is ", id, ", which no token of the vocabulary has");
    return list[0];
  }

  void finish() {
    BpeModel& model = parts_.model;
    const ByteCharacters characters;
    model.of_bytes = byte_level_;
    model.byte_tokens.fill(-1);
    for (const std::string& name : names_) {
      if (const int byte = byte_of_name(name); byte >= 0)
        model.byte_tokens[static_cast<size_t>(byte)] = static_cast<int32_t>(ids_.at(name));
      const auto bytes = characters.bytes(name);
      model.tokens.push_back(byte_level_ ? bytes.value_or("") : name);
      if (byte_level_) parts_.bytes.push_back(bytes.value_or(name));
      else parts_.bytes.push_back(decoded(name));
    }
    for (const AddedToken& t : parts_.added) {
      if (t.special) parts_.bytes[static_cast<size_t>(t.id)] = t.content;
    }
    parts_.names = std::move(names_);
    if (model.byte_fallback && byte_level_)
      fail<DataError>("tokenizer", kTokenizerJson,
                      ".model.byte_fallback: is true in a byte-level model");
  }

  [[nodiscard]] std::string decoded(const std::string& name) const {
    if (const int byte = byte_of_name(name); names_are_bytes_ && byte >= 0)
      return std::string(1, static_cast<char>(byte));
    std::string out = name;
    for (size_t at = 0; marks_are_spaces_ && (at = out.find(kMark, at)) != out.npos;)
      out.replace(at, kMark.size(), " ");
    return out;
  }

  void bound(const Value& v, size_t depth) {
    if (depth > 4) v.stop("nested deeper than 4 levels");
    if (++stages_ > kMostStages)
      v.stop("is beyond the ", kMostStages, " parts that a tokenizer may have");
  }
  [[noreturn]] static void unknown_type(const Value& v, const char* expected) {
    v.member("type").stop("is ", v.member("type").kind(), ", expected ", expected);
  }

  BpeParts parts_;
  std::vector<std::string> names_;     // of each id
  std::vector<std::string> pipeline_;  // what happens to a text, in words
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<std::string, size_t> added_at_;  // in parts_.added
  int64_t most_ids_ = 0;
  size_t stages_ = 0;
  bool byte_level_ = false, marks_are_spaces_ = false, names_are_bytes_ = false;
};

}  // namespace

std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> all;
  uint32_t other = 256;  // bytes that are no visible Latin-1 character get the next ones beyond
  for (uint32_t b = 0; b < 256; ++b) {
    const bool visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
    unicode::append(all[b], visible ? b : other++);
  }
  return all;
}

BpeParts parse_tokenizer_files(std::span<const TokenizerFile> files) { return Reader().run(files); }

}  // namespace tessera::train

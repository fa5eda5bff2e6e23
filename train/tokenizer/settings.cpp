// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer/json_value_impl.h"
#include "tessera/train/tokenizer/settings_impl.h"
#include "tessera/train/tokenizer/tokenizer_file_impl.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace tessera::train {
namespace {

// Those whose vocab.json and merges.txt say all the rest; the first is meant if none is named.
constexpr std::array<TokenizerClass, 3> kClasses{
    {{"GPT2Tokenizer", false, "gpt2", "<|endoftext|>", "<|endoftext|>"},
     {"Qwen2Tokenizer", true, "qwen2", nullptr, "<|endoftext|>"},
     {"GPTNeoXTokenizer", true, "gpt2", "<|endoftext|>", "<|endoftext|>"}}};

constexpr std::array<const char*, 7> kRoles{"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};
constexpr const char *kExtra = "extra_special_tokens", *kAdditional = "additional_special_tokens",
                     *kDecoder = "added_tokens_decoder";

// Of slow files, besides those that are read: what does not change the tokens of a text.
constexpr std::array<std::string_view, 24> kWithoutEffect{"model_max_length",
                                                          "max_len",
                                                          "padding_side",
                                                          "truncation_side",
                                                          "pad_token_type_id",
                                                          "model_input_names",
                                                          "clean_up_tokenization_spaces",
                                                          "spaces_between_special_tokens",
                                                          "chat_template",
                                                          "response_template",
                                                          "response_schema",
                                                          "name_or_path",
                                                          "special_tokens_map_file",
                                                          "tokenizer_file",
                                                          "processor_class",
                                                          "trim_offsets",
                                                          "use_fast",
                                                          "is_local",
                                                          "local_files_only",
                                                          "backend",
                                                          "transformers_version",
                                                          "verbose",
                                                          "_commit_hash",
                                                          "max_length"};
constexpr std::array<std::string_view, 8> kRead{
    "tokenizer_class", "add_bos_token",        "add_eos_token", "add_prefix_space",
    "errors",          "split_special_tokens", kDecoder,        "fix_mistral_regex"};

std::string_view without_fast(std::string_view name) {
  return name.ends_with("Fast") ? name.substr(0, name.size() - 4) : name;
}

const TokenizerFile* find(std::span<const TokenizerFile> files, std::string_view name) {
  const auto at = std::ranges::find(files, name, &TokenizerFile::name);
  return at == files.end() ? nullptr : &*at;
}

AddedToken described(const Value& token, bool special) {
  AddedToken t{.content = std::string(token.member("content").text()),
               .single_word = token.member("single_word").flag_or(false),
               .left_space = token.member("lstrip").flag_or(false),
               .right_space = token.member("rstrip").flag_or(false),
               .special = token.member("special").flag_or(special)};
  t.normalised = token.member("normalized").flag_or(!t.special);
  if (t.content.empty()) token.member("content").stop("is empty");
  return t;
}

class Settings {
 public:
  Settings(std::span<const TokenizerFile> files, bool slow) : files_(files), slow_(slow) {}

  TokenizerSettings run() {
    const Json config = of(kTokenizerConfig), map = of(kSpecialTokensMap), added = of(kAddedTokens);
    const Value of_config(&config, std::string(kTokenizerConfig)),
        of_map(&map, std::string(kSpecialTokensMap)), of_added(&added, std::string(kAddedTokens));
    settings_.reads_older = of_config.member(kDecoder).absent();
    for (const auto& [object, value] : {std::pair(&config, &of_config), {&map, &of_map}}) {
      constexpr size_t kMostMembers = 4096;  // each is looked for among all
      if (object->size() > kMostMembers)
        value->stop("has ", object->size(), " members, expected at most ", kMostMembers);
    }
    read_class(of_config);
    read_flags(of_config);
    read_named(of_config, of_map);
    if (settings_.reads_older) read_added(of_added);
    else read_decoder(of_config.member(kDecoder));
    std::ranges::stable_sort(settings_.listed, {}, [](const ListedToken& t) { return t.token.id; });
    if (slow_) refuse_unknown(of_config);
    return std::move(settings_);
  }

 private:
  [[nodiscard]] Json of(std::string_view name) const {
    const TokenizerFile* file = find(files_, name);
    return file ? parsed(*file) : Json::object();
  }

  void read_class(const Value& config) {
    const Value name = config.member("tokenizer_class");
    settings_.class_place = name.place();
    const auto at = std::ranges::find(kClasses, without_fast(name.text_or("")),
                                      [](const auto& c) { return std::string_view(c.name); });
    if (at != kClasses.end()) settings_.known = &*at;
    else if (slow_ && name.absent()) settings_.known = kClasses.data();
    else if (slow_) {
      name.stop("is ", name.kind(), ", but of ", kVocabJson, " and ", kMergesTxt, " without ",
                kTokenizerJson,
                " only those of GPT2Tokenizer, Qwen2Tokenizer and GPTNeoXTokenizer are read; load "
                "the folder in transformers and save it, which writes ",
                kTokenizerJson);
    }
  }

  void read_flags(const Value& config) {
    settings_.prefix_space = config.member("add_prefix_space").flag_or(false);
    (void)config.member("add_eos_token").flag_or(false);  // of prompts: documents end in any case
    const Value begins = config.member("add_bos_token");
    const bool of_class = settings_.known && !config.member("bos_token").said();
    settings_.begins_documents = begins.flag_or(!of_class);
    if (!begins.absent() && !settings_.begins_documents) settings_.refuses_begin = begins.place();
    for (const char* key : {"split_special_tokens", "fix_mistral_regex"}) {
      if (config.member(key).flag_or(false)) config.member(key).stop("is true, expected false");
    }
    const Value errors = config.member("errors");
    if (slow_ && errors.text_or("replace") != "replace")
      errors.stop("is ", errors.kind(), ", expected 'replace'");
  }

  // Either file may give a role; of two the map's counts, if it is read at all.
  void read_named(const Value& config, const Value& map) {
    const auto value_of = [&](std::string_view key) {
      const Value of_map = map.member(key);
      return settings_.reads_older && of_map.said() ? of_map : config.member(key);
    };
    for (const char* role : kRoles) {
      const Value value = value_of(role);
      if (value.said()) add_named(role, value);
      else if (settings_.known) add_default(role);
    }
    std::vector<std::string> seen;
    const auto others = [&](const Value& file) {
      file.each_member([&](const std::string& key, const Value&) {
        const Value value = value_of(key);
        const bool is_name = key.ends_with("_token") && (value.is_string() || value.is_object());
        if (!is_name || std::ranges::count(kRoles, key) || std::ranges::count(seen, key)) return;
        seen.push_back(key);
        add_named(key, value);
      });
    };
    others(config);
    if (settings_.reads_older) others(map);
    for (const char* key : {kExtra, kAdditional}) {
      const Value extra = value_of(key);
      if (extra.is_object())
        extra.each_member([&](const std::string& role, const Value& v) { add_named(role, v); });
      else extra.each([&](const Value& v) { add_named(key, v); });
      if (!extra.absent()) return;
    }
  }

  void add_named(std::string_view role, const Value& value) {
    if (value.absent()) return;  // null: none
    AddedToken token{.content = {}, .normalised = false, .special = true};
    if (value.is_object()) {
      token = described(value, false);
      token.special = true;
    } else {
      token.content = value.text();
      if (token.content.empty()) return;
    }
    names_.insert(token.content);
    settings_.named.push_back({std::string(role), std::move(token), value.place()});
  }
  void add_default(std::string_view role) {
    const TokenizerClass& known = *settings_.known;
    const char* name = role == "bos_token"                          ? known.begin
                       : role == "eos_token" || role == "unk_token" ? known.others
                                                                    : nullptr;
    if (!name) return;
    names_.insert(name);
    settings_.named.push_back({std::string(role),
                               {.content = name, .normalised = false, .special = true},
                               concat(settings_.class_place, ", ", role)});
  }

  void read_decoder(const Value& decoder) {
    decoder.each_member([&](const std::string& key, const Value& value) {
      AddedToken token = described(value, false);
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
      if (error != std::errc() || end != key.data() + key.size() || token.id < 0 ||
          token.id >= kMostIds)
        value.stop("expected an id in its place");
      list(std::move(token), value, true);
    });
  }
  void read_added(const Value& added) {
    added.each_member([&](const std::string& content, const Value& value) {
      AddedToken token{.content = content, .id = static_cast<int32_t>(value.id())};
      if (content.empty()) value.stop("a token is empty");
      token.special = is_named(content);
      token.normalised = !token.special;
      list(std::move(token), value, false);
    });
  }
  void list(AddedToken token, const Value& place, bool decides) {
    if (slow_ && is_named(token.content)) token.special = true;
    settings_.listed.push_back({std::move(token), place.place(), decides});
  }
  [[nodiscard]] bool is_named(std::string_view content) const { return names_.contains(content); }

  static void refuse_unknown(const Value& config) {
    config.each_member([&](const std::string& key, const Value& value) {
      const auto is_one = [&](const auto& keys) { return std::ranges::count(keys, key) > 0; };
      const bool lists = key == kExtra || key == kAdditional;
      const bool nothing = key == "init_inputs" && value.is_list();
      if (is_one(kRead) || is_one(kWithoutEffect) || lists || nothing || value.absent()) return;
      if (key.ends_with("_token") && (value.is_string() || value.is_object())) return;
      value.stop("is not known, and may change tokens: take it out if it does not, or give ",
                 kTokenizerJson);
    });
  }

  std::span<const TokenizerFile> files_;
  bool slow_;
  TokenizerSettings settings_;
  std::set<std::string, std::less<>> names_;  // of settings_.named
};

}  // namespace

TokenizerSettings read_settings(std::span<const TokenizerFile> files, bool slow) {
  return Settings(files, slow).run();
}

void require_class(const std::string& config_json, std::span<const TokenizerFile> files,
                   const std::string& folder, const std::string& field) {
  const TokenizerFile* config = find(files, kTokenizerConfig);
  const Json named = config ? io::parse_json(config->bytes).value : Json();
  if (named.is_object() && named.contains("tokenizer_class")) return;
  const Json model = io::parse_json(config_json).value;
  if (!model.is_object() || !model.contains("model_type") || !model["model_type"].is_string())
    return;
  const auto type = model["model_type"].get<std::string>();
  if (type == "gpt2") return;
  fail<DataError>(field, "folder ", folder, " holds a ", io::excerpt(type, 60), ", ", kVocabJson,
                  " and ", kMergesTxt, ", but nothing says how text is split: write \"",
                  "tokenizer_class\", such as \"Qwen2Tokenizer\", into ", kTokenizerConfig);
}

}  // namespace tessera::train

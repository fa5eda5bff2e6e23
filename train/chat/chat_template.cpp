// SPDX-License-Identifier: Apache-2.0
// The built-in templates are written in the form that files have, and read by the same reader.
#include "tessera/train/chat/chat_template.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBytes = 1 << 16, kExcerpt = 60;

// A prompt and its completion, as they are, between the tokenizer's own marks.
constexpr std::string_view kPlain = R"({
  "begin": [{"own_mark": "begin"}],
  "roles": {
    "user": {"prefix": [], "suffix": []},
    "assistant": {"prefix": [], "suffix": [{"own_mark": "end"}]}
  }
})";

constexpr std::string_view kChatMl = R"({
  "roles": {
    "system": {"prefix": [{"mark": "<|im_start|>"}, "system\n"],
               "suffix": [{"mark": "<|im_end|>"}, "\n"]},
    "user": {"prefix": [{"mark": "<|im_start|>"}, "user\n"],
             "suffix": [{"mark": "<|im_end|>"}, "\n"]},
    "assistant": {"prefix": [{"mark": "<|im_start|>"}, "assistant\n"],
                  "suffix": [{"mark": "<|im_end|>"}, "\n"]},
    "tool": {"prefix": [{"mark": "<|im_start|>"}, "tool\n"],
             "suffix": [{"mark": "<|im_end|>"}, "\n"]}
  }
})";

constexpr std::string_view kLlama3 = R"({
  "begin": [{"mark": "<|begin_of_text|>"}],
  "trim": true,
  "roles": {
    "system": {
      "prefix": [{"mark": "<|start_header_id|>"}, "system", {"mark": "<|end_header_id|>"}, "\n\n"],
      "suffix": [{"mark": "<|eot_id|>"}]},
    "user": {
      "prefix": [{"mark": "<|start_header_id|>"}, "user", {"mark": "<|end_header_id|>"}, "\n\n"],
      "suffix": [{"mark": "<|eot_id|>"}]},
    "assistant": {
      "prefix": [{"mark": "<|start_header_id|>"}, "assistant", {"mark": "<|end_header_id|>"}, "\n\n"],
      "suffix": [{"mark": "<|eot_id|>"}]},
    "tool": {
      "prefix": [{"mark": "<|start_header_id|>"}, "tool", {"mark": "<|end_header_id|>"}, "\n\n"],
      "suffix": [{"mark": "<|eot_id|>"}]}
  }
})";

// The system's message is a part of the user's first one. (The model's own template trims only the
// end of the two together.)
constexpr std::string_view kLlama2 = R"({
  "trim": true,
  "generation_prompt": [],
  "roles": {
    "system": {"prefix": [{"mark": "<s>"}, "[INST] <<SYS>>\n"], "suffix": ["\n<</SYS>>\n\n"]},
    "user": {"prefix": [{"mark": "<s>"}, "[INST] "], "suffix": [" [/INST]"]},
    "user_after_system": {"prefix": [], "suffix": [" [/INST]"]},
    "assistant": {"prefix": [" "], "suffix": [" ", {"mark": "</s>"}]}
  }
})";

constexpr std::string_view kMistral = R"({
  "begin": [{"mark": "<s>"}],
  "roles": {
    "user": {"prefix": ["[INST] "], "suffix": [" [/INST]"]},
    "assistant": {"prefix": [], "suffix": [{"mark": "</s>"}]}
  }
})";

struct BuiltIn {
  std::string name, json;
};
const std::vector<BuiltIn>& built_in() {
  static const std::vector<BuiltIn> all{
      {"plain", std::string(kPlain)},
      {"chatml", std::string(kChatMl)},
      // The message that Qwen 2 has where none is given.
      {"qwen2", concat(R"({"default_system": "You are a helpful assistant.",)", kChatMl.substr(1))},
      {"llama3", std::string(kLlama3)},
      {"llama2", std::string(kLlama2)},
      {"mistral", std::string(kMistral)},
  };
  return all;
}

class Reader {
 public:
  explicit Reader(std::string name) { template_.name = std::move(name); }

  ChatTemplate read(std::string_view json) {
    if (json.size() > kMostBytes)
      stop("", "holds ", counted(json.size(), "byte"), ", expected at most ", kMostBytes);
    const io::ParsedJson parsed = io::parse_json(json);
    if (!parsed.faults.empty()) stop("", parsed.faults[0]);
    if (io::first_invalid_utf8(json) != json.npos) stop("", "is not UTF-8");
    const Json& all = parsed.value;
    require_keys(all, "", {"begin", "roles", "generation_prompt", "default_system", "trim"});
    if (const Json* begin = find(all, "begin")) template_.begin = parts(*begin, "begin");
    read_roles(all);
    const TemplateText& prefix = turn(Role::assistant)->prefix;
    const Json* prompt = find(all, "generation_prompt");
    template_.generation_prompt = prompt ? parts(*prompt, "generation_prompt") : prefix;
    template_.answer_prefix = behind_prompt(prefix);
    if (const Json* system = find(all, "default_system"))
      template_.default_system = text(*system, "default_system");
    if (template_.default_system && !turn(Role::system))
      stop("default_system", "is given, but roles has no system");
    if (const Json* trim = find(all, "trim")) {
      if (!trim->is_boolean()) stop("trim", "is ", kind(*trim), ", expected true or false");
      template_.trim = trim->get<bool>();
    }
    return std::move(template_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void stop(const std::string& key, const Parts&... parts) const {
    fail<DataError>("chat_template", io::excerpt(template_.name), key.empty() ? "" : ", ", key,
                    ": ", parts...);
  }
  static std::string kind(const Json& value) {
    return value.is_string()
               ? concat('\'', io::excerpt(value.get_ref<const std::string&>(), kExcerpt), '\'')
               : value.type_name();
  }
  static const Json* find(const Json& object, const char* key) {
    const auto at = object.find(key);
    return at == object.end() ? nullptr : &*at;
  }
  [[nodiscard]] std::optional<ChatTemplate::Turn>& turn(Role role) {
    return template_.turns[static_cast<size_t>(role)];
  }

  void require_keys(const Json& object, const std::string& place,
                    std::initializer_list<std::string_view> known) const {
    std::string names;
    for (const std::string_view key : known)
      names += (names.empty() ? "" : ", ") + std::string(key);
    if (!object.is_object()) stop(place, "is ", kind(object), ", expected an object of ", names);
    for (const auto& [key, value] : object.items()) {
      if (std::ranges::find(known, key) == known.end())
        stop(place, "has the unknown key '", io::excerpt(key, kExcerpt), "', expected ", names);
    }
  }
  [[nodiscard]] std::string text(const Json& value, const std::string& place) const {
    if (!value.is_string()) stop(place, "is ", kind(value), ", expected a string");
    return value.get<std::string>();
  }

  void read_roles(const Json& all) {
    const Json* roles = find(all, "roles");
    if (!roles) stop("roles", "is missing, expected an object of roles");
    require_keys(*roles, "roles", {"system", "user", "user_after_system", "assistant", "tool"});
    for (const auto& [role, value] : roles->items()) {
      const std::string place = "roles." + role;
      require_keys(value, place, {"prefix", "suffix"});
      ChatTemplate::Turn read;
      if (const Json* prefix = find(value, "prefix"))
        read.prefix = parts(*prefix, place + ".prefix");
      if (const Json* suffix = find(value, "suffix"))
        read.suffix = parts(*suffix, place + ".suffix");
      const auto at = std::ranges::find(kRoleNames, role);
      if (at == kRoleNames.end()) template_.user_after_system = std::move(read);
      else template_.turns[static_cast<size_t>(at - kRoleNames.begin())] = std::move(read);
    }
    for (const Role role : {Role::user, Role::assistant})
      if (!turn(role)) stop("roles", "has no ", kRoleNames[static_cast<size_t>(role)]);
    if (template_.user_after_system && !turn(Role::system))
      stop("roles", "has user_after_system, but no system");
  }

  // Neighbouring texts become one.
  [[nodiscard]] TemplateText parts(const Json& list, const std::string& place) const {
    if (!list.is_array()) stop(place, "is ", kind(list), ", expected a list");
    TemplateText all;
    for (size_t i = 0; i < list.size(); ++i) {
      TemplatePart next = part(list[i], concat(place, '[', i, ']'));
      const bool is_text = next.kind == TemplatePart::Kind::text;
      if (is_text && !all.empty() && all.back().kind == TemplatePart::Kind::text)
        all.back().text += next.text;
      else if (!is_text || !next.text.empty()) all.push_back(std::move(next));
    }
    return all;
  }
  [[nodiscard]] TemplatePart part(const Json& value, const std::string& place) const {
    if (value.is_string()) return {TemplatePart::Kind::text, value.get<std::string>()};
    if (!value.is_object() || value.size() != 1)
      stop(place, "is ", kind(value),
           ", expected a string, {\"mark\": NAME} or {\"own_mark\": ", "\"begin\" or \"end\"}");
    require_keys(value, place, {"mark", "own_mark"});
    const auto& [key, name] = value.get_ref<const Json::object_t&>().front();
    const std::string named = text(name, concat(place, '.', key));
    if (key == "mark") return {TemplatePart::Kind::mark, named};
    if (named == "begin") return {TemplatePart::Kind::begin_mark, {}};
    if (named == "end") return {TemplatePart::Kind::end_mark, {}};
    stop(concat(place, ".own_mark"), "is ", kind(name), ", expected begin or end");
  }

  // The last part of the prompt may be the beginning of a text.
  [[nodiscard]] TemplateText behind_prompt(const TemplateText& prefix) const {
    const TemplateText& prompt = template_.generation_prompt;
    TemplateText rest = prefix;
    for (size_t i = 0; i < prompt.size(); ++i) {
      const bool last = i + 1 == prompt.size();
      if (!rest.empty() && rest[0] == prompt[i]) {
        rest.erase(rest.begin());
      } else if (last && !rest.empty() && rest[0].kind == TemplatePart::Kind::text &&
                 prompt[i].kind == TemplatePart::Kind::text &&
                 rest[0].text.starts_with(prompt[i].text)) {
        rest[0].text.erase(0, prompt[i].text.size());
      } else {
        stop("generation_prompt", "is not the beginning of roles.assistant.prefix");
      }
    }
    return rest;
  }

  ChatTemplate template_;
};

}  // namespace

ChatTemplate parse_chat_template(std::string_view json, std::string name) {
  return Reader(std::move(name)).read(json);
}

std::string chat_template_names() {
  std::string names;
  for (const BuiltIn& t : built_in()) names += (names.empty() ? "" : ", ") + t.name;
  return names;
}

std::string chat_template_file(const std::string& name_or_file) {
  const auto at = std::ranges::find(built_in(), name_or_file, &BuiltIn::name);
  return at == built_in().end() ? name_or_file : "";
}

ChatTemplate find_chat_template(const std::string& name_or_file, const std::string& field) {
  const auto at = std::ranges::find(built_in(), name_or_file, &BuiltIn::name);
  if (at != built_in().end()) return parse_chat_template(at->json, at->name);
  std::error_code error;
  if (!std::filesystem::exists(name_or_file, error)) {
    fail<ConfigError>("--" + field, '\'', io::excerpt(name_or_file),
                      "' is neither a file nor one of ", chat_template_names());
  }
  return parse_chat_template(io::read_file(name_or_file, kMostBytes), name_or_file);
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/chat/conversation.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostMessages = 1 << 16, kExcerpt = 40;

class LineReader {
 public:
  explicit LineReader(std::string_view place) : place_(place) {}

  Example read(std::string_view line, LineForm form) const {
    if (const size_t bad = io::first_invalid_utf8(line); bad != line.npos)
      fault("byte ", bad + 1, " of the line is not UTF-8");
    io::ParsedJson parsed = io::parse_json(line, {.is_line = true});
    if (!parsed.faults.empty()) fault(parsed.faults[0]);
    Json& object = parsed.value;
    if (!object.is_object())
      fault("is ", io::kind_text(object.type()), ", expected an object such as ", like(form));
    if (form == LineForm::messages)
      return {messages(member(object, "messages", form)), others(object, {"messages"})};
    std::string prompt = text(member(object, "prompt", form), "prompt");
    std::string completion = text(member(object, "completion", form), "completion");
    return {{{Role::user, std::move(prompt)}, {Role::assistant, std::move(completion)}},
            others(object, {"prompt", "completion"})};
  }

 private:
  template <class... Parts> [[noreturn]] void fault(const Parts&... parts) const {
    fail<DataError>("data", place_, ": ", parts...);
  }
  static std::string_view like(LineForm form) {
    return form == LineForm::messages ? R"({"messages": [{"role": "user", "content": "..."}, ...]})"
                                      : R"({"prompt": "...", "completion": "..."})";
  }
  static std::string names_of(const Json& object) {
    std::string names;
    size_t count = 0;
    for (const auto& [name, value] : object.items()) {
      if (++count > 20) return names + ", ...";
      names += (names.empty() ? "" : ", ") + io::excerpt(name, kExcerpt);
    }
    return names.empty() ? "nothing" : names;
  }

  static std::vector<std::string> others(const Json& object,
                                         std::initializer_list<std::string_view> own) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) {
      const bool empty = value.is_null() || (!value.is_primitive() && value.empty()) ||
                         (value.is_string() && value.get_ref<const std::string&>().empty());
      if (!empty && std::ranges::find(own, name) == own.end()) names.push_back(name);
    }
    return names;
  }

  Json& member(Json& object, const char* name, LineForm form) const {
    const auto at = object.find(name);
    if (at != object.end()) return *at;
    const std::string_view other = form == LineForm::messages ? "prompt_completion" : "messages";
    const bool of_other = form == LineForm::messages
                              ? object.contains("prompt") && object.contains("completion")
                              : object.contains("messages");
    fault("has no '", name, "', expected ", like(form), "; it has: ", names_of(object),
          of_other ? concat("; give --dataloader.format ", other) : "");
  }
  std::string text(Json& value, const std::string& key) const {
    if (!value.is_string())
      fault("'", key, "' is ", io::kind_text(value.type()), ", expected a string");
    return std::move(value.get_ref<std::string&>());
  }

  Conversation messages(Json& list) const {
    if (!list.is_array())
      fault("'messages' is ", io::kind_text(list.type()), ", expected an array of messages");
    if (list.empty()) fault("'messages' is empty, expected at least one message");
    if (list.size() > kMostMessages)
      fault("'messages' holds ", list.size(), ", expected at most ", kMostMessages);
    Conversation all;
    all.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i)
      all.push_back(message(list[i], concat("messages[", i, ']')));
    return all;
  }
  Message message(Json& value, const std::string& key) const {
    constexpr std::string_view kForm = R"({"role": "...", "content": "..."})";
    if (!value.is_object())
      fault("'", key, "' is ", io::kind_text(value.type()), ", expected ", kForm);
    for (const auto& [name, member] : value.items()) {
      if (name != "role" && name != "content" && !member.is_null())
        fault("'", key, "' has '", io::excerpt(name, kExcerpt),
              "', which is not supported: expected ", kForm, " alone");
    }
    for (const char* name : {"role", "content"})
      if (!value.contains(name)) fault("'", key, "' has no '", name, "', expected ", kForm);
    const std::string role = text(value["role"], key + ".role");
    const auto at = std::ranges::find(kRoleNames, role);
    if (at == kRoleNames.end())
      fault("'", key, ".role' is '", io::excerpt(role, kExcerpt),
            "', expected system, user, assistant or tool");
    return {static_cast<Role>(at - kRoleNames.begin()), text(value["content"], key + ".content")};
  }

  std::string_view place_;
};

}  // namespace

Example parse_example(std::string_view line, LineForm form, std::string_view place) {
  return LineReader(place).read(line, form);
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/action.h"

#include "tessera/core/error.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace tessera {
namespace {

constexpr std::string_view kWhere = "pipeline schedule";

struct KindName {
  ActionKind kind;
  std::string_view name;
  bool of_micro_batch;
};
constexpr std::array<KindName, 12> kNames{{{ActionKind::forward, "F", true},
                                           {ActionKind::backward_input, "I", true},
                                           {ActionKind::backward_weight, "W", true},
                                           {ActionKind::backward, "B", true},
                                           {ActionKind::send_forward, "SEND_F", true},
                                           {ActionKind::recv_forward, "RECV_F", true},
                                           {ActionKind::send_backward, "SEND_B", true},
                                           {ActionKind::recv_backward, "RECV_B", true},
                                           {ActionKind::unshard, "UNSHARD", false},
                                           {ActionKind::reshard, "RESHARD", false},
                                           {ActionKind::reduce_grad, "REDUCE_GRAD", false},
                                           {ActionKind::overlap, "OVERLAP_F_B", false}}};

const KindName& name_of(ActionKind kind) { return kNames[static_cast<size_t>(kind)]; }

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  fail<ValueError>(kWhere, '\'', text, "' is no action: ", why,
                   "; expected [stage][kind][micro-batch], such as 2F0, 0SEND_F3 or 1UNSHARD");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The number at the front, which is taken off.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return {};
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

Action parse_overlap(std::string_view text) {
  const size_t end = text.find(')');
  if (end == text.npos || trimmed(text.substr(end + 1)) != name_of(ActionKind::overlap).name)
    refuse(text, "an overlap is written (0F1;1B0)OVERLAP_F_B");
  Action all{.kind = ActionKind::overlap};
  std::string_view inner = text.substr(1, end - 1);
  for (size_t from = 0; from <= inner.size();) {
    const size_t to = std::min(inner.find(';', from), inner.size());
    all.parts.push_back(parse_action(inner.substr(from, to - from)));
    from = to + 1;
  }
  const auto simple = [](const Action& part) { return computes(part.kind); };
  if (all.parts.size() != 2 || !std::ranges::all_of(all.parts, simple))
    refuse(text, "an overlap has two parts, each F, I, W or B");
  return all;
}

}  // namespace

bool computes(ActionKind kind) { return kind <= ActionKind::backward; }

std::string text(const Action& action) {
  if (action.kind == ActionKind::overlap) {
    std::string parts;
    for (const Action& part : action.parts) parts += concat(parts.empty() ? "" : ";", text(part));
    return concat('(', parts, ')', name_of(action.kind).name);
  }
  const KindName& name = name_of(action.kind);
  return concat(action.stage, name.name,
                name.of_micro_batch ? std::to_string(action.micro_batch) : "");
}

Action parse_action(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('(')) return parse_overlap(text);
  std::string_view rest = text;
  const auto stage = take_number(rest);
  if (!stage) refuse(text, "it does not begin with a stage");
  const std::string_view name = rest.substr(0, rest.find_first_of("0123456789"));
  rest.remove_prefix(name.size());
  const auto* const found = std::ranges::find(kNames, name, &KindName::name);
  if (found == kNames.end() || found->kind == ActionKind::overlap) refuse(text, "unknown kind");
  Action action{.stage = *stage, .kind = found->kind};
  if (found->of_micro_batch) {
    const auto micro_batch = take_number(rest);
    if (!micro_batch) refuse(text, "it names no micro-batch");
    action.micro_batch = *micro_batch;
  }
  if (!rest.empty()) refuse(text, "there is more behind it");
  return action;
}

std::vector<Action> parts_of(const Action& action) {
  return action.kind == ActionKind::overlap ? action.parts : std::vector<Action>{action};
}

std::optional<Action> input_of(const Action& action, int stages) {
  const bool forward = action.kind == ActionKind::forward;
  if (!forward && !gives_input_gradient(action.kind)) return {};
  const int from = forward ? action.stage - 1 : action.stage + 1;
  if (from < 0 || from == stages) return {};
  return Action{.stage = from,
                .kind = forward ? ActionKind::forward : ActionKind::backward,
                .micro_batch = action.micro_batch};
}

}  // namespace tessera

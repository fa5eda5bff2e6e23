// SPDX-License-Identifier: Apache-2.0
// A value outside a field's limits is set, checked and reverted. Faults are collected, so that one
// run reports all of them. For an unknown field, the suggestion is the same name in another
// section, else the nearest name by edit distance (a swap of two letters is one edit).
#include "tessera/models/config/fields.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace tessera::config {
namespace {

std::string number(double v) { return fmt::format("{}", v); }

template <class T> std::optional<T> parsed(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "1_000" and "1e3" are integers too.
std::optional<int64_t> parsed_integer(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  if (auto v = parsed<int64_t>(digits)) return v;
  const auto v = parsed<double>(digits);
  if (!v || *v != std::floor(*v) || std::abs(*v) > 9e15) return std::nullopt;
  return static_cast<int64_t>(*v);
}

std::optional<bool> parsed_bool(std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

// A JSON array, or comma-separated items; of texts, empty ones are left out.
template <class T> std::optional<std::vector<T>> parsed_list(std::string_view text) {
  constexpr bool kTexts = std::is_same_v<T, std::string>;
  std::vector<T> list;
  if (text.starts_with('[')) {
    const io::ParsedJson json = io::parse_json(text);
    if (!json.value.is_array()) return std::nullopt;
    for (const auto& item : json.value) {
      if (kTexts ? !item.is_string() : !item.is_number()) return std::nullopt;
      list.push_back(item.get<T>());
    }
    return list;
  }
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    if constexpr (kTexts) {
      if (!item.empty()) list.emplace_back(item);
    } else {
      const auto number = parsed<T>(item);
      if (!number) return std::nullopt;
      list.push_back(*number);
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return list;
}

template <class T>
constexpr bool kIsList = std::is_same_v<std::remove_cvref_t<T>, std::vector<std::string>*> ||
                         std::is_same_v<std::remove_cvref_t<T>, std::vector<double>*>;

// Edits that make one word of another, `most` if they are as many or more. A word that is no field
// is compared with all of them, so rows are made once and left as soon as they say it.
class EditDistance {
 public:
  size_t operator()(std::string_view a, std::string_view b, size_t most) {
    for (auto* row : {&before2_, &before_, &now_}) row->resize(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) before_[j] = j;
    size_t least_before = 0;
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t least = now_[0] = i;
      for (size_t j = 1; j <= b.size(); ++j) {
        size_t d =
            std::min({before_[j] + 1, now_[j - 1] + 1, before_[j - 1] + (a[i - 1] != b[j - 1])});
        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
          d = std::min(d, before2_[j - 2] + 1);
        least = std::min(least, now_[j] = d);
      }
      if (std::min(least, least_before) >= most) return most;  // a row follows from two before it
      least_before = least;
      std::swap(before2_, before_);
      std::swap(before_, now_);
    }
    return std::min(before_[b.size()], most);
  }

 private:
  std::vector<size_t> before2_, before_, now_;
};

std::string_view leaf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// `section.no-flag` or `no-flag` without the "no-"; empty where there is none.
std::string without_no(std::string_view path) {
  const std::string_view last = leaf(path);
  if (!last.starts_with("no-") && !last.starts_with("no_")) return {};
  return concat(path.substr(0, path.size() - last.size()), last.substr(3));
}

}  // namespace

std::string Field::text() const {
  return std::visit(
      [this](const auto& v) -> std::string {
        using T = std::remove_cvref_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Choice>) {
          const size_t i = v.get();
          return i < limits.choices.size() ? limits.choices[i] : "another";
        } else if constexpr (kIsList<T>) {
          return v->empty() ? "" : nlohmann::json(*v).dump();
        } else if constexpr (std::is_same_v<T, std::optional<int64_t>*> ||
                             std::is_same_v<T, std::optional<double>*>) {
          return *v ? fmt::format("{}", **v) : "none";
        } else {
          return fmt::format("{}", *v);
        }
      },
      value);
}

std::string Field::type() const {
  constexpr std::array<std::string_view, std::variant_size_v<Value>> kNames{
      "integer",        "number",        "true or false",   "text",  "integer or none",
      "number or none", "list of texts", "list of numbers", "choice"};
  if (!limits.choices.empty()) return fmt::format("{}", fmt::join(limits.choices, " | "));
  return std::string(kNames[value.index()]);
}

std::string Field::range() const {
  const std::string low = fmt::format("{} {}", limits.above_min ? "above" : "at least", limits.min);
  const bool has_low = std::isfinite(limits.min), has_high = std::isfinite(limits.max);
  if (has_low && has_high && !limits.above_min) {
    return fmt::format("{} to {}", limits.min, limits.max);
  }
  if (has_low && has_high) return fmt::format("{} and at most {}", low, limits.max);
  if (has_low) return low;
  return has_high ? fmt::format("at most {}", limits.max) : "";
}

std::optional<std::string> Field::check() const {
  const auto in_range = [&](double v) -> std::optional<std::string> {
    const bool ok =
        !std::isnan(v) && v <= limits.max && (limits.above_min ? v > limits.min : v >= limits.min);
    if (ok) return std::nullopt;
    const std::string wanted = range();
    return fmt::format("[--{}] {} is out of range: expected {}", path, number(v),
                       wanted.empty() ? "a number" : wanted);
  };
  const auto one_of = [&](const std::string& given) {
    return fmt::format("[--{}] '{}' is not one of {}", path, io::excerpt(given), type());
  };
  const auto text_fault = [&](const std::string& given) -> std::optional<std::string> {
    // A dump must hold every text exactly, and JSON is UTF-8. The system ends paths at a NUL.
    if (io::first_invalid_utf8(given) != given.npos)
      return fmt::format("[--{}] is not valid UTF-8", path);
    if (given.find('\0') != given.npos) return fmt::format("[--{}] holds a NUL byte", path);
    if (limits.choices.empty() || std::ranges::count(limits.choices, given)) return std::nullopt;
    return one_of(given);
  };
  return std::visit(
      [&](const auto& v) -> std::optional<std::string> {
        using T = std::remove_cvref_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Choice>) {
          if (v.get() < limits.choices.size()) return std::nullopt;
          return one_of("another");
        } else if constexpr (std::is_same_v<T, std::string*>) {
          return text_fault(*v);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>*>) {
          for (const std::string& item : *v) {
            if (auto fault = text_fault(item)) return fault;
          }
          return std::nullopt;
        } else if constexpr (std::is_same_v<T, std::vector<double>*>) {
          for (const double item : *v) {
            if (auto fault = in_range(item)) return fault;
            if (!std::isfinite(item))
              return fmt::format("[--{}] {} is no finite number", path, number(item));
          }
          return std::nullopt;
        } else if constexpr (std::is_same_v<T, std::optional<int64_t>*> ||
                             std::is_same_v<T, std::optional<double>*>) {
          return *v ? in_range(static_cast<double>(**v)) : std::nullopt;
        } else if constexpr (std::is_same_v<T, bool*>) {
          return std::nullopt;
        } else {
          return in_range(static_cast<double>(*v));
        }
      },
      value);
}

std::optional<std::string> Field::assign(std::string_view given) {
  const auto wrong = [&] {
    return fmt::format("[--{}] '{}' is not valid: expected {}", path, io::excerpt(given), type());
  };
  const auto set = [&](auto& to, const auto& from) -> std::optional<std::string> {
    if (!from) return wrong();
    const auto before = to;
    to = *from;
    auto fault = check();
    if (fault) to = before;
    return fault;
  };
  const auto set_optional = [&](auto& to, const auto& from) {
    using T = std::remove_cvref_t<decltype(to)>;
    return given == "none" ? set(to, std::make_optional(T())) : set(to, from);
  };
  return std::visit(
      [&](auto& v) -> std::optional<std::string> {
        using T = std::remove_cvref_t<decltype(v)>;
        if constexpr (std::is_same_v<T, int64_t*>) return set(*v, parsed_integer(given));
        else if constexpr (std::is_same_v<T, double*>) return set(*v, parsed<double>(given));
        else if constexpr (std::is_same_v<T, bool*>) return set(*v, parsed_bool(given));
        else if constexpr (std::is_same_v<T, std::string*>)
          return set(*v, std::optional(std::string(given)));
        else if constexpr (kIsList<T>)
          return set(*v, parsed_list<typename std::remove_pointer_t<T>::value_type>(given));
        else if constexpr (std::is_same_v<T, std::optional<int64_t>*>)
          return set_optional(*v, parsed_integer(given));
        else if constexpr (std::is_same_v<T, std::optional<double>*>)
          return set_optional(*v, parsed<double>(given));
        else {
          const auto at = std::ranges::find(limits.choices, given);
          if (at == limits.choices.end())
            return fmt::format("[--{}] '{}' is not one of {}", path, io::excerpt(given), type());
          v.set(static_cast<size_t>(at - limits.choices.begin()));
          return std::nullopt;
        }
      },
      value);
}

Field* Fields::find(std::string_view path) {
  const auto at = std::ranges::find(fields_, path, &Field::path);
  return at == fields_.end() ? nullptr : &*at;
}

std::string Fields::unknown(std::string_view path) const {
  const std::string shown = io::excerpt(path);
  for (const OtherName& other : other_names_) {
    const bool all = other.name.ends_with('*');
    if (all ? !path.starts_with(other.name.substr(0, other.name.size() - 1)) : path != other.name)
      continue;
    if (other.field.empty()) return fmt::format("[--{}] unknown field; {}", shown, other.note);
    return fmt::format("[--{}] unknown field; here it is --{}", shown, other.field);
  }
  // A wrong section is a likelier mistake than a misspelled name.
  std::vector<std::string> paths, same_leaf;
  for (const Field& f : fields_) {
    paths.push_back(f.path);
    if (leaf(f.path) == leaf(path)) same_leaf.push_back("--" + f.path);
  }
  // What of a section that is not here, such as `enable`, several have, says nothing.
  const bool section_is_here =
      leaf(path) == path || !unknown_section(path.substr(0, path.find('.')));
  if (same_leaf.size() == 1 || (!same_leaf.empty() && section_is_here))
    return fmt::format("[--{}] unknown field; did you mean {}?", shown,
                       fmt::join(same_leaf, " or "));
  if (const auto near = did_you_mean(path, paths)) {
    return fmt::format("[--{}] unknown field; did you mean --{}?", shown, *near);
  }
  return fmt::format("[--{}] unknown field; --help lists all of them", shown);
}

std::optional<std::string> Fields::unknown_section(std::string_view name) const {
  std::vector<std::string> sections;
  for (const Field& f : fields_) {
    const std::string own = f.path.substr(0, f.path.find('.'));
    if (own == f.path) continue;
    if (own == name) return std::nullopt;
    sections.push_back(own);
  }
  const auto near = did_you_mean(name, sections);
  return fmt::format("[{}] unknown section; {}", io::excerpt(name),
                     near ? fmt::format("did you mean {}?", *near) : "--help lists all of them");
}

std::vector<std::string> Fields::parse(std::span<const std::string> arguments) {
  std::vector<std::string> faults;
  std::map<const Field*, std::string> given;
  // Whether it is the first value of a field.
  const auto once = [&](const Field& field, std::string_view value) {
    const auto [first, is_first] = given.try_emplace(&field, value);
    if (is_first) return true;
    const bool list = std::visit([](const auto& v) { return kIsList<decltype(v)>; }, field.value);
    faults.push_back(fmt::format("[--{}] is given twice, {} and {}: give {}", field.path,
                                 io::excerpt(first->second), io::excerpt(value),
                                 list ? "one list, with commas between" : "one of them"));
    return false;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string_view word = arguments[i];
    if (!word.starts_with("--")) {
      faults.push_back(
          fmt::format("[{}] not a field: expected --section.field value", io::excerpt(word)));
      continue;
    }
    word.remove_prefix(2);
    std::optional<std::string_view> text;
    if (const size_t equals = word.find('='); equals != word.npos) {
      text = word.substr(equals + 1);
      word = word.substr(0, equals);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      text = arguments[++i];
    }
    Field* field = find(word);
    if (Field* flag = field || text ? nullptr : find(without_no(word));
        flag && std::holds_alternative<bool*>(flag->value)) {
      if (once(*flag, "false")) (void)flag->assign("false");
      continue;
    }
    if (!field) {
      faults.push_back(unknown(word));
      continue;
    }
    if (!text && std::holds_alternative<bool*>(field->value)) text = "true";
    if (!text) {
      faults.push_back(fmt::format("[--{}] no value given: expected {}", word, field->type()));
      continue;
    }
    if (!once(*field, *text)) continue;
    if (auto fault = field->assign(*text)) faults.push_back(*fault);
  }
  return faults;
}

std::vector<std::string> Fields::check() const {
  std::vector<std::string> faults;
  for (const Field& f : fields_) {
    if (auto fault = f.check()) faults.push_back(*fault);
  }
  return faults;
}

std::string Fields::help() const {
  std::string text;
  std::string_view section;
  for (const Field& f : fields_) {
    const std::string_view own = std::string_view(f.path).substr(0, f.path.find('.'));
    if (own != f.path && own != section) text += fmt::format("\n{}:\n", section = own);
    std::string details = fmt::format("default {}", f.text().empty() ? "none" : f.text());
    if (!f.limits.unit.empty()) details += fmt::format(" {}", f.limits.unit);
    if (const std::string range = f.range(); !range.empty()) details += ", " + range;
    text +=
        fmt::format("  --{:<36} {}\n    {:<36} {}; {}\n", f.path, f.help, "", f.type(), details);
  }
  return text;
}

std::optional<std::string> did_you_mean(std::string_view word,
                                        std::span<const std::string> candidates) {
  std::optional<std::string> best;
  EditDistance distance;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& c : candidates) {
    // The distance is at least the difference in length; words may be of any length.
    if (std::max(c.size(), word.size()) - std::min(c.size(), word.size()) >= least) continue;
    if (const size_t d = distance(word, c, least); d < least) {
      least = d;
      best = c;
    }
  }
  return best;
}

void throw_if_any(std::span<const std::string> messages) {
  if (!messages.empty()) throw ConfigError(fmt::format("{}", fmt::join(messages, "\n")));
}

}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
// A scanner over the top level of a header: namespaces are entered, bodies are passed over whole,
// and comments are kept until the declaration below them.
#include "tessera/tests/docs/headers.h"

#include "tessera/core/error.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

namespace tessera::docs {
namespace {

namespace fs = std::filesystem;

std::string one_line(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  return line;
}

void append(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += ' ';
  text += more;
}

// `expression` of `{ return expression; }`; empty if a body does more, or runs an op itself.
std::string result_of(const std::string& body) {
  static const std::regex kReturn(R"(^\{\s*return ([^;{}]*);\s*\}$)");
  std::smatch match;
  if (!std::regex_search(body, match, kReturn)) return "";
  return one_line(match[1].str());
}

bool has_no_functions(const std::string& body) {
  static const std::regex kComment("//[^\n]*");
  return std::regex_replace(body, kComment, "").find('(') == std::string::npos;
}

// The expression of `name(...) { return <expression>; }`, in the terms of a formula.
std::string expression_of(const std::string& body, const std::string& name) {
  static const std::regex kNoise(R"((vmath|std)::)"), kNumber(R"(\bT\((-?[0-9.e]+)\))"),
      kCast(R"(static_cast<T>\((\w+)\))");
  const std::regex function("\\b" + name + R"(\([^{}]*\)(?: const)? \{\s*return ([^;{}]*);\s*\})");
  std::smatch match;
  if (!std::regex_search(body, match, function)) return "";
  std::string text = std::regex_replace(one_line(match[1].str()), kNoise, "");
  return std::regex_replace(std::regex_replace(text, kNumber, "$1"), kCast, "$1");
}

std::string match_of(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  Header run() {
    while (skip_space(), at_ < text_.size()) {
      if (rest().starts_with("//")) comment();
      else if (text_[at_] == '#') skip_directive();
      else if (text_[at_] == '}') namespaces_.pop_back(), line();
      else declaration();
    }
    paragraph_ends();
    return std::move(header_);
  }

 private:
  std::string_view rest() const { return text_.substr(at_); }
  std::string_view line() {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = end;
    return line;
  }

  void skip_space() {
    int lines = 0;
    for (; at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])); ++at_)
      lines += text_[at_] == '\n';
    if (lines > 1) paragraph_ends();
  }
  void skip_directive() {
    while (line().ends_with('\\')) ++at_;
  }

  // A comment that no declaration takes stands alone; a run of lines has ended.
  void paragraph_ends() {
    if (in_public() && !comment_.empty()) header_.items.push_back({comment_, {}});
    comment_.clear();
    run_doc_.clear();
    was_indented_ = false;
  }
  void comment() {
    std::string_view words = line();
    const bool doc = words.starts_with("///");
    words.remove_prefix(doc ? 3 : 2);
    if (words.starts_with('<') || words.find("SPDX-License") != words.npos) return;
    const bool indented = words.starts_with("  ");  // a line of a list
    std::string& text = opening_ ? header_.opening : comment_;
    if (!text.empty() && (indented || was_indented_)) text += "<br>";
    append(text, one_line(words));
    was_indented_ = indented;
    is_doc_ = doc;
  }

  static bool is_op(const std::string& name) { return name == "op" || name.ends_with("::op"); }
  bool in_public() const {
    return std::none_of(namespaces_.begin(), namespaces_.end(), [](const std::string& name) {
      return is_op(name) || name == "detail" || name.empty();
    });
  }

  // From `at` to the bracket that closes the one there; strings, characters and comments are
  // passed over.
  size_t closing(size_t at) const {
    int depth = 0;
    for (; at < text_.size(); ++at) {
      const char c = text_[at];
      if (c == '"' || (c == '\'' && !std::isdigit(static_cast<unsigned char>(text_[at - 1])))) {
        while (++at < text_.size() && text_[at] != c) at += text_[at] == '\\';
      } else if (text_.substr(at).starts_with("//")) {
        at = std::min(text_.find('\n', at), text_.size());
      } else if (c == '{' || c == '(') {
        ++depth;
      } else if ((c == '}' || c == ')') && --depth == 0) {
        return at;
      }
    }
    fail<UsageError>("docs", "a bracket is not closed: ", one_line(rest().substr(0, 60)));
  }

  void declaration() {
    opening_ = false;
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ';' && text_[at_] != '{')
      at_ = text_[at_] == '(' ? closing(at_) + 1 : at_ + 1;
    const std::string head = one_line(text_.substr(begin, at_ - begin));
    std::string body;
    if (text_[at_] == '{' && head.starts_with("namespace")) {
      namespaces_.push_back(head.size() > 10 ? head.substr(10) : "");
      ++at_;
      return;
    }
    static const std::regex kType(R"(^(template <[^()]*> )?(struct|class|enum class) )");
    const bool type = std::regex_search(head, kType);
    if (text_[at_] == '{') {
      const size_t end = closing(at_);
      body = text_.substr(at_, end + 1 - at_);
      at_ = end;
      if (type || head.ends_with('=')) at_ = std::min(text_.find(';', at_), text_.size());
    }
    ++at_;
    take(head, body, type);
    comment_.clear();
    was_indented_ = false;
  }

  void take(const std::string& head, const std::string& body, bool type) {
    const std::string doc = is_doc_ ? comment_ : "";
    if (type && !body.empty() && !namespaces_.empty() && is_op(namespaces_.back())) {
      take_op(head, body, doc);
    } else if (in_public() && !head.starts_with("TESSERA_") | head.starts_with("TESSERA_API")) {
      if (type ? body.empty() : head.find('(') == head.npos) return;
      if (head.starts_with("using ") || head.starts_with("static_assert")) return;
      take_public(head, body, doc, type);
    }
  }

  void take_op(const std::string& head, const std::string& body, const std::string& doc) {
    OpStruct op;
    op.type = match_of(head, R"((?:^|> )struct (\w+))");
    op.base = match_of(head, R"(: (\w+))");
    op.name = match_of(body, R"re(\bname = "([^"]*)")re");
    op.backward_name = match_of(body, R"re(\bbackward_name = "([^"]*)")re");
    op.doc = doc;
    op.f = expression_of(body, "f");
    op.pull = expression_of(body, "pull");
    header_.structs.push_back(op);
  }

  void take_public(const std::string& head, const std::string& body, const std::string& doc,
                   bool type) {
    static const std::regex kMarks(R"(\b(inline|TESSERA_API|TESSERA_INLINE|TESSERA_HD) )"),
        kNodiscard(R"(\[\[\w+\]\] )");
    if (doc.empty() && !comment_.empty()) paragraph_ends();
    if (!doc.empty()) run_doc_ = doc;
    Public p;
    p.run_doc = run_doc_;
    p.declaration = std::regex_replace(std::regex_replace(head, kMarks, ""), kNodiscard, "");
    if (type) p.name = match_of(p.declaration, R"((?:^|> )(?:struct|class|enum class) (\w+))");
    else p.name = match_of(p.declaration, R"((operator[^\w\s]+|\w+)\()");
    p.doc = doc;
    p.body = body;
    if (!type) p.result = result_of(body);
    if (type && has_no_functions(body)) p.fields = body;
    p.is_type = type;
    header_.items.push_back({"", p});
  }

  std::string_view text_;
  size_t at_ = 0;
  bool opening_ = true, is_doc_ = false, was_indented_ = false;
  std::vector<std::string> namespaces_;
  std::string comment_, run_doc_;
  Header header_;
};

// Of several declarations of a function the one that says most, in the place of the last.
void join_repeated(std::vector<Item>& items) {
  std::map<std::string, Public> best;
  std::map<std::string, size_t> last;
  const auto worth = [](const Public& p) { return 2 * !p.doc.empty() + !p.body.empty(); };
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].paragraph.empty()) continue;
    const std::string key = without_defaults(items[i].entry.declaration);
    Public& known = best.try_emplace(key, items[i].entry).first->second;
    if (worth(items[i].entry) >= worth(known)) known = items[i].entry, last[key] = i;
  }
  std::vector<Item> kept;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].paragraph.empty() || last[without_defaults(items[i].entry.declaration)] == i)
      kept.push_back(items[i]);
  }
  items = std::move(kept);
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

}  // namespace

Header read_header(std::string_view text) { return Scanner(text).run(); }

std::string without_defaults(const std::string& declaration) {
  static const std::regex kDefault(R"( = (\{[^{}]*\}|[^,(){}]*(\([^()]*\))?[^,(){}]*))");
  return std::regex_replace(declaration, kDefault, "");
}

std::vector<Room> read_rooms(const fs::path& kernels) {
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& folder : fs::directory_iterator(kernels)) {
    const std::string room = folder.path().filename().string();
    if (!folder.is_directory() || room.starts_with('_') || room == "shared") continue;
    for (const auto& file : fs::directory_iterator(folder)) {
      const std::string name = file.path().filename().string();
      if (name.ends_with(".h") && !name.ends_with("_impl.h")) files[room].push_back(name);
    }
  }
  std::vector<Room> rooms;
  for (auto& [room, names] : files) {
    const std::string first = room + ".h";
    std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return std::pair(a != first, a) < std::pair(b != first, b);
    });
    Room r{room, {}};
    for (const std::string& name : names) {
      Header h = read_header(bytes_of(kernels / room / name));
      if (name == first) r.header.opening = h.opening;
      if (name.ends_with("_family.h")) h.structs.clear();  // what a family's ops share
      std::move(h.items.begin(), h.items.end(), std::back_inserter(r.header.items));
      std::move(h.structs.begin(), h.structs.end(), std::back_inserter(r.header.structs));
    }
    join_repeated(r.header.items);
    rooms.push_back(std::move(r));
  }
  return rooms;
}

}  // namespace tessera::docs

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/docs/ops_page.h"

#include "tessera/core/op_row.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

namespace tessera::docs {
namespace {

constexpr std::string_view kIntroduction = R"(# Ops

The public functions of every folder of `kernels/`, and the facts of the ops that they call. This page is made from the rooms'
headers and the op table, and a test holds it true: change a header, then write the page anew by
`TESSERA_UPDATE_GOLDENS=1 build/release/bin/tessera_doc_tests --gtest_filter='OpsPage.*'`.

- **computes**: the comment above the op's struct; of a pointwise op the expression that it computes for each element.
- **dtypes**: *floats* are f64, f32, bf16 and f16; *numbers* are floats, i64 and i32. Operands have one dtype unless said
  otherwise; nothing is promoted silently.
- **sharding rule** (of one example call): a letter for each dim of each operand, inputs before `->`. Dims with one letter are cut alike; a letter
  that the outputs lack gives a Partial. `!`: must be whole on every rank; `&`: cut, joined inside the op; `*2`: two units to a
  step; `1`: a dim of size 1. `linear 0`: Partial of input 0 gives Partial.
- **backward keeps**: the inputs and outputs that stay in memory until backward, numbered from 0; *nothing* where their shapes
  are enough; `-` where there is no backward.
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}
std::string cell(const std::string& text) { return replaced(text, "|", "\\|"); }
std::string code(const std::string& text) { return concat('`', text, '`'); }

std::string dtypes_text(DTypeSet set) {
  if (set == kAllDTypes) return "all";
  std::string text;
  const auto add = [&](const std::string& name) { text += (text.empty() ? "" : ", ") + name; };
  const auto take = [&](DTypeSet group, const char* name) {
    if ((set | group) == set) add(name), set.bits = set.bits & ~group.bits;
  };
  take(kNumbers, "numbers");
  take(kFloats, "floats");
  for (int t = 0; t < kDTypes; ++t) {
    if (set.has(DType(t))) add(std::string(name(DType(t))));
  }
  return text;
}

std::string kept_text(uint32_t mask, const std::string& what) {
  if (mask == Saves::kAll) return what + 's';
  std::string numbers;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) numbers += concat(' ', i);
  }
  return numbers.empty() ? "" : concat(what, numbers.size() > 2 ? "s" : "", numbers);
}
std::string saves_text(const OpRow& row) {
  if (!row.not_differentiable.empty()) return "-";
  const std::string in = kept_text(row.saves.input_mask, "input"),
                    out = kept_text(row.saves.output_mask, "output");
  if (in.empty() && out.empty()) return "nothing";
  return in.empty() || out.empty() ? in + out : in + ", " + out;
}

// "<op>: <what>" of each line, by op.
std::map<std::string, std::vector<std::string>> lines_by_op(const std::string& file) {
  std::ifstream in(file);
  if (!in) fail<UsageError>("docs", file, " is missing: run in the source folder");
  std::map<std::string, std::vector<std::string>> lines;
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    lines[line.substr(0, colon)].push_back(line.substr(colon + 2));
  }
  return lines;
}

const OpStruct* find(const std::vector<OpStruct>& structs, const std::string& type) {
  const auto at = std::find_if(structs.begin(), structs.end(),
                               [&](const OpStruct& op) { return op.type == type; });
  return at == structs.end() ? nullptr : &*at;
}

// The op that a function calls in its body, else the one of its name.
const OpStruct* op_of(const Public& function, const std::vector<OpStruct>& structs) {
  static const std::regex kCalled(R"(\bop::(\w+))");
  std::smatch match;
  if (std::regex_search(function.body, match, kCalled)) return find(structs, match[1]);
  const auto at = std::find_if(structs.begin(), structs.end(),
                               [&](const OpStruct& op) { return op.name == function.name; });
  return at == structs.end() ? nullptr : &*at;
}

class Page {
 public:
  explicit Page(const std::string& laws)
      : rules_(lines_by_op(laws + "/rules.txt")), opt_outs_(lines_by_op(laws + "/opt_outs.txt")) {
    for (const OpRow* row : kernel_rows()) rows_.emplace(row->name, row);
    out_ << kIntroduction;
  }

  void room(const Room& room) {
    out_ << "\n## " << room.name << "\n\n" << room.header.opening << "\n\n";
    for (const Item& item : room.header.items) {
      if (item.paragraph.empty()) entry(room, item.entry);
      else out_ << item.paragraph << "\n\n";
    }
    std::ostringstream notes;
    size_t ops = 0;
    for (const OpStruct& op : room.header.structs) {
      if (!op.name.empty())
        this->op(room, op.name, formula_of(op, room.header.structs), ops, notes);
      if (!op.backward_name.empty()) {
        const std::string gradient = concat("the gradient of ", op.name);
        this->op(room, op.backward_name,
                 op.pull.empty() ? gradient : concat(gradient, ": ", code(op.pull)), ops, notes);
      }
    }
    if (!notes.str().empty()) out_ << '\n' << notes.str();
  }

  OpsPage finished() {
    for (const auto& [name, row] : rows_)
      fail<UsageError>("docs", "op ", name, " stands in no header as `name = \"", name, "\"`");
    return {out_.str(), silent_};
  }

 private:
  void entry(const Room& room, const Public& p) {
    const std::string said = said_of(p, room.header.structs);
    if (said.empty() && p.fields.empty())
      silent_.push_back(concat("kernels/", room.name, ": ", p.declaration));
    if (!p.fields.empty()) out_ << "```cpp\n" << p.declaration << ' ' << p.fields << ";\n```\n";
    else out_ << code(p.declaration) << "  \n";
    out_ << said << (said.empty() ? "\n" : "\n\n");
  }

  void op(const Room& room, const std::string& name, const std::string& computes, size_t& ops,
          std::ostringstream& notes) {
    const auto at = rows_.find(name);
    if (at == rows_.end()) return;  // a test's or a family's
    if (computes.empty()) silent_.push_back(concat("kernels/", room.name, ": op ", name));
    if (ops++ == 0)
      out_
          << "| op | computes | dtypes | sharding rule | backward keeps |\n|---|---|---|---|---|\n";
    const OpRow& row = *at->second;
    const auto& rule = rules_[name];
    out_ << "| " << name << " | " << cell(computes) << " | " << dtypes_text(row.dtypes) << " | "
         << (rule.empty() ? "-" : code(cell(rule[0]))) << " | " << saves_text(row) << " |\n";
    for (const std::string& why : opt_outs_[name]) notes << "- " << name << ": " << why << '\n';
    rows_.erase(at);
  }

  std::map<std::string, std::vector<std::string>> rules_, opt_outs_;
  std::map<std::string, const OpRow*> rows_;
  std::ostringstream out_;
  std::vector<std::string> silent_;
};

}  // namespace

std::string formula_of(const OpStruct& op, const std::vector<OpStruct>& structs) {
  if (!op.doc.empty()) return op.doc;
  if (!op.f.empty()) return code(op.f);
  const OpStruct* base = find(structs, op.base);
  return base ? formula_of(*base, structs) : "";
}

std::string said_of(const Public& entry, const std::vector<OpStruct>& structs) {
  if (!entry.doc.empty() || entry.is_type) return entry.doc;
  if (const OpStruct* op = op_of(entry, structs)) return formula_of(*op, structs);
  return entry.result.empty() ? entry.run_doc : code(entry.result);
}

OpsPage ops_page(const std::vector<Room>& rooms, const std::string& laws) {
  Page page(laws);
  for (const Room& room : rooms) page.room(room);
  return page.finished();
}

}  // namespace tessera::docs

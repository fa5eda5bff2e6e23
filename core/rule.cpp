// SPDX-License-Identifier: Apache-2.0
// Building sharding rules from text and shapes.
#include "tessera/core/rule.h"

#include "tessera/core/error.h"

#include <algorithm>
#include <sstream>

namespace tessera {

Joiner::~Joiner() = default;

ShardingRule& ShardingRule::replicate(std::string_view letters) {
  for (char c : letters) {
    for (Factor& f : factors_) {
      if (f.letter == c) f.replicate = true;
    }
  }
  return *this;
}
ShardingRule& ShardingRule::replicate_factor(int factor) {
  factors_[static_cast<size_t>(factor)].replicate = true;
  return *this;
}
ShardingRule& ShardingRule::joins_inside(char letter) {
  for (Factor& f : factors_) f.inside = f.inside || f.letter == letter;
  return *this;
}
ShardingRule& ShardingRule::join(Join j) {
  for (Factor& f : factors_) f.join = j;
  return *this;
}
ShardingRule& ShardingRule::linear(std::initializer_list<int> inputs) {
  return linear(std::vector<int>(inputs));
}
ShardingRule& ShardingRule::linear(std::vector<int> inputs) {
  linear_.push_back(std::move(inputs));
  return *this;
}
ShardingRule& ShardingRule::linear_all(int first, int count) {
  auto& group = linear_.emplace_back();
  for (int i = 0; i < count; ++i) group.push_back(first + i);
  return *this;
}
ShardingRule& ShardingRule::monotone_up() {
  monotone_ = 1;
  return *this;
}
ShardingRule& ShardingRule::monotone_down() {
  monotone_ = -1;
  return *this;
}
ShardingRule& ShardingRule::stricter_because(std::string_view why) {
  why_strict_ = why;
  return *this;
}

int ShardingRule::add_factor(int64_t size, char letter) {
  factors_.push_back({size, Join::sum, false, false, letter});
  return static_cast<int>(factors_.size()) - 1;
}
ShardingRule& ShardingRule::operand(std::initializer_list<DimFactor> dims) {
  return operand(std::span<const DimFactor>(dims.begin(), dims.size()));
}
ShardingRule& ShardingRule::operand(std::span<const DimFactor> dims) {
  operands_.emplace_back(dims.begin(), dims.end());
  return *this;
}
ShardingRule& ShardingRule::outputs_from_here() {
  inputs_ = static_cast<int>(operands_.size());
  return *this;
}

int ShardingRule::inside_factor() const {
  const auto at = std::ranges::find_if(factors_, &Factor::inside);
  return at == factors_.end() ? -1 : static_cast<int>(at - factors_.begin());
}

bool ShardingRule::has_factor(int operand, int factor) const {
  return std::ranges::any_of(dims(operand), [&](const DimFactor& d) { return d.factor == factor; });
}

std::string ShardingRule::text() const {
  std::ostringstream os;
  for (int o = 0; o < operands(); ++o) {
    os << (o == 0 ? "" : o == inputs_ ? " -> " : ", ") << '(';
    const auto ds = dims(o);
    for (size_t d = 0; d < ds.size(); ++d) {
      os << (d ? " " : "");
      if (ds[d].factor < 0) {
        os << '1';
        continue;
      }
      const Factor& f = factors_[static_cast<size_t>(ds[d].factor)];
      if (f.letter) os << f.letter;
      else os << 'f' << ds[d].factor;
      if (ds[d].scale != 1) os << '*' << ds[d].scale;
      if (f.replicate) os << '!';
      if (f.inside) os << '&';
    }
    os << ')';
  }
  if (inputs_ == operands()) os << " -> ()";
  return os.str();
}

namespace {

struct Term {  // one operand of the text
  std::string letters;
  int ellipsis = -1;  // where "..." stands among the letters
};

std::vector<Term> parse_terms(std::string_view text) {
  std::vector<Term> terms(1);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',') terms.emplace_back();
    else if (c == '.') {
      terms.back().ellipsis = static_cast<int>(terms.back().letters.size());
      i += 2;
    } else if (c != ' ') {
      terms.back().letters += c;
    }
  }
  return terms;
}

}  // namespace

ShardingRule rule(RuleText text, Metas in) {
  const size_t arrow = text.text().find("->");
  const auto inputs = parse_terms(text.text().substr(0, arrow));
  const auto outputs = parse_terms(text.text().substr(arrow + 2));
  ShardingRule r;
  // The dims that "..." stands for are factors of their own, aligned at the right, shared by all
  // operands.
  int lead = 0;
  for (size_t o = 0; o < inputs.size(); ++o) {
    if (in.has(o) && inputs[o].ellipsis >= 0)
      lead = std::max(lead, in[o].shape.rank() - static_cast<int>(inputs[o].letters.size()));
  }
  std::vector<int> lead_factor;
  for (int i = 0; i < lead; ++i) lead_factor.push_back(r.add_factor(1, 0));
  std::array<int, 128> letter_factor;
  letter_factor.fill(-1);
  std::vector<int64_t> sizes(static_cast<size_t>(lead), 1);

  const auto factors_of = [&](const Term& term, int rank) {
    std::vector<int> ids;
    const int own = term.ellipsis < 0 ? 0 : rank - static_cast<int>(term.letters.size());
    for (int i = 0; i <= static_cast<int>(term.letters.size()); ++i) {
      if (i == term.ellipsis) {
        for (int k = 0; k < own; ++k)
          ids.push_back(lead_factor[static_cast<size_t>(lead - own + k)]);
      }
      if (i == static_cast<int>(term.letters.size())) break;
      int& id = letter_factor[static_cast<size_t>(term.letters[static_cast<size_t>(i)])];
      if (id < 0) {
        id = r.add_factor(1, term.letters[static_cast<size_t>(i)]);
        sizes.push_back(1);
      }
      ids.push_back(id);
    }
    return ids;
  };
  std::vector<std::vector<int>> ids;
  for (size_t o = 0; o < inputs.size(); ++o) {
    if (!in.has(o)) {
      ids.emplace_back();
      continue;
    }
    const Shape& shape = in[o].shape;
    const int letters = static_cast<int>(inputs[o].letters.size());
    if (inputs[o].ellipsis < 0 ? shape.rank() != letters : shape.rank() < letters) {
      fail<ShapeError>("rule", '"', text.text(), "\" does not fit input ", o, " of shape ", shape);
    }
    ids.push_back(factors_of(inputs[o], shape.rank()));
    for (int d = 0; d < shape.rank(); ++d) {
      int64_t& size = sizes[static_cast<size_t>(ids.back()[static_cast<size_t>(d)])];
      if (size == 1) size = shape[d];
    }
  }
  // A size-1 dim against a larger factor is broadcast; outputs always have the factor's size.
  const auto add = [&](const std::vector<int>& operand_ids, const Shape* shape) {
    std::vector<DimFactor> dims;
    for (size_t d = 0; d < operand_ids.size(); ++d) {
      const int f = operand_ids[d];
      const bool broadcast =
          shape && (*shape)[static_cast<int>(d)] == 1 && sizes[static_cast<size_t>(f)] != 1;
      dims.push_back({static_cast<int16_t>(broadcast ? -1 : f), 1});
    }
    r.operand(dims);
  };
  for (size_t o = 0; o < inputs.size(); ++o) add(ids[o], in.has(o) ? &in[o].shape : nullptr);
  r.outputs_from_here();
  for (const Term& term : outputs) {
    add(factors_of(term, static_cast<int>(term.letters.size()) + (term.ellipsis >= 0 ? lead : 0)),
        nullptr);
  }
  return r.with_sizes(sizes);
}

ShardingRule& ShardingRule::with_sizes(std::span<const int64_t> sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) factors_[i].size = sizes[i];
  return *this;
}

ShardingRule pointwise_rule(Metas in, const Shape& out, int outputs) {
  ShardingRule r;
  for (int64_t s : out) r.add_factor(s);
  for (size_t o = 0; o < in.size(); ++o) {
    std::vector<DimFactor> dims;
    if (in.has(o)) {
      const Shape& shape = in[o].shape;
      for (int d = 0; d < shape.rank(); ++d) {
        const int at = out.rank() - shape.rank() + d;
        dims.push_back({static_cast<int16_t>(shape[d] == 1 && out[at] != 1 ? -1 : at), 1});
      }
    }
    r.operand(dims);
  }
  r.outputs_from_here();
  for (int o = 0; o < outputs; ++o) {
    std::vector<DimFactor> dims;
    for (int d = 0; d < out.rank(); ++d) dims.push_back({static_cast<int16_t>(d), 1});
    r.operand(dims);
  }
  return r;
}

}  // namespace tessera

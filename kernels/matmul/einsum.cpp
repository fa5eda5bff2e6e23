// SPDX-License-Identifier: Apache-2.0
// einsum. A tensor and the labels of its dims travel together (Term); a pair of them becomes one
// product whose dims are then in whatever order was cheapest, and the last step orders the result.
#include "tessera/kernels/matmul/einsum.h"

#include "tessera/core/message.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>
#include <map>
#include <string>

namespace tessera {
namespace {

// A letter, or a negative number for a dim under "...", -1 the last of them.
using Label = int;
using Labels = std::vector<Label>;
constexpr Label kEllipsis = 0;  // before it is expanded

struct Term {
  Tensor x;
  Labels labels;
};

bool has(const Labels& all, Label l) { return std::ranges::find(all, l) != all.end(); }

int place_in(const Labels& all, Label l) {
  return static_cast<int>(std::ranges::find(all, l) - all.begin());
}

std::string shown(Label l) {
  return l < 0 ? concat("dim ", l, " under ...") : concat('\'', static_cast<char>(l), '\'');
}

// --- the equation -------------------------------------------------------------------------------------------------

Labels parse_term(std::string_view text, std::string_view what, std::string_view equation) {
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == '.' && text.substr(i, 3) != "...")
      fail<ValueError>("einsum", "an ellipsis has three dots: given \"", equation, "\" (", what,
                       ")");
    if (!letter && c != '.')
      fail<ValueError>("einsum", "terms have letters and ...: given '", c, "' in \"", equation,
                       "\" (", what, ")");
    const Label label = letter ? c : kEllipsis;
    if (c == '.') i += 2;
    if (has(labels, label))
      fail<ValueError>("einsum", label == kEllipsis ? "..." : shown(label), " occurs twice in ",
                       what, " of \"", equation,
                       "\": expected each once; take a diagonal with diagonal()");
    labels.push_back(label);
  }
  return labels;
}

struct Equation {
  std::vector<Labels> terms;
  Labels result;
  bool implicit = false;
};

Equation parse(std::string_view text) {
  Equation e;
  const size_t arrow = text.find("->");
  e.implicit = arrow == text.npos;
  std::string_view left = text.substr(0, arrow);
  for (bool more = true; more;) {
    const size_t comma = left.find(',');
    e.terms.push_back(parse_term(left.substr(0, comma), concat("term ", e.terms.size()), text));
    more = comma != left.npos;
    if (more) left.remove_prefix(comma + 1);
  }
  if (!e.implicit) {
    e.result = parse_term(text.substr(arrow + 2), "the result", text);
    return e;
  }
  std::map<Label, int> times;
  for (const Labels& term : e.terms) {
    for (const Label l : term) ++times[l];
  }
  for (const auto& [label, count] : times) {
    if (count == 1 || label == kEllipsis) e.result.push_back(label);
  }
  return e;
}

// "..." as the labels of `dims` dims.
void expand_ellipsis(Labels& labels, int dims) {
  const auto at = std::ranges::find(labels, kEllipsis);
  if (at == labels.end()) return;
  const auto from = labels.erase(at) - labels.begin();
  for (int d = 0; d < dims; ++d) labels.insert(labels.begin() + from + d, d - dims);
}

// Gives every dim its label and checks ranks, sizes and dtypes.
std::vector<Term> bind(Equation& e, std::string_view text, const std::vector<Tensor>& operands) {
  if (operands.size() != e.terms.size())
    fail<ValueError>("einsum", "\"", text, "\" has ", counted(e.terms.size(), "term"), ": given ",
                     counted(operands.size(), "operand"));
  std::vector<Term> terms;
  std::map<Label, std::pair<int64_t, size_t>> sizes;  // and the operand that set it
  int under_ellipsis = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& x = operands[i];
    Labels labels = e.terms[i];
    const int letters = static_cast<int>(labels.size()) - has(labels, kEllipsis);
    if (has(labels, kEllipsis) ? x.rank() < letters : x.rank() != letters)
      fail<ShapeError>("einsum", "operand ", i, " of \"", text, "\" has ",
                       counted(letters, "letter"), " for rank ", x.rank(), ": given ", x.meta());
    if (!kFloats.has(x.dtype()))
      fail<DTypeError>("einsum", "operand ", i, " is ", x.meta(), ", expected one dtype of ",
                       kFloats, "; cast it");
    if (x.dtype() != operands[0].dtype())
      fail<DTypeError>("einsum", "operands must share one dtype of ", kFloats, ": operand 0 is ",
                       operands[0].meta(), ", operand ", i, " is ", x.meta(), "; cast one");
    if (has(labels, kEllipsis)) under_ellipsis = std::max(under_ellipsis, x.rank() - letters);
    expand_ellipsis(labels, x.rank() - letters);
    for (int d = 0; d < x.rank(); ++d) {
      const Label l = labels[static_cast<size_t>(d)];
      const auto [known, fresh] = sizes.try_emplace(l, x.shape()[d], i);
      if (known->second.first != x.shape()[d])
        fail<ShapeError>("einsum", shown(l), " of \"", text, "\" is ", known->second.first,
                         " in operand ", known->second.second, " and ", x.shape()[d],
                         " in operand ", i, ": given ", operands[known->second.second].meta(),
                         " and ", x.meta());
    }
    terms.push_back({x, std::move(labels)});
  }
  expand_ellipsis(e.result, under_ellipsis);
  for (const Label l : e.result) {
    if (!sizes.contains(l))
      fail<ValueError>("einsum", shown(l), " of the result is in no operand of \"", text, "\"");
  }
  return terms;
}

// --- the work -----------------------------------------------------------------------------------------------------

// Dims in the order of `labels`, which may leave some out that the term lacks.
Tensor ordered(const Term& t, const Labels& labels) {
  Shape order;
  bool same = true;
  for (const Label l : labels) {
    if (!has(t.labels, l)) continue;
    same = same && place_in(t.labels, l) == order.rank();
    order.push_back(place_in(t.labels, l));
  }
  return same ? t.x : permute(t.x, order);
}

// Sums over the labels that `kept` lacks.
Term reduced(const Term& t, const Labels& kept) {
  op::DimMask dims = 0;
  Labels rest;
  for (size_t d = 0; d < t.labels.size(); ++d) {
    if (has(kept, t.labels[d])) rest.push_back(t.labels[d]);
    else dims |= 1u << d;
  }
  if (dims == 0) return t;
  return {call(op::Sum{{dims, false}}, {t.x}), rest};
}

int64_t size_of(const Term& t, Label l) { return t.x.shape()[place_in(t.labels, l)]; }

Labels joined(std::initializer_list<Labels> all) {
  Labels out;
  for (const Labels& part : all) out.insert(out.end(), part.begin(), part.end());
  return out;
}

// `t` with dims in the order of the groups; a group that is to be one dim is made one.
struct Group {
  const Labels& labels;
  bool one;
};
Tensor grouped(const Term& t, std::initializer_list<Group> groups) {
  Labels order;
  Shape shape;
  for (const Group& g : groups) {
    int64_t merged = 1;
    for (const Label l : g.labels) {
      order.push_back(l);
      if (g.one) merged *= size_of(t, l);
      else shape.push_back(size_of(t, l));
    }
    if (g.one) shape.push_back(merged);
  }
  return reshape(ordered(t, order), shape);
}

// The product of two terms without sums: dims side by side, broadcast.
Term outer_product(const Term& a, const Term& b, const Labels& out) {
  const auto spread = [&](const Term& t) {
    Shape shape;
    for (const Label l : out) shape.push_back(has(t.labels, l) ? size_of(t, l) : 1);
    return reshape(ordered(t, out), shape);
  };
  return {mul(spread(a), spread(b)), out};
}

// One pair; both hold only labels that the other or `later` needs.
Term contract(Term a, Term b, const Labels& later) {
  Labels batch, summed, free_a, free_b;
  for (const Label l : a.labels) {
    if (!has(b.labels, l)) free_a.push_back(l);
    else (has(later, l) ? batch : summed).push_back(l);
  }
  for (const Label l : b.labels) {
    if (!has(a.labels, l)) free_b.push_back(l);
  }
  if (summed.empty()) return outer_product(a, b, joined({batch, free_a, free_b}));
  // The left operand's own dims may stay apart as rows; the right one's become one dim of columns.
  if (free_b.size() > free_a.size()) {
    std::swap(a, b);
    std::swap(free_a, free_b);
  }
  const Labels out = joined({batch, free_a, free_b});
  Shape shape;
  for (const Label l : out) shape.push_back(size_of(has(a.labels, l) ? a : b, l));
  Tensor y;
  const auto sums_lead = [&](const Term& t) {
    return !t.labels.empty() && has(summed, t.labels[0]);
  };
  if (batch.empty() && summed.size() > 1 && sums_lead(a) && sums_lead(b)) {
    // The gradient of a weight: what is summed over need not be one dim.
    y = contract_leading(grouped(a, {{summed, false}, {free_a, true}}),
                         grouped(b, {{summed, false}, {free_b, true}}));
  } else {
    const bool rows_apart = batch.empty() && !free_a.empty();
    // A single summed dim is taken from where it lies: products read transposed operands in place.
    const bool a_first = summed.size() == 1 && free_a.size() == 1 &&
                         place_in(a.labels, summed[0]) < place_in(a.labels, free_a[0]);
    const bool b_last = summed.size() == 1 && !free_b.empty() &&
                        place_in(b.labels, summed[0]) > place_in(b.labels, free_b.back());
    const Tensor left = a_first
                            ? grouped(a, {{batch, false}, {summed, true}, {free_a, true}})
                            : grouped(a, {{batch, false}, {free_a, !rows_apart}, {summed, true}});
    const Tensor right = b_last ? grouped(b, {{batch, false}, {free_b, true}, {summed, true}})
                                : grouped(b, {{batch, false}, {summed, true}, {free_b, true}});
    y = matmul(left, right, a_first, b_last);
  }
  return {reshape(y, shape), out};
}

}  // namespace

Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands) {
  Equation e = parse(equation);
  std::vector<Term> terms = bind(e, equation, operands);
  // needed[i]: labels of the result and of the operands from i on.
  std::vector<Labels> needed(terms.size() + 1, e.result);
  for (size_t i = terms.size(); i-- > 0;) needed[i] = joined({needed[i + 1], terms[i].labels});
  Term all = reduced(terms[0], needed[1]);
  for (size_t i = 1; i < terms.size(); ++i) {
    Term next = reduced(terms[i], joined({needed[i + 1], all.labels}));
    all = contract(std::move(all), std::move(next), needed[i + 1]);
  }
  return ordered(reduced(all, e.result), e.result);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// How tensors print: as PyTorch prints them, in its column widths, number formats and line breaks,
// with our names of dtypes and ops. Only the elements that are shown are read. Metas print short,
// as errors need them.
#include "tessera/core/context.h"
#include "tessera/core/op_types.h"
#include "tessera/core/scalar.h"
#include "tessera/core/tensor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

namespace tessera {

std::ostream& operator<<(std::ostream& os, const TensorMeta& m) {
  os << m.dtype << m.shape;
  if (!m.device.is_cpu()) os << '@' << m.device;
  return os;
}

std::ostream& operator<<(std::ostream& os, const Scalar& v) {
  return v.whole() != 0 ? os << v.whole() : os << v.real();
}

namespace {

// PyTorch's print options.
constexpr int64_t kThreshold = 1000;  // tensors of more elements are summarized
constexpr int64_t kEdgeItems = 3;     // then shown at both ends of each dim
constexpr size_t kLineWidth = 80;
constexpr int kPrecision = 4;

// Calls f with each index of a dim that is shown, and with -1 where "..." stands.
template <class F> void for_each_shown(int64_t size, bool summarize, const F& f) {
  const bool cut = summarize && size > 2 * kEdgeItems;
  for (int64_t i = 0; i < size; ++i) {
    if (cut && i == kEdgeItems) {
      f(-1);
      i = size - kEdgeItems;
    }
    f(i);
  }
}

// Where the shown elements of `t` lie in its storage, in row-major order.
void add_places(const Tensor& t, int dim, int64_t at, bool summarize,
                std::vector<int64_t>& places) {
  if (dim == t.rank()) {
    places.push_back(at);
    return;
  }
  for_each_shown(t.shape()[dim], summarize, [&](int64_t i) {
    if (i >= 0) add_places(t, dim + 1, at + i * t.strides()[dim], summarize, places);
  });
}

std::string number_text(double value, std::chars_format format, int precision) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  std::array<char, 512> text;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, format, precision).ptr;
  return {text.data(), end};
}

// Elements as text, and the width of their column.
struct Column {
  std::vector<std::string> texts;
  size_t width = 1;
};

// Zeros, nan and inf count neither for the format nor for the width, as in PyTorch.
Column float_column(const std::vector<double>& values) {
  const auto counts = [](double v) { return std::isfinite(v) && v != 0; };
  double low = std::numeric_limits<double>::infinity(), high = 0;
  bool whole = true;
  for (double v : values) {
    if (!counts(v)) continue;
    low = std::min(low, std::abs(v));
    high = std::max(high, std::abs(v));
    whole = whole && v == std::ceil(v);
  }
  const bool scientific = high > 0 && (high / low > 1000 || high > 1e8 || low < 1e-4);
  Column column;
  for (double v : values) {
    std::string text;
    if (scientific) text = number_text(v, std::chars_format::scientific, kPrecision);
    else if (whole)
      text = number_text(v, std::chars_format::fixed, 0) + (std::isfinite(v) ? "." : "");
    else text = number_text(v, std::chars_format::fixed, kPrecision);
    if (counts(v)) column.width = std::max(column.width, text.size());
    column.texts.push_back(std::move(text));
  }
  return column;
}

std::string integer_text(const Tensor& element) {
  if (element.dtype() == DType::bool_) return element.item() != 0 ? "True" : "False";
  if (element.dtype() == DType::i64) return std::to_string(element.item<int64_t>());
  return std::to_string(static_cast<int64_t>(element.item()));
}

Column column_of(const Tensor& t, const std::vector<int64_t>& places) {
  Column column;
  std::vector<double> floats;
  for (int64_t place : places) {
    const Tensor element = alias(t, {}, {}, place);
    if (is_floating(t.dtype())) {
      floats.push_back(element.item());
    } else {
      column.texts.push_back(integer_text(element));
      column.width = std::max(column.width, column.texts.back().size());
    }
  }
  if (is_floating(t.dtype())) column = float_column(floats);
  for (std::string& text : column.texts) {
    if (text.size() < column.width) text.insert(0, column.width - text.size(), ' ');
  }
  return column;
}

// Brackets and line breaks around the elements from `next` on, which moves past them.
std::string rows(const Shape& shape, int dim, size_t indent, bool summarize, const Column& column,
                 size_t& next) {
  if (dim == shape.rank()) return column.texts[next++];
  const int dims = shape.rank() - dim;
  const size_t per_line = std::max<size_t>(1, (kLineWidth - indent) / (column.width + 2));
  const std::string line = "\n" + std::string(indent + 1, ' ');
  std::string text = "[";
  size_t count = 0;
  for_each_shown(shape[dim], summarize, [&](int64_t i) {
    if (count > 0) {
      if (dims > 1) text += "," + std::string(static_cast<size_t>(dims - 2), '\n') + line;
      else text += count % per_line == 0 ? "," + line : ", ";
    }
    ++count;
    if (i < 0) text += dims > 1 ? "..." : " ...";
    else text += rows(shape, dim + 1, indent + 1, summarize, column, next);
  });
  return text + ']';
}

std::string values_text(const Tensor& t, size_t indent) {
  const Tensor here = to_device(t, kCpu);
  const bool summarize = t.numel() > kThreshold;
  std::vector<int64_t> places;
  add_places(here, 0, here.offset(), summarize, places);
  size_t next = 0;
  return rows(t.shape(), 0, indent, summarize, column_of(here, places), next);
}

// As Python prints a tuple.
std::string tuple_text(const Shape& shape) {
  std::string text = "(";
  for (int d = 0; d < shape.rank(); ++d) text += concat(d ? ", " : "", shape[d]);
  return text + (shape.rank() == 1 ? ",)" : ")");
}

// Printing does not throw where the layout is out of reach.
std::string layout_text(const Tensor& t) {
  const Context* context = Context::current_or_null();
  if (!context || !context->distributor) return "unknown to this thread";
  try {
    return context->distributor->layout_text(t);
  } catch (const UsageError&) {
    return "of a world that has ended";
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Tensor& t) {
  if (!t.defined()) return os << "tensor(undefined)";
  const Tensor part = t.is_distributed() ? Tensor(t.impl().local) : t;
  const bool released = part.numel() > 0 && part.storage().released();
  const bool unreadable = released || t.device().is_meta();
  const bool empty = part.numel() == 0 && !unreadable;
  std::string text = t.is_distributed() ? "DTensor(local=" : "tensor(";
  const size_t indent = text.size();
  text += unreadable ? "..." : empty ? "[]" : values_text(part, indent);

  std::vector<std::string> suffixes;
  if (!t.device().is_cpu()) suffixes.push_back(concat("device='", t.device(), '\''));
  if (t.is_distributed() || unreadable || (empty && t.rank() != 1))
    suffixes.push_back("size=" + tuple_text(t.shape()));
  const bool values_tell = t.dtype() == DType::i64 || t.dtype() == DType::bool_;
  if (t.dtype() != DType::f32 && (!values_tell || unreadable || empty))
    suffixes.push_back(concat("dtype=", t.dtype()));
  if (released) suffixes.emplace_back("storage=released");
  if (t.is_distributed()) suffixes.push_back("layout=" + layout_text(t));
  if (!t.is_leaf()) suffixes.push_back(concat("grad_fn=<", t.impl().node->name(), '>'));
  else if (t.requires_grad()) suffixes.emplace_back("requires_grad=True");

  size_t column = text.size() - (text.rfind('\n') + 1) + 2;  // npos + 1 is 0
  for (const std::string& suffix : suffixes) {
    const bool fits = column + suffix.size() + 2 <= kLineWidth;
    text += (fits ? ", " : ",\n" + std::string(indent, ' ')) + suffix;
    column = (fits ? column + 2 : indent) + suffix.size();
  }
  return os << text + ')';
}

void Metas::missing(size_t i) const {
  fail<UsageError>("call", "input ", i, " is needed but only ", n_,
                   " are given or it is undefined");
}

const Tensor& Saved::undeclared(const char* what, size_t i) const {
  fail<UsageError>("vjp", "reads ", what, ' ', i,
                   ", which `saves` does not declare or which was not given");
}

}  // namespace tessera

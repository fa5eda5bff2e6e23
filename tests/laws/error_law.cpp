// SPDX-License-Identifier: Apache-2.0
// Error law. A bad sample throws the error it names; the message begins with the op and shows what
// was given: an operand's shape, rank or dtype, or an attribute; nothing has been written.
#include "tessera/tests/laws/laws.h"

#include <algorithm>

namespace tessera::laws {
namespace {

std::optional<std::string> message_problem(const OpRow& row, const SampleRow& sample,
                                           const Error& e, const TensorVector& in) {
  const std::string& expected = sample.throws;
  const std::string message = e.what();
  if (e.kind() != expected)
    return concat("threw ", e.kind(), " (", message, "), expected ", expected);
  // A missing input is found before the op is asked.
  const bool named = message.starts_with(concat('[', row.name, ']')) ||
                     (expected == "UsageError" && message.starts_with("[call]"));
  if (!named) return concat("message does not begin with [", row.name, "]: ", message);
  if (expected == "UsageError" || in.empty()) return {};
  const auto holds = [&](const std::string& text) { return message.find(text) != message.npos; };
  const bool shown = std::ranges::any_of(in, [&](const Tensor& t) {
    return t.defined() && (holds(concat(t.shape())) || holds(concat(t.dtype())) ||
                           holds(concat("rank ", t.rank())));
  });
  const auto attributes = row.attributes(sample.op.get());
  if (!shown && std::ranges::none_of(attributes, holds))
    return concat("message shows nothing of what was given: ", message);
  return {};
}

}  // namespace

Outcome error_law(const Subject& s) {
  Report report(s);
  const DType t = s.row->dtypes.has(DType::f32) ? DType::f32 : exact_dtype(*s.row);
  for (const SampleRow& sample : s.samples) {
    if (sample.throws.empty()) continue;
    Random random(concat(s.row->name, " errors"));
    const TensorVector in = inputs_of(sample, t, random);
    std::vector<std::vector<std::byte>> before;
    for (const Tensor& x : in)
      before.push_back(x.defined() ? storage_bytes(x) : std::vector<std::byte>{});
    try {
      (void)invoke(s, sample.op.get(), in);
      report.check(sample, "nothing was thrown", "expected ", sample.throws);
    } catch (const Error& e) {
      report.check(sample, message_problem(*s.row, sample, e, in), "bad input");
    } catch (const std::exception& e) {
      report.check(sample, concat("threw an untyped error: ", e.what()), "bad input");
    }
    for (size_t i = 0; i < in.size(); ++i) {
      if (!in[i].defined()) continue;
      report.check(sample,
                   storage_bytes(in[i]) == before[i] ? std::nullopt
                                                     : std::optional<std::string>("was written"),
                   "input ", i, " of a bad call");
    }
  }
  return report.take();
}

}  // namespace tessera::laws

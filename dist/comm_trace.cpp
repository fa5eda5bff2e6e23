// SPDX-License-Identifier: Apache-2.0
// The traces of a rank form a list from the innermost scope outwards.
#include "tessera/dist/comm_trace.h"

#include "tessera/autograd/tape.h"
#include "tessera/core/context.h"
#include "tessera/core/message.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <ostream>

namespace tessera {

std::string_view trace_tag() { return Tape::current().passes > 0 ? "grad" : "forward"; }
namespace {

struct LivingTraces {
  CommTrace* innermost = nullptr;
};

// `send to 1 (7)`: what stands in the table.
std::string title(const CommEntry& e) {
  if (e.peer < 0) return e.op;
  return concat(e.op, e.op == "send" ? " to " : " from ", e.peer, " (", e.message, ')');
}

bool is_of(const CommEntry& e, std::string_view op, std::string_view tag) {
  return (op.empty() || e.op == op) && (tag.empty() || e.tag == tag);
}

}  // namespace

CommTrace::CommTrace() {
  auto& living = Context::current().state<LivingTraces>();
  outer_ = living.innermost;
  living.innermost = this;
}

CommTrace::~CommTrace() { Context::current().state<LivingTraces>().innermost = outer_; }

int CommTrace::count(std::string_view op, std::string_view tag) const {
  return static_cast<int>(
      std::ranges::count_if(entries_, [&](const CommEntry& e) { return is_of(e, op, tag); }));
}

int64_t CommTrace::bytes(std::string_view op, std::string_view tag) const {
  int64_t sum = 0;
  for (const CommEntry& e : entries_) sum += is_of(e, op, tag) ? e.bytes : 0;
  return sum;
}

std::string CommTrace::table() const {
  std::ostringstream os;
  size_t wide = 4;
  size_t longest = 14;
  for (const CommEntry& e : entries_) {
    wide = std::max(wide, e.axes.size());
    longest = std::max(longest, title(e).size());
  }
  const auto axes = static_cast<int>(wide) + 2, title_width = static_cast<int>(longest) + 2;
  os << std::left << std::setw(title_width) << "op" << std::setw(axes) << "axes" << std::setw(6)
     << "dtype" << std::right << std::setw(14) << "bytes"
     << "  " << std::left << std::setw(9) << "tag"
     << "module\n";
  std::map<std::string, std::pair<int, int64_t>> sums;
  for (const CommEntry& e : entries_) {
    os << std::left << std::setw(title_width) << title(e) << std::setw(axes) << e.axes
       << std::setw(6) << name(e.dtype) << std::right << std::setw(14) << e.bytes << "  "
       << std::left << std::setw(9) << e.tag << (e.path.empty() ? "-" : e.path) << '\n';
    auto& [n, bytes] = sums[e.op];
    ++n;
    bytes += e.bytes;
  }
  for (const auto& [op, sum] : sums)
    os << op << ": " << sum.first << " of " << counted(sum.second, "byte") << "\n";
  if (entries_.empty()) os << "no communication\n";
  return os.str();
}

std::ostream& operator<<(std::ostream& os, const CommTrace& trace) { return os << trace.table(); }

void CommTrace::record(CommEntry entry, Mesh mesh, std::span<const int> axes,
                       const Tensor& payload) {
  Context& context = Context::current();
  entry.dtype = payload.dtype();
  entry.bytes = payload.numel() * item_size(entry.dtype);
  for (const int a : axes) entry.axes += concat(entry.axes.empty() ? "" : ",", mesh.axis(a).name);
  entry.path = joined_path(context.module_path);
  CommTrace* trace = context.state<LivingTraces>().innermost;
  for (; trace; trace = trace->outer_) trace->entries_.push_back(entry);
}

void record_collective(CollectiveKind op, Mesh mesh, std::span<const int> axes,
                       const Tensor& payload, std::string_view tag) {
  if (!Context::current().state<LivingTraces>().innermost) return;
  CommTrace::record({.op = concat(op), .tag = std::string(tag)}, mesh, axes, payload);
}

void record_message(CollectiveKind op, Mesh mesh, int axis, const Tensor& payload, int peer,
                    int message, std::string_view tag) {
  if (!Context::current().state<LivingTraces>().innermost) return;
  CommTrace::record({.op = concat(op), .tag = std::string(tag), .peer = peer, .message = message},
                    mesh, {&axis, 1}, payload);
}

}  // namespace tessera

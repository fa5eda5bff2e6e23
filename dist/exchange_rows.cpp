// SPDX-License-Identifier: Apache-2.0
// Nobody waits here: readers of the result wait for what is under way on its bytes, so that the
// ops between the call and its first reader hide the transfer, in backward too.
#include "tessera/dist/exchange_rows.h"

#include "tessera/core/message.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>
#include <numeric>

namespace tessera {

template <> const OpRow RowOf<op::ExchangeRows>::row;  // of op_table.cpp; its gradient is itself

namespace op {
namespace {

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Shape with_rows(Shape shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

// The first rows of a contiguous tensor, flat.
Tensor first_rows(const Tensor& x, int64_t rows) {
  return alias(x, {with_rows(x.shape(), rows).numel()}, {1}, x.offset());
}

}  // namespace

std::string ExchangeRows::text(const std::vector<int64_t>& counts) {
  std::string text;
  for (const int64_t n : counts) text += concat(text.empty() ? "" : ",", n);
  return text;
}

MetaList ExchangeRows::meta(Metas in) const {
  if (in[0].shape.rank() == 0)
    fail<ShapeError>(name, "x ", in[0], " has no rows: expected (M, ...)");
  const size_t ranks = mesh ? static_cast<size_t>(mesh.size(axis)) : 1;
  if (send.size() != ranks || receive.size() != ranks) {
    fail<ShapeError>(name, send.size(), " counts to send and ", receive.size(),
                     " to receive, expected one for each of ", counted(ranks, "rank"));
  }
  for (const auto* counts : {&send, &receive}) {
    if (std::ranges::any_of(*counts, [](int64_t n) { return n < 0; }))
      fail<ShapeError>(name, "counts ", text(*counts), " hold a negative one");
  }
  if (total(send) > in[0].shape[0] || total(receive) > rows) {
    fail<ShapeError>(name, counted(total(send), "row"), " to send of ", in[0].shape[0], ", and ",
                     total(receive), " to receive into ", rows, ": they do not fit");
  }
  return {{with_rows(in[0].shape, rows), in[0].dtype, in[0].device}};
}

void ExchangeRows::launch(const Tensor& x, const Tensor& y) const {
  const NoGrad guard;
  const Tensor from = contiguous(x);
  const int64_t sent = total(send), received = total(receive),
                width = with_rows(x.shape(), 1).numel();
  if (rows > received) {
    const Tensor rest = alias(y, {(rows - received) * width}, {1}, y.offset() + received * width);
    assign_(rest, zeros_like(rest));
  }
  const Tensor out = first_rows(y, received), in = first_rows(from, sent);
  if (!mesh) return assign_(out, in);
  const int at = mesh.index(axis);
  record_collective(CollectiveKind::all_to_all, mesh, {&at, 1}, sent > received ? in : out,
                    trace_tag());
  std::vector<int64_t> to = send, back = receive;
  for (auto* counts : {&to, &back}) {
    for (int64_t& n : *counts) n *= width;
  }
  mesh.group(at).all_to_all(in, out, to, back);
}

void ExchangeRows::cpu(Tensors in, Outputs y) const { launch(in[0], y[0]); }
void ExchangeRows::cuda(Tensors in, Outputs y, Stream) const { launch(in[0], y[0]); }

Grads ExchangeRows::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(ExchangeRows{mesh, axis, receive, send, s.input_meta(0).shape[0]}, {dy[0]})};
}

std::vector<Sample<ExchangeRows>> ExchangeRows::samples() {
  return {
      {{.send = {5}, .receive = {5}, .rows = 5}, {arg({5, 7})}},
      {{.axis = "ep", .send = {3}, .receive = {3}, .rows = 4}, {arg({5, 2, 3})}},
      known(ExchangeRows{.send = {1}, .receive = {1}, .rows = 2}, {arg({2}).listed({3, 4})},
            {{3, 0}}),
      bad(ExchangeRows{.send = {6}, .receive = {6}, .rows = 6}, {arg({5, 7})}, "ShapeError"),
      bad(ExchangeRows{.send = {1, 2}, .receive = {3}, .rows = 3}, {arg({5, 7})}, "ShapeError")};
}

}  // namespace op

Tensor exchange_rows(const Tensor& x, Mesh mesh, std::string_view axis, std::vector<int64_t> send,
                     std::vector<int64_t> receive, int64_t rows) {
  if (x.is_distributed()) {
    fail<LayoutError>("exchange_rows", x.meta(),
                      " is distributed: it exchanges one rank's own rows, inside a local_region");
  }
  if (rows < 0) rows = op::total(receive);
  return call(op::ExchangeRows{mesh, std::string(axis), std::move(send), std::move(receive), rows},
              {x});
}

}  // namespace tessera

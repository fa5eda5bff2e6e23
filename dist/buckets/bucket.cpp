// SPDX-License-Identifier: Apache-2.0
// Two flat forms of a list: whole tensors one after another in their order, and padded parts, one
// per member of the group, with this member's blocks of all tensors in that order. A block begins
// at the same element of every part: the first member's block is never smaller than another's.
// Copies between the forms are assign_ of views, so they run on any device and convert dtypes on
// the way.
#include "tessera/dist/buckets/bucket.h"

#include "tessera/core/context.h"
#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/buckets/later_impl.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/redistribute/plan.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>
#include <set>

namespace tessera {
namespace {

constexpr std::string_view kWho = "bucket";

// One tensor of the list, as members hold blocks of its `dim`.
struct Item {
  Shape whole, shard;
  int dim = 0;
  std::vector<Piece::Range> rows;  // of each member, from the first member's on
  int64_t outer = 1, inner = 1;    // elements around the dim
  int64_t at = 0, slot = 0;        // first element among whole tensors, and in every part
  bool even = true;

  [[nodiscard]] Shape block(size_t member) const {
    Shape shape = whole;
    shape[dim] = rows[member].size;
    return shape;
  }
  // A member's block of the whole tensor g, of any strides.
  [[nodiscard]] Tensor of_whole(const Tensor& g, size_t member) const {
    return alias(g, block(member), g.strides(), g.offset() + rows[member].begin * g.strides()[dim]);
  }
};

Tensor as(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : cast(x, dtype); }

// What a shard held when it was gathered. It owns the storage: another one at the same address
// would look equal.
struct Seen {
  Ref<Storage> storage;
  uint32_t version;
  bool operator==(const Seen&) const = default;
};

// The ranks that hold the parameters.
struct Ranks {
  Mesh mesh;
  std::vector<int> shard_axes, replicate_axes;
  Mesh neighbours;  // the ranks of the shard axes as (others, ways); empty: no part is kept
  size_t members = 1, me = 0;
  bool replicas = false;
};

// `received` while a gather is under way, then `flat`, whose storage stays. `flat` may be longer
// than the whole tensors, a multiple of the ways; `held` is this rank's part of it.
struct Gathered {
  Tensor received, flat, held;
  std::vector<Tensor> as_given;  // whole tensors that are the shards
  Ref<Work> gathering;
  std::vector<Seen> seen, filled;  // shards of the last gather, and those in `flat`
  bool there = false;
};

struct Reduced {
  Tensor added, scattered;  // kept by Reduce::none and by Reduce::scatter, in dtype `own`
  std::set<int> forgotten;  // items whose part of these is to be zero
  Ref<Work> reducing;
  Ref<Later> later;
};

}  // namespace

struct Bucket::State : Ranks, Gathered, Reduced {
  DType own = DType::f32, param = DType::f32, sum = DType::f32;
  Device device;
  std::vector<Item> items;
  bool padded = false;
  int64_t whole = 0, part = 0;  // elements of all whole tensors, and of a part

  State() = default;
  ~State() {
    try {
      if (later) later->wait();  // leaves hold its result, and it holds their bytes
    } catch (...) {              // errors: which they get where they read it
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Gathers have a communicator of their own: one that is prefetched in backward must not queue
  // behind reductions.
  ProcessGroup& gathers() const { return mesh.group(shard_axes, "gather"); }
  ProcessGroup& sums(const std::vector<int>& axes) const { return mesh.group(axes); }
  // Of the rank: on a device, its kernels wait for a collective, and its thread goes on.
  [[nodiscard]] Stream stream() const { return Context::current().stream(device); }
  void lie_on(Mesh where, const Axes& axes, int ways);
  void connect() const;
  void describe(std::span<const Tensor> parameters);
  void check_layout(const Tensor& x, Layout layout, int number);
  ProcessGroup& gathers_of_parts() const { return neighbours.group(1, "gather"); }
  [[nodiscard]] int64_t ways() const { return neighbours ? neighbours.size(1) : 1; }
  [[nodiscard]] int64_t flat_part() const { return (whole + ways() - 1) / ways(); }
  void trace(CollectiveKind kind, const std::vector<int>& axes, const Tensor& payload) const {
    record_collective(kind, mesh, axes, payload, trace_tag());
  }
  void find_neighbours(const std::vector<std::string>& axes, int ways);
  void start(std::span<const Tensor> shards);
  void gather_from(const Tensor& own_part);
  // A member's block of an item in a buffer of all parts, or in one part (member 0).
  [[nodiscard]] Tensor in_parts(const Tensor& buffer, const Item& item, size_t member,
                                const Shape& shape) const {
    return alias(buffer, shape, contiguous_strides(shape),
                 buffer.offset() + static_cast<int64_t>(member) * part + item.slot);
  }
  [[nodiscard]] Tensor in_flat(const Item& item) const {
    return alias(flat, item.whole, contiguous_strides(item.whole), flat.offset() + item.at);
  }
  template <class F> void fill(const F& write);
  void unpack();
  void pack(std::span<const Tensor> gradients, const Tensor& buffer, bool onto);
  void complete();
  void clear_forgotten();
  void keep(const Tensor& sums);
  [[nodiscard]] bool alone() const;
  std::vector<Tensor> kept(std::span<const Tensor> gradients, std::span<const Tensor> into);
  std::vector<Tensor> give(const Tensor& sums, std::span<const Tensor> into);
};

void Bucket::State::check_layout(const Tensor& x, Layout layout, int number) {
  const auto refuse = [&](const auto&... why) {
    fail<LayoutError>(kWho, "parameter ", number, ", ", x.meta(), ", is ", layout.text(), ": ",
                      why...);
  };
  if (layout.mesh() != mesh)
    refuse("the first one lies on ", mesh.text(), "; make a bucket of each");
  int dim = -1;
  for (const int a : shard_axes) {
    const Placement& p = layout.placement(a);
    if (p.kind != Placement::Kind::shard)
      refuse("expected a Shard on axis ", mesh.axis(a).name, ", which this bucket gathers over");
    if (dim >= 0 && p.dim != dim) refuse("the gathered axes must shard one dim");
    dim = p.dim;
  }
  for (const int a : replicate_axes) {
    if (layout.placement(a).kind != Placement::Kind::replicate)
      refuse("expected Replicate on axis ", mesh.axis(a).name, ", which holds replicas");
  }
  if (dim < 0) return;
  const AxisList list = layout.axes_of(dim);
  const size_t outer = list.size() - shard_axes.size();
  if (!std::equal(list.begin() + outer, list.end(), shard_axes.begin(), shard_axes.end()))
    refuse("the gathered axes must come last, in the bucket's order, among those that shard dim ",
           dim);
}

void Bucket::State::lie_on(Mesh where, const Axes& axes, int ways) {
  mesh = where;
  for (const std::string& name : axes.shard) shard_axes.push_back(mesh.index(name));
  for (const std::string& name : axes.replicate) replicate_axes.push_back(mesh.index(name));
  for (const int a : shard_axes) members *= static_cast<size_t>(mesh.size(a));
  for (const int a : shard_axes)
    me = me * static_cast<size_t>(mesh.size(a)) + static_cast<size_t>(mesh.coordinate(a));
  for (const int a : replicate_axes) replicas |= mesh.size(a) > 1;
  if (ways != 0) find_neighbours(axes.shard, ways);
}

// All ranks make all groups here, in one order.
void Bucket::State::connect() const {
  if (members > 1) (void)gathers(), (void)sums(shard_axes);
  if (ways() > 1) (void)gathers_of_parts();
  if (replicas) (void)sums(replicate_axes);
}

void Bucket::State::describe(std::span<const Tensor> parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& x = parameters[i];
    const Layout layout = detail::layout_of(x, kWho);
    check_layout(x, layout, static_cast<int>(i));
    if (x.dtype() != own || x.device() != device) {
      fail<DTypeError>(kWho, "parameter ", i, " is ", x.meta(), " on ", x.device(),
                       ", the first one ", own, " on ", device,
                       ": make a bucket for each dtype and device");
    }
    AxisStates without = layout.states();
    for (const int a : shard_axes) without[static_cast<size_t>(a)] = {};
    Item& item = items.emplace_back();
    item.whole = Layout::intern(mesh, without).local_shape(x.shape());
    item.shard = layout.local_shape(x.shape());
    item.dim = shard_axes.empty() ? 0 : layout.placement(shard_axes[0]).dim;
    if (shard_axes.empty()) {
      item.rows.push_back({0, item.whole.rank() ? item.whole[0] : 1, 0});
    } else {
      for_each_member(mesh, shard_axes, [&](std::span<const int> at) {
        item.rows.push_back(layout.range_at(at, x.shape(), item.dim));
      });
      const int64_t first = item.rows[0].begin;
      for (Piece::Range& r : item.rows) {
        r.begin -= first;
        item.even &= r.size == item.rows[0].size;
      }
    }
    for (int d = 0; d < item.whole.rank(); ++d)
      (d < item.dim ? item.outer : item.inner) *= d == item.dim ? 1 : item.whole[d];
    item.at = whole;
    item.slot = part;
    whole += item.whole.numel();
    part += item.outer * item.rows[0].size * item.inner;
    padded |= !item.even;
  }
}

// A group of neighbours is that of an axis of a mesh, so all buckets share it.
void Bucket::State::find_neighbours(const std::vector<std::string>& axes, int ways) {
  const auto all = static_cast<int>(members);
  if (ways < 1 || all % ways != 0) {
    fail<LayoutError>(kWho, "whole tensors cannot be kept in ", counted(ways, "part"), " by the ",
                      counted(all, "rank"), " of the shard axes: give a divisor of ", all);
  }
  std::string name;
  for (const std::string& axis : axes) name += concat(name.empty() ? "" : ",", axis);
  const std::vector<std::string_view> names(axes.begin(), axes.end());
  neighbours = mesh.slice(names).represent(
      {{concat(name, '/', all / ways), all / ways}, {concat(name, ':', ways), ways}});
}

Bucket::Bucket(std::span<const Tensor> parameters, Axes axes, Policy policy)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (parameters.empty()) fail<UsageError>(kWho, "no parameters were given: expected one or more");
  for (const Tensor& x : parameters) {
    if (!x.is_distributed())
      fail<LayoutError>(kWho, x.meta(), " is plain: distribute() the parameters of a bucket");
  }
  s.own = parameters[0].dtype();
  s.device = parameters[0].device();
  s.param = policy.param.value_or(s.own);
  s.sum = policy.reduce.value_or(s.own);
  s.lie_on(detail::layout_of(parameters[0], kWho).mesh(), axes, policy.ways);
  s.describe(parameters);
  s.connect();
}

void Bucket::connect(Mesh mesh, const Axes& axes, int ways) {
  State s;
  s.lie_on(mesh, axes, ways);
  s.connect();
}

Bucket::~Bucket() = default;
Bucket::Bucket(Bucket&&) noexcept = default;
Bucket& Bucket::operator=(Bucket&&) noexcept = default;

int Bucket::size() const { return static_cast<int>(state_->items.size()); }
DType Bucket::param_dtype() const { return state_->param; }
const Shape& Bucket::whole_shape(int i) const {
  return state_->items[static_cast<size_t>(i)].whole;
}
int64_t Bucket::gathered_bytes() const { return state_->whole * item_size(state_->param); }
int64_t Bucket::gradient_bytes() const {
  return state_->part * static_cast<int64_t>(state_->members) * item_size(state_->sum);
}
int64_t Bucket::reduced_bytes() const { return state_->part * item_size(state_->sum); }
DType Bucket::sum_dtype() const { return state_->sum; }
int64_t Bucket::held_bytes() const {
  int64_t bytes = 0;
  for (const Tensor* t : {&state_->received, &state_->flat, &state_->held}) {
    if (t->defined() && !t->storage().released()) bytes += t->storage().bytes();
  }
  return bytes;
}
bool Bucket::gathers() const { return state_->members > 1; }
bool Bucket::gathered() const { return state_->there; }

void Bucket::gather(std::span<const Tensor> shards) {
  State& s = *state_;
  if (shards.size() != s.items.size())
    fail<UsageError>(kWho, counted(shards.size(), "shard"), " for ",
                     counted(s.items.size(), "parameter"));
  std::vector<Seen> now;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Tensor& x = shards[i];
    if (x.shape() != s.items[i].shard || x.dtype() != s.own) {
      fail<ShapeError>(kWho, "shard ", i, " is ", x.meta(), ", expected ", s.own, s.items[i].shard);
    }
    now.push_back({x.impl().storage, x.storage().version()});
  }
  if (s.there && now == s.seen) return;
  s.seen = std::move(now);
  s.there = false;
  try {
    s.start(shards);
  } catch (...) {
    release();
    throw;
  }
  s.there = true;
}

void Bucket::State::start(std::span<const Tensor> shards) {
  const NoGrad guard;
  if (members == 1) {
    if (param == own) as_given.assign(shards.begin(), shards.end());
    else
      fill([&] {
        for (size_t i = 0; i < shards.size(); ++i) assign_(in_flat(items[i]), shards[i]);
      });
    return;
  }
  if (const Tensor kept = std::exchange(held, {}); kept.defined() && seen == filled) {
    gather_from(kept);
    return;
  }
  received = empty({part * static_cast<int64_t>(members)}, param, device);
  for (size_t i = 0; i < shards.size(); ++i)
    assign_(in_parts(received, items[i], me, items[i].shard), shards[i]);
  trace(CollectiveKind::all_gather, shard_axes, received);
  gathering =
      gathers().all_gather(alias(received, {part}, {1}, static_cast<int64_t>(me) * part), received);
}

// Writes the whole tensors: the same values as before, or others.
template <class F> void Bucket::State::fill(const F& write) {
  if (flat.defined() && flat.storage().released() && seen == filled) {
    const Storage::Refill refill(flat.storage());
    write();
  } else {
    if (!flat.defined()) flat = empty({ways() * flat_part()}, param, device);
    flat.storage().regain_bytes();
    write();
  }
  // What rounds the parts up is kept and sent with the last of them.
  if (const int64_t rest = flat.numel() - whole; rest > 0)
    assign_(alias(flat, {rest}, {1}, whole), full({rest}, 0, param, device));
  filled = seen;
}

// The parts that neighbours kept, in place: they are the whole tensors one after another.
void Bucket::State::gather_from(const Tensor& own_part) {
  const Storage::Refill refill(flat.storage());
  record_collective(CollectiveKind::all_gather, neighbours, std::array{1}, flat, trace_tag());
  gathering = gathers_of_parts().all_gather(own_part, flat);
}

// From parts to whole tensors.
void Bucket::State::unpack() {
  for (const Item& item : items) {
    const Tensor to = in_flat(item);
    if (item.even) {
      const int64_t n = static_cast<int64_t>(members), each = item.rows[0].size * item.inner;
      const Shape shape{item.outer, n, each};
      assign_(alias(to, shape, contiguous_strides(shape), to.offset()),
              alias(received, shape, {each, part, 1}, received.offset() + item.slot));
      continue;
    }
    for (size_t m = 0; m < members; ++m)
      assign_(item.of_whole(to, m), in_parts(received, item, m, item.block(m)));
  }
}

std::vector<Tensor> Bucket::whole() {
  State& s = *state_;
  if (!s.there)
    fail<UsageError>(kWho, "whole tensors were asked for, but nothing is gathered: gather() first");
  std::vector<Tensor> out;
  if (!s.as_given.empty()) {
    for (const Tensor& x : s.as_given) out.push_back(x.detach());
    return out;
  }
  if (s.gathering) std::exchange(s.gathering, nullptr)->wait_on(s.stream());
  if (s.received.defined()) {
    const NoGrad guard;
    s.fill([&] { s.unpack(); });
    s.received = {};
  }
  for (const Item& item : s.items) out.push_back(s.in_flat(item));
  return out;
}

void Bucket::release() {
  State& s = *state_;
  if (!s.as_given.empty()) return;
  s.there = false;
  s.received = s.held = {};
  s.gathering = nullptr;
  if (s.flat.defined()) s.flat.storage().release_bytes();
}

void Bucket::release_all_but_part() {
  State& s = *state_;
  Tensor held;
  if (s.neighbours && s.there && s.flat.defined() && !s.received.defined()) {
    const NoGrad guard;
    const int64_t n = s.flat_part();
    held = copy(alias(s.flat, {n}, {1}, s.neighbours.coordinate(1) * n));
  }
  release();
  s.held = held;
}

// Gradients into the padded parts of `buffer`, or onto what is there.
void Bucket::State::pack(std::span<const Tensor> gradients, const Tensor& buffer, bool onto) {
  for (size_t i = 0; i < items.size(); ++i) {
    const Tensor& g = gradients[i];
    if (!g.defined()) continue;
    for (size_t m = 0; m < members; ++m) {
      const Tensor to = in_parts(buffer, items[i], m, items[i].block(m)),
                   from = items[i].of_whole(g, m);
      if (onto) to += as(from, buffer.dtype());
      else assign_(to, from);
    }
  }
}

// Ends the reduction before this one.
void Bucket::State::complete() {
  if (reducing) std::exchange(reducing, nullptr)->wait_on(stream());
  if (later) std::exchange(later, nullptr)->wait();
}

void Bucket::State::clear_forgotten() {
  const auto clear = [this](const Tensor& block) {
    assign_(block, full(block.shape(), 0, own, device));
  };
  for (const int i : std::exchange(forgotten, {})) {
    const Item& item = items[static_cast<size_t>(i)];
    for (size_t m = 0; m < members && added.defined(); ++m)
      clear(in_parts(added, item, m, item.block(m)));
    if (scattered.defined()) clear(in_parts(scattered, item, 0, item.shard));
  }
}

void Bucket::forget(int i) {
  State& s = *state_;
  if (!s.added.defined() && !s.scattered.defined()) return;
  s.forgotten.insert(i);
  if (s.forgotten.size() < s.items.size()) return;
  s.added = s.scattered = {};
  s.forgotten.clear();
}

// Adds sums, which may be under way, to what was scattered before.
void Bucket::State::keep(const Tensor& sums) {
  if (!scattered.defined() && sums.dtype() == own) {
    scattered = sums;
    return;
  }
  const bool first = !scattered.defined();
  if (first) scattered = empty({part}, own, device);
  later = make_ref<Later>([first, to = scattered, sums] {
    const NoGrad guard;
    if (first) assign_(to, sums);
    else {
      Tensor total = to;
      total += as(sums, to.dtype());
    }
  });
}

// This rank's shards of the sums, which may be under way.
std::vector<Tensor> Bucket::State::give(const Tensor& sums, std::span<const Tensor> into) {
  std::vector<Tensor> shards(items.size());
  const bool adds = std::ranges::any_of(into, [](const Tensor& t) { return t.defined(); });
  Tensor all = sums;
  if (sum != own) all = empty({part}, own, device);
  const auto shard_of = [this](const Tensor& buffer, const Item& item) {
    return in_parts(buffer, item, 0, item.shard);
  };
  std::vector<std::pair<Tensor, Tensor>> casts, additions;  // to, from
  if (sum != own) casts.emplace_back(carve(all, 0, {part}), sums);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i >= into.size() || !into[i].defined()) continue;
    additions.emplace_back(carve(into[i], 0, items[i].shard),
                           shard_of(sum != own ? casts[0].first : sums, items[i]));
  }
  if (sum != own || adds) {
    later = make_ref<Later>([casts, additions] {
      const NoGrad guard;
      for (const auto& [to, from] : casts) assign_(to, from);
      for (const auto& [to, from] : additions) to += from;
    });
    if (sum != own) all.storage().add_use(later, Access::write, all.byte_range());
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (i < into.size() && into[i].defined()) {
      into[i].storage().add_use(later, Access::write, into[i].byte_range());
      into[i].storage().bump_version();
    } else {
      shards[i] = carve(all, items[i].slot, items[i].shard);
    }
  }
  return shards;
}

// Where nobody shares the sums and nothing was added up, they are the gradients themselves.
bool Bucket::State::alone() const { return members == 1 && !replicas && !scattered.defined(); }
std::vector<Tensor> Bucket::State::kept(std::span<const Tensor> gradients,
                                        std::span<const Tensor> into) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < items.size(); ++i) {
    const Tensor g = gradients[i].defined() ? as(as(gradients[i], sum), own)
                                            : full(items[i].whole, 0, own, device);
    const bool adds = i < into.size() && into[i].defined();
    if (adds) into[i] += g;
    out.push_back(adds ? Tensor() : g);
  }
  return out;
}

std::vector<Tensor> Bucket::reduce(std::span<const Tensor> gradients, Reduce how,
                                   std::span<const Tensor> into) {
  State& s = *state_;
  if (gradients.size() != s.items.size() || (!into.empty() && into.size() != s.items.size()))
    fail<UsageError>(kWho, counted(gradients.size(), "gradient"), ", to be added to ", into.size(),
                     ", for ", counted(s.items.size(), "parameter"));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& g = gradients[i];
    if (g.defined() && g.shape() != s.items[i].whole)
      fail<ShapeError>(kWho, "gradient ", i, " is ", g.meta(), ", expected the whole tensor's ",
                       s.items[i].whole);
  }
  const NoGrad guard;
  s.complete();
  s.clear_forgotten();
  if (s.alone() && how == Reduce::all && !s.added.defined()) return s.kept(gradients, into);
  const Tensor before = how == Reduce::all ? std::exchange(s.scattered, {}) : Tensor();
  Tensor sums = std::exchange(s.added, {});
  const bool onto = sums.defined();
  if (!onto) {
    const bool holes =
        s.padded || std::ranges::any_of(gradients, [](const Tensor& g) { return !g.defined(); });
    const Shape all{s.part * static_cast<int64_t>(s.members)};
    const DType dtype = how == Reduce::none || before.defined() ? s.own : s.sum;
    sums = holes ? full(all, 0, dtype, s.device) : empty(all, dtype, s.device);
  }
  s.pack(gradients, sums, onto);
  if (how == Reduce::none) {
    s.added = sums;
    return std::vector<Tensor>(s.items.size());
  }
  // What was scattered before goes into this rank's own part, so the last reductions follow one
  // another without a step of this rank between them.
  if (before.defined()) {
    Tensor own = alias(sums, {s.part}, {1}, static_cast<int64_t>(s.me) * s.part);
    own += before;
  }
  sums = as(sums, s.sum);
  if (s.members > 1) {
    const Tensor buffer = std::exchange(sums, empty({s.part}, s.sum, s.device));
    s.trace(CollectiveKind::reduce_scatter, s.shard_axes, buffer);
    s.reducing = s.sums(s.shard_axes).reduce_scatter(buffer, sums);
  }
  if (how == Reduce::scatter) {
    s.keep(sums);
    return std::vector<Tensor>(s.items.size());
  }
  if (s.replicas) {
    s.trace(CollectiveKind::all_reduce, s.replicate_axes, sums);
    s.reducing = s.sums(s.replicate_axes).all_reduce(sums);
  }
  return s.give(sums, into);
}

void Bucket::wait() {
  State& s = *state_;
  if (s.gathering) s.gathering->wait_on(s.stream());
  const NoGrad guard;
  s.complete();
}

}  // namespace tessera

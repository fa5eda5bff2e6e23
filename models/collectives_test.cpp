// SPDX-License-Identifier: Apache-2.0
// What a step sends: every collective of forward and backward, in order, with its axes, dtype and
// bytes, equals a table that is computed here from shapes, plan and policy; and the flight recorder
// saw the same.
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/tensor_parallel.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tessera::models {
namespace {

using Mode = nn::ActivationCheckpointConfig::Mode;
using nn::Accumulation;
using nn::Reshard;

constexpr int64_t kRows = 8, kLength = 7, kLayers = 3;

struct Setting {
  std::string family = "llama3", pass = "shard";  // or replicate
  int replicas = 1, shards = 1, degree = 1;
  nn::TensorParallelOptions options = {};
  nn::ActivationCheckpointConfig checkpoint = {};
  nn::ShardPolicy policy = {};
  int batches = 1;

  /// Among which Reshard::among keeps copies; 0: another policy.
  [[nodiscard]] int ways() const {
    const int n = policy.reshard_after_forward.ways();
    return n > 1 ? n : 0;
  }
  [[nodiscard]] int ranks() const { return replicas * shards * degree; }
  [[nodiscard]] std::string text() const {
    return concat(family, " by ", pass, " on ", replicas, " x ", shards, " x tp ", degree,
                  options.sequence_parallel ? ", sequence parallel" : "",
                  options.loss_parallel ? ", loss parallel" : "", ", checkpoint ",
                  static_cast<int>(checkpoint.mode), ", reshard ",
                  policy.reshard_after_forward == Reshard::automatic
                      ? -1
                      : policy.reshard_after_forward.ways(),
                  ", accumulation ", static_cast<int>(policy.accumulation), ", ", batches,
                  " micro-batches", policy.precision.param ? ", mixed precision" : "");
  }
};

Mesh mesh_of(const Setting& s) {
  return Mesh::make({{"dp_replicate", s.replicas}, {"dp_shard", s.shards}, {"tp", s.degree}});
}

std::unique_ptr<LanguageModel> build(const Setting& s, Mesh mesh) {
  auto model = test::small_decoder(s.family, kLayers).make();
  if (s.degree > 1) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan(s.options));
  nn::apply_activation_checkpoint(model->units(), s.checkpoint);
  if (s.pass == "shard") {
    fully_shard(*model, mesh, {{"dp_shard"}, {"dp_replicate"}}, s.policy);
  } else {
    replicate(*model, mesh, "dp_replicate", {s.policy.precision, s.policy.accumulation});
  }
  nn::initialize(*model, 5, nn::laid_out(*model, mesh));
  return model;
}

Tensor rows(Mesh mesh, int64_t count) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < count * kLength; ++i)
    numbers.push_back(static_cast<double>((i * i + 3 * i) % test::kSmallVocabulary));
  return distribute(from_values(numbers, {count, kLength}, DType::i64),
                    Layout::of(mesh, {Shard(0), Shard(0), Replicate()}));
}

void step(LanguageModel& model, Mesh mesh, const Setting& s, const Metadata& metadata) {
  model.zero_grad();
  for (int b = 0; b < s.batches; ++b) {
    const Tensor tokens = rows(mesh, kRows / s.batches);
    const nn::MicroBatch micro(b + 1 == s.batches);
    backward(model.loss(tokens, tokens, metadata).sum);
  }
  for (const Tensor& p : nn::parameters(model)) (void)local(p.grad()).values();  // arrived
}

using Lines = std::vector<std::string>;

std::string text_of(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

// The module that runs is known in forward, the unit that is gathered or reduced always.
bool named(std::string_view axes, std::string_view tag) {
  return tag == "forward" || axes.starts_with("dp_");
}

// --- The table ------------------------------------------------------------------------------------

// What the step of one rank sends.
class StepTable {
 public:
  StepTable(const Setting& s, Mesh mesh)
      : s_(s),
        tp_(mesh.coordinate(mesh.index("tp"))),
        compute_(s.policy.precision.param.value_or(DType::f32)),
        sum_(s.policy.precision.reduce.value_or(DType::f32)),
        model_(test::small_decoder(s.family, kLayers).make()) {
    (void)nn::parameter_count(*model_);  // gives names
    if (s.degree > 1) plan_ = model_->tensor_parallel_plan(s.options);
    std::set<const TensorImpl*> taken;
    for (const auto& modules : model_->data_parallel_units())
      units_.push_back(unit_of(modules, taken));
    root_ = unit_of({model_.get()}, taken);
  }

  Lines lines() {
    for (int b = 0; b < s_.batches; ++b) {
      last_ = b + 1 == s_.batches;
      forward();
      backward();
    }
    return std::move(lines_);
  }

 private:
  struct Unit {
    std::string name;
    int64_t elements = 0;  // of this rank's tp part, padded to equal shards
    int64_t unpadded = 0;
    int64_t partial = 0;  // elements of gradients that are sums over tp
    bool whole = false;
    bool kept = false;  // by each group of ranks, in parts
  };

  static bool matches(std::string_view pattern, std::string_view path) {
    while (true) {
      const size_t p = pattern.find('.'), q = path.find('.');
      const std::string_view want = pattern.substr(0, p), is = path.substr(0, q);
      if ((want != "*" && want != is) || (p == pattern.npos) != (q == path.npos)) return false;
      if (p == pattern.npos) return true;
      pattern.remove_prefix(p + 1);
      path.remove_prefix(q + 1);
    }
  }
  // Null: the plan does not name the module.
  [[nodiscard]] const nn::TensorParallelStyle* style_of(std::string_view module) const {
    const auto entry = std::ranges::find_if(
        plan_.entries, [&](const auto& e) { return matches(e.pattern, module); });
    return entry == plan_.entries.end() ? nullptr : &entry->style;
  }
  Unit unit_of(const std::vector<nn::Module*>& modules, std::set<const TensorImpl*>& taken) const {
    Unit unit{modules[0]->name()};
    std::vector<std::pair<Tensor, std::string>> parameters;
    for (nn::Module* m : modules) {
      for (const auto& p : nn::named_parameters(*m)) {
        if (taken.insert(p.tensor.handle().get()).second)
          parameters.emplace_back(p.tensor,
                                  m->name().empty() ? p.name : concat(m->name(), '.', p.name));
      }
    }
    // Vectors come last in a bucket.
    std::ranges::stable_partition(parameters, [](const auto& p) { return p.first.rank() > 1; });
    for (const auto& [p, name] : parameters) {
      Shape part = p.shape();
      const size_t dot = name.rfind('.');
      const nn::TensorParallelStyle* style = style_of(name.substr(0, dot));
      for (const auto& [own, placement] :
           style ? style->parameters : decltype(style->parameters){}) {
        if (own != name.substr(dot + 1)) continue;
        const int64_t whole = part[placement.dim], chunk = (whole + s_.degree - 1) / s_.degree;
        part[placement.dim] = std::clamp<int64_t>(whole - tp_ * chunk, 0, chunk);
      }
      if (style && s_.options.sequence_parallel && sees_a_part(name, *style))
        unit.partial += p.numel();
      const int64_t padded = (part[0] + s_.shards - 1) / s_.shards * s_.shards;
      unit.unpadded += part.numel();
      unit.elements += part[0] == 0 ? 0 : padded * (part.numel() / part[0]);
    }
    return unit;
  }
  // Whether a parameter works on a part of the sequence: a norm, an embedding of positions.
  static bool sees_a_part(const std::string& name, const nn::TensorParallelStyle& style) {
    return style.parameters.empty() && !style.of_ids && name != "output.weight";
  }

  [[nodiscard]] int64_t tokens() const {
    return kRows / s_.batches / (s_.replicas * s_.shards) * kLength;
  }
  void send(std::string_view op, std::string_view axes, int64_t elements, DType dtype,
            std::string_view module = {}) {
    const std::string_view tag = backward_ ? "grad" : "forward";
    lines_.push_back(concat(op, ' ', axes, ' ', dtype, ' ', elements * item_size(dtype), ' ', tag,
                            ' ', named(axes, tag) ? module : ""));
  }
  void gather(Unit& unit) {
    if (std::exchange(unit.whole, true) || s_.shards == 1 || unit.elements == 0) return;
    if (std::exchange(unit.kept, false)) {
      const int64_t equal_parts = (unit.unpadded + s_.ways() - 1) / s_.ways() * s_.ways();
      return send("all_gather", concat("dp_shard:", s_.ways()), equal_parts, compute_, unit.name);
    }
    send("all_gather", "dp_shard", unit.elements, compute_, unit.name);
  }
  void activations(std::string_view op, std::string_view module = {}) {
    if (s_.degree > 1) send(op, "tp", tokens() * test::kSmallDim, compute_, module);
  }
  // Activations between layers, whole or not, come to a part of a layer, and leave it as sums.
  void enter(std::string_view module) {
    if (s_.options.sequence_parallel) activations("all_gather", module);
  }
  void leave(std::string_view module) {
    activations(s_.options.sequence_parallel ? "reduce_scatter" : "all_reduce", module);
  }

  void begin(size_t i, const std::vector<Unit*>& order) {
    gather(*order[i]);
    if (i + 1 < order.size()) gather(*order[i + 1]);
  }
  void forward() {
    backward_ = false;
    std::vector<Unit*> order{&root_};
    for (Unit& u : units_) order.push_back(&u);
    for (Unit* u : order) u->whole = false;
    size_t at = 0;
    begin(at++, order);
    if (has_embedding_unit()) begin(at++, order);
    if (is_sharded("tok_embeddings")) leave("tok_embeddings");
    for (int64_t l = 0; l < kLayers; ++l) {
      begin(at++, order);
      layer_forward(concat("layers.", l), true);
    }
    if (at < order.size()) begin(at, order);
    enter("norm");
    loss();
    const Reshard reshard = s_.policy.reshard_after_forward;
    for (Unit* u : order) {
      u->whole = reshard == Reshard::never;
      u->kept = s_.ways() > 0;
    }
    if (reshard == Reshard::automatic) units_.back().whole = root_.whole = true;
  }
  // Recompute stops before the last sum, which nothing in backward needs.
  void layer_forward(const std::string& layer, bool to_the_end) {
    enter(layer + ".attention");
    leave(layer + ".attention.wo");
    enter(layer + ".feed_forward");
    if (to_the_end) leave(layer + ".feed_forward.w2");
  }
  // Maxima, sums and chosen logits of each token, and the gradient of what the head was given, all
  // still in the dtype of sums.
  void loss() {
    if (s_.degree == 1 || !s_.options.loss_parallel) return;
    const std::string_view head = s_.family == "llama3" ? "output" : "tok_embeddings";
    send("all_reduce", "tp", tokens(), DType::f32, head);
    send("all_reduce", "tp", 2 * tokens(), DType::f32, head);
    send("all_reduce", "tp", tokens() * test::kSmallDim, DType::f32, head);
  }

  void backward() {
    backward_ = true;
    gather(root_);
    for (size_t i = units_.size(); i-- > 0;) {
      Unit& unit = units_[i];
      gather(unit);
      if (i > 0) gather(units_[i - 1]);
      if (unit.name.starts_with("layers.")) layer_backward(unit.name);
      if (unit.name == "tok_embeddings") enter({});
      reduce(unit);
    }
    if (root_.elements == 0) return;
    enter({});
    reduce(root_);
  }
  // Recompute begins with the first op that needs it, behind the gather of the sum's gradient.
  void layer_backward(const std::string& layer) {
    const nn::ActivationCheckpointConfig& c = s_.checkpoint;
    const bool every =
        c.mode == Mode::full || (c.mode == Mode::selective && c.selective_option == "op");
    const bool recomputed = every || (c.mode == Mode::selective && layer.back() % 2 == 1);
    for (const bool first : {true, false}) {
      enter({});
      if (first && recomputed) layer_forward(layer, false);
      leave({});
    }
  }
  void reduce(const Unit& unit) {
    if (unit.partial > 0) send("all_reduce", "tp", unit.partial, sum_);
    const Accumulation how = s_.policy.accumulation;
    if (!last_ && how == Accumulation::whole) return;
    if (s_.shards > 1) send("reduce_scatter", "dp_shard", unit.elements, sum_, unit.name);
    if (!last_ && how == Accumulation::replicas) return;
    if (s_.replicas > 1)
      send("all_reduce", "dp_replicate", unit.elements / s_.shards, sum_, unit.name);
  }

  [[nodiscard]] bool has_embedding_unit() const { return units_[0].name == "tok_embeddings"; }
  [[nodiscard]] bool is_sharded(std::string_view module) const {
    const nn::TensorParallelStyle* style = style_of(module);
    return style && !style->parameters.empty();
  }

  const Setting& s_;
  int64_t tp_;
  DType compute_, sum_;
  std::unique_ptr<LanguageModel> model_;
  nn::TensorParallelPlan plan_;
  std::vector<Unit> units_;
  Unit root_;
  Lines lines_;
  bool backward_ = false, last_ = true;
};

void check(const Setting& s) {
  test::on_ranks(s.ranks(), [&](World& world) {
    const Mesh mesh = mesh_of(s);
    const auto model = build(s, mesh);
    const Metadata metadata = model->metadata(kLength);
    step(*model, mesh, s, metadata);  // the next one knows its order
    FlightRecorder& recorder = world.group().recorder();
    recorder.set_entries(4096);
    uint64_t first = recorder.count();
    std::string all;
    for (int a = 0; a < mesh.axes(); ++a)
      if (mesh.size(a) > 1) all += concat(all.empty() ? "" : ",", mesh.axis(a).name);
    const CommTrace trace;
    step(*model, mesh, s, metadata);
    Lines traced, planned, recorded;
    for (const CommEntry& e : trace.entries()) {
      traced.push_back(concat(e.op, ' ', e.axes, ' ', e.dtype, ' ', e.bytes, ' ', e.tag, ' ',
                              named(e.axes, e.tag) ? e.path : ""));
      planned.push_back(concat(e.op, ' ', e.axes, ' ', e.dtype, ' ', e.bytes));
    }
    for (const FlightRecorder::Operation& o : recorder.ended_since(first)) {
      // Gathers have groups of their own; the group of all ranks has the world's name.
      const std::string group = o.group.substr(0, o.group.find(" (")),
                        axes = group == "world" ? all : group;
      recorded.push_back(concat(o.kind, ' ', axes, ' ', o.dtype, ' ', o.bytes));
    }
    EXPECT_EQ(text_of(recorded), text_of(planned)) << s.text() << " on rank " << world.rank();
    EXPECT_EQ(text_of(traced), text_of(StepTable(s, mesh).lines()))
        << s.text() << " on rank " << world.rank();
  });
}

class Collectives : public testing::TestWithParam<const char*> {};

TEST_P(Collectives, OnEveryKindOfMesh) {
  const std::string family = GetParam();
  check({.family = family});
  check({.family = family, .shards = 2});
  check({.family = family, .shards = 3});
  check({.family = family, .shards = 8});  // fewer tokens than columns
  check({.family = family, .pass = "replicate", .replicas = 2});
  check({.family = family, .replicas = 2, .shards = 2});
  for (const bool sequence : {true, false}) {
    for (const bool loss : {true, false}) {
      const nn::TensorParallelOptions options{.sequence_parallel = sequence, .loss_parallel = loss};
      check({.family = family, .degree = 2, .options = options});
      check({.family = family, .shards = 2, .degree = 2, .options = options});
    }
  }
  check({.family = family, .pass = "replicate", .replicas = 2, .degree = 2});
  check({.family = family, .replicas = 2, .shards = 2, .degree = 2});
}

TEST_P(Collectives, OfMicroBatchesByAccumulation) {
  for (const auto how : {Accumulation::shards, Accumulation::whole, Accumulation::replicas}) {
    const nn::ShardPolicy policy{.accumulation = how};
    const std::string family = GetParam();
    check({.family = family, .shards = 2, .policy = policy, .batches = 2});
    check({.family = family, .replicas = 2, .shards = 2, .policy = policy, .batches = 2});
    check({.family = family, .shards = 2, .degree = 2, .policy = policy, .batches = 2});
    if (how == Accumulation::replicas) continue;
    check({.family = family, .pass = "replicate", .replicas = 2, .policy = policy, .batches = 2});
  }
}

TEST_P(Collectives, ByReshardAndRecompute) {
  const std::string family = GetParam();
  for (const auto reshard : {Reshard::automatic, Reshard::always, Reshard::never}) {
    for (const nn::ActivationCheckpointConfig& checkpoint :
         {nn::ActivationCheckpointConfig{},
          {.mode = Mode::full},
          {.mode = Mode::selective},
          {.mode = Mode::selective, .selective_option = "2"}}) {
      const nn::ShardPolicy policy{.reshard_after_forward = reshard};
      check({.family = family, .shards = 2, .checkpoint = checkpoint, .policy = policy});
      if (reshard != Reshard::automatic) continue;
      for (const bool sequence : {true, false}) {
        check({.family = family,
               .shards = 2,
               .degree = 2,
               .options = {.sequence_parallel = sequence},
               .checkpoint = checkpoint});
      }
    }
  }
}

// Backward gathers from the ranks of a group what they kept, without padding.
TEST_P(Collectives, ByGroupsThatKeepACopy) {
  const std::string family = GetParam();
  const nn::ShardPolicy two{.reshard_after_forward = Reshard::among(2)};
  nn::ShardPolicy mixed = two;
  mixed.precision = {.param = DType::bf16, .reduce = DType::f32};
  check({.family = family, .shards = 4, .policy = two});
  check({.family = family, .shards = 4, .policy = mixed});
  check({.family = family, .shards = 4, .checkpoint = {.mode = Mode::full}, .policy = two});
  check({.family = family, .replicas = 2, .shards = 4, .policy = two});
  check({.family = family, .shards = 4, .degree = 2, .policy = two});
}

TEST_P(Collectives, InTheDtypesOfThePolicy) {
  const std::string family = GetParam();
  for (const auto reduce : {DType::f32, DType::bf16}) {
    const nn::ShardPolicy policy{.precision = {.param = DType::bf16, .reduce = reduce}};
    check({.family = family, .shards = 2, .policy = policy});
    check({.family = family, .pass = "replicate", .replicas = 2, .policy = policy});
    check({.family = family, .replicas = 2, .shards = 2, .policy = policy});
    check({.family = family, .shards = 2, .degree = 2, .policy = policy});
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Collectives, testing::Values("llama3", "tied", "gpt2"));

}  // namespace
}  // namespace tessera::models

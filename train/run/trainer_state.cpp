// SPDX-License-Identifier: Apache-2.0
// What a Trainer saves and takes up again. Rank 0 alone reads and writes files; what it read
// reaches the others tensor by tensor, so that nothing is held twice.
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/data/tokenizer.h"
#include "tessera/train/run/stop_signals.h"
#include "tessera/train/run/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <sstream>

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

// What a checkpoint adds to the name of a parameter that counts its own optimizer steps.
constexpr const char* kOwnSteps = ".step";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a checkpoint holds of the model.
std::vector<nn::NamedParameter> model_tensors(nn::Module& model) {
  std::vector<nn::NamedParameter> all = nn::named_parameters(model);
  for (auto& b : nn::named_buffers(model, true)) all.push_back(std::move(b));
  return all;
}

// Plain and whole, without a copy where each rank holds the whole already. Collective.
void make_whole(std::vector<nn::NamedParameter>& tensors) {
  for (auto& [name, t] : tensors) {
    if (t.is_distributed()) t = layout_of(t).is_replicated() ? local(t) : full_tensor(t);
  }
}

// While it lives the others wait for rank 0's disk, which may take longer than a step ever does.
class Patience {
 public:
  explicit Patience(ProcessGroup& group) : group_(group), before_(group.timeout()) {
    group_.set_timeout(std::max<std::chrono::milliseconds>(before_, std::chrono::hours(1)));
  }
  ~Patience() { group_.set_timeout(before_); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  ProcessGroup& group_;
  std::chrono::milliseconds before_;
};

// What rank 0 decides, for all.
struct Decision {
  int64_t found = 0, with_optimizer = 0;
  Progress progress;
};

Decision agreed(World& world, Decision d) {
  Progress& p = d.progress;
  const std::array<int64_t*, 6> numbers{&d.found,           &d.with_optimizer, &p.step,
                                        &p.optimizer_steps, &p.schedule_step,  &p.data_step};
  const Tensor sent = empty({static_cast<int64_t>(numbers.size())}, DType::i64);
  auto* values = sent.data<int64_t>();
  for (size_t i = 0; i < numbers.size(); ++i) values[i] = *numbers[i];
  world.group().broadcast(sent, 0)->wait();
  for (size_t i = 0; i < numbers.size(); ++i) *numbers[i] = values[i];
  return d;
}

}  // namespace

void Trainer::restore() {
  const CheckpointConfig& c = config_.checkpoint;
  if (!c.enable) return;
  const NoGrad guard;
  const Patience patience(world_.group());
  const auto start = Clock::now();
  std::unique_ptr<CheckpointReader> from;  // rank 0's
  Decision d;
  if (world_.rank() == 0) {
    checkpoint_lock_ = std::make_unique<io::FolderLock>(checkpoints_.path(), "checkpoint.folder");
    checkpoints_.recover();
    bool own = true;
    from = choose_checkpoint(own);
    if (from) {
      const Manifest& m = from->manifest();
      const bool model_only = !own && c.initial_load_model_only;
      const bool complete = own && m.progress.step >= config_.training.steps;
      d.found = 1;
      d.with_optimizer =
          !model_only && !c.excludes("optimizer") && (m.has("optimizer") || !complete);
      check_fits(*from, own, d.with_optimizer != 0);
      if (!model_only) d.progress = m.progress;
      if (d.with_optimizer == 0) d.progress.optimizer_steps = 0;
      if (c.excludes("train_state")) d.progress.step = 0;
      if (c.excludes("lr_scheduler")) d.progress.schedule_step = 0;
      if (c.excludes("dataloader")) d.progress.data_step = 0;
    }
  }
  d = agreed(world_, d);
  if (d.found == 0) return;
  load(from.get(), model_tensors(*model_));
  if (d.with_optimizer != 0) load_optimizer(from.get(), d.progress.optimizer_steps);
  else optimizer_->set_steps(d.progress.optimizer_steps);
  done_ = d.progress.step;
  schedule_start_ = done_ - d.progress.schedule_step;
  data_start_ = done_ - d.progress.data_step;
  if (world_.rank() != 0) return;
  remember_earlier_steps();
  print_(fmt::format("loaded {} in {:.2f} s; training goes on after step {}", from->path(),
                     seconds_since(start), done_));
}

std::unique_ptr<CheckpointReader> Trainer::choose_checkpoint(bool& own) {
  const CheckpointConfig& c = config_.checkpoint;
  if (c.load_step >= 0) {
    auto reader = checkpoints_.at(c.load_step);
    if (const int64_t newest = checkpoints_.steps().back(); newest > c.load_step) {
      print_(fmt::format(
          "warning: {} also holds later steps, to step-{}: they are replaced as this run reaches "
          "them, and a run that loads the latest would go on from there",
          checkpoints_.path(), newest));
    }
    return reader;
  }
  auto reader = checkpoints_.latest(print_);
  own = reader || c.initial_load_path.empty();
  return own ? std::move(reader) : open_checkpoint(c.initial_load_path, print_);
}

void Trainer::check_fits(const CheckpointReader& from, bool own, bool with_optimizer) {
  const Manifest& m = from.manifest();
  if (with_optimizer && !m.has("optimizer")) {
    fail<DataError>(
        "checkpoint", from.path(), " holds the model alone, of step ", m.progress.step,
        "; to go on from it give ",
        own ? "--checkpoint.load_step of a full one, or --checkpoint.exclude_from_loading optimizer"
            : "--checkpoint.initial_load_model_only true");
  }
  std::vector<std::string> faults = tensor_differences(m.tensors("model"), model_tensors(*model_));
  if (with_optimizer) {
    auto there = m.tensors("optimizer");
    for (const std::string& name : optimizer_->names()) there.erase(name + kOwnSteps);
    for (auto& f : tensor_differences(there, optimizer_->state().tensors))
      faults.push_back(std::move(f));
  }
  std::vector<std::string> changes;
  config::Fields fields = config_.fields();
  for (const auto& [field, before, now] : config_differences(m.config, config_.fields().dump())) {
    if (field.starts_with("checkpoint.")) continue;
    const bool on_both = !before.empty() && !now.empty();
    const auto text = [](const std::string& v) { return v.empty() ? "absent" : v; };
    const config::Field* known = fields.find(field);
    const bool free = known && known->limits.free_on_resume;
    if (field.starts_with("model.") && on_both && !free)
      faults.push_back(fmt::format("{} is {}, expected {}", field, before, now));
    else changes.push_back(fmt::format("{} from {} to {}", field, text(before), text(now)));
  }
  if (!faults.empty()) {
    fail<DataError>("checkpoint", from.path(),
                    " does not fit this run: ", fmt::format("{}", fmt::join(faults, "; ")));
  }
  if (!own) return;
  if (m.data_windows != data_windows() && !config_.checkpoint.excludes("dataloader")) {
    print_(fmt::format(
        "warning: the data has {} windows and had {} at {}: its order from here on is another",
        data_windows(), m.data_windows, from.path()));
  }
  if (const std::string here = product_route(); !m.products.empty() && m.products != here) {
    print_(fmt::format(
        "warning: products at {} were computed by {}, here they are by {}: from here on bits "
        "differ from those of a run without a stop",
        from.path(), printable(m.products), here));
  }
  if (!changes.empty()) {
    print_(
        fmt::format("configuration changed since {}: {}", from.path(), fmt::join(changes, ", ")));
  }
}

void Trainer::load(const CheckpointReader* from, const std::vector<nn::NamedParameter>& tensors) {
  ProcessGroup& group = world_.group();
  for (const auto& [name, t] : tensors) {
    if (t.numel() == 0) continue;
    const Tensor part = t.is_distributed() ? local(t) : t;
    if (!t.is_distributed() || layout_of(t).is_replicated()) {
      if (from) copy_bytes(part, from->read(name));
      group.broadcast(part, 0)->wait();
    } else {
      const Tensor whole = from ? from->read(name) : empty(t.shape(), t.dtype());
      copy_bytes(part, local(distribute(whole, layout_of(t), 0)));
    }
  }
}

// Moments, and the steps of those parameters that had no gradient in some of them.
void Trainer::load_optimizer(const CheckpointReader* from, int64_t steps) {
  load(from, optimizer_->state().tensors);
  optimizer_->set_steps(steps);
  std::vector<int64_t> own = optimizer_->parameter_steps();
  const Tensor counts = empty({std::ssize(own)}, DType::i64);  // (parameters)
  if (from) {
    const auto there = from->manifest().tensors("optimizer");
    for (size_t i = 0; i < own.size(); ++i) {
      const std::string name = optimizer_->names()[i] + kOwnSteps;
      if (there.contains(name)) own[i] = static_cast<int64_t>(from->read(name).item());
    }
    std::ranges::copy(own, counts.data<int64_t>());
  }
  world_.group().broadcast(counts, 0)->wait();
  optimizer_->set_steps(steps, {counts.data<int64_t>(), own.size()});
}

// For the plot; a file that is not there or not readable leaves the plot shorter.
void Trainer::remember_earlier_steps() {
  const std::string path = in_folder("metrics.jsonl");
  if (done_ == 0 || !std::filesystem::exists(path)) return;
  std::istringstream lines(io::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto number = [&](const char* key) {
      return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0.0;
    };
    // Lines of validation have no loss of a step.
    if (!json.is_object() || !json.contains("loss") || number("step") < 1 ||
        number("step") > static_cast<double>(done_))
      continue;
    remember({.step = static_cast<int64_t>(number("step")),
              .loss = number("loss"),
              .grad_norm = number("grad_norm"),
              .lr = number("lr"),
              .tokens_per_second = number("tokens_per_second")});
  }
}

void Trainer::save(bool model_only) {
  const NoGrad guard;
  const auto start = Clock::now();
  Checkpoint c{{done_, optimizer_->steps(), done_ - schedule_start_, done_ - data_start_},
               static_cast<uint64_t>(config_.debug.seed),
               config_.fields().dump(),
               data_windows(),
               model_tensors(*model_),
               {}};
  make_whole(c.model);
  if (model_only) {
    for (auto& [name, t] : c.model)
      if (is_floating(t.dtype())) t = cast(t, config_.checkpoint.exported_dtype());
  } else {
    c.optimizer = optimizer_->state().tensors;
    make_whole(c.optimizer);
  }
  const Patience patience(world_.group());
  if (world_.rank() == 0) {
    const uint64_t bytes = checkpoints_.save(c);
    checkpoints_.purge(config_.checkpoint.keep_latest_k, done_);
    print_(fmt::format("saved {}, {:.1f} MiB in {:.2f} s", checkpoints_.folder_of(done_),
                       static_cast<double>(bytes) / (1 << 20), seconds_since(start)));
  }
  world_.group().barrier()->wait();
}

bool Trainer::checkpoint_or_stop() {
  const CheckpointConfig& c = config_.checkpoint;
  if (!c.enable) return false;
  const Tensor codes = empty({1}, DType::i64);
  *codes.data<int64_t>() = request_code();
  world_.group().all_reduce(codes)->wait();
  const SignalRequest request = agreed_request(*codes.data<int64_t>());
  const bool last = done_ >= config_.training.steps;
  if (last || request != SignalRequest::none || done_ % c.interval == 0)
    save(last && c.last_save_model_only);
  stopped_ = request == SignalRequest::save_and_stop && !last;
  if (stopped_)
    print_(fmt::format("stopped by SIGTERM after step {}; the same command goes on from there",
                       done_));
  return stopped_;
}

}  // namespace tessera::train

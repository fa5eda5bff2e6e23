// SPDX-License-Identifier: Apache-2.0
// Saving and resuming a Trainer. Only rank 0 reads and writes files; it broadcasts tensors one by
// one, so that none is in memory twice.
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/run/build_model.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/run/stop_signals.h"
#include "tessera/train/run/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <utility>

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

// Suffix in checkpoints for the step count of a parameter that skipped some optimizer steps.
constexpr const char* kOwnSteps = ".step";

constexpr const char* kConfig = "config.json";
// What a run writes into its dump folder besides checkpoints.
constexpr std::array<const char*, 4> kResults{kConfig, "metrics.jsonl", "loss.svg",
                                              "model.safetensors"};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Makes the tensors plain and global, without a copy if they are replicated; only the rank that
// writes them keeps what was gathered. Collective.
void make_whole(std::vector<nn::NamedParameter>& tensors, bool keep) {
  for (auto& [name, t] : tensors) {
    if (!t.is_distributed()) continue;
    const Tensor whole = layout_of(t).is_replicated() ? local(t) : full_tensor(t);
    t = keep ? whole : Tensor();
  }
}

// Raises the deadline during its lifetime: the other ranks wait for rank 0's disk, which may take
// longer than any step.
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

// Decided by rank 0 for all ranks.
struct Decision {
  int64_t found = 0, with_optimizer = 0;
  Progress progress;
};

Decision agreed(World& world, Decision d) {
  Progress& p = d.progress;
  const std::array<int64_t*, 6> numbers{&d.found,           &d.with_optimizer, &p.step,
                                        &p.optimizer_steps, &p.schedule_step,  &p.data_rows};
  const Tensor sent = empty({static_cast<int64_t>(numbers.size())}, DType::i64);
  auto* values = sent.data<int64_t>();
  for (size_t i = 0; i < numbers.size(); ++i) values[i] = *numbers[i];
  world.group().broadcast(sent, 0)->wait();
  for (size_t i = 0; i < numbers.size(); ++i) *numbers[i] = values[i];
  return d;
}

// Rank 0's text.
std::string agreed(World& world, const std::string& text) {
  const Tensor size = full({1}, static_cast<double>(text.size()), DType::i64);
  world.group().broadcast(size, 0)->wait();
  const Tensor bytes = empty({*size.data<int64_t>()}, DType::u8);
  if (world.rank() == 0) std::ranges::copy(text, bytes.data<uint8_t>());
  if (bytes.numel() > 0) world.group().broadcast(bytes, 0)->wait();
  return {bytes.data<uint8_t>(), bytes.data<uint8_t>() + bytes.numel()};
}

}  // namespace

// What the folder holds decides before any work, on all ranks.
void Trainer::claim_folder() {
  // config.json must not ask for it again when a run is repeated or resumed from that file.
  overwrite_ = std::exchange(config_.overwrite, false);
  const Patience patience(world_.group());
  std::string conflict;
  if (world_.rank() == 0) {
    if (config_.checkpoint.enable || (overwrite_ && !checkpoints_.steps().empty())) {
      checkpoint_lock_ = std::make_unique<io::FolderLock>(checkpoints_.path(), "checkpoint.folder");
      checkpoints_.recover();
    }
    conflict = overwrite_ ? source_in_the_way() : results_in_the_way();
  }
  conflict = agreed(world_, conflict);
  if (conflict.empty()) return;
  meet_before_failing();
  fail<ConfigError>("--dump_folder", conflict);
}

// The error if the dump folder holds results that this run would replace; empty: none. A run that
// was killed before its first checkpoint may start again, because it makes the same results.
std::string Trainer::results_in_the_way() {
  namespace fs = std::filesystem;
  const bool saves = config_.checkpoint.enable;
  const std::vector<int64_t> steps = checkpoints_.steps();
  if (saves && !steps.empty()) return "";  // resumes, or says why it cannot
  const auto parsed = [](const std::string& text) { return io::parse_json(text).value; };
  const bool same = fs::exists(in_folder(kConfig)) &&
                    parsed(io::read_file(in_folder(kConfig))) == parsed(config_.fields().dump());
  std::vector<std::string> found;
  for (const std::string name : kResults) {
    const fs::path path = in_folder(name);
    if (!fs::exists(fs::symlink_status(path)) || (same && name == kConfig)) continue;
    if (!fs::is_regular_file(path) || fs::file_size(path) > 0) found.push_back(name);
  }
  if (found.empty() && steps.empty()) return "";
  if (saves && same && found == std::vector<std::string>{"metrics.jsonl"}) {
    print_(fmt::format("{} has no checkpoint yet: the run starts again at step 0",
                       config_.dump_folder));
    return "";
  }
  if (!steps.empty()) {
    found.push_back(steps.size() == 1 ? checkpoints_.folder_of(steps[0])
                                      : fmt::format("{} checkpoints up to {}", steps.size(),
                                                    checkpoints_.folder_of(steps.back())));
  }
  return fmt::format(
      "{} holds the results of another run ({}), which are kept: give another --dump_folder, or "
      "--overwrite to remove them{}",
      config_.dump_folder, fmt::join(found, ", "),
      steps.empty() ? "" : ", or --checkpoint.enable to resume from the latest checkpoint");
}

// The error if the run would remove the checkpoint that it is to begin with; empty: it would not.
std::string Trainer::source_in_the_way() const {
  namespace fs = std::filesystem;
  const std::string& source = config_.checkpoint.initial_load_path;
  if (!config_.checkpoint.enable || source.empty()) return "";
  for (const std::string& folder : {config_.dump_folder, checkpoints_.path()}) {
    const fs::path from =
        fs::weakly_canonical(source).lexically_relative(fs::weakly_canonical(folder));
    if (from.empty() || *from.begin() == "..") continue;
    return fmt::format(
        "--overwrite would remove {}, which --checkpoint.initial_load_path names: "
        "give another --dump_folder",
        source);
  }
  return "";
}

void Trainer::remove_results() {
  for (const char* name : kResults) {
    std::error_code error;
    std::filesystem::remove(in_folder(name), error);
    if (error)
      fail<IoError>("--overwrite", "cannot remove ", in_folder(name), ": ", error.message());
  }
  checkpoints_.clear();
}

void Trainer::restore() {
  const CheckpointConfig& c = config_.checkpoint;
  if (!c.enable) return;
  const NoGrad guard;
  const Patience patience(world_.group());
  const auto start = Clock::now();
  std::unique_ptr<CheckpointReader> from;  // rank 0's
  Decision d;
  if (world_.rank() == 0) {
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
      if (!model_only) d.progress.data_rows = rows_taken(*from);
    }
  }
  d = agreed(world_, d);
  if (d.found == 0) return;
  load(from.get(), model_tensors(*model_));
  if (d.with_optimizer != 0) load_optimizer(from.get(), d.progress.optimizer_steps);
  else optimizer_->set_steps(d.progress.optimizer_steps);
  done_ = d.progress.step;
  schedule_start_ = done_ - d.progress.schedule_step;
  rows_ = d.progress.data_rows;
  if (world_.rank() != 0) return;
  remember_earlier_steps();
  print_(fmt::format("loaded {} in {:.2f} s; training resumes after step {}", from->path(),
                     seconds_since(start), done_));
}

// A checkpoint that counted global batches is read if they had as many rows as here, as far as its
// configuration says.
int64_t Trainer::rows_taken(const CheckpointReader& from) {
  const Manifest& m = from.manifest();
  if (config_.checkpoint.excludes("dataloader")) return 0;
  if (!m.data_batches) return m.progress.data_rows;
  for (const auto& [field, before, now] : config_differences(m.config, config_.fields().dump())) {
    if (field != "training.local_batch_size" && field != "training.global_batch_size" &&
        field != "ranks")
      continue;
    fail<DataError>("checkpoint", from.path(), " is of an earlier version, which counted ",
                    *m.data_batches, " global batches taken from the data and not their rows, and ",
                    field, " was ", before, ", here it is ", now,
                    ": resume with the batch size and ranks of then and save, or begin the data "
                    "anew with --checkpoint.exclude_from_loading dataloader");
  }
  const int64_t rows = *m.data_batches * rows_per_step();
  print_(
      fmt::format("warning: {} counted {} global batches, not rows: they are taken for {} rows, as "
                  "of {} ranks",
                  from.path(), *m.data_batches, rows, share_.parts));
  return rows;
}

std::unique_ptr<CheckpointReader> Trainer::choose_checkpoint(bool& own) {
  const CheckpointConfig& c = config_.checkpoint;
  if (c.load_step >= 0) {
    auto reader = checkpoints_.at(c.load_step);
    if (const int64_t newest = checkpoints_.steps().back(); newest > c.load_step) {
      print_(fmt::format(
          "warning: {} also has later steps, up to step-{}: this run replaces them as it reaches "
          "them; until then, a run that loads the latest step resumes from there",
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
        "checkpoint", from.path(), " contains only the model, of step ", m.progress.step,
        "; to resume from it give ",
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
  if (const auto other = data_differences(m.data, fingerprint_);
      !other.empty() && !m.data.empty() && !config_.checkpoint.excludes("dataloader")) {
    print_(fmt::format("warning: the data is not that of {}: {}", from.path(), first_few(other)));
  }
  if (m.data_windows != data_windows() && !config_.checkpoint.excludes("dataloader")) {
    print_(fmt::format(
        "warning: the data has {} windows, but had {} at {}: its order differs from here on",
        data_windows(), m.data_windows, from.path()));
  }
  if (const std::string here = product_route(); !m.products.empty() && m.products != here) {
    const std::string what = fmt::format("matmuls of {} were computed by {}, here they are by {}",
                                         from.path(), io::excerpt(m.products), here);
    if (config_.debug.deterministic && !config_.debug.deterministic_warn_only) {
      fail<DataError>("checkpoint", what,
                      ", so the run cannot continue with the same bits: resume on a machine like "
                      "the first, or give --debug.deterministic_warn_only");
    }
    print_(fmt::format("warning: {}: from here on, bits differ from those of an uninterrupted run",
                       what));
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
      group.broadcast(whole, 0)->wait();
      copy_bytes(part, local(distribute(whole, layout_of(t))));
    }
  }
}

// Loads moments, and the step counts of parameters that had no gradient in some steps.
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

// For the plot; if the file is missing or not readable, the plot is shorter.
void Trainer::remember_earlier_steps() {
  const std::string path = in_folder("metrics.jsonl");
  if (done_ == 0 || !std::filesystem::exists(path)) return;
  std::istringstream lines(io::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::ordered_json json = io::parse_json(line).value;
    const auto number = [&](const char* key) {
      return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0.0;
    };
    // Skips lines of validations.
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
  Checkpoint c{{done_, optimizer_->steps(), done_ - schedule_start_, rows_},
               static_cast<uint64_t>(config_.debug.seed),
               config_.fields().dump(),
               data_windows(),
               model_tensors(*model_),
               {},
               fingerprint_};
  const bool writes = world_.rank() == 0;
  make_whole(c.model, writes);
  if (model_only) {
    for (auto& [name, t] : c.model)
      if (t.defined() && is_floating(t.dtype())) t = cast(t, config_.checkpoint.exported_dtype());
  } else {
    c.optimizer = optimizer_->state().tensors;
    make_whole(c.optimizer, writes);
  }
  const Patience patience(world_.group());
  if (writes) {
    const uint64_t bytes = checkpoints_.save(c);
    checkpoints_.purge(config_.checkpoint.keep_latest_k, done_);
    print_(fmt::format("saved {}, {:.1f} MiB in {:.2f} s", checkpoints_.folder_of(done_),
                       static_cast<double>(bytes) / (1 << 20), seconds_since(start)));
  }
  world_.group().barrier()->wait();
}

bool Trainer::checkpoint_or_stop() {
  const CheckpointConfig& c = config_.checkpoint;
  const Tensor codes = empty({1}, DType::i64);
  *codes.data<int64_t>() = request_code();
  world_.group().all_reduce(codes)->wait();
  const SignalRequest request = agreed_request(*codes.data<int64_t>());
  if (!c.enable) {
    if (request == SignalRequest::save)
      print_(fmt::format("SIGUSR1 after step {}: nothing is saved without --checkpoint.enable",
                         done_));
    return false;
  }
  const bool last = done_ >= config_.training.steps;
  if (last || request != SignalRequest::none || done_ % c.interval == 0)
    save(last && c.last_save_model_only);
  stopped_ = request == SignalRequest::save_and_stop && !last;
  if (stopped_)
    print_(fmt::format("stopped by SIGTERM after step {}; the same command{} resumes from there",
                       done_, overwrite_ ? " without --overwrite" : ""));
  return stopped_;
}

}  // namespace tessera::train

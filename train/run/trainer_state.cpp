// SPDX-License-Identifier: Apache-2.0
// Saving and resuming a Trainer. Rank 0 decides which checkpoint; each rank reads and writes what
// it holds.
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/chat/chat_encoder.h"
#include "tessera/train/chat/chat_template.h"
#include "tessera/train/exchange/model.h"
#include "tessera/train/exchange/writer.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/run/stop_signals.h"
#include "tessera/train/run/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <utility>

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kConfig = "config.json";
// What a run writes into its dump folder besides checkpoints.
constexpr std::array<const char*, 4> kResults{kConfig, "metrics.jsonl", "loss.svg",
                                              "model.safetensors"};

// Whether a run's configuration names a tokenizer, or a folder that may have one.
bool named_tokenizer(const std::string& config) {
  const nlohmann::ordered_json json = io::parse_json(config).value;
  const auto text = [](const nlohmann::ordered_json& object, const char* key) {
    const bool there = object.is_object() && object.contains(key) && object[key].is_string();
    return there ? object[key].get<std::string>() : std::string();
  };
  const std::string assets = text(json, "hf_assets_path");
  if (!assets.empty()) return assets != kByteTokenizer;
  return json.is_object() && json.contains("model") && !text(json["model"], "initial_hf").empty();
}

// The losses of earlier steps in a checkpoint.
constexpr const char* kLosses = "losses";
constexpr int64_t kLossColumns = 4;

std::string not_saved(int64_t step, const Error& error) {
  return fmt::format("warning: step {} was not saved, and training goes on: {}", step,
                     error.what());
}

// The configuration of a checkpoint, for the model of this run. Fields that it does not have, since
// they came later, have their defaults.
Config stored_config(const std::string& json, const models::ModelConfig& model) {
  Config config;
  config.model = model;
  (void)config.fields().parse_json(json, kConfig);
  return config;
}

std::string from_to(const config::Field& before, const config::Field& now) {
  const auto shown = [](const config::Field& field) {
    const std::string text = field.text();
    return text.empty() ? "none" : io::excerpt(text);
  };
  return fmt::format("{} from {} to {}", now.path, shown(before), shown(now));
}

// The same rows, written in one way. Files are compared by their contents.
Config plain_rows(Config c) {
  DataConfig& data = c.dataloader;
  if (!data.shuffle) c.debug.seed = 0;
  if (!chat_template_file(data.chat_template).empty()) data.chat_template = "a file";
  try {
    const std::vector<MixturePart> parts = data.parts();
    data.mixture.clear();
    for (const MixturePart& part : parts)
      if (parts.size() > 1) data.mixture.push_back(std::to_string(part.weight));
  } catch (const ConfigError&) {  // no mixture of this version, and so another one
  }
  return c;
}

// The fields that give rows of the data another order or content.
std::vector<std::string> row_changes(Config before, Config now) {
  Config plain_before = plain_rows(before), plain_now = plain_rows(now);
  const config::Fields were = before.fields(), are = now.fields(),
                       plainly_were = plain_before.fields(), plainly_are = plain_now.fields();
  std::vector<std::string> changes;
  for (size_t i = 0; i < are.all().size(); ++i) {
    if (are.all()[i].limits.decides_rows &&
        plainly_were.all()[i].text() != plainly_are.all()[i].text())
      changes.push_back(from_to(were.all()[i], are.all()[i]));
  }
  return changes;
}

// All learning rates of a run from a step of its schedule on.
struct Rates {
  SchedulePhases phases;
  std::map<std::string, double> of_parameters;  // before they are scaled
  bool operator==(const Rates&) const = default;
};
Rates rates_of(const Config& c, int64_t step, const std::vector<nn::NamedParameter>& parameters) {
  Rates rates{phases_of(c.lr_scheduler, c.training.steps, step), {}};
  try {
    for (const PatternGroup& group : parameter_groups(c.optimizer, parameters))
      for (const nn::NamedParameter& p : group.parameters)
        rates.of_parameters.emplace(p.name, group.options.lr);
  } catch (const ConfigError&) {  // no groups of this version, and so others
  }
  return rates;
}

// The fields that give steps other learning rates, as they change one after the other, and the rate
// of the next step before and now. `done`: steps of the schedule so far. Empty: no rate is another.
std::string rate_changes(Config before, Config now, int64_t done,
                         const std::vector<nn::NamedParameter>& parameters) {
  const Rates were = rates_of(before, done, parameters), are = rates_of(now, done, parameters);
  if (were == are) return "";
  Config changing = before;
  Rates last = were;
  config::Fields targets = changing.fields();
  const config::Fields past = before.fields(), present = now.fields();
  std::vector<std::string> fields;
  for (size_t i = 0; i < present.all().size(); ++i) {
    const config::Field &was = past.all()[i], &is = present.all()[i];
    if (was.text() == is.text() || targets.find(is.path)->assign(is.text())) continue;
    if (const Rates next = rates_of(changing, done, parameters); next != last) {
      fields.push_back(from_to(was, is));
      last = next;
    }
  }
  const double was_scaled = were.phases.factor(done), is_scaled = are.phases.factor(done);
  double was = before.optimizer.lr * was_scaled, is = now.optimizer.lr * is_scaled;
  std::string whose;
  for (const auto& [name, rate] : are.of_parameters) {
    const auto at = were.of_parameters.find(name);
    if (was != is || at == were.of_parameters.end()) break;
    if (at->second * was_scaled == rate * is_scaled) continue;
    whose = " for " + name;
    was = at->second * was_scaled;
    is = rate * is_scaled;
  }
  return fmt::format("{}: the next step has {:g}{}, and was going to have {:g}",
                     fmt::join(fields, ", "), is, whose, was);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

// What the folder holds decides before any work, on all ranks.
void Trainer::claim_folder() {
  // config.json must not ask for it again when a run is repeated or resumed from that file.
  overwrite_ = std::exchange(config_.overwrite, false);
  const Patience patience;
  std::string conflict;
  if (world_.rank() == 0) {
    if (config_.checkpoint.enable || (overwrite_ && !checkpoints_.steps().empty())) {
      checkpoint_lock_ = std::make_unique<io::FolderLock>(checkpoints_.path(), "checkpoint.folder");
      checkpoints_.recover();
    }
    conflict = overwrite_ ? source_in_the_way() : results_in_the_way();
  }
  conflict = text_of_first(conflict);
  if (conflict.empty()) {
    if (world_.rank() == 0) io::remove_unfinished(config_.dump_folder, kResults);
    return;
  }
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

// The error if the run would remove what it is to begin with; empty: it would not.
std::string Trainer::source_in_the_way() const {
  namespace fs = std::filesystem;
  const CheckpointConfig& c = config_.checkpoint;
  const bool loads_hf = !config_.initial_hf_folder().empty();
  const std::string source =
      loads_hf ? config_.initial_hf_folder() : std::string(c.enable ? c.initial_load_path : "");
  if (source.empty()) return "";
  for (const std::string& folder : {config_.dump_folder, checkpoints_.path()}) {
    const fs::path from =
        fs::weakly_canonical(source).lexically_relative(fs::weakly_canonical(folder));
    if (from.empty() || *from.begin() == "..") continue;
    return fmt::format(
        "--overwrite would remove {}, which {} names: give another --dump_folder", source,
        !config_.initial_hf.empty() ? "--model.initial_hf" : "--checkpoint.initial_load_path");
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
  const NoGrad guard;
  const Patience patience;
  if (config_.checkpoint.enable && load_checkpoint()) return;
  if (const std::string folder = config_.initial_hf_folder(); !folder.empty())
    load_hugging_face(folder);
}

void Trainer::load_hugging_face(const std::string& folder) {
  const auto start = Clock::now();
  on_all_or_none([&] {
    const HfModelFolder from(folder, config_.model);
    if (const auto& names = from.model().passed_over; !names.empty())
      print_(fmt::format("without effect here: {} of {}", first_few(names), kHfConfig));
    from.fill(model_tensors(*model_));
  });
  print_(
      fmt::format("loaded {} in {:.2f} s; training starts from it", folder, seconds_since(start)));
}

bool Trainer::load_checkpoint() {
  const CheckpointConfig& c = config_.checkpoint;
  const auto start = Clock::now();
  Candidates candidates;  // rank 0's
  on_all_or_none([&] {
    if (world_.rank() == 0) candidates = choose_checkpoints();
  });
  const bool own = text_of_first(candidates.own ? "own" : "another's") == "own";
  Progress progress;
  std::optional<LoadTarget> target;
  Tensor losses;
  const auto wanted = [&](const CheckpointReader& from) {
    const Manifest& m = from.manifest();
    const bool model_only = !own && c.initial_load_model_only;
    const bool complete = own && m.progress.step >= config_.training.steps;
    const bool with_optimizer =
        !model_only && !c.excludes("optimizer") && (m.has_optimizer() || !complete);
    target.emplace(*model_, with_optimizer ? optimizer_.get() : nullptr);
    check_fits(from, own, with_optimizer, *target);
    if (!model_only) tell_changes(from);
    progress = model_only ? Progress{} : m.progress;
    if (!with_optimizer) progress.optimizer_steps = 0;
    if (c.excludes("train_state")) progress.step = 0;
    if (c.excludes("lr_scheduler")) progress.schedule_step = 0;
    if (!model_only) progress.data_rows = rows_taken(from);
    std::vector<nn::NamedParameter> tensors = target->tensors(m);
    if (const auto there = m.train_state.find(kLosses);
        there != m.train_state.end() && progress.step > 0) {
      losses = empty(there->second.shape, DType::f64);
      tensors.push_back({kLosses, losses});
    }
    return tensors;
  };
  const auto from = load_first_whole(candidates.steps, wanted, print_);
  if (!from) return false;
  optimizer_->set_steps(progress.optimizer_steps);
  target->set_steps(progress.optimizer_steps);
  done_ = progress.step;
  schedule_start_ = done_ - progress.schedule_step;
  rows_ = progress.data_rows;
  if (losses.defined()) remember_earlier_steps(losses);
  print_(fmt::format("loaded {} in {:.2f} s; training resumes after step {}", from->path(),
                     seconds_since(start), done_));
  return true;
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

Trainer::Candidates Trainer::choose_checkpoints() {
  const CheckpointConfig& c = config_.checkpoint;
  if (c.load_step >= 0) {
    Candidates one{{{checkpoints_.existing(c.load_step)}, IfDamaged::fail}, true};
    if (const int64_t newest = checkpoints_.steps().back(); newest > c.load_step) {
      print_(fmt::format(
          "warning: {} also has later steps, up to step-{}: this run replaces them as it reaches "
          "them; until then, a run that loads the latest step resumes from there",
          checkpoints_.path(), newest));
    }
    return one;
  }
  StepFolders own{checkpoints_.latest_first()};
  if (!own.paths.empty() || c.initial_load_path.empty() || c.initial_load_in_hf)
    return {std::move(own), true};
  return {steps_at(c.initial_load_path), false};
}

void Trainer::check_fits(const CheckpointReader& from, bool own, bool with_optimizer,
                         const LoadTarget& target) {
  const Manifest& m = from.manifest();
  if (with_optimizer && !m.has_optimizer()) {
    fail<DataError>(
        "checkpoint", from.path(), " contains only the model, of step ", m.progress.step,
        "; to resume from it give ",
        own ? "--checkpoint.load_step of a full one, or --checkpoint.exclude_from_loading optimizer"
            : "--checkpoint.initial_load_model_only true");
  }
  std::vector<std::string> faults = target.differences(m);
  config::Fields fields = config_.fields();
  for (const auto& [field, before, now] : config_differences(m.config, fields.dump())) {
    if (!field.starts_with("model.") || before.empty() || now.empty()) continue;
    if (const config::Field* known = fields.find(field); !known || !known->limits.free_on_resume)
      faults.push_back(fmt::format("{} is {}, expected {}", field, before, now));
  }
  if (!faults.empty()) {
    fail<DataError>("checkpoint", from.path(),
                    " does not fit this run: ", fmt::format("{}", fmt::join(faults, "; ")));
  }
  const auto own_tokens = entries_of(*tokenizer_);
  // Of another vocabulary than bytes, whether or not its tokenizer is known.
  const bool other_tokens = m.tokenizer ? !m.tokenizer->empty() : named_tokenizer(m.config);
  if (own_tokens && own_tokens->empty() && other_tokens && config_.tokenizer_path().empty()) {
    fail<DataError>("checkpoint", from.path(),
                    " knows other tokens than bytes: give its tokenizer as --hf_assets_path, or "
                    "--hf_assets_path ",
                    kByteTokenizer, " to train it on bytes");
  }
  if (m.tokenizer && own_tokens) {
    const auto other = tokenizer_differences(*m.tokenizer, *own_tokens);
    if (!other.empty()) {
      print_(
          fmt::format("warning: the tokenizer is not that of {}, so the model knows its tokens "
                      "by other ids: {}",
                      from.path(), first_few(other)));
    }
  }
}

void Trainer::tell_changes(const CheckpointReader& from) {
  const Manifest& m = from.manifest();
  const CheckpointConfig& c = config_.checkpoint;
  const bool done = m.progress.step >= config_.training.steps && !c.excludes("train_state");
  const Config before = stored_config(m.config, config_.model);
  if (!c.excludes("dataloader")) {
    if (const auto other = data_differences(m.data, fingerprint_);
        !other.empty() && !m.data.empty()) {
      print_(fmt::format("warning: the data is not that of {}: {}", from.path(), first_few(other)));
    }
    std::vector<std::string> other;
    if (data_) other = row_changes(before, config_);
    if (m.data_windows != data_windows())
      other.push_back(fmt::format("windows from {} to {}", m.data_windows, data_windows()));
    if (!other.empty() && !done) {
      print_(fmt::format(
          "warning: the rows of the data are not those of {}: {}: its order differs from here on",
          from.path(), fmt::join(other, ", ")));
    }
  }
  if (!c.excludes("lr_scheduler") && !done) {
    const std::string other =
        rate_changes(before, config_, m.progress.schedule_step, nn::named_parameters(*model_));
    if (!other.empty()) {
      print_(
          fmt::format("warning: the learning rates are not those of {}: {}", from.path(), other));
    }
  }
  if (const std::string here = products_on(device_); !m.products.empty() && m.products != here) {
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
  std::vector<std::string> changes;
  for (const auto& [field, was, is] : config_differences(m.config, config_.fields().dump())) {
    const auto text = [](const std::string& v) { return v.empty() ? "absent" : v; };
    if (!field.starts_with("checkpoint."))
      changes.push_back(fmt::format("{} from {} to {}", field, text(was), text(is)));
  }
  if (!changes.empty()) {
    print_(
        fmt::format("configuration changed since {}: {}", from.path(), fmt::join(changes, ", ")));
  }
}

// (records, 4): step, loss, gradient norm and learning rate, for the plot at the end.
void Trainer::remember_earlier_steps(const Tensor& losses) {
  const std::vector<double> values = losses.values();
  for (size_t i = 0; i + 4 <= values.size(); i += 4) {
    records_.push_back({.step = static_cast<int64_t>(values[i]),
                        .loss = values[i + 1],
                        .grad_norm = values[i + 2],
                        .lr = values[i + 3]});
  }
  if (records_.size() > 1) stride_ = records_[1].step - records_[0].step;
}

Checkpoint Trainer::checkpoint(bool model_only) {
  Checkpoint c{.progress = {done_, optimizer_->steps(), done_ - schedule_start_, rows_},
               .seed = static_cast<uint64_t>(config_.debug.seed),
               .config = config_.fields().dump(),
               .data_windows = data_windows(),
               .model = model_tensors(*model_),
               .optimizer = {},
               .data = fingerprint_,
               .mesh = mesh_.text(),
               .products = products_on(device_),
               .tokenizer = tokenizer_};
  if (model_only) {
    for (auto& [name, t] : c.model)
      if (is_floating(t.dtype())) t = cast(t, config_.checkpoint.exported_dtype());
    return c;
  }
  c.optimizer = optimizer_->state().tensors;
  std::vector<double> losses;
  for (const StepRecord& r : records_)
    losses.insert(losses.end(), {static_cast<double>(r.step), r.loss, r.grad_norm, r.lr});
  const auto rows = static_cast<int64_t>(records_.size());
  c.train_state.push_back({kLosses, from_span(losses, {rows, kLossColumns})});
  return c;
}

void Trainer::save(bool model_only) {
  settle();
  const NoGrad guard;
  finish_save();
  const auto start = Clock::now();
  const uint64_t bytes = train::save(checkpoints_, checkpoint(model_only));
  saved(done_, bytes, seconds_since(start));
}

// Of the checkpoint just saved, so that no rank holds a whole model, and the files are those of one
// rank on any mesh.
void Trainer::save_hugging_face() {
  const Patience patience;
  const auto start = Clock::now();
  on_all_or_none([&] {
    if (world_.rank() != 0) return;
    const CheckpointReader from(checkpoints_.folder_of(done_));
    const HfOutput output{.folder = io::below(from.path(), "hugging_face"),
                          .field = "checkpoint.last_save_in_hf",
                          .dtype = stored_dtype(from),
                          .tokenizer = tokenizer_,
                          .assets = config_.hf_assets_path,
                          .special_tokens = config_.special_tokens,
                          .answer_end = chat_ ? chat_->end_of_answer() : -1};
    const uint64_t bytes = write_hugging_face(output, config_.model, from, {});
    checkpoints_.set_mode(output.folder);
    print_(fmt::format("wrote {}, {:.1f} MiB in {:.2f} s", output.folder,
                       static_cast<double>(bytes) / (1 << 20), seconds_since(start)));
  });
}

void Trainer::begin_save() {
  settle();
  const NoGrad guard;
  finish_save();
  const Patience patience;
  in_flight_ = std::make_unique<BackgroundSave>(checkpoints_, checkpoint(false));
}

void Trainer::finish_save() {
  if (!in_flight_) return;
  const Patience patience;
  const auto start = Clock::now();
  const std::unique_ptr<BackgroundSave> save = std::move(in_flight_);
  try {
    const uint64_t bytes = save->finish();
    saved(save->saving().step(), bytes, seconds_since(start));
  } catch (const IoError& error) {
    print_(not_saved(save->saving().step(), error));
  }
}

void Trainer::saved(int64_t step, uint64_t bytes, double seconds) {
  if (world_.rank() != 0) return;
  checkpoints_.purge(config_.checkpoint.keep_latest_k, step);
  print_(fmt::format("saved {}, {:.1f} MiB in {:.2f} s", checkpoints_.folder_of(step),
                     static_cast<double>(bytes) / (1 << 20), seconds));
}

// Requests of signals and the state of the save in flight travel in one reduction, which the ranks
// make between steps anyway.
bool Trainer::checkpoint_or_stop() {
  const CheckpointConfig& c = config_.checkpoint;
  const Tensor told = empty({2}, DType::i64);
  told.data<int64_t>()[0] = request_code();
  told.data<int64_t>()[1] = in_flight_ && !in_flight_->written() ? 1 : 0;
  world_.group().all_reduce(told)->wait();
  const SignalRequest request = agreed_request(told.data<int64_t>()[0]);
  if (!c.enable) {
    if (request == SignalRequest::save)
      print_(fmt::format("SIGUSR1 after step {}: nothing is saved without --checkpoint.enable",
                         done_));
    return false;
  }
  if (told.data<int64_t>()[1] == 0) finish_save();
  const bool last = done_ >= config_.training.steps;
  stopped_ = request == SignalRequest::save_and_stop && !last;
  if (last || stopped_) {
    save(last && c.last_save_model_only);  // an error ends the run: nothing would be saved later
    if (last && c.last_save_in_hf) save_hugging_face();
  } else if (request == SignalRequest::save || done_ % c.interval == 0 ||
             (done_ == 1 && c.enable_first_step_checkpoint)) {
    try {
      if (c.async_mode == AsyncMode::async) begin_save();
      else save();
    } catch (const IoError& error) {
      print_(not_saved(done_, error));
    }
  }
  if (stopped_)
    print_(fmt::format("stopped by SIGTERM after step {}; the same command{} resumes from there",
                       done_, overwrite_ ? " without --overwrite" : ""));
  return stopped_;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/resume_checks.h"

#include "tessera/models/pipeline/whole.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/chat/chat_template.h"
#include "tessera/train/checkpoint/differences.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/rank_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <vector>

namespace tessera::train {
namespace {

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

// The configuration in a checkpoint, of a model of this run's family. Fields that are newer than
// the checkpoint keep their defaults.
Config stored_config(const std::string& json, const models::ModelConfig& model) {
  Config config;
  config.model = model.defaults();
  (void)config.fields().parse_json(json, "config.json");
  return config;
}

std::string from_to(const config::Field& before, const config::Field& now) {
  const auto shown = [](const config::Field& field) {
    const std::string text = field.text();
    return text.empty() ? "none" : io::excerpt(text);
  };
  return fmt::format("{} from {} to {}", now.path, shown(before), shown(now));
}

// The configuration without differences that change no row. Files are compared by their contents.
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
  const std::string now_and_then =
      is == was
          ? fmt::format("the next step has {:g} as before, later ones have others", is)
          : fmt::format("the next step has {:g}{}, and was going to have {:g}", is, whose, was);
  return fmt::format("{}: {}", fmt::join(fields, ", "), now_and_then);
}

// A checkpoint, and the configuration of its run.
struct Earlier {
  const CheckpointReader& from;
  const Manifest& manifest;
  Config config;
};

void tell_rows(const RunFacts& run, const RunParts& parts, const Earlier& earlier, bool done,
               const Print& print) {
  const Manifest& m = earlier.manifest;
  const std::string path = earlier.from.path();
  if (const auto other = data_differences(m.data, run.data); !other.empty() && !m.data.empty())
    print(fmt::format("warning: the data is not that of {}: {}", path, first_few(other)));
  std::vector<std::string> other;
  if (parts.data) other = row_changes(earlier.config, run.config);
  if (const int64_t windows = parts.windows(); m.data_windows != windows)
    other.push_back(fmt::format("windows from {} to {}", m.data_windows, windows));
  if (!other.empty() && !done) {
    print(fmt::format(
        "warning: the rows of the data are not those of {}: {}: its order differs from here on",
        path, fmt::join(other, ", ")));
  }
}

void tell_rates(const RunFacts& run, const RunParts& parts, const Earlier& earlier,
                const Print& print) {
  const std::string other =
      rate_changes(earlier.config, run.config, earlier.manifest.progress.schedule_step,
                   nn::named_parameters(models::whole_of(*parts.model)));
  if (other.empty()) return;
  print(fmt::format("warning: the learning rates are not those of {}: {}", earlier.from.path(),
                    other));
}

void tell_products(const RunFacts& run, const Earlier& earlier, const Print& print) {
  const std::string there = earlier.manifest.products, here = products_on(run.device);
  if (there.empty() || there == here) return;
  const std::string what = fmt::format("matmuls of {} were computed by {}, here they are by {}",
                                       earlier.from.path(), io::excerpt(there), here);
  if (run.config.debug.deterministic && !run.config.debug.deterministic_warn_only) {
    fail<DataError>("checkpoint", what,
                    ", so the run cannot continue with the same bits: resume on a machine like "
                    "the first, or give --debug.deterministic_warn_only");
  }
  print(fmt::format("warning: {}: from here on, bits differ from those of an uninterrupted run",
                    what));
}

void tell_fields(const RunFacts& run, const Earlier& earlier, const Print& print) {
  std::vector<std::string> changes;
  Config config = run.config, stored = earlier.config;
  config::Fields fields = config.fields(), stored_fields = stored.fields();
  for (const auto& [field, was, is] :
       config_differences(earlier.manifest.config, run.config.json())) {
    // A field that is newer than the checkpoint had its default.
    if (was.empty() && stored_fields.find(field)->text() == fields.find(field)->text()) continue;
    const auto text = [](const std::string& v) { return v.empty() ? "absent" : v; };
    if (!field.starts_with("checkpoint.") && field != "dump_folder")
      changes.push_back(fmt::format("{} from {} to {}", field, text(was), text(is)));
  }
  if (changes.empty()) return;
  print(fmt::format("configuration changed since {}: {}", earlier.from.path(),
                    fmt::join(changes, ", ")));
}

// The fields of the model that are others than in the checkpoint, and may not be. A field that is
// newer than the checkpoint had its default; those of another family are not looked at.
std::vector<std::string> model_changes(const Manifest& m, Config config) {
  Config stored = stored_config(m.config, config.model);
  config::Fields fields = config.fields(), stored_fields = stored.fields();
  const bool same_family = stored.model.family() == config.model.family();
  std::vector<std::string> faults;
  for (const auto& [field, before, now] : config_differences(m.config, fields.dump())) {
    if (!field.starts_with("model.") || now.empty()) continue;
    const config::Field &is = *fields.find(field), &was = *stored_fields.find(field);
    const bool had_default = before.empty() && (!same_family || was.text() == is.text());
    if (is.limits.free_on_resume || had_default) continue;
    faults.push_back(fmt::format("{} is {} there and {} here", field,
                                 before.empty() ? was.text() + ", the default," : before, now));
  }
  return faults;
}

}  // namespace

void check_fits(const RunFacts& run, const CheckpointReader& from, bool own, bool with_optimizer,
                const LoadTarget& target, const Print& print) {
  const Manifest& m = from.manifest();
  if (with_optimizer && !m.has_optimizer()) {
    fail<DataError>(
        "checkpoint", from.path(), " contains only the model, of step ", m.progress.step,
        "; to resume from it give ",
        own ? "--checkpoint.load_step of a full one, or --checkpoint.exclude_from_loading optimizer"
            : "--checkpoint.initial_load_model_only true");
  }
  std::vector<std::string> faults = model_changes(m, run.config);
  constexpr size_t kMostTensors = 3;
  if (const auto tensors = target.differences(m); !tensors.empty())
    faults.push_back(first_few(tensors, kMostTensors));
  if (!faults.empty()) {
    fail<DataError>("checkpoint", from.path(),
                    " does not fit this run: ", fmt::format("{}", fmt::join(faults, "; ")));
  }
  const auto own_tokens = entries_of(*run.tokenizer);
  // Whether its tokens are no bytes; its tokenizer may be unknown.
  const bool other_tokens = m.tokenizer ? !m.tokenizer->empty() : named_tokenizer(m.config);
  if (own_tokens && own_tokens->empty() && other_tokens && run.config.tokenizer_path().empty()) {
    fail<DataError>("checkpoint", from.path(),
                    " knows other tokens than bytes: give its tokenizer as --hf_assets_path, or "
                    "--hf_assets_path ",
                    kByteTokenizer, " to train it on bytes");
  }
  if (m.tokenizer && own_tokens) {
    const auto other = tokenizer_differences(*m.tokenizer, *own_tokens);
    if (!other.empty()) {
      print(
          fmt::format("warning: the tokenizer is not that of {}, so the model knows its tokens "
                      "by other ids: {}",
                      from.path(), first_few(other)));
    }
  }
}

void tell_changes(const RunFacts& run, const RunParts& parts, const CheckpointReader& from,
                  const Print& print) {
  const Manifest& m = from.manifest();
  const CheckpointConfig& c = run.config.checkpoint;
  const bool done = m.progress.step >= run.config.training.steps && !c.excludes("train_state");
  const Earlier earlier{from, m, stored_config(m.config, run.config.model)};
  if (!c.excludes("dataloader")) tell_rows(run, parts, earlier, done, print);
  if (!c.excludes("lr_scheduler") && !done) tell_rates(run, parts, earlier, print);
  tell_products(run, earlier, print);
  tell_fields(run, earlier, print);
}

}  // namespace tessera::train

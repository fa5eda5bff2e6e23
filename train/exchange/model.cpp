// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/exchange/model.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/checkpoint/box.h"
#include "tessera/train/ranks/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <system_error>

namespace tessera::train {
namespace {

constexpr size_t kMostConfigBytes = size_t{16} << 20;

std::string config_path(const std::string& folder) {
  std::string path = hf_file(folder, kHfConfig);
  constexpr std::string_view kGive = ": give the folder of a model of Hugging Face";
  if (std::error_code error; !std::filesystem::exists(folder, error))
    fail<ConfigError>("hugging_face", io::excerpt(folder), " does not exist", kGive);
  if (path.empty()) {
    fail<DataError>("hugging_face", folder, " has no ", kHfConfig, kGive);
  }
  return path;
}

// Whether config.json says it. Without a scaling of RoPE its numbers mean nothing.
bool is_told(const models::HuggingFace& names, std::string_view path, bool rope_scaled) {
  const std::string_view field = path.substr(path.find('.') + 1);
  if (names.rope && field == "partial_rotary_factor") return true;
  if (names.rope && field.starts_with("rope_"))
    return rope_scaled || field == "rope_theta" || field == "rope_scaling" ||
           field == "rope_local_theta";
  return std::ranges::count(names.fields, field, &models::HfField::ours) > 0 ||
         std::ranges::any_of(names.fixed_ours, [&](const models::HfFixedOurs& f) {
           return f.ours == field && f.buffer.empty();
         });
}

models::HfModel model_like(const std::string& folder, const models::ModelConfig& ours,
                           std::span<const std::string> ignored, bool stretched) {
  if (!ours.hugging_face())
    fail<ConfigError>("--model.name", ours.family(), " has no names of Hugging Face");
  const std::string path = config_path(folder);
  models::HfModel theirs = models::parse_hf_config(io::read_file(path, kMostConfigBytes), path,
                                                   *ours.hugging_face(), ours, ignored);
  if (const auto faults = hf_differences(ours, theirs.config, folder, stretched); !faults.empty())
    fail<DataError>("hugging_face", folder, " holds another model: ", first_few(faults));
  return theirs;
}

}  // namespace

models::HfModel read_hf_config(const std::string& folder, std::span<const models::Family> families,
                               std::span<const std::string> ignored) {
  const std::string path = config_path(folder);
  return models::parse_hf_config(io::read_file(path, kMostConfigBytes), path, families, ignored);
}

bool is_hf_folder(const std::string& folder) {
  if (!has_hf_config(folder)) return false;
  const auto json = io::parse_json(io::read_file(config_path(folder), kMostConfigBytes)).value;
  return json.is_object() && json.contains("model_type");
}

std::vector<std::string> hf_differences(const models::ModelConfig& ours,
                                        const models::ModelConfig& theirs,
                                        const std::string& folder, bool stretched) {
  std::vector<std::string> faults;
  models::ModelConfig here = ours, there = theirs;
  config::Fields own, other;
  own.section("model", here);
  other.section("model", there);
  if (ours.family() != theirs.family())
    return {
        concat("[--model.name] ", ours.family(), ", but ", folder, " holds a ", theirs.family())};
  const models::HuggingFace& names = *theirs.hugging_face();
  if (names.simplify) names.simplify(here);
  const config::Field* scaling = other.find("model.rope_scaling");
  const bool rope_scaled = scaling && scaling->text() != "none";
  for (const config::Field& field : own.all()) {
    const std::string text = other.find(field.path)->text();
    const bool stretch =
        stretched && names.rope &&
        (field.path.starts_with("model.rope_") || field.path == "model.max_seq_len");
    if (field.limits.free_on_resume || text == field.text() || stretch ||
        !is_told(names, field.path, rope_scaled))
      continue;
    faults.push_back(concat("[--", field.path, "] ", field.text(), ", but ", kHfConfig, " of ",
                            folder, " says ", text));
  }
  return faults;
}

HfModelFolder::HfModelFolder(std::string folder, models::HfModel model)
    : folder_(std::move(folder)),
      model_(std::move(model)),
      weights_(folder_),
      tensors_(*model_.names, model_.config) {
  check_tensors();
  check_tied();
  check_storage();
}

HfModelFolder::HfModelFolder(std::string folder, const models::ModelConfig& model,
                             std::span<const std::string> ignored, bool stretched)
    : HfModelFolder(folder, model_like(folder, model, ignored, stretched)) {}

// The same name without the prefix, or with it, or with that of the whole that it is a part of.
std::string HfModelFolder::name_there(const std::string& theirs) const {
  if (model_.within) return concat(model_.names->within.prefix, theirs);
  const std::string_view prefix = model_.names->prefix;
  if (prefix.empty() || !theirs.starts_with(prefix) || weights_.tensors().contains(theirs))
    return theirs;
  return theirs.substr(prefix.size());
}

void HfModelFolder::check_tensors() const {
  static constexpr std::array<std::string_view, 4> kFloats{"F64", "F32", "BF16", "F16"};
  std::vector<std::string> faults;
  std::set<std::string> expected;
  for (const models::HfTensor& t : tensors_.all()) {
    const std::string name = name_there(t.name);
    expected.insert(name);
    const auto at = weights_.tensors().find(name);
    if (at == weights_.tensors().end()) {
      faults.push_back(concat(t.name, " is missing"));
      continue;
    }
    const HfWeights::Stored& stored = at->second;
    const std::vector<int64_t> own(t.shape.begin(), t.shape.end());
    if (stored.shape != own)
      faults.push_back(fmt::format("{} has the shape [{}], expected [{}]", name,
                                   fmt::join(stored.shape, ", "), fmt::join(own, ", ")));
    const bool readable =
        stored.storage == HfWeights::Storage::f8_blocks ||
        (stored.storage == HfWeights::Storage::mxfp4 && model_.names->mxfp4) ||
        (stored.storage == HfWeights::Storage::plain && std::ranges::count(kFloats, stored.dtype));
    if (!readable)
      faults.push_back(concat(name, " is ", stored.dtype,
                              ", expected F32, BF16, F16 or F64, or F8_E4M3 with ", name,
                              "_scale_inv in F32"));
  }
  const models::HfWithin& whole = model_.names->within;
  const auto passed_over = [&](std::string_view name) {
    if (model_.within &&
        std::ranges::any_of(whole.others, [&](auto other) { return name.starts_with(other); }))
      return true;
    if (model_.within && name.starts_with(whole.prefix)) name.remove_prefix(whole.prefix.size());
    const std::vector<std::string_view>& patterns = model_.names->passed_over;
    if (std::ranges::count(model_.names->tied, name, &models::HfTied::theirs) > 0) return true;
    return models::matches_any(name, patterns) ||
           models::matches_any(concat(model_.names->prefix, name), patterns);
  };
  for (const auto& [name, stored] : weights_.tensors()) {
    const bool known = expected.contains(name) || passed_over(name);
    if (!known) faults.push_back(concat(io::excerpt(name), " is not a tensor of such a model"));
  }
  if (!faults.empty())
    fail<DataError>("hugging_face", folder_, " does not fit its ", kHfConfig, ": ",
                    first_few(faults));
}

// A tensor that the model has no parameter for is a copy of the one that it is tied to.
void HfModelFolder::check_tied() const {
  for (const models::HfTied& tied : model_.names->tied) {
    const std::string own = name_there(std::string(tied.theirs)),
                      to = name_there(std::string(tied.to));
    const auto at = weights_.tensors().find(own);
    const bool parameter =
        std::ranges::count(tensors_.all(), tied.theirs, &models::HfTensor::name) > 0;
    if (parameter || at == weights_.tensors().end() || equal_tensors(own, to)) continue;
    fail<DataError>("hugging_face", folder_, ": ", tied.field, " of ", kHfConfig, " is true, but ",
                    own, " has other values than ", to, ": set ", tied.field,
                    " to false if the model has a head of its own, else remove ", own);
  }
}

bool HfModelFolder::equal_tensors(const std::string& a, const std::string& b) const {
  constexpr int64_t kPiece = 1 << 18;  // elements
  const NoGrad guard;
  const std::vector<int64_t>& shape = weights_.tensors().at(a).shape;
  if (weights_.tensors().at(b).shape != shape || shape.empty()) return false;
  int64_t row = 1;
  for (size_t d = 1; d < shape.size(); ++d) row *= shape[d];
  const int64_t rows = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, row));
  for (int64_t at = 0; at < shape[0]; at += rows) {
    const Shape whole{std::span<const int64_t>(shape)};
    Shape begin = Shape::filled(whole.rank(), 0), size = whole;
    begin[0] = at;
    size[0] = std::min(rows, shape[0] - at);
    if (weights_.read(a, begin, size).values() != weights_.read(b, begin, size).values())
      return false;
  }
  return true;
}

// What config.json says of how the weights are stored. They are read as they are stored.
void HfModelFolder::check_storage() {
  std::set<std::string> stored;
  bool quantised = false;
  for (const models::HfTensor& t : tensors_.all()) {
    const HfWeights::Stored& there = weights_.tensors().at(name_there(t.name));
    if (there.storage == HfWeights::Storage::plain) stored.insert(there.dtype);
    else quantised = true;
  }
  if (!model_.quantisation.empty() && !quantised) {
    fail<DataError>("hugging_face", folder_, ": quantization_config of ", kHfConfig, " is ",
                    model_.quantisation, ", but all weights are ",
                    fmt::format("{}", fmt::join(stored, ", ")), ": remove quantization_config");
  }
  const bool holds = std::ranges::any_of(stored, [&](const std::string& type) {
    return io::dtype_of_file_type(type) == model_.dtype;
  });
  if (model_.dtype && !quantised && !holds)
    model_.passed_over.push_back(concat("dtype ", name(*model_.dtype), " (the weights are ",
                                        fmt::format("{}", fmt::join(stored, ", ")), ")"));
}

Tensor HfModelFolder::read(const std::string& name, const Shape& begin, const Shape& size) const {
  return tensors_.read(name, begin, size,
                       [&](const std::string& theirs, const Shape& from, const Shape& count) {
                         return weights_.read(name_there(theirs), from, count);
                       });
}

void HfModelFolder::fill(const std::vector<nn::NamedParameter>& tensors) const {
  const NoGrad guard;
  for (const auto& [name, t] : tensors) {
    if (!tensors_.has(name)) continue;
    const Box box = own_box(t);
    if (box.numel() == 0) continue;
    nn::copy_values(t.is_distributed() ? local(t) : t, read(name, box.begin, box.size));
  }
}

}  // namespace tessera::train

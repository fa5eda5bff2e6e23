// SPDX-License-Identifier: Apache-2.0
// Copying a ModelConfig copies the struct that it holds, so changing a copy never changes the
// flavor. The error for an unknown name suggests the nearest one and lists all.
#include "tessera/models/family.h"

#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/utf8.h"

namespace tessera::models {
namespace {

// Finds `name` by `name_of`; otherwise a ConfigError for `field` that lists what there is.
template <class List, class NameOf>
const auto& find(const List& list, std::string_view name, std::string_view field, NameOf name_of) {
  std::vector<std::string> names;
  for (const auto& item : list) {
    if (name_of(item) == name) return item;
    names.push_back(name_of(item));
  }
  std::string all;
  for (const std::string& n : names) all += concat(all.empty() ? "" : ", ", n);
  const auto near = config::did_you_mean(name, names);
  fail<ConfigError>(field, "there is no '", io::excerpt(name),
                    "': ", near ? concat("did you mean ", *near, "? ") : "", "There are ", all);
}

}  // namespace

ModelConfig::ModelConfig() = default;
ModelConfig::ModelConfig(ModelConfig&&) noexcept = default;

ModelConfig::ModelConfig(const ModelConfig& other)
    : family_(other.family_),
      flavor_(other.flavor_),
      hugging_face_(other.hugging_face_),
      held_(other.held_ ? other.held_->copy() : nullptr) {}

ModelConfig& ModelConfig::operator=(ModelConfig other) noexcept {
  std::swap(family_, other.family_);
  std::swap(flavor_, other.flavor_);
  std::swap(hugging_face_, other.hugging_face_);
  std::swap(held_, other.held_);
  return *this;
}

ModelConfig::~ModelConfig() = default;

const HuggingFace* ModelConfig::hugging_face() const {
  for (const HuggingFace* names : hugging_face_)
    if (!names->is_of || names->is_of(*this)) return names;
  return nullptr;
}

ModelConfig::Held& ModelConfig::held() const {
  if (!held_) {
    fail<UsageError>("model",
                     "no model is configured: give --model.name and --model.flavor, or assign a "
                     "flavor of a family");
  }
  return *held_;
}

void ModelConfig::wrong_type(const std::type_info& type) const {
  fail<UsageError>("model", "the configuration is of family ", family_, ", not ", type.name());
}

ModelConfig ModelConfig::defaults() const {
  ModelConfig m;
  m.family_ = family_;
  m.hugging_face_ = hugging_face_;
  m.held_ = held().defaults();
  return m;
}

void ModelConfig::fields(config::Fields& f) {
  f.add("name", family_, "model family");
  f.add("flavor", flavor_, "model size that supplies the defaults of the other model fields",
        {.free_on_resume = true});
  held().fields(f);
}

ModelConfig Family::flavor(std::string_view wanted) const {
  if (flavors.empty()) fail<UsageError>("family", name, " has no flavors: give it at least one");
  ModelConfig m = wanted.empty() ? flavors[0]
                                 : find(flavors, wanted, "--model.flavor",
                                        [](const ModelConfig& f) { return f.flavor(); });
  if (wanted.empty()) m.set_flavor("");
  m.hugging_face_ = hugging_face;
  return m;
}

const Family& find_family(std::span<const Family> families, std::string_view name) {
  return find(families, name, "--model.name", [](const Family& f) { return f.name; });
}

}  // namespace tessera::models

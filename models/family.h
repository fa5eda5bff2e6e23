// SPDX-License-Identifier: Apache-2.0
// A family of models as data: its name, its published flavors, and its typed configuration.
// ModelConfig is a value that holds the Config struct of any family, so that programs copy, print,
// parse and build models without naming a family.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/models/model.h"

#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tessera::models {

struct HuggingFace;

namespace model_has {
template <class Model>
concept config = requires {
  typename Model::Config;
};
template <class Model>
concept fields = requires(typename Model::Config c, config::Fields f) {
  c.fields(f);
};
template <class Model>
concept conflicts = requires(const typename Model::Config c) {
  { c.conflicts() } -> std::same_as<std::vector<std::string>>;
};
template <class Model>
concept sizes = requires(typename Model::Config c) {
  { c.dtype } -> std::same_as<DType&>;
  { c.vocab_size } -> std::same_as<int64_t&>;
  { c.max_seq_len } -> std::same_as<int64_t&>;
};
}  // namespace model_has

/// What the model class of a family must have. Each line that fails is one readable compile error.
template <class Model> consteval bool complete_model() {
  static_assert(std::derived_from<Model, LanguageModel>,
                "the model class derives from neither models::LanguageModel nor models::Decoder");
  static_assert(!std::is_abstract_v<Model>,
                "the model class lacks an override: the notes on pure functions below name each "
                "member to override");
  static_assert(model_has::config<Model>, "the model class has no `struct Config`");
  if constexpr (model_has::config<Model>) {
    if constexpr (std::is_abstract_v<Model>)  // the compiler's own error has the notes
      static_cast<void>([](const typename Model::Config& c) { return Model(c).vocab_size(); });
    static_assert(
        std::is_abstract_v<Model> || std::is_constructible_v<Model, const typename Model::Config&>,
        "the model class has no public constructor `explicit Model(const Config&)`");
    static_assert(std::default_initializable<typename Model::Config>,
                  "Config has no default constructor");
    static_assert(model_has::fields<Model>, "Config has no `void fields(config::Fields&)`");
    static_assert(model_has::conflicts<Model>,
                  "Config has no `std::vector<std::string> conflicts() const`");
    static_assert(model_has::sizes<Model>,
                  "Config lacks one of `DType dtype`, `int64_t vocab_size`, `int64_t max_seq_len`");
  }
  return true;
}

/// The configuration of a model of some family; a value. Empty until one is assigned.
class TESSERA_API ModelConfig {
 public:
  ModelConfig();
  ModelConfig(const ModelConfig& other);
  ModelConfig(ModelConfig&&) noexcept;
  ModelConfig& operator=(ModelConfig other) noexcept;
  ~ModelConfig();

  template <class Model>
  static ModelConfig of(std::string family, std::string flavor, typename Model::Config c) {
    static_assert(complete_model<Model>());
    ModelConfig m;
    m.family_ = std::move(family);
    m.flavor_ = std::move(flavor);
    m.held_ = std::make_unique<Holder<Model>>(std::move(c));
    return m;
  }
  [[nodiscard]] explicit operator bool() const { return held_ != nullptr; }
  [[nodiscard]] const std::string& family() const { return family_; }
  /// The published size that supplied the defaults; empty: none.
  [[nodiscard]] const std::string& flavor() const { return flavor_; }
  void set_flavor(std::string flavor) { flavor_ = std::move(flavor); }
  /// The names of such a model in transformers (models/hugging_face.h); null: none.
  [[nodiscard]] const HuggingFace* hugging_face() const;

  // The following functions throw UsageError while it is empty.
  [[nodiscard]] int64_t vocab_size() const { return held().vocab_size(); }
  [[nodiscard]] int64_t max_seq_len() const { return held().max_seq_len(); }
  [[nodiscard]] DType& dtype() { return held().dtype(); }
  [[nodiscard]] DType dtype() const { return held().dtype(); }
  /// Binds name, flavor and the family's own fields; valid until this object is assigned.
  void fields(config::Fields& f);
  /// The same family, with the defaults of its own struct and no size.
  [[nodiscard]] ModelConfig defaults() const;
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const { return held().conflicts(); }
  /// The model, with parameters on the meta device. ValueError: conflicting sizes.
  [[nodiscard]] std::unique_ptr<LanguageModel> make() const { return held().make(); }

  /// The family's own struct. UsageError if it is of another family.
  template <class Config> [[nodiscard]] Config& as() {
    void* c = held().get(typeid(Config));
    if (!c) wrong_type(typeid(Config));
    return *static_cast<Config*>(c);
  }
  template <class Config> [[nodiscard]] const Config& as() const {
    return const_cast<ModelConfig*>(this)->as<Config>();
  }

 private:
  struct Held {
    virtual ~Held() = default;
    [[nodiscard]] virtual std::unique_ptr<Held> copy() const = 0;
    [[nodiscard]] virtual std::unique_ptr<Held> defaults() const = 0;
    [[nodiscard]] virtual void* get(const std::type_info& type) = 0;
    virtual void fields(config::Fields& f) = 0;
    [[nodiscard]] virtual std::vector<std::string> conflicts() const = 0;
    [[nodiscard]] virtual std::unique_ptr<LanguageModel> make() const = 0;
    [[nodiscard]] virtual DType& dtype() = 0;
    [[nodiscard]] virtual int64_t vocab_size() const = 0;
    [[nodiscard]] virtual int64_t max_seq_len() const = 0;
  };
  template <class Model> struct Holder final : Held {
    typename Model::Config c;
    explicit Holder(typename Model::Config config) : c(std::move(config)) {}
    [[nodiscard]] std::unique_ptr<Held> copy() const override {
      return std::make_unique<Holder>(c);
    }
    [[nodiscard]] std::unique_ptr<Held> defaults() const override {
      if constexpr (requires { c.defaults(); }) return std::make_unique<Holder>(c.defaults());
      else return std::make_unique<Holder>(typename Model::Config());
    }
    [[nodiscard]] void* get(const std::type_info& type) override {
      return type == typeid(c) ? &c : nullptr;
    }
    void fields(config::Fields& f) override { c.fields(f); }
    [[nodiscard]] std::vector<std::string> conflicts() const override { return c.conflicts(); }
    [[nodiscard]] std::unique_ptr<LanguageModel> make() const override {
      return std::make_unique<Model>(c);
    }
    [[nodiscard]] DType& dtype() override { return c.dtype; }
    [[nodiscard]] int64_t vocab_size() const override { return c.vocab_size; }
    [[nodiscard]] int64_t max_seq_len() const override { return c.max_seq_len; }
  };
  [[nodiscard]] Held& held() const;
  [[noreturn]] void wrong_type(const std::type_info& type) const;

  friend struct Family;
  std::string family_, flavor_;
  std::vector<const HuggingFace*> hugging_face_;
  std::unique_ptr<Held> held_;
};

struct Family {
  std::string name, description;
  std::vector<ModelConfig> flavors;  ///< the published sizes; at least one
  /// Its names in transformers (models/hugging_face.h), for each type of model there. They outlive
  /// the family.
  std::vector<const HuggingFace*> hugging_face = {};

  /// ConfigError, with the list of flavors, if the name is unknown. An empty name gives the first
  /// flavor without its name, for a configuration that sets every field. UsageError: the family has
  /// no flavors.
  [[nodiscard]] TESSERA_API ModelConfig flavor(std::string_view name) const;
};

/// Makes a family; `flavors` are (name, Config) pairs.
template <class Model, class Flavors>
[[nodiscard]] Family family(std::string name, std::string description, const Flavors& flavors) {
  static_assert(complete_model<Model>());
  Family f{std::move(name), std::move(description), {}};
  for (const auto& [flavor, config] : flavors)
    f.flavors.push_back(ModelConfig::of<Model>(f.name, std::string(flavor), config));
  return f;
}

/// Returns `c` if every field is in its range and none conflict; else a ValueError with all faults.
/// Constructors of models call it first.
template <class Config> [[nodiscard]] const Config& checked(const Config& c) {
  Config bound = c;
  config::Fields fields;
  fields.section("model", bound);
  std::vector<std::string> faults = fields.check();
  if (faults.empty()) faults = c.conflicts();
  if (faults.empty()) return c;
  std::string all;
  for (const std::string& fault : faults) all += concat(all.empty() ? "" : "\n  ", fault);
  throw ValueError(all);
}

/// ConfigError, with the list of families, if the name is unknown.
TESSERA_API const Family& find_family(std::span<const Family> families, std::string_view name);

}  // namespace tessera::models

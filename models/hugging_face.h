// SPDX-License-Identifier: Apache-2.0
// A model under the names of Hugging Face's transformers, in both directions. A family gives one
// table as data: which of their tensors are made of which of ours, and which fields of config.json
// say what fields of ours say. A field that neither side can express is a fault, never a guess.
#pragma once

#include "tessera/models/family.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models {

/// What is done to our tensors, joined along their rows, to make theirs.
enum class HfChange : uint8_t {
  none,
  transposed,  ///< a matrix that they store as (in, out)
  /// The rows of each head: RoPE turns adjacent pairs (2i, 2i + 1) of ours and (i, i + D/2) of
  /// theirs.
  halves,
  pairs  ///< the other way round
};

/// How they hold the experts of a layer, which are the first dim of our tensors.
enum class HfExperts : uint8_t {
  none,      ///< there are none: rows are the first dim
  together,  ///< as we do: rows are the second dim
  apart      ///< a tensor for each expert, whose number is `%` in its name
};

/// In which order theirs has the rows of several of ours.
enum class HfJoin : uint8_t {
  follow,  ///< all rows of the first, then all of the second
  rows,    ///< they take turns by rows; each has equally many
  heads    ///< they take turns by heads of HuggingFace::head_dim rows; each has equally many
};

/// One of their tensors. `#` in a name is the number of a layer, the same in all names.
struct HfTensorNames {
  std::string_view theirs;
  std::vector<std::string_view> ours;
  HfChange change = HfChange::none;
  HfExperts experts = HfExperts::none;
  HfJoin order = HfJoin::follow;  ///< not `follow`: the change is not one of heads' rows
};

/// A number or a switch that both configurations have.
struct HfField {
  std::string_view theirs, ours;  ///< theirs may be one of RoPE's object: `rope_scaling.beta`
  /// The value where config.json does not have it: JSON, or another of their fields. Empty: it must
  /// be there.
  std::string_view absent = {};
  std::string_view null = {};               ///< the same where it is null; empty: as `absent`
  std::vector<std::string_view> also = {};  ///< other names of theirs for it
};

/// A field whose only values are those that the family computes with: JSON, the first one is
/// written. If config.json lacks it, transformers takes one of these.
struct HfFixed {
  std::string_view theirs;
  std::vector<std::string_view> values;
  /// It changes nothing but training: another value is passed over.
  bool in_training_alone = false;
};

/// A field of ours that config.json does not have, with the value, as text, at which both compute
/// the same: it is set where a model is read, and required where one is written.
struct HfFixedOurs {
  std::string_view ours, value;
  /// The buffer that another value gives a model, by the end of its name. It is zero before the
  /// first step, so a model that is read may have it; one that is written may leave it out, which
  /// is to set `value`. Empty: another value is another model.
  std::string_view buffer = {};
};

/// What follows from other fields: a size, a list of something of each layer. If config.json has
/// it, it must agree.
struct HfDerived {
  std::string_view theirs;
  std::string (*value)(const ModelConfig& config);  ///< JSON
  std::vector<std::string_view> from;               ///< their fields that it follows from
  bool or_empty = false;                            ///< an empty list says nothing too
};

/// A tensor that a file may hold beside the one that it is tied to, by a field; they must be equal.
struct HfTied {
  std::string_view theirs, to, field;
};

/// A model of several parts, one of which is ours.
struct HfWithin {
  std::string_view model_type = {};           ///< of the whole; empty: there is none
  std::string_view field = {};                ///< what the whole's config.json holds ours under
  std::string_view prefix = {};               ///< of our tensors in the whole
  std::vector<std::string_view> others = {};  ///< the prefixes of the other parts' tensors
};

struct Gguf;

struct HuggingFace {
  std::string_view model_type, architecture;
  /// Whether it has names for such a model of the family; null: for each.
  bool (*is_of)(const ModelConfig& config) = nullptr;
  std::string_view prefix = {};  ///< of all their tensors but the head; a file may lack it
  HfWithin within = {};          ///< a model that it may also be read out of
  std::vector<HfTensorNames> tensors;
  /// Tensors that a file may hold and that are no parameters: masks, tables.
  std::vector<std::string_view> passed_over = {};
  std::vector<HfTied> tied = {};  ///< where the model has no parameter of their own for them
  std::vector<HfField> fields;
  /// Fields that its published files have and that it does not compute with.
  std::vector<std::string_view> fields_passed_over = {};
  std::vector<HfFixed> fixed = {};
  std::vector<HfFixedOurs> fixed_ours = {};
  std::vector<HfDerived> derived = {};
  /// Applied to what was read, so that equal models have equal fields however a file says them.
  void (*simplify)(ModelConfig& config) = nullptr;
  bool rope = false;  ///< it has the fields of config/rope_fields.h
  /// The scalings of RoPE that it computes, by their names; empty: all that the fields have.
  std::vector<std::string_view> rope_kinds = {};
  double rope_theta = 10000;                        ///< where config.json does not say it
  std::string_view rope_theta_name = "rope_theta";  ///< in files without rope_parameters
  /// The base of layers with a window, which have no scaling, where config.json does not say it; 0:
  /// rope_theta. Without it all layers have one table. Needs the field rope_local_theta.
  std::optional<double> rope_local_theta = {};
  /// How much of a head turns where config.json does not say it, and the name that is written.
  /// Other values than 1 need the field partial_rotary_factor.
  double partial_rotary = 1;
  std::string_view partial_rotary_name = "partial_rotary_factor";
  /// Size of a head, where a tensor's change is of heads' rows or its order `heads`.
  int64_t (*head_dim)(const ModelConfig& config) = nullptr;
  /// Its files may hold tensors in MXFP4. (Blocks of f8_e4m3 are read in every family.)
  bool mxfp4 = false;
  const Gguf* gguf = nullptr;  ///< its names in llama.cpp (gguf.h); null: none
};

/// Reads the elements [begin, begin + size) of one of their tensors.
using HfRead =
    std::function<Tensor(const std::string& theirs, const Shape& begin, const Shape& size)>;

/// A tensor by its name.
struct NamedShape {
  std::string name;
  Shape shape;
};

/// One of their tensors, and how it is made of ours.
struct TESSERA_API HfTensor {
  std::string name;
  Shape shape = {};
  std::vector<NamedShape> ours = {};  ///< with `expert`: without their first dim
  HfChange change = HfChange::none;
  int64_t head_dim = 0;
  bool experts = false;           ///< its first dim is that of experts
  HfJoin order = HfJoin::follow;  ///< as in HfTensorNames
  int64_t expert = -1;            ///< the place in our first dim that it is of; -1: it is of all

  /// Theirs, of all of ours in order. Tensors are plain and contiguous, values only move.
  [[nodiscard]] Tensor join(const std::vector<Tensor>& parts) const;
  /// The elements [begin, begin + size) of ours[i]; no more of theirs is read than the rows of
  /// whole heads around them.
  [[nodiscard]] Tensor part(size_t i, const Shape& begin, const Shape& size,
                            const HfRead& read) const;
  /// Whether the rows of each head change places.
  [[nodiscard]] bool turns_heads() const {
    return change == HfChange::halves || change == HfChange::pairs;
  }
  /// The dim along which ours are joined.
  [[nodiscard]] int rows() const { return experts ? 1 : 0; }

 private:
  /// How many of ours take turns, and how many rows each has in a turn.
  [[nodiscard]] int64_t turns() const;
  /// Both ways: x is theirs, or it is of ours.
  [[nodiscard]] Tensor with_heads(const Tensor& x, bool theirs) const;
  [[nodiscard]] int64_t run() const { return order == HfJoin::heads ? head_dim : 1; }
};

/// Their tensors, and which of them hold each of ours.
class TESSERA_API HfTensors {
 public:
  /// Those of a model in the order of ours, with the prefix. UsageError: one of ours is not in the
  /// family's table.
  HfTensors(const HuggingFace& family, const ModelConfig& config);
  /// Those that rows of a table make of our tensors. UsageError: the table lacks one of ours, or
  /// has halves of heads that take turns.
  HfTensors(const std::vector<HfTensorNames>& rows, std::span<const NamedShape> ours,
            int64_t head_dim);

  [[nodiscard]] const std::vector<HfTensor>& all() const { return all_; }
  [[nodiscard]] const std::vector<NamedShape>& ours() const { return ours_; }
  [[nodiscard]] bool has(const std::string& ours) const { return parts_.contains(ours); }
  /// The elements [begin, begin + size) of one of ours; there are some.
  [[nodiscard]] Tensor read(const std::string& ours, const Shape& begin, const Shape& size,
                            const HfRead& read) const;

 private:
  struct Part {
    size_t theirs, index;  // of all_, and of its `ours`
  };
  std::vector<NamedShape> ours_;
  std::vector<HfTensor> all_;
  std::map<std::string, std::vector<Part>> parts_;  // by our name, in the order of experts
};

/// The parameters and persistent buffers of a model.
[[nodiscard]] TESSERA_API std::vector<NamedShape> tensors_of(const ModelConfig& config);
/// Whether a tensor's name matches one of these, in which `#` is any number.
[[nodiscard]] TESSERA_API bool matches_any(std::string_view name,
                                           const std::vector<std::string_view>& patterns);

/// What a file of theirs says of the ids of a tokenizer's marks, as JSON: an id, a list of ids,
/// null; empty: nothing.
struct HfMarks {
  std::string begin = {}, end = {}, pad = {};
  bool operator==(const HfMarks&) const = default;
};
/// What the text of such a file, config.json or generation_config.json, says of them. DataError,
/// which begins with `where`: not JSON, or something else than ids.
[[nodiscard]] TESSERA_API HfMarks parse_hf_marks(std::string_view text, const std::string& where);

/// What a config.json says.
struct HfModel {
  ModelConfig config;  ///< without a flavor
  const HuggingFace* names = nullptr;
  std::optional<DType> dtype = {};            ///< of the published weights; none: not said
  std::vector<std::string> passed_over = {};  ///< fields that change nothing here
  bool within = false;                        ///< it is a part of a whole: HuggingFace::within
  std::string quantisation = {};              ///< of the weights, by its quant_method; empty: none
};
/// DataError, which begins with `where`: not JSON, of a model type that no family has, or fields
/// that are missing, out of range, unknown, cannot be expressed or contradict each other, all of
/// them. Unknown fields of the names `ignored` are passed over.
[[nodiscard]] TESSERA_API HfModel parse_hf_config(std::string_view text, const std::string& where,
                                                  std::span<const Family> families,
                                                  std::span<const std::string> ignored = {});

/// The same of a model of one family. Fields that the table does not have stay as in `config`.
/// DataError: also if it is of another type.
[[nodiscard]] TESSERA_API HfModel parse_hf_config(std::string_view text, const std::string& where,
                                                  const HuggingFace& family, ModelConfig config,
                                                  std::span<const std::string> ignored = {});

/// The rows of the family's fixed_ours whose values a model does not have, so that no folder of
/// theirs can hold it as it is.
[[nodiscard]] TESSERA_API std::vector<HfFixedOurs> hf_unexpressed(const HuggingFace& family,
                                                                  ModelConfig config);
/// The model without what these rows are of.
[[nodiscard]] TESSERA_API ModelConfig hf_without(ModelConfig config,
                                                 std::span<const HfFixedOurs> rows);

/// The text of config.json, for weights of this dtype; marks of which nothing is said are null.
/// ValueError: the configuration has a value that config.json cannot express.
[[nodiscard]] TESSERA_API std::string hf_config(const HuggingFace& family, ModelConfig config,
                                                DType dtype, const HfMarks& marks);

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// config.json in both directions. Fields are set through the family's own list of fields, so their
// ranges hold here too. What is written is the form that all versions of transformers read, with
// the dtype as torch_dtype; newer ones write dtype, which is read as well.
#include "tessera/models/hugging_face_reader_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tessera::models {
namespace {

using Json = nlohmann::ordered_json;

// What changes neither the logits nor the loss of any family: the names of the model and of tokens,
// settings of transformers itself, of generation, of tasks other than language, and of a training
// from scratch; and the loss of routers, whose weight is not read from here.
constexpr std::array<std::string_view, 78> kOfNoEffect{"model_type",
                                                       "architectures",
                                                       "auto_map",
                                                       "_name_or_path",
                                                       "_commit_hash",
                                                       "transformers_version",
                                                       "torch_dtype",
                                                       "dtype",
                                                       "bos_token_id",
                                                       "eos_token_id",
                                                       "pad_token_id",
                                                       "sep_token_id",
                                                       "cls_token_id",
                                                       "mask_token_id",
                                                       "unk_token_id",
                                                       "decoder_start_token_id",
                                                       "tokenizer_class",
                                                       "prefix",
                                                       "use_cache",
                                                       "cache_implementation",
                                                       "attn_implementation",
                                                       "_attn_implementation",
                                                       "_attn_implementation_autoset",
                                                       "experts_implementation",
                                                       "_experts_implementation",
                                                       "output_attentions",
                                                       "output_hidden_states",
                                                       "output_router_logits",
                                                       "return_dict",
                                                       "use_return_dict",
                                                       "torchscript",
                                                       "use_bfloat16",
                                                       "chunk_size_feed_forward",
                                                       "is_decoder",
                                                       "initializer_range",
                                                       "router_aux_loss_coef",
                                                       "pretraining_tp",
                                                       "n_ctx",
                                                       "output_past",
                                                       "reorder_and_upcast_attn",
                                                       "gradient_checkpointing",
                                                       "task_specific_params",
                                                       "finetuning_task",
                                                       "problem_type",
                                                       "num_labels",
                                                       "id2label",
                                                       "label2id",
                                                       "classifier_dropout",
                                                       "summary_type",
                                                       "summary_use_proj",
                                                       "summary_activation",
                                                       "summary_proj_to_labels",
                                                       "summary_first_dropout",
                                                       "max_length",
                                                       "min_length",
                                                       "do_sample",
                                                       "early_stopping",
                                                       "num_beams",
                                                       "num_beam_groups",
                                                       "diversity_penalty",
                                                       "temperature",
                                                       "top_k",
                                                       "top_p",
                                                       "typical_p",
                                                       "repetition_penalty",
                                                       "length_penalty",
                                                       "no_repeat_ngram_size",
                                                       "encoder_no_repeat_ngram_size",
                                                       "bad_words_ids",
                                                       "num_return_sequences",
                                                       "output_scores",
                                                       "return_dict_in_generate",
                                                       "forced_bos_token_id",
                                                       "forced_eos_token_id",
                                                       "remove_invalid_values",
                                                       "exponential_decay_length_penalty",
                                                       "suppress_tokens",
                                                       "begin_suppress_tokens"};

// What changes nothing where it is 1, also in families that do not know it.
constexpr std::array<std::string_view, 8> kFactors{
    "embedding_multiplier",  "residual_multiplier", "logits_scaling", "logit_scale",
    "partial_rotary_factor", "rotary_pct",          "full_attn_mod",  "interpolate_factor"};

constexpr const char* kQuantisation = "quantization_config";

constexpr std::array<std::pair<std::string_view, DType>, 4> kDTypes{{{"float32", DType::f32},
                                                                     {"bfloat16", DType::bf16},
                                                                     {"float16", DType::f16},
                                                                     {"float64", DType::f64}}};

// Null, false, 0 or empty.
bool is_nothing(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

// Reads the fields of a model, `beside` which there may be those of the whole that it is a part of.
class Reader : public HfReader {
 public:
  Reader(const Json& json, const Json& beside, const HuggingFace& names, ModelConfig& config,
         std::span<const std::string> ignored)
      : HfReader(json, names, config), beside_(beside), ignored_(ignored) {
    used_.insert(kOfNoEffect.begin(), kOfNoEffect.end());
    used_.insert(names.fields_passed_over.begin(), names.fields_passed_over.end());
    for (const HfField& f : names.fields) read(f);
    if (names.rope) read_rope(*this);
    for (const HfFixed& f : names.fixed) check(f);
    for (const HfFixedOurs& f : names.fixed_ours) (void)field(f.ours).assign(f.value);
    if (names.simplify) names.simplify(config);
    check_quantization();
    for (const auto& [key, value] : json.items()) check_known(key, value);
    if (!faults.empty()) return;  // what is derived needs fields that hold
    for (std::string& conflict : config.conflicts()) fault(std::move(conflict));
    if (!faults.empty()) return;
    for (const HfDerived& d : names.derived) check(d, config);
    for (const auto& [key, value] : beside.items()) check_beside(key, value, config);
  }

  // What is passed over: no other value is left that nobody asked for.
  [[nodiscard]] std::vector<std::string> rest() const {
    std::vector<std::string> names;
    for (const Json* all : {&beside_, &json_}) {
      for (const auto& [key, value] : all->items()) {
        if (!is_nothing(value) && !used_.contains(key))
          names.push_back(concat(io::excerpt(key), " ", io::shown(value)));
      }
    }
    return names;
  }

  std::string quantisation;

 private:
  // Their name of one of our fields; empty: none.
  [[nodiscard]] std::string_view theirs_of(std::string_view ours) const {
    const auto at = std::ranges::find(names_.fields, ours, &HfField::ours);
    return at == names_.fields.end() ? std::string_view() : at->theirs;
  }

  void read(const HfField& f) {
    std::vector<io::Told> places{told(f.theirs)};
    for (const std::string_view name : f.also) places.push_back(told(name));
    if (const Json value = agreed(places); !value.is_null()) return set(f.ours, f.theirs, value);
    const std::string_view other = json_.contains(f.theirs) && !f.null.empty() ? f.null : f.absent;
    if (other.empty()) return fault(concat(f.theirs, " is missing"));
    const Json* named = value_of(other);
    set(f.ours, f.theirs, named ? *named : parsed(other));
  }

  void check(const HfFixed& f) {
    const Json* value = value_of(f.theirs);
    if (!value) return;
    const auto is = [&](std::string_view v) { return *value == parsed(v); };
    if (std::ranges::any_of(f.values, is)) return;
    if (f.in_training_alone) used_.erase(used_.find(f.theirs));
    else
      fault(fmt::format("{} is {}, which cannot be expressed: expected {}", f.theirs,
                        io::shown(*value), fmt::join(f.values, " or ")));
  }

  void check(const HfDerived& d, const ModelConfig& config) {
    const io::Told given = told(d.theirs);
    if (d.or_empty && given.value.is_array() && given.value.empty()) return;
    std::vector<std::string> from;
    for (const std::string_view key : d.from) {
      const auto at = std::ranges::find(names_.fields, key, &HfField::theirs);
      from.push_back(concat(key, ' ', field(at->ours).text()));
    }
    const std::string by = fmt::format("the one that follows from {}", fmt::join(from, " and "));
    (void)agreed({given, {by, parsed(d.value(config))}});
  }

  // A field of the whole: the part has it too, or computes the same without it.
  void check_beside(const std::string& key, const Json& value, const ModelConfig& config) {
    const bool known = used_.contains(key) && std::ranges::count(kOfNoEffect, key) == 0;
    if (!known || value.is_null() || key == kQuantisation) return;
    if (json_.contains(key)) {
      (void)agreed({{key, value}, {concat(names_.within.field, '.', key), json_.at(key)}});
      return;
    }
    Json with = json_;
    with[key] = value;
    ModelConfig own = config, other = config;
    const Reader reader(with, Json::object(), names_, other, ignored_);
    config::Fields here, there;
    here.section("model", own);
    there.section("model", other);
    std::string differs = reader.faults.empty() ? "" : reader.faults[0];
    for (const config::Field& f : here.all()) {
      if (const std::string text = there.find(f.path)->text(); text != f.text())
        differs = concat(f.path, " would be ", text, " and is ", f.text());
    }
    if (!differs.empty())
      fault(concat(key, " is ", io::shown(value), ", but ", names_.within.field,
                   " does not have it: ", differs, "; give it there"));
  }

  [[nodiscard]] bool is_off(std::string_view key) const {
    const auto at = json_.find(std::string(key));
    if (at != json_.end()) return *at == Json(false);
    return std::ranges::count(names_.fixed, key, &HfFixed::theirs) > 0;
  }

  // A family computes without what its table does not know, so it must change nothing.
  void check_known(const std::string& key, const Json& value) {
    const bool known = used_.contains(key) ||
                       std::ranges::count(names_.fixed, key, &HfFixed::theirs) > 0 ||
                       std::ranges::count(names_.derived, key, &HfDerived::theirs) > 0;
    if (known || is_nothing(value) || std::ranges::count(ignored_, key) > 0) return;
    if (changes_nothing(key, value)) used_.insert(key);
    else
      fault(concat(io::excerpt(key), " is ", io::shown(value),
                   ", which this family does not compute: if that changes nothing, give "
                   "--model.ignore_hf_fields ",
                   io::excerpt(key)));
  }
  bool changes_nothing(std::string_view key, const Json& value) {
    if (key == "sliding_window" || key == "max_window_layers") return is_off("use_sliding_window");
    if (std::ranges::count(kFactors, key) > 0) return value == Json(1);
    const bool plain = key == "layer_types" && value.is_array() &&
                       std::ranges::all_of(
                           value, [](const Json& type) { return is_text(type, "full_attention"); });
    if (plain)
      (void)agreed({told(theirs_of("n_layers")), {"the length of layer_types", value.size()}});
    return plain;
  }

  // The weights themselves say how each of them is stored; here is only whether we can read it.
  void check_quantization() {
    const auto of_any = [&](const char* key) {
      const Json* own = value_of(key);
      return agreed({{concat(names_.within.field, names_.within.field.empty() ? "" : ".", key),
                      own ? *own : Json()},
                     {key, beside_.value(key, Json())}});
    };
    if (const Json value = of_any("compression_config"); !value.is_null())
      fault(concat("compression_config is ", io::shown(value), ": such weights cannot be read"));
    const Json value = of_any(kQuantisation);
    if (value.is_null()) return;
    const auto is = [&](const char* key, const Json& expected) {
      const auto at = value.find(key);
      return at != value.end() && *at == expected;
    };
    if ((is("quant_method", "fp8") && is("weight_block_size", {128, 128})) ||
        (names_.mxfp4 && is("quant_method", "mxfp4"))) {
      quantisation = value.at("quant_method").get<std::string>();
      return;
    }
    fault(concat("quantization_config is ", io::shown(value),
                 ": such weights cannot be read, expected plain ones or the quant_method \"fp8\" "
                 "with the weight_block_size [128, 128]",
                 names_.mxfp4 ? ", or \"mxfp4\"" : ""));
  }

  const Json& beside_;
  std::span<const std::string> ignored_;
};

// The name of a dtype, however it is spelt; null: the weights say theirs.
Json dtype_name(const Json& json, const char* key) {
  constexpr std::string_view kTorch = "torch.";
  const Json value = json.value(key, Json());
  if (is_text(value, "auto")) return {};
  if (!value.is_string() || !value.get_ref<const std::string&>().starts_with(kTorch)) return value;
  return value.get_ref<const std::string&>().substr(kTorch.size());
}

// Of a model and of the whole that it is a part of.
std::optional<DType> dtype_of(const Json& json, const Json& beside,
                              std::vector<std::string>& faults) {
  std::vector<io::Told> places;
  for (const Json* all : {&json, &beside}) {
    for (const char* key : {"dtype", "torch_dtype"}) places.push_back({key, dtype_name(*all, key)});
  }
  io::Agreed all = io::agreed(places);
  if (all.fault) faults.push_back(std::move(*all.fault));
  if (all.fault || all.value.is_null()) return {};
  for (const auto& [name, dtype] : kDTypes) {
    if (is_text(all.value, name)) return dtype;
  }
  const auto place = std::ranges::find_if(places, [](const auto& p) { return !p.value.is_null(); });
  faults.push_back(concat(place->place, " is ", io::shown(all.value),
                          ", expected float32, bfloat16, float16 or float64"));
  return {};
}

bool is_of_type(const Json& json, std::string_view model_type) {
  const auto type = json.find("model_type");
  return type != json.end() && is_text(*type, model_type);
}

[[noreturn]] void fail_type(const Json& json, const std::string& where, std::string_view expected) {
  const auto type = json.find("model_type");
  fail<DataError>(where, "model_type is ", type == json.end() ? "missing" : io::shown(*type),
                  ", expected ", expected);
}

// If `json` is a whole that holds a model of these names as a part, the part takes its place and
// the rest of the whole is returned.
std::optional<Json> take_part(Json& json, const std::string& where, const HuggingFace& names) {
  const HfWithin& whole = names.within;
  if (whole.model_type.empty() || !is_of_type(json, whole.model_type)) return {};
  const std::string field(whole.field);
  Json part = json.value(field, Json());
  if (!part.is_object())
    fail<DataError>(where, field, " is ", io::shown(part), ", expected the fields of a ",
                    names.model_type);
  if (!part.contains("model_type")) part["model_type"] = names.model_type;
  json.erase(field);
  return std::exchange(json, std::move(part));
}

// A whole may hold one of several types.
std::pair<const Family*, const HuggingFace*> names_of(const Json& json, const std::string& where,
                                                      std::span<const Family> families) {
  std::vector<std::string> known;
  std::pair<const Family*, const HuggingFace*> of_whole{};
  for (const Family& f : families) {
    for (const HuggingFace* names : f.hugging_face) {
      const HfWithin& whole = names->within;
      if (is_of_type(json, names->model_type)) return {&f, names};
      known.emplace_back(names->model_type);
      if (whole.model_type.empty()) continue;
      if (std::ranges::count(known, whole.model_type) == 0) known.emplace_back(whole.model_type);
      if (!is_of_type(json, whole.model_type)) continue;
      const auto part = json.find(std::string(whole.field));
      if (part != json.end() && is_of_type(*part, names->model_type)) return {&f, names};
      if (!of_whole.first) of_whole = {&f, names};
    }
  }
  if (of_whole.first) return of_whole;
  const auto type = json.find("model_type");
  const auto near = type != json.end() && type->is_string()
                        ? config::did_you_mean(type->get<std::string>(), known)
                        : std::nullopt;
  fail_type(json, where,
            fmt::format("{}one of {}", near ? concat(*near, "? Or ") : "", fmt::join(known, ", ")));
}

Json object_of(std::string_view text, const std::string& where) {
  io::ParsedJson read = io::parse_json(text);
  if (!read.faults.empty() || !read.value.is_object()) {
    fail<DataError>(where, "is not a JSON object",
                    read.faults.empty() ? "" : concat(": ", read.faults[0]));
  }
  return std::move(read.value);
}

HfModel read_model(Json json, const std::string& where, const HuggingFace& names,
                   ModelConfig config, std::span<const std::string> ignored) {
  HfModel model{std::move(config), &names};
  const std::optional<Json> whole = take_part(json, where, names);
  model.within = whole.has_value();
  const Json beside = whole.value_or(Json::object());
  if (!is_of_type(json, names.model_type)) fail_type(json, where, io::shown(names.model_type));
  Reader reader(json, beside, names, model.config, ignored);
  model.dtype = dtype_of(json, beside, reader.faults);
  if (!reader.faults.empty())
    fail<DataError>(where, fmt::format("{}", fmt::join(reader.faults, "; ")));
  model.quantisation = reader.quantisation;
  model.passed_over = reader.rest();
  if (model.within) {
    for (const std::string_view other : names.within.others)
      model.passed_over.push_back(concat("the tensors ", other, "*"));
  }
  return model;
}

// An id, or a list of them.
bool is_ids(const Json& value) {
  return value.is_number_integer() ||
         (value.is_array() &&
          std::ranges::all_of(value, [](const Json& id) { return id.is_number_integer(); }));
}

}  // namespace

const Json* HfReader::value_of(std::string_view key) {
  used_.emplace(key);
  const Json* object = &json_;
  if (const size_t dot = key.find('.'); dot != key.npos) {
    const auto outer = json_.find(std::string(key.substr(0, dot)));
    if (outer == json_.end() || !outer->is_object()) return nullptr;
    object = &*outer;
    key.remove_prefix(dot + 1);
  }
  const auto at = object->find(std::string(key));
  return at == object->end() || at->is_null() ? nullptr : &*at;
}

io::Told HfReader::told(std::string_view key) {
  const Json* value = value_of(key);
  return {std::string(key), value ? *value : Json()};
}

Json HfReader::agreed(const std::vector<io::Told>& places) {
  io::Agreed all = io::agreed(places);
  if (all.fault) fault(std::move(*all.fault));
  return std::move(all.value);
}

config::Field& HfReader::field(std::string_view ours) {
  config::Field* found = find(ours);
  if (!found) fail<UsageError>("hugging_face", names_.model_type, " has no field ", ours);
  return *found;
}

void HfReader::set(std::string_view ours, std::string_view theirs, const Json& value) {
  config::Field& to = field(ours);
  const bool word = std::holds_alternative<config::Choice>(to.value) && value.is_string();
  if (const auto wrong = to.assign(word ? value.get<std::string>() : value.dump()))
    fault(concat(theirs, " ", io::shown(value), ": ", *wrong));
}

bool is_text(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

Json parsed(std::string_view json) { return io::parse_json(json).value; }

Json json_of(config::Fields& fields, std::string_view ours) {
  const config::Field& field = *fields.find(concat("model.", ours));
  double* const* number = std::get_if<double*>(&field.value);
  if (std::holds_alternative<config::Choice>(field.value)) return field.text();
  return number ? Json(**number) : parsed(field.text());
}

HfModel parse_hf_config(std::string_view text, const std::string& where,
                        std::span<const Family> families, std::span<const std::string> ignored) {
  const Json json = object_of(text, where);
  const auto [family, names] = names_of(json, where, families);
  return read_model(json, where, *names, family->flavor(""), ignored);
}

HfModel parse_hf_config(std::string_view text, const std::string& where, const HuggingFace& family,
                        ModelConfig config, std::span<const std::string> ignored) {
  const Json json = object_of(text, where);
  config.set_flavor("");
  return read_model(json, where, family, std::move(config), ignored);
}

HfMarks parse_hf_marks(std::string_view text, const std::string& where) {
  const Json json = object_of(text, where);
  const auto at = json.find("text_config");  // of a whole: its text says it, or else itself
  const Json text_config = at != json.end() && at->is_object() ? *at : Json::object();
  HfMarks marks;
  const std::array<std::pair<const char*, std::string*>, 3> all{
      {{"bos_token_id", &marks.begin}, {"eos_token_id", &marks.end}, {"pad_token_id", &marks.pad}}};
  for (const auto& [key, mark] : all) {
    const Json* value = nullptr;
    for (const Json* place : {&text_config, &json}) {
      if (const auto found = place->find(key); !value && found != place->end()) value = &*found;
    }
    if (!value) continue;
    if (!value->is_null() && !is_ids(*value))
      fail<DataError>(where, key, " is ", io::shown(*value), ", expected an id or a list of ids");
    *mark = value->dump();
  }
  return marks;
}

std::vector<HfFixedOurs> hf_unexpressed(const HuggingFace& family, ModelConfig config) {
  config::Fields fields;
  fields.section("model", config);
  std::vector<HfFixedOurs> rows;
  for (const HfFixedOurs& f : family.fixed_ours) {
    if (fields.find(concat("model.", f.ours))->text() != f.value) rows.push_back(f);
  }
  return rows;
}

ModelConfig hf_without(ModelConfig config, std::span<const HfFixedOurs> rows) {
  config::Fields fields;
  fields.section("model", config);
  for (const HfFixedOurs& f : rows) (void)fields.find(concat("model.", f.ours))->assign(f.value);
  return config;
}

namespace {

// A whole number without a point: transformers refuses one with it for a field of whole numbers.
Json as_whole(Json value) {
  if (!value.is_number_float() || value.get<double>() != std::floor(value.get<double>()))
    return value;
  return static_cast<int64_t>(value.get<double>());
}

// Several of our fields may have one name of theirs. What null says too is written as null: a
// window of 0 would be one.
void write(Json& json, const HuggingFace& family, const HfField& f, Json value) {
  const std::string name(f.theirs);
  if (value.is_array()) {
    for (Json& item : value) item = as_whole(std::move(item));
  } else if (parsed(f.absent).is_number_integer()) {
    value = as_whole(std::move(value));
  }
  if (is_nothing(value) && !f.null.empty() && value == parsed(f.null)) value = nullptr;
  const auto before = json.find(name);
  if (before != json.end() && *before != value) {
    fail<ValueError>("hugging_face", f.ours, ' ', io::shown(value), " cannot be expressed: ", name,
                     " of ", family.model_type, " is ", io::shown(*before), " by other fields");
  }
  json[name] = std::move(value);
}

}  // namespace

std::string hf_config(const HuggingFace& family, ModelConfig config, DType dtype,
                      const HfMarks& marks) {
  config::Fields fields;
  fields.section("model", config);
  for (const HfFixedOurs& f : hf_unexpressed(family, config)) {
    fail<ValueError>("hugging_face", f.ours, " ", fields.find(concat("model.", f.ours))->text(),
                     " cannot be expressed in config.json of ", family.model_type, ": expected ",
                     f.value);
  }
  Json json{{"architectures", {family.architecture}}, {"model_type", family.model_type}};
  for (const HfField& f : family.fields) {
    if (f.theirs.find('.') == f.theirs.npos) write(json, family, f, json_of(fields, f.ours));
  }
  for (const HfDerived& d : family.derived) json[std::string(d.theirs)] = parsed(d.value(config));
  for (const HfFixed& f : family.fixed) json[std::string(f.theirs)] = parsed(f.values.at(0));
  if (family.rope) write_rope(json, family, fields);
  json["bos_token_id"] = parsed(marks.begin.empty() ? "null" : marks.begin);
  json["eos_token_id"] = parsed(marks.end.empty() ? "null" : marks.end);
  if (!marks.pad.empty()) json["pad_token_id"] = parsed(marks.pad);
  for (const auto& [name, known] : kDTypes) {
    if (known == dtype) json["torch_dtype"] = name;
  }
  return json.dump(2) + "\n";
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// config.json in both directions. Fields are set through the family's own list of fields, so their
// ranges hold here too. What is written is the form that all versions of transformers read: RoPE as
// rope_theta and rope_scaling, the dtype as torch_dtype; newer ones write rope_parameters and
// dtype, which are read as well.
#include "tessera/models/config/rope_fields.h"
#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace tessera::models {
namespace {

using Json = nlohmann::ordered_json;

// What says nothing about the model's function, in any family.
constexpr std::array<std::string_view, 17> kOfNoEffect{"architectures",
                                                       "model_type",
                                                       "torch_dtype",
                                                       "dtype",
                                                       "bos_token_id",
                                                       "eos_token_id",
                                                       "pad_token_id",
                                                       "transformers_version",
                                                       "use_cache",
                                                       "_name_or_path",
                                                       "initializer_range",
                                                       "pretraining_tp",
                                                       "n_ctx",
                                                       "output_past",
                                                       "reorder_and_upcast_attn",
                                                       "task_specific_params",
                                                       "return_dict"};

// What changes the function of models that have it: a family whose table does not know such a field
// computes without it, unless it says what all models do.
constexpr std::array<std::string_view, 30> kOfEffect{"sliding_window",
                                                     "layer_types",
                                                     "attention_chunk_size",
                                                     "no_rope_layers",
                                                     "use_alibi",
                                                     "alibi",
                                                     "use_qk_norm",
                                                     "qk_layernorm",
                                                     "qk_norm",
                                                     "clip_qkv",
                                                     "attn_logit_softcapping",
                                                     "final_logit_softcapping",
                                                     "query_pre_attn_scalar",
                                                     "attn_temperature_tuning",
                                                     "attention_multiplier",
                                                     "embedding_multiplier",
                                                     "residual_multiplier",
                                                     "logits_scaling",
                                                     "logit_scale",
                                                     "use_parallel_residual",
                                                     "parallel_attn",
                                                     "partial_rotary_factor",
                                                     "rotary_pct",
                                                     "rotary_dim",
                                                     "q_lora_rank",
                                                     "kv_lora_rank",
                                                     "num_local_experts",
                                                     "num_experts",
                                                     "n_routed_experts",
                                                     "swiglu_limit"};

constexpr std::array<std::pair<std::string_view, DType>, 4> kDTypes{{{"float32", DType::f32},
                                                                     {"bfloat16", DType::bf16},
                                                                     {"float16", DType::f16},
                                                                     {"float64", DType::f64}}};

Json parsed(std::string_view json) { return io::parse_json(json).value; }

std::string shown(const Json& value) {
  return io::excerpt(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool is_text(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

// Null, false, 0 or empty.
bool is_nothing(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

class Reader {
 public:
  Reader(const Json& json, const HuggingFace& names, ModelConfig& config)
      : json_(json), names_(names), fields_(), used_(kOfNoEffect.begin(), kOfNoEffect.end()) {
    fields_.section("model", config);
    for (const HfField& f : names.fields) read(f);
    if (names.rope) read_rope();
    for (const HfFixed& f : names.fixed) check(f);
    for (const HfFixedOurs& f : names.fixed_ours) (void)field(f.ours).assign(f.value);
    check_quantization();
    for (const std::string_view key : kOfEffect) check_effect(key);
    if (!faults.empty()) return;  // what is derived needs fields that hold
    for (std::string& conflict : config.conflicts()) fault(std::move(conflict));
    if (faults.empty()) {
      for (const HfDerived& d : names.derived) check(d, config);
    }
  }

  // What nobody asked for and is not empty.
  [[nodiscard]] std::vector<std::string> rest() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : json_.items()) {
      if (!is_nothing(value) && !used_.contains(key))
        names.push_back(concat(io::excerpt(key), " ", shown(value)));
    }
    return names;
  }

  std::vector<std::string> faults;

 private:
  void fault(std::string text) { faults.push_back(std::move(text)); }

  // Null counts as absent, as in transformers.
  const Json* value_of(std::string_view key) {
    used_.emplace(key);
    const auto at = json_.find(std::string(key));
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }

  config::Field& field(std::string_view ours) {
    config::Field* found = fields_.find(concat("model.", ours));
    if (!found) fail<UsageError>("hugging_face", names_.model_type, " has no field ", ours);
    return *found;
  }

  void set(std::string_view ours, std::string_view theirs, const Json& value) {
    if (const auto wrong = field(ours).assign(value.dump()))
      fault(concat(theirs, " ", shown(value), ": ", *wrong));
  }

  void read(const HfField& f) {
    if (const Json* value = value_of(f.theirs)) return set(f.ours, f.theirs, *value);
    if (f.absent.empty()) return fault(concat(f.theirs, " is missing"));
    const Json* other = value_of(f.absent);
    set(f.ours, f.theirs, other ? *other : parsed(f.absent));
  }

  void check(const HfFixed& f) {
    const Json* value = value_of(f.theirs);
    if (!value) return;
    const auto is = [&](std::string_view v) { return *value == parsed(v); };
    if (std::ranges::any_of(f.values, is)) return;
    if (f.in_training_alone) used_.erase(used_.find(f.theirs));
    else
      fault(fmt::format("{} is {}, which cannot be expressed: expected {}", f.theirs, shown(*value),
                        fmt::join(f.values, " or ")));
  }

  void check(const HfDerived& d, const ModelConfig& config) {
    const Json* value = value_of(d.theirs);
    if (!value || (d.or_empty && value->is_array() && value->empty())) return;
    if (const Json own = parsed(d.value(config)); *value != own)
      fault(fmt::format("{} is {}, which cannot be expressed: expected {}", d.theirs, shown(*value),
                        shown(own)));
  }

  [[nodiscard]] bool is_off(const char* key) const {
    const auto at = json_.find(key);
    return at != json_.end() && *at == Json(false);
  }

  void check_effect(std::string_view key) {
    const bool known =
        used_.contains(key) || std::ranges::count(names_.derived, key, &HfDerived::theirs) > 0;
    const Json* value = known ? nullptr : value_of(key);
    if (!value || is_nothing(*value) || *value == Json(1)) return;
    if (key == "sliding_window" && is_off("use_sliding_window")) return;
    const bool plain = key == "layer_types" && value->is_array() &&
                       std::ranges::all_of(*value, [](const Json& type) {
                         return is_text(type, "full_attention");
                       });
    if (!plain) fault(concat(key, " is ", shown(*value), ", which this family does not compute"));
  }

  // The weights themselves say how each of them is stored; here is only whether we can read it.
  void check_quantization() {
    if (const Json* value = value_of("compression_config"))
      fault(concat("compression_config is ", shown(*value), ": such weights cannot be read"));
    const Json* value = value_of("quantization_config");
    if (!value) return;
    const auto is = [&](const char* key, const Json& expected) {
      const auto at = value->find(key);
      return at != value->end() && *at == expected;
    };
    if (is("quant_method", "fp8") && is("weight_block_size", {128, 128})) return;
    if (names_.mxfp4 && is("quant_method", "mxfp4")) return;
    fault(concat("quantization_config is ", shown(*value),
                 ": such weights cannot be read, expected plain ones or the quant_method \"fp8\" "
                 "with the weight_block_size [128, 128]",
                 names_.mxfp4 ? ", or \"mxfp4\"" : ""));
  }

  void read_rope() {
    const Json none = Json::object();
    const Json *newer = value_of("rope_parameters"), *older = value_of("rope_scaling");
    const Json& scaling = newer ? *newer : older ? *older : none;
    const std::string_view where = newer ? "rope_parameters" : "rope_scaling";
    const Json* theta = value_of("rope_theta");
    if (!scaling.is_object())
      return fault(concat(where, " ", shown(scaling), ": expected an object"));
    const auto in_scaling = [&](const char* key) {
      const auto at = scaling.find(key);
      return at == scaling.end() || at->is_null() ? nullptr : &*at;
    };
    if (const Json* inner = in_scaling("rope_theta")) theta = inner;
    set("rope_theta", "rope_theta", theta ? *theta : Json(names_.rope_theta));

    const Json* type = in_scaling("rope_type");
    if (!type) type = in_scaling("type");
    const bool plain = !type || is_text(*type, "default"), llama = type && is_text(*type, "llama3");
    if (!plain && !llama) {
      return fault(concat(where, " is of type ", shown(*type),
                          ", which cannot be expressed: expected \"default\" or \"llama3\""));
    }
    const RopeScaling defaults;
    const std::array<std::pair<const char*, std::pair<const char*, Json>>, 4> values{
        {{"factor", {"rope_scaling_factor", defaults.factor}},
         {"low_freq_factor", {"rope_low_freq_factor", defaults.low_freq_factor}},
         {"high_freq_factor", {"rope_high_freq_factor", defaults.high_freq_factor}},
         {"original_max_position_embeddings",
          {"rope_original_max_position_embeddings", defaults.original_max_position}}}};
    std::set<std::string_view> known{"rope_theta", "rope_type", "type"};
    for (const auto& [key, own] : values) {
      const Json* value = llama ? in_scaling(key) : nullptr;
      if (llama) known.insert(key);
      if (llama && !value) fault(concat(where, " has no ", key));
      else set(own.first, concat(where, ".", key), value ? *value : own.second);
    }
    (void)fields_.find("model.rope_scaling")->assign(llama ? "llama" : "none");
    for (const auto& [key, value] : scaling.items()) {
      const bool whole = key == "partial_rotary_factor" && value == Json(1);
      if (!known.contains(key) && !value.is_null() && !whole)
        fault(concat(where, ".", io::excerpt(key), " is ", shown(value),
                     ", which cannot be expressed"));
    }
  }

  const Json& json_;
  const HuggingFace& names_;
  config::Fields fields_;
  std::set<std::string, std::less<>> used_;
};

std::optional<DType> dtype_of(const Json& json, std::vector<std::string>& faults) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto at = json.find(key);
    if (at == json.end() || at->is_null()) continue;
    for (const auto& [name, dtype] : kDTypes) {
      if (is_text(*at, name)) return dtype;
    }
    faults.push_back(
        concat(key, " is ", shown(*at), ", expected float32, bfloat16, float16 or float64"));
    return {};
  }
  return {};
}

bool is_of_type(const Json& json, std::string_view model_type) {
  const auto type = json.find("model_type");
  return type != json.end() && is_text(*type, model_type);
}

[[noreturn]] void fail_type(const Json& json, const std::string& where, std::string_view expected) {
  const auto type = json.find("model_type");
  fail<DataError>(where, "model_type is ", type == json.end() ? "missing" : shown(*type),
                  ", expected ", expected);
}

// The part of a whole's fields that is the family's, where it is a whole; whether it is. What the
// part does not say, such as the dtype, holds for all parts.
bool take_part(Json& json, const std::string& where, const HuggingFace& names) {
  const HfWithin& whole = names.within;
  if (whole.model_type.empty() || !is_of_type(json, whole.model_type)) return false;
  const std::string field(whole.field);
  const Json part = json.value(field, Json());
  if (!part.is_object())
    fail<DataError>(where, field, " is ", shown(part), ", expected the fields of a ",
                    names.model_type);
  json.erase(field);
  json["model_type"] = names.model_type;
  json.update(part);
  return true;
}

std::pair<const Family*, const HuggingFace*> names_of(const Json& json, const std::string& where,
                                                      std::span<const Family> families) {
  std::string known;
  for (const Family& f : families) {
    for (const HuggingFace* names : f.hugging_face) {
      const std::string_view whole = names->within.model_type;
      if (is_of_type(json, names->model_type) || (!whole.empty() && is_of_type(json, whole)))
        return {&f, names};
      for (const std::string_view type : {names->model_type, whole})
        if (!type.empty()) known += concat(known.empty() ? "" : ", ", type);
    }
  }
  fail_type(json, where, concat("one of ", known));
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
                   ModelConfig config) {
  HfModel model{std::move(config), &names};
  model.within = take_part(json, where, names);
  if (!is_of_type(json, names.model_type)) fail_type(json, where, shown(Json(names.model_type)));
  Reader reader(json, names, model.config);
  model.dtype = dtype_of(json, reader.faults);
  if (!reader.faults.empty())
    fail<DataError>(where, fmt::format("{}", fmt::join(reader.faults, "; ")));
  model.passed_over = reader.rest();
  if (model.within) {
    for (const std::string_view other : names.within.others)
      model.passed_over.push_back(concat("the tensors ", other, "*"));
  }
  return model;
}

// A field's value as JSON. Numbers that need not be whole have a point, also where they are.
Json json_of(config::Fields& fields, std::string_view ours) {
  const config::Field& field = *fields.find(concat("model.", ours));
  double* const* number = std::get_if<double*>(&field.value);
  return number ? Json(**number) : parsed(field.text());
}

}  // namespace

HfModel parse_hf_config(std::string_view text, const std::string& where,
                        std::span<const Family> families) {
  const Json json = object_of(text, where);
  const auto [family, names] = names_of(json, where, families);
  return read_model(json, where, *names, family->flavor(""));
}

HfModel parse_hf_config(std::string_view text, const std::string& where, const HuggingFace& family,
                        ModelConfig config) {
  const Json json = object_of(text, where);
  config.set_flavor("");
  return read_model(json, where, family, std::move(config));
}

std::string hf_config(const HuggingFace& family, ModelConfig config, DType dtype,
                      const HfMarks& marks) {
  config::Fields fields;
  fields.section("model", config);
  for (const HfFixedOurs& f : family.fixed_ours) {
    const std::string value = fields.find(concat("model.", f.ours))->text();
    if (value != f.value)
      fail<ValueError>("hugging_face", f.ours, " ", value,
                       " cannot be expressed in config.json of ", family.model_type, ": expected ",
                       f.value);
  }
  Json json{{"architectures", {family.architecture}}, {"model_type", family.model_type}};
  for (const HfField& f : family.fields) json[std::string(f.theirs)] = json_of(fields, f.ours);
  for (const HfDerived& d : family.derived) json[std::string(d.theirs)] = parsed(d.value(config));
  for (const HfFixed& f : family.fixed) json[std::string(f.theirs)] = parsed(f.values.at(0));
  if (family.rope) {
    json["rope_theta"] = json_of(fields, "rope_theta");
    const std::string kind = fields.find("model.rope_scaling")->text();
    if (kind != "llama" && kind != "none")
      fail<ValueError>("hugging_face", "rope_scaling ", kind,
                       " cannot be expressed in config.json: expected none or llama");
    json["rope_scaling"] = nullptr;
    if (kind == "llama") {
      json["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", json_of(fields, "rope_scaling_factor")},
                              {"low_freq_factor", json_of(fields, "rope_low_freq_factor")},
                              {"high_freq_factor", json_of(fields, "rope_high_freq_factor")},
                              {"original_max_position_embeddings",
                               json_of(fields, "rope_original_max_position_embeddings")}};
    }
  }
  const auto id = [](int64_t mark) { return mark < 0 ? Json(nullptr) : Json(mark); };
  json["bos_token_id"] = id(marks.begin);
  json["eos_token_id"] = id(marks.end);
  for (const auto& [name, known] : kDTypes) {
    if (known == dtype) json["torch_dtype"] = name;
  }
  return json.dump(2) + "\n";
}

}  // namespace tessera::models

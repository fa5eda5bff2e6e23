// SPDX-License-Identifier: Apache-2.0
// RoPE in config.json. Older files have rope_theta and rope_scaling, newer ones rope_parameters,
// which may hold an object for each of two kinds of layers. A model of two kinds scales the
// frequencies of layers that attend to all tokens alone.
#include "tessera/models/config/rope_fields.h"
#include "tessera/models/hugging_face_reader_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::models {
namespace {

using Json = HfReader::Json;

constexpr const char *kFactor = "factor", *kOriginal = "original_max_position_embeddings",
                     *kPart = "partial_rotary_factor", *kFull = "full_attention",
                     *kWindow = "sliding_attention", *kLocalBase = "rope_local_base_freq";

struct Kind {
  std::string_view theirs, ours;
};
constexpr std::array<Kind, 4> kKinds{
    {{"llama3", "llama"}, {"linear", "linear"}, {"yarn", "yarn"}, {"longrope", "longrope"}}};

bool is_computed(const HuggingFace& names, const Kind& kind) {
  return names.rope_kinds.empty() || std::ranges::count(names.rope_kinds, kind.theirs) > 0;
}

// A parameter of some kinds.
struct Key {
  const char* theirs;
  std::string_view ours;
  std::vector<std::string_view> kinds;
  Json unset;          // ours, without it
  bool needed = true;  // by these kinds

  [[nodiscard]] bool is_of(std::string_view kind) const {
    return std::ranges::count(kinds, kind) > 0;
  }
};

const std::vector<Key>& keys() {
  static const RopeScaling none;
  static const std::vector<Key> all{
      {kFactor, "rope_scaling_factor", {"llama3", "linear", "yarn", "longrope"}, none.factor},
      {"low_freq_factor", "rope_low_freq_factor", {"llama3"}, none.low_freq_factor},
      {"high_freq_factor", "rope_high_freq_factor", {"llama3"}, none.high_freq_factor},
      {kOriginal,
       "rope_original_max_position_embeddings",
       {"llama3", "yarn", "longrope"},
       none.original_max_position},
      {"short_factor", "rope_short_factors", {"longrope"}, Json::array()},
      {"long_factor", "rope_long_factors", {"longrope"}, Json::array()},
      {"beta_fast", "rope_beta_fast", {"yarn"}, none.beta_fast, false},
      {"beta_slow", "rope_beta_slow", {"yarn"}, none.beta_slow, false},
      {"truncate", "rope_truncate", {"yarn"}, none.truncate, false},
      {"attention_factor",
       "rope_attention_factor",
       {"yarn", "longrope"},
       none.attention_factor,
       false},
      {"mscale", "rope_mscale", {"yarn"}, none.mscale, false},
      {"mscale_all_dim", "rope_mscale_all_dim", {"yarn"}, none.mscale_all_dim, false}};
  return all;
}

// Without a linear scaling by 1, which changes nothing.
Json without_scaling_by_one(const Json& rope) {
  bool linear = false;
  for (const char* key : {"rope_type", "type"}) {
    const auto at = rope.find(key);
    if (at == rope.end() || at->is_null()) continue;
    if (!is_text(*at, "linear")) return rope;
    linear = true;
  }
  if (!linear || !io::same_value(rope.value(kFactor, Json()), 1)) return rope;
  Json plain = rope;
  for (const char* key : {"rope_type", "type", kFactor}) plain.erase(key);
  return plain;
}

io::Told inner(const io::Told& object, const char* key) {
  return {concat(object.place, '.', key), object.value.value(key, Json())};
}

// Null: it does not say one. Older files of Phi 3 call longrope "su".
Json type_of(const Json& rope) {
  const Json given = rope.value("rope_type", Json());
  const Json type = given.is_null() ? rope.value("type", Json()) : given;
  return is_text(type, "su") ? Json("longrope") : type;
}

class RopeReader {
 public:
  explicit RopeReader(HfReader& reader) : r_(reader), names_(reader.names()) {}

  void read() {
    if (!find_objects()) return;
    const io::Told outer = r_.told(names_.rope_theta_name);
    const Json theta = outer.value.is_null() ? Json(names_.rope_theta) : outer.value;
    const Json original = r_.told(kOriginal).value;  // without a scaling it says nothing
    std::vector<io::Told> completed, thetas{outer};
    for (const io::Told& object : objects_) {
      completed.push_back({object.place, completed_of(object.value, theta, original)});
      thetas.push_back(inner(object, "rope_theta"));
      (void)r_.agreed({inner(object, "rope_type"), inner(object, "type")});
    }
    if (io::Agreed all = io::agreed(completed); all.fault) return r_.fault(std::move(*all.fault));
    const Json own = r_.agreed(thetas), base = own.is_null() ? theta : own;
    r_.set("rope_theta", names_.rope_theta_name, base);
    read_part();
    read_scaling(objects_.empty() ? io::Told{"rope_scaling", Json::object()} : objects_.back());
    read_windows(base);
  }

 private:
  // False: a value is no object.
  bool find_objects() {
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const Json* value = r_.value_of(key);
      if (!value) continue;
      if (!add(key, *value)) return false;
    }
    return true;
  }
  bool add(const std::string& place, const Json& value) {
    if (!value.is_object()) {
      r_.fault(concat(place, " ", io::shown(value), ": expected an object"));
      return false;
    }
    if (names_.rope_local_theta && place == "rope_parameters") return add_kinds(place, value);
    if (!value.empty()) objects_.push_back({place, without_scaling_by_one(value)});
    return true;
  }
  bool add_kinds(const std::string& place, const Json& kinds) {
    for (const auto& [kind, value] : kinds.items()) {
      const std::string here = concat(place, '.', io::excerpt(kind));
      if (value.is_null()) continue;
      if ((kind != kFull && kind != kWindow) || !value.is_object()) {
        r_.fault(concat(here, " is ", io::shown(value), ", expected an object for ", kFull,
                        " and one for ", kWindow));
        return false;
      }
      if (kind == kWindow) windows_ = {here, without_scaling_by_one(value)};
      else if (!value.empty()) objects_.push_back({here, without_scaling_by_one(value)});
    }
    return true;
  }

  // What an object says, together with the fields beside it, as transformers completes it. What
  // says nothing is left out, so that equal settings are equal.
  [[nodiscard]] Json completed_of(const Json& parameters, const Json& theta,
                                  const Json& original) const {
    Json all = Json::object();
    for (const auto& [key, value] : parameters.items()) {
      const bool usual = key == kPart && io::same_value(value, names_.partial_rotary);
      if (key != "type" && !value.is_null() && !usual) all[key] = value;
    }
    if (!all.contains("rope_theta")) all["rope_theta"] = theta;
    const Json type = type_of(parameters);
    all["rope_type"] = type.is_null() ? Json("default") : type;
    if (!original.is_null() && !is_text(type, "linear") && !all.contains(kOriginal) &&
        is_kind(type))
      all[kOriginal] = original;
    return all;
  }
  static bool is_kind(const Json& type) {
    return std::ranges::any_of(kKinds, [&](const Kind& k) { return is_text(type, k.theirs); });
  }

  // How much of a head turns.
  void read_part() {
    std::vector<io::Told> places{r_.told(kPart), r_.told("rotary_pct")};
    for (const io::Told& object : objects_) places.push_back(inner(object, kPart));
    places.push_back(inner(windows_, kPart));
    const Json part = r_.agreed(places);
    if (r_.find(kPart))
      return r_.set(kPart, kPart, part.is_null() ? Json(names_.partial_rotary) : part);
    if (!part.is_null() && !io::same_value(part, 1))
      r_.fault(concat(kPart, " is ", io::shown(part), ", which cannot be expressed: expected 1"));
  }

  // Whether the configuration has its parameters.
  bool is_expressed(const Kind& kind) {
    const auto& ours = r_.field("rope_scaling").limits.choices;
    return is_computed(names_, kind) && std::ranges::count(ours, kind.ours) > 0 &&
           std::ranges::all_of(keys(), [&](const Key& key) {
             return !key.is_of(kind.theirs) || r_.find(key.ours);
           });
  }
  [[nodiscard]] std::string expected() {
    std::vector<std::string> all{"\"default\""};
    for (const Kind& kind : kKinds) {
      if (is_expressed(kind)) all.push_back(concat('"', kind.theirs, '"'));
      else if (kind.theirs == "linear") all.emplace_back("\"linear\" with the factor 1");
    }
    all.back() = concat("or ", all.back());
    return fmt::format("{}", fmt::join(all, ", "));
  }

  void read_scaling(const io::Told& object) {
    const auto& [where, scaling] = object;
    const Json type = type_of(scaling);
    const Kind* kind = nullptr;
    for (const Kind& k : kKinds) {
      if (is_text(type, k.theirs) && is_expressed(k)) kind = &k;
    }
    if (!kind && !type.is_null() && !is_text(type, "default")) {
      return r_.fault(concat(where, " is of type ", io::shown(type),
                             ", which cannot be expressed: expected ", expected()));
    }
    std::vector<std::string_view> known{"rope_theta", "rope_type", "type", kPart,
                                        "max_position_embeddings"};
    for (const Key& key : keys()) {
      if (!r_.find(key.ours)) continue;
      const bool counts = kind && key.is_of(kind->theirs);
      const io::Told given = counts ? parameter(object, key.theirs) : io::Told{};
      Json value = given.value;
      if (counts) known.emplace_back(key.theirs);
      if (counts && value.is_null()) value = implied(object, *kind, key.theirs);
      if (value.is_null() && counts && key.needed) r_.fault(concat(where, " has no ", key.theirs));
      else r_.set(key.ours, concat(where, '.', key.theirs), value.is_null() ? key.unset : value);
    }
    (void)r_.field("rope_scaling").assign(kind ? kind->ours : "none");
    refuse_others(object, known);
  }
  void refuse_others(const io::Told& object, const std::vector<std::string_view>& known) {
    for (const auto& [key, value] : object.value.items()) {
      const bool of_table = r_.is_used(concat(object.place, '.', key));
      if (std::ranges::count(known, key) == 0 && !value.is_null() && !of_table)
        r_.fault(concat(object.place, ".", io::excerpt(key), " is ", io::shown(value),
                        ", which cannot be expressed"));
    }
  }
  io::Told parameter(const io::Told& object, const char* key) {
    std::vector<io::Told> places{inner(object, key)};
    if (key == kOriginal) places.push_back(r_.told(key));
    return {places[0].place, r_.agreed(places)};
  }
  // What transformers takes where a parameter is missing; null: nothing, or a value of ours.
  Json implied(const io::Told& object, const Kind& kind, const char* key) {
    const bool yarn = kind.theirs == "yarn", ratio = yarn || kind.theirs == "longrope";
    const config::Field* context = r_.find("max_seq_len");
    if (!context || (key == kOriginal ? !yarn : key != kFactor || !ratio)) return {};
    const auto longest = static_cast<double>(*std::get<int64_t*>(context->value));
    if (key == kOriginal) return *std::get<int64_t*>(context->value);
    const Json original = parameter(object, kOriginal).value;
    if (original.is_null()) return yarn ? Json(1.0) : Json();
    if (!original.is_number() || original.get<double>() <= 0) return {};
    return std::max(1.0, longest / original.get<double>());
  }

  // The layers with a window.
  void read_windows(const Json& theta) {
    if (!names_.rope_local_theta) {
      if (r_.find("rope_local_theta")) r_.set("rope_local_theta", "rope_local_theta", 0.0);
      return;
    }
    const Json type = type_of(windows_.value);
    if (!type.is_null() && !is_text(type, "default")) {
      return r_.fault(concat(windows_.place, " is of type ", io::shown(type),
                             ", which cannot be expressed: expected \"default\""));
    }
    refuse_others(windows_, {"rope_theta", "rope_type", "type", kPart});
    const io::Told nested = inner(windows_, "rope_theta");
    Json value = r_.agreed({nested, r_.told(kLocalBase)});
    if (value.is_null())
      value = *names_.rope_local_theta == 0 ? theta : Json(*names_.rope_local_theta);
    r_.set("rope_local_theta", nested.value.is_null() ? kLocalBase : nested.place, value);
  }

  HfReader& r_;
  const HuggingFace& names_;
  std::vector<io::Told> objects_;  // of layers that attend to all tokens
  io::Told windows_{concat("rope_parameters.", kWindow), Json::object()};
};

[[noreturn]] void fail_value(const HuggingFace& names, const auto&... what) {
  fail<ValueError>("hugging_face", what..., " cannot be expressed in config.json of ",
                   names.model_type);
}

// What a table has in RoPE's object.
void write_inner(Json& scaling, const HuggingFace& names, config::Fields& fields) {
  constexpr std::string_view kHere = "rope_scaling.";
  for (const HfField& f : names.fields) {
    if (!f.theirs.starts_with(kHere)) continue;
    if (scaling.is_null()) scaling = {{"rope_type", "default"}};
    scaling[std::string(f.theirs.substr(kHere.size()))] = json_of(fields, f.ours);
  }
}

// The value of a parameter; a list is JSON or numbers with commas.
Json value_of(config::Fields& fields, const Key& key) {
  if (!key.unset.is_array()) return json_of(fields, key.ours);
  const std::string text = fields.find(concat("model.", key.ours))->text();
  return parsed(text.starts_with('[') ? text : concat('[', text, ']'));
}

// Null: none. Phi 3, whose only kind is longrope, reads an object of these three fields alone in
// transformers 4, and the factor is that of the two contexts. Other types have the original context
// within the object in transformers 5, and beside it in transformers 4.
Json written_scaling(Json& json, const HuggingFace& names, config::Fields& fields) {
  const config::Field& field = *fields.find("model.rope_scaling");
  const auto kind = std::ranges::find(kKinds, field.text(), &Kind::ours);
  if (kind == kKinds.end() || !is_computed(names, *kind)) {
    if (field.text() == "none") return {};
    fail<ValueError>("hugging_face", "rope_scaling ", field.text(),
                     " cannot be expressed in config.json: expected ",
                     fmt::format("{}", fmt::join(field.limits.choices, " or ")));
  }
  const bool longrope = kind->theirs == "longrope";
  Json scaling{{longrope ? "type" : "rope_type", kind->theirs}};
  for (const Key& key : keys()) {
    if (!key.is_of(kind->theirs)) continue;
    const Json value = value_of(fields, key);
    if (longrope && key.theirs == kOriginal) json[kOriginal] = value;
    if (longrope && key.theirs == kOriginal && !names.rope_kinds.empty()) continue;
    if (key.needed || !io::same_value(value, key.unset)) scaling[key.theirs] = value;
  }
  if (!longrope || names.rope_kinds.empty()) return scaling;
  const config::Field* context = fields.find("model.max_seq_len");
  const double original = json.at(kOriginal).get<double>();
  const double ratio =
      context ? static_cast<double>(*std::get<int64_t*>(context->value)) / original : 0;
  if (io::same_value(scaling.at(kFactor), std::max(1.0, ratio))) scaling.erase(kFactor);
  return scaling;
}

// The base of layers with a window. Older files of a family that has no field for it have one base,
// which transformers 5 does not read for these layers, so newer ones say it again.
void write_windows(Json& json, const HuggingFace& names, config::Fields& fields) {
  const Json theta = json_of(fields, "rope_theta");
  if (!fields.find("model.rope_local_theta")) return;
  Json local = json_of(fields, "rope_local_theta");
  const bool shared = io::same_value(local, 0),
             scaled = fields.find("model.rope_scaling")->text() != "none";
  if (!names.rope_local_theta) {
    if (!shared) fail_value(names, "rope_local_theta ", local.dump());
    return;
  }
  if (shared && scaled)
    fail_value(names, "rope_local_theta 0 with a scaling, which layers with a window lack there,");
  if (shared) local = theta;
  if (*names.rope_local_theta != 0) {
    json[kLocalBase] = local;
    return;
  }
  if (!io::same_value(local, theta))
    fail_value(names, "rope_local_theta ", local.dump(), " beside rope_theta ", theta.dump());
  if (io::same_value(theta, names.rope_theta)) return;
  const Json plain{{"rope_type", "default"}, {"rope_theta", theta}};
  Json full = plain;
  if (!json.at("rope_scaling").is_null()) full.update(json.at("rope_scaling"));
  json["rope_parameters"] = {{kFull, full}, {kWindow, plain}};
}

}  // namespace

void read_rope(HfReader& reader) { RopeReader(reader).read(); }

void write_rope(Json& json, const HuggingFace& names, config::Fields& fields) {
  json[std::string(names.rope_theta_name)] = json_of(fields, "rope_theta");
  Json scaling = written_scaling(json, names, fields);
  write_inner(scaling, names, fields);
  json["rope_scaling"] = scaling;
  if (fields.find(concat("model.", kPart)))
    json[std::string(names.partial_rotary_name)] = json_of(fields, kPart);
  write_windows(json, names, fields);
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/exchange/special_tokens.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/exchange/weights.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBytes = size_t{16} << 20;

struct Named {
  const char *name, *key;
  std::string models::HfMarks::*value;
  const char* help;
};
constexpr std::array<Named, 3> kMarks{
    {{"bos", "bos_token_id", &models::HfMarks::begin, "token that begins a text"},
     {"eos", "eos_token_id", &models::HfMarks::end, "token that ends a text, or a list of them"},
     {"pad", "pad_token_id", &models::HfMarks::pad, "token of padding"}}};

std::vector<int64_t> ids_of(const std::string& said) {
  const Json value = said.empty() ? Json() : io::parse_json(said).value;
  if (value.is_number_integer()) return {value.get<int64_t>()};
  return value.is_array() ? value.get<std::vector<int64_t>>() : std::vector<int64_t>();
}

void add(std::vector<int64_t>& ids, int64_t id) {
  if (id >= 0 && std::ranges::count(ids, id) == 0) ids.push_back(id);
}

std::string text_of(const std::vector<int64_t>& ids) {
  return (ids.size() == 1 ? Json(ids[0]) : Json(ids)).dump();
}

// The ids that end a text, `id` among them.
std::string with_end(const std::string& said, int64_t id) {
  std::vector<int64_t> ids = ids_of(said);
  if (id < 0 || std::ranges::count(ids, id) > 0) return said;
  ids.push_back(id);
  return text_of(ids);
}

}  // namespace

void SpecialTokensConfig::fields(config::Fields& f) {
  for (const auto& [prefix, file, marks] :
       {std::tuple("", kHfConfig, &config),
        std::tuple("generation_", kHfGeneration, &generation)}) {
    for (const Named& m : kMarks) {
      f.add(concat(prefix, m.name), marks->*m.value,
            concat("id of the ", m.help, ", as ", file,
                   " of the model's folder says it: an id, a list of ids, null; empty: it says "
                   "nothing"));
    }
  }
}

std::vector<std::string> SpecialTokensConfig::conflicts() const {
  std::vector<std::string> faults;
  for (const auto& [prefix, marks] :
       {std::pair("", &config), std::pair("generation_", &generation)}) {
    for (const Named& m : kMarks) {
      const std::string& said = marks->*m.value;
      if (said.empty()) continue;
      try {
        (void)models::parse_hf_marks(concat("{\"", m.key, "\": ", said, "}"), "");
      } catch (const DataError&) {
        faults.push_back(concat("[--special_tokens.", prefix, m.name, "] ", io::excerpt(said),
                                ": expected an id, a list of ids such as [2, 5], or null"));
      }
    }
  }
  return faults;
}

SpecialTokensConfig read_special_tokens(const std::string& folder) {
  SpecialTokensConfig said;
  const auto text_of_file = [&](std::string_view name) {
    const std::string path = hf_file(folder, name);
    return path.empty() ? std::string() : io::read_file(path, kMostBytes);
  };
  const std::string text = text_of_file(kHfConfig);
  const Json json = io::parse_json(text.empty() ? "{}" : text).value;
  // That of an imported model is a run's.
  if (json.is_object() && json.contains("model_type"))
    said.config = models::parse_hf_marks(text, io::below(folder, kHfConfig));
  if (const std::string generation = text_of_file(kHfGeneration); !generation.empty())
    said.generation = models::parse_hf_marks(generation, io::below(folder, kHfGeneration));
  return said;
}

std::vector<int64_t> end_ids(const SpecialTokensConfig& said, const Tokenizer& tokenizer,
                             int64_t answer_end) {
  std::vector<int64_t> ids;
  add(ids, tokenizer.end_id());
  for (const models::HfMarks* marks : {&said.generation, &said.config})
    for (const int64_t id : ids_of(marks->end)) add(ids, id);
  add(ids, answer_end);
  return ids;
}

SpecialTokensConfig special_tokens_to_write(const SpecialTokensConfig& said,
                                            const Tokenizer* tokenizer, int64_t answer_end,
                                            bool has_generation) {
  SpecialTokensConfig all = said;
  const auto fill = [](std::string& value, int64_t id) {
    if (value.empty() && id >= 0) value = std::to_string(id);
  };
  models::HfMarks &config = all.config, &generation = all.generation;
  if (tokenizer && !tokenizer->files().empty()) {
    fill(config.begin, tokenizer->begin_id());
    fill(config.end, tokenizer->end_id());
  } else {
    answer_end = -1;  // a byte tokenizer does not go out
  }
  if (!has_generation && generation == models::HfMarks()) generation = config;
  if (answer_end < 0) return all;
  for (models::HfMarks* marks : {&generation, &config})
    marks->end = with_end(marks->end.empty() ? config.end : marks->end, answer_end);
  return all;
}

}  // namespace tessera::train

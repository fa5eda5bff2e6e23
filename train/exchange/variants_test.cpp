// SPDX-License-Identifier: Apache-2.0
// Folders whose fields are spelt in old and new ways, missing, or contradict each other or the
// weights: each has the loss of transformers, as tests/goldens/folders.py computed it, or is an
// error that names what contradicts.
#include "tessera/core/scopes.h"
#include "tessera/models/models.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/lay_out.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/exchange/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

// The numbers of folders.py, which follow from the tensor's name and the element's place.
std::vector<double> values(const std::string& name, const Shape& shape, uint32_t salt) {
  uint32_t seed = 2166136261U + salt;
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 16777619U;
  std::vector<double> all;
  for (int64_t i = 1; i <= shape.numel(); ++i) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761U + seed;
    h = (h ^ (h >> 15U)) * 2246822519U;
    h = (h ^ (h >> 13U)) * 3266489917U;
    h ^= h >> 16U;
    all.push_back(h / 4294967296.0 - 0.5 + (shape.rank() == 1 ? 1 : 0));
  }
  return all;
}

class Folder {
 public:
  Folder(const Json& base, const Json& variant, const std::string& folder)
      : variant_(variant), tensors_(base.at("tensors")) {
    Json config = base.at("config");
    const Json set = of("set"), text = of("text"), more = of("tensors");
    for (const auto& [key, value] : set.items()) config[key] = value;
    for (const std::string& key : names_of("without")) config.erase(key);
    for (const auto& [key, value] : text.items()) {
      if (value.is_null()) config["text_config"].erase(key);
      else config["text_config"][key] = value;
    }
    io::write_file_atomically(folder + "/config.json", config.dump());
    for (const auto& [name, shape] : more.items()) tensors_[name] = shape;
    for (const std::string& name : names_of("drop")) tensors_.erase(name);
    Json files = of("files"), index = Json::object();
    if (files.empty()) files["model.safetensors"] = Json::object();
    for (const auto& [file, part] : files.items()) {
      std::vector<nn::NamedParameter> held;
      for (const auto& [name, shape] : tensors_.items()) {
        const std::string other = part.value("except", "");
        if (!name.starts_with(part.value("only", "")) ||
            (!other.empty() && name.starts_with(other)))
          continue;
        held.push_back({name, tensor(name, part.value("salt", 0U))});
        if (part.value("named", true)) index[name] = file;
      }
      io::write_safetensors(folder + "/" + file, held);
    }
    for (const std::string& name : names_of("unnamed")) index.erase(name);
    if (variant.contains("files") && !variant.value("no_index", false))
      io::write_file_atomically(folder + "/model.safetensors.index.json",
                                Json{{"weight_map", index}}.dump());
  }

 private:
  [[nodiscard]] Json of(const char* key) const { return variant_.value(key, Json::object()); }
  [[nodiscard]] std::vector<std::string> names_of(const char* key) const {
    return variant_.value(key, std::vector<std::string>());
  }
  [[nodiscard]] Tensor tensor(const std::string& name, uint32_t salt) const {
    const Json& told = tensors_.at(name);
    if (told.is_string()) return tensor(told.get<std::string>(), salt);
    const auto sizes = told.get<std::vector<int64_t>>();
    const Shape shape{std::span<const int64_t>(sizes)};
    const std::string dtype = of("dtypes").value(name, "F32");
    return from_values(values(name, shape, salt), shape, *io::dtype_of_file_type(dtype));
  }
  const Json& variant_;
  Json tensors_;
};

double loss_of(const std::string& folder, const std::vector<int64_t>& ids) {
  const std::vector<models::Family> families = models::families();
  const HfModelFolder from(folder, read_hf_config(folder, families));
  const auto model = from.model().config.make();
  nn::allocate(*model, kCpu);
  from.fill(nn::named_parameters(*model));
  model->eval();
  const auto length = static_cast<int64_t>(ids.size());
  const Tensor tokens = empty({1, length}, DType::i64);
  std::ranges::copy(ids, tokens.data<int64_t>());
  const std::vector<double> logits = model->forward(tokens).values();
  const size_t vocabulary = logits.size() / ids.size();
  double loss = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(logits[i * vocabulary + v]);
    loss += std::log(sum) - logits[i * vocabulary + static_cast<size_t>(ids[i + 1])];
  }
  return loss / static_cast<double>(length - 1);
}

class FoldersInVariants : public test::FolderTest {};

TEST_F(FoldersInVariants, HaveTheLossOfTransformersOrAreAnError) {
  const Session session;
  const NoGrad guard;
  const Json golden = io::parse_json(io::read_file("tests/goldens/folders.json")).value;
  const auto ids = golden.at("tokens").get<std::vector<int64_t>>();
  int loaded = 0, refused = 0;
  for (const Json& v : golden.at("variants")) {
    const std::string name =
        concat(v.at("of").get<std::string>(), ", ", v.at("name").get<std::string>());
    SCOPED_TRACE(name);
    const std::string folder = concat(folder_, "/", loaded + refused);
    std::filesystem::create_directories(folder);
    const Folder made(golden.at("bases").at(v.at("of").get<std::string>()), v, folder);
    try {
      const double loss = loss_of(folder, ids);
      ++loaded;
      if (v.at("loss").is_null())
        ADD_FAILURE() << "transformers refuses it, here the loss is " << loss;
      else EXPECT_NEAR(loss, v.at("loss").get<double>(), 1e-4);
    } catch (const DataError& error) {
      ++refused;
      EXPECT_FALSE(v.at("names").empty() && !v.at("loss").is_null()) << error.what();
      for (const Json& part : v.at("names"))
        EXPECT_NE(std::string(error.what()).find(part.get<std::string>()), std::string::npos)
            << part << ": " << error.what();
    }
  }
  std::cout << loaded << " folders have the loss of transformers, " << refused << " are errors\n";
  EXPECT_GE(loaded + refused, 40);
}

}  // namespace
}  // namespace tessera::train

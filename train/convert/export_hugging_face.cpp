// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/utf8.h"
#include "tessera/train/convert/convert.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/trained_model.h"

namespace tessera::train {
namespace {

// Our tensors whose names end with that of a buffer.
std::vector<std::string> tensors_named(const models::ModelConfig& model, std::string_view buffer) {
  std::vector<std::string> names;
  for (const models::NamedShape& t : models::tensors_of(model))
    if (t.name.ends_with(concat('.', buffer))) names.push_back(t.name);
  return names;
}

}  // namespace

std::vector<models::HfFixedOurs> dropped_by(const std::string& drop,
                                            const models::ModelConfig& model) {
  std::vector<models::HfFixedOurs> rows;
  const models::HuggingFace* names = model.hugging_face();
  if (names) rows = models::hf_unexpressed(*names, model);
  std::erase_if(rows, [](const models::HfFixedOurs& row) { return row.buffer.empty(); });
  for (const models::HfFixedOurs& row : rows) {
    if (row.buffer != drop)
      fail<ConfigError>("--drop", drop.empty() ? "is missing" : io::excerpt(drop),
                        ": transformers' ", names->model_type, " has no place for the ", row.buffer,
                        " that model.", row.ours, " gives this model (",
                        first_few(tensors_named(model, row.buffer)), "): --drop ", row.buffer,
                        " leaves it out, which changes the loss, and --dataset_path FILE beside it "
                        "prints both losses");
  }
  if (rows.empty() && !drop.empty())
    fail<ConfigError>("--drop", io::excerpt(drop),
                      ": all of this model has a place in the folder; leave the field out");
  return rows;
}

uint64_t export_hugging_face(const ExportOptions& o, const Catalogue& catalogue, const Warn& note,
                             const BytesDone& progress) {
  const TrainedModel model = open_trained_model(o.checkpoint, note, catalogue);
  const std::vector<models::HfFixedOurs> dropped = dropped_by(o.drop, model.config.model);
  for (const models::HfFixedOurs& row : dropped)
    note(concat("left out: ", first_few(tensors_named(model.config.model, row.buffer))));
  const auto tokenizer = model.tokenizer ? model.tokenizer : open_tokenizer(model.config);
  const HfOutput output{.folder = o.out,
                        .dtype = o.dtype.value_or(stored_dtype(model.reader())),
                        .max_shard_bytes = o.max_shard_bytes,
                        .tokenizer = tokenizer,
                        .assets = model.config.hf_assets_path,
                        .special_tokens = model.config.special_tokens,
                        .answer_end = answer_end(model.config, *tokenizer, note)};
  return write_hugging_face(output, models::hf_without(model.config.model, dropped), model.reader(),
                            progress);
}

}  // namespace tessera::train

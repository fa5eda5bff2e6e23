// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/convert/convert.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/trained_model.h"

namespace tessera::train {

uint64_t export_hugging_face(const ExportOptions& o, const Catalogue& catalogue, const Warn& note,
                             const BytesDone& progress) {
  const TrainedModel model = open_trained_model(o.checkpoint, note, catalogue);
  const auto tokenizer = model.tokenizer ? model.tokenizer : open_tokenizer(model.config);
  const HfOutput output{.folder = o.out,
                        .dtype = o.dtype.value_or(stored_dtype(model.reader())),
                        .max_shard_bytes = o.max_shard_bytes,
                        .tokenizer = tokenizer,
                        .assets = model.config.hf_assets_path,
                        .special_tokens = model.config.special_tokens,
                        .answer_end = answer_end(model.config, *tokenizer, note)};
  return write_hugging_face(output, model.config.model, model.reader(), progress);
}

}  // namespace tessera::train

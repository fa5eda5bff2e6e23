// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/convert/convert.h"
#include "tessera/train/run/trained_model.h"

namespace tessera::train {

uint64_t export_hugging_face(const ExportOptions& o, const Catalogue& catalogue, const Warn& note,
                             const BytesDone& progress) {
  const TrainedModel model = open_trained_model(o.checkpoint, note, catalogue);
  const HfOutput output{
      .folder = o.out,
      .dtype = o.dtype.value_or(stored_dtype(model.reader())),
      .max_shard_bytes = o.max_shard_bytes,
      .tokenizer = model.tokenizer ? model.tokenizer : model.config.open_tokenizer(),
      .assets = model.config.hf_assets_path};
  return write_hugging_face(output, model.config.model, model.reader(), progress);
}

}  // namespace tessera::train

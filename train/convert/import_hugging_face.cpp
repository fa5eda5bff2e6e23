// SPDX-License-Identifier: Apache-2.0
// Everything is checked before the first byte is written: the configuration, then names, shapes and
// dtypes of all tensors. The folder gets its own name last, so paths in config.json are those that
// it will have.
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/io/new_folder.h"
#include "tessera/train/checkpoint/model_writer.h"
#include "tessera/train/convert/convert.h"
#include "tessera/train/exchange/model.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/run_facts.h"

#include <algorithm>
#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostCopiedBytes = size_t{256} << 20;

// The files that are there.
void copy_files(const std::string& from, const std::string& to) {
  for (const std::string_view name : hf_copied_files()) {
    const std::string path = hf_file(from, name);
    if (path.empty()) continue;
    io::write_file_atomically(io::below(to, name), io::read_file(path, kMostCopiedBytes));
  }
}

// A run as `train --model.initial_hf` begins one, on any data.
Config config_of(const models::HfModel& model, const ImportOptions& o) {
  Config c;
  c.model = model.config;
  c.special_tokens = read_special_tokens(o.from);
  c.model.dtype() = o.dtype;
  if (o.dtype == DType::f64) c.training.mixed_precision_param = DType::f64;
  c.training.seq_len = std::min(c.training.seq_len, c.model.max_seq_len());
  c.sample.tokens = 0;
  c.checkpoint.enable = true;
  c.checkpoint.initial_load_path = fs::absolute(o.out).lexically_normal().string();
  return c;
}

}  // namespace

uint64_t import_hugging_face(const ImportOptions& o, const Catalogue& catalogue, const Warn& note,
                             const BytesDone& progress) {
  const NoGrad guard;
  const HfModelFolder from(o.from, read_hf_config(o.from, catalogue.families, o.ignore_hf_fields));
  if (!from.model().passed_over.empty())
    note(concat("without effect here: ", first_few(from.model().passed_over), " of ", kHfConfig));

  Config config = config_of(from.model(), o);
  std::vector<std::string> faults = train::faults(config);
  config::throw_if_any(faults);
  io::NewFolder out(o.out, "--out");
  copy_files(o.from, out.path());
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    config.hf_assets_path = fs::absolute(o.from).string();
    tokenizer = open_tokenizer(config);
  } catch (const Error& error) {
    note(concat("warning: text needs a tokenizer, and there is none that can be used: ",
                error.what()));
  }
  config.hf_assets_path = config.checkpoint.initial_load_path;

  std::vector<ComingTensor> coming;
  uint64_t bytes = 0, read = 0;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, shape] : from.tensors()) {
    coming.push_back({name, o.dtype, shape});
    shapes[name] = shape;
    bytes += static_cast<uint64_t>(shape.numel() * item_size(o.dtype));
  }
  Manifest manifest;
  manifest.config = config.fields().dump();
  io::write_file_atomically(io::below(out.path(), kHfConfig), manifest.config);
  const CheckpointFolder folder(io::below(out.path(), config.checkpoint.folder));
  (void)write_model(
      folder, std::move(manifest), tokenizer.get(), coming, [&](const std::string& name) {
        const Shape& shape = shapes.at(name);
        Tensor t = cast(from.read(name, Shape::filled(shape.rank(), 0), shape), o.dtype);
        read += static_cast<uint64_t>(t.numel() * item_size(o.dtype));
        if (progress) progress(read, bytes);
        return t;
      });
  out.commit();
  return bytes;
}

}  // namespace tessera::train

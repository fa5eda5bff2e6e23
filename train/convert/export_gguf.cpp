// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint under the names of llama.cpp, and what its table says beside them.
#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gguf.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/convert/convert.h"
#include "tessera/train/exchange/gguf_tokenizer.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/trained_model.h"

#include <algorithm>
#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// llama.cpp's number of what most tensors of a file are.
uint32_t file_type(GgufType type) {
  return type == GgufType::f32 ? 0 : type == GgufType::q8_0 ? 7 : 32;
}

using KeyValue = decltype(GgufKey::value);
KeyValue key_value(int64_t size) { return static_cast<uint32_t>(size); }
KeyValue key_value(double number) { return static_cast<float>(number); }
KeyValue key_value(bool on) { return on; }
KeyValue key_value(const std::string& word) { return word; }

std::string bytes_as(const Tensor& x, GgufType type) {
  const Tensor values = contiguous(cast(x, type == GgufType::bf16 ? DType::bf16 : DType::f32));
  const auto count = static_cast<size_t>(values.numel());
  if (count == 0) return "";
  if (type == GgufType::q8_0) return q8_0({static_cast<const float*>(values.read_data()), count});
  return {static_cast<const char*>(values.read_data()),
          count * static_cast<size_t>(item_size(values.dtype()))};
}

}  // namespace

uint64_t export_gguf(const GgufOptions& o, const Catalogue& catalogue, const Warn& note,
                     const BytesDone& progress) {
  const NoGrad guard;
  if (std::error_code ignored; fs::exists(fs::symlink_status(o.out, ignored)))
    fail<ConfigError>("--out", io::excerpt(o.out), " exists already: give a new file");
  const TrainedModel model = open_trained_model(o.checkpoint, note, catalogue);
  const models::ModelConfig& config = model.config.model;
  const models::Gguf* names = config.hugging_face() ? config.hugging_face()->gguf : nullptr;
  if (!names)
    fail<ConfigError>("--checkpoint", o.checkpoint, " holds a model of the type ",
                      config.hugging_face() ? config.hugging_face()->model_type : config.family(),
                      ", which has no names of llama.cpp here");
  const std::vector<models::GgufTable> tables =
      names->tables ? names->tables(config) : std::vector<models::GgufTable>();

  const std::string architecture(names->architecture);
  std::vector<GgufKey> keys{{"general.architecture", architecture},
                            {"general.name", model.config.title()},
                            {"general.file_type", file_type(o.type)}};
  if (o.type == GgufType::q8_0) keys.push_back({"general.quantization_version", uint32_t{2}});
  for (const auto& [key, value] : names->values(config)) {
    const std::string name = concat(architecture, '.', key);
    if (const auto* size = std::get_if<int64_t>(&value);
        key == "context_length" && *size < config.max_seq_len())
      note(concat("the file says a context of ", *size, " of ",
                  counted(config.max_seq_len(), "token"),
                  ", as long as the window: llama.cpp has none for ", architecture));
    keys.push_back({name, std::visit([](const auto& v) { return key_value(v); }, value)});
  }
  const auto tokenizer = model.tokenizer ? model.tokenizer : open_tokenizer(model.config);
  const GgufMarks marks = gguf_marks(model.config.special_tokens, *tokenizer,
                                     answer_end(model.config, *tokenizer, note));
  const std::vector<GgufKey> of_tokenizer = gguf_tokenizer(*tokenizer, config.vocab_size(), marks);
  if (!of_tokenizer.empty() && marks.left_out > 0)
    note(concat(marks.left_out,
                " of the ids that end a text are left out: llama.cpp has a place for 3"));
  if (of_tokenizer.empty())
    note(
        "the file has no tokenizer: llama.cpp has no form for one that splits and merges like "
        "this");
  keys.insert(keys.end(), of_tokenizer.begin(), of_tokenizer.end());

  const models::HfTensors all = models::gguf_tensors(*names, config);
  std::vector<GgufTensor> tensors;
  std::vector<std::string> wide;
  for (const models::HfTensor& t : all.all()) {
    const Shape shape = models::gguf_shape(t.shape);
    GgufType type =
        shape.rank() < 2 || models::matches_any(t.name, names->in_f32) ? GgufType::f32 : o.type;
    if (type == GgufType::q8_0 && shape[shape.rank() - 1] % kQ8Block != 0) {
      type = GgufType::f32;
      wide.push_back(t.name);
    }
    tensors.push_back({t.name, type, shape});
  }
  if (!wide.empty())
    note(concat("in f32, since their rows are no multiple of ", kQ8Block, ": ", first_few(wide)));
  for (const models::GgufTable& t : tables)
    tensors.push_back({t.name, GgufType::f32, {static_cast<int64_t>(t.values.size())}});

  uint64_t bytes = 0, written = 0;
  for (const GgufTensor& t : tensors) bytes += bytes_of(t);
  io::require_space(io::make_folder_of(o.out, "--out"), bytes + (uint64_t{1} << 20), "--out");
  write_gguf(o.out, keys, tensors, [&](size_t i) {
    std::string data;
    if (i < all.all().size()) {
      const models::HfTensor& t = all.all()[i];
      const Tensor values = read_joined(model.reader(), t);
      const double plus = models::gguf_plus(*names, t.name);
      data = bytes_as(plus == 0 ? values : cast(values, DType::f32) + plus, tensors[i].type);
    } else {
      const std::vector<float>& values = tables[i - all.all().size()].values;
      data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    written += data.size();
    if (progress) progress(written, bytes);
    return data;
  });
  return bytes;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Models of Hugging Face: a Llama of one layer whose files are whole but for one thing.
#include "tessera/core/error.h"
#include "tessera/tests/hostile/cases.h"

#include <stdexcept>

namespace tessera::hostile {
namespace {

const std::string kConfig = R"({"model_type": "llama", "vocab_size": 4, "hidden_size": 4,
 "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
 "max_position_embeddings": 8, "hidden_act": "silu", "rope_scaling": null, "tie_word_embeddings": true})";

// Each tensor with its bytes of f32.
const std::vector<std::pair<std::string, std::string>> kTensors{
    {"model.embed_tokens.weight", "[4,4]"},
    {"model.layers.0.self_attn.q_proj.weight", "[4,4]"},
    {"model.layers.0.self_attn.k_proj.weight", "[2,4]"},
    {"model.layers.0.self_attn.v_proj.weight", "[2,4]"},
    {"model.layers.0.self_attn.o_proj.weight", "[4,4]"},
    {"model.layers.0.mlp.gate_proj.weight", "[4,4]"},
    {"model.layers.0.mlp.down_proj.weight", "[4,4]"},
    {"model.layers.0.mlp.up_proj.weight", "[4,4]"},
    {"model.layers.0.input_layernorm.weight", "[4]"},
    {"model.layers.0.post_attention_layernorm.weight", "[4]"},
    {"model.norm.weight", "[4]"}};

size_t bytes_of(const std::string& shape) {
  return shape == "[4,4]" ? 64 : shape == "[2,4]" ? 32 : 16;
}

struct Weights {
  std::string header;
  size_t bytes = 0;
};
Weights whole_weights() {
  Weights w{"{"};
  for (const auto& [name, shape] : kTensors) {
    w.header +=
        concat(w.bytes == 0 ? "" : ",", "\"", name, "\":{\"dtype\":\"F32\",\"shape\":", shape,
               ",\"data_offsets\":[", w.bytes, ",", w.bytes + bytes_of(shape), "]}");
    w.bytes += bytes_of(shape);
  }
  w.header += "}";
  return w;
}

const Words kImport{"import-hf", "$IN", "--out", "$OUT"};

}  // namespace

std::string with(std::string text, const std::string& from, const std::string& by) {
  const size_t at = text.find(from);
  if (at == text.npos || text.find(from, at + 1) != text.npos)
    throw std::invalid_argument("not once in the text: " + from);
  return text.replace(at, from.size(), by);
}

std::string repeated(const std::string& piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + rest;
}

std::string safetensors(const std::string& header, size_t bytes) {
  return with_length(header.size(), header) + std::string(bytes, '\0');
}

Cases weight_cases() {
  Cases cases;
  const auto file = [&](const std::string& name, std::string bytes) {
    cases.push_back(
        {"weights, " + name, kImport, {{"config.json", kConfig}, {"model.safetensors", bytes}}});
  };
  const auto header = [&](const std::string& name, const std::string& text, size_t bytes = 0) {
    file(name, safetensors(text, bytes));
  };
  const std::string one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  file("an empty file", "");
  file("a file of seven bytes", "\x01\x02\x03\x04\x05\x06\x07");
  file("a header beyond the file", with_length(100, "{}"));
  file("a header of 2^63 bytes", with_length(uint64_t{1} << 63, "{}"));
  file("a header of 2^64 - 1 bytes", with_length(~uint64_t{0}, "{}"));
  file("a header of no bytes", with_length(0, ""));
  file("text in place of a header", with_length(8, "not json"));
  file("a pickle", std::string("\x80\x02}q\x00.", 6) + std::string(64, '\0'));
  header("a header cut short", R"({"a":{"dtype":"F32")");
  header("a header that goes on after its end", one + "}", 8);
  header("a NUL in the header", one + std::string(1, '\0'), 8);
  header("a list for a header", "[1]");
  header("names that are not UTF-8",
         "{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
  header("a surrogate alone in a name",
         R"({"\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  header("brackets 100000 deep", "{\"a\":" + repeated("[", 100'000));
  header("objects five deep", R"({"a":{"b":{"c":{"d":{"e":1}}}}})");
  header(
      "a name twice",
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      8);
  header("a name of 2000 bytes", with(one, "\"a\"", "\"" + repeated("a", 2000) + "\""), 8);
  header("an unknown dtype", with(one, "F32", "F128"), 8);
  header("a dtype that is a number", with(one, "\"F32\"", "7"), 8);
  header("a negative size", with(one, "[2]", "[-2]"), 8);
  header("a size that is not whole", with(one, "[2]", "[2.5]"), 8);
  header("a size of 2^64", with(one, "[2]", "[18446744073709551616]"), 8);
  header("sizes that overflow 2^64", with(one, "[2]", "[281474976710656,281474976710656]"), 8);
  header("a shape that is text", with(one, "[2]", "\"2\""), 8);
  header("offsets backwards", with(one, "[0,8]", "[8,0]"), 8);
  header("a negative offset", with(one, "[0,8]", "[-8,0]"), 8);
  header("offsets beyond the file", with(one, "[0,8]", "[0,4096]"), 8);
  header("offsets that wrap around",
         with(one, "[0,8]", "[18446744073709551608,18446744073709551615]"), 8);
  header("offsets of another size", one, 9);
  header("three offsets", with(one, "[0,8]", "[0,4,8]"), 8);
  header("bytes that its shape does not need", with(one, "[2]", "[1]"), 8);
  header(
      "tensors that overlap",
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
      6);
  header(
      "a hole between tensors",
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
      6);
  header("half a byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1);
  header("metadata that is a list", R"({"__metadata__":[]})");
  header("metadata of numbers", R"({"__metadata__":{"format":1}})");
  header("a fourth member", with(one, "\"dtype\"", "\"x\":0,\"dtype\""), 8);

  const Weights w = whole_weights();
  header("the tensors of another model", one, 8);
  header("a missing tensor", with(w.header, "model.norm.weight", "model.norm.bias"), w.bytes);
  header("a tensor of another shape",
         with(w.header,
              "\"model.layers.0.self_attn.k_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2,4]",
              "\"model.layers.0.self_attn.k_proj.weight\":{\"dtype\":\"F32\",\"shape\":[4,2]"),
         w.bytes);
  header("a tensor of quantised weights",
         with(w.header, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4]",
              "\"model.norm.weight\":{\"dtype\":\"I8\",\"shape\":[16]"),
         w.bytes);
  header("a tensor that nothing asks for",
         with(w.header, "\"model.norm.weight\"",
              "\"model.layers.7.mlp.gate_proj.weight\":{\"dtype\":\"U8\",\"shape\":[0],"
              "\"data_offsets\":[0,0]},\"model.norm.weight\""),
         w.bytes);
  header("a layer number of 40 digits",
         with(w.header, "model.norm.weight",
              "model.layers." + repeated("9", 40) + ".input_layernorm.weight"),
         w.bytes);
  return cases;
}

Cases index_cases() {
  Cases cases;
  const Weights w = whole_weights();
  const std::string weights = safetensors(w.header, w.bytes);
  const auto index = [&](const std::string& name, const std::string& text, Files links = {}) {
    Case c{"index, " + name,
           kImport,
           {{"config.json", kConfig},
            {"model.safetensors.index.json", text},
            {"a.safetensors", weights}},
           std::move(links)};
    cases.push_back(std::move(c));
  };
  const auto file = [&](const std::string& name, const std::string& of_norm, Files links = {}) {
    std::string map;
    for (const auto& [tensor, shape] : kTensors)
      map += concat(map.empty() ? "" : ",", '"', tensor, "\":\"",
                    tensor == "model.norm.weight" ? of_norm : "a.safetensors", '"');
    index(name, "{\"weight_map\":{" + map + "}}", std::move(links));
  };
  index("an empty file", "");
  index("text that is cut", R"({"weight_map": {"a": "a.safe)");
  index("no map", R"({"metadata": {"total_size": 8}})");
  index("a map that is a list", R"({"weight_map": ["a.safetensors"]})");
  index("an empty map", R"({"weight_map": {}})");
  index("brackets 100000 deep", "{\"weight_map\":" + repeated("{\"a\":", 100'000));
  index("a name twice", R"({"weight_map": {"a": "a.safetensors", "a": "a.safetensors"}})");
  index("bytes that are not UTF-8", "{\"weight_map\": {\"\xc3\x28\": \"a.safetensors\"}}");
  index("a file that is a number", R"({"weight_map": {"model.norm.weight": 7}})");
  index("a tensor that the file has not",
        R"({"weight_map": {"model.norm.bias": "a.safetensors"}})");
  file("a path out of the folder", "../a.safetensors");
  file("an absolute path", "/etc/passwd.safetensors");
  file("a folder in its path", "b/a.safetensors");
  file("a path with a NUL", "a.safetensors\\u0000.safetensors");
  file("a backslash in its path", "..\\\\a.safetensors");
  file("a name of 300 bytes", repeated("a", 300) + ".safetensors");
  file("a missing file", "b.safetensors");
  file("a file of another kind", "config.json");
  file("the folder itself", "..safetensors");
  file("a link out of the folder", "link.safetensors", {{"link.safetensors", "/dev/zero"}});
  file("a link to itself", "link.safetensors", {{"link.safetensors", "link.safetensors"}});
  file("two links in a circle", "b.safetensors",
       {{"b.safetensors", "c.safetensors"}, {"c.safetensors", "b.safetensors"}});
  file("a link to nothing", "link.safetensors", {{"link.safetensors", "nothing"}});
  return cases;
}

Cases model_config_cases() {
  Cases cases;
  const Weights w = whole_weights();
  const std::string weights = safetensors(w.header, w.bytes);
  const auto text = [&](const std::string& name, const std::string& config) {
    cases.push_back({"config.json, " + name,
                     kImport,
                     {{"config.json", config}, {"model.safetensors", weights}}});
  };
  const auto field = [&](const std::string& name, const std::string& from, const std::string& by) {
    text(name, with(kConfig, from, by));
  };
  text("an empty file", "");
  text("a list", "[]");
  text("an object without members", "{}");
  text("a NUL at its end", kConfig + std::string(1, '\0'));
  text("bytes that are not UTF-8", with(kConfig, "llama", "\xf0\x28\x8c\x28"));
  text("brackets 100000 deep", with(kConfig, "null", repeated("[", 100'000)));
  text("objects 100000 deep", with(kConfig, "null", repeated("{\"a\":", 100'000)));
  text("a name twice", with(kConfig, "{\"model_type\"", "{\"vocab_size\": 8, \"model_type\""));
  field("NaN", "\"vocab_size\": 4", "\"vocab_size\": NaN");
  field("infinity", "\"vocab_size\": 4", "\"vocab_size\": 1e999");
  field("another family", "llama", "mamba");
  field("a family that is a number", "\"llama\"", "3");
  field("a family of control characters", "llama", "\\u001b[31mllama\\n");
  field("a missing size", "\"hidden_size\": 4,", "");
  field("a size that is text", "\"hidden_size\": 4", "\"hidden_size\": \"4\"");
  field("a size that is not whole", "\"hidden_size\": 4", "\"hidden_size\": 4.5");
  field("a size of zero", "\"hidden_size\": 4", "\"hidden_size\": 0");
  field("a negative size", "\"intermediate_size\": 4", "\"intermediate_size\": -4");
  field("a size of 2^64", "\"hidden_size\": 4", "\"hidden_size\": 18446744073709551616");
  field("a size of 2^63", "\"hidden_size\": 4", "\"hidden_size\": 9223372036854775808");
  field("sizes whose product overflows", "\"vocab_size\": 4, \"hidden_size\": 4",
        "\"vocab_size\": 4000000000000, \"hidden_size\": 4000000000000");
  field("a vocabulary larger than the tensors", "\"vocab_size\": 4", "\"vocab_size\": 5");
  field("10^12 layers", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 1000000000000");
  field("a million layers", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 1000000");
  field("one layer more than the tensors", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2");
  field("zero heads", "\"num_attention_heads\": 2", "\"num_attention_heads\": 0");
  field("zero key heads", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 0");
  field("heads that do not divide", "\"num_attention_heads\": 2", "\"num_attention_heads\": 3");
  field("more key heads than heads", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 4");
  field("heads of an odd size", "\"num_attention_heads\": 2", "\"num_attention_heads\": 4");
  field("unknown scaling", "null", R"({"rope_type": "dynamic", "factor": 4})");
  field("scaling that is a list", "null", "[1, 2]");
  field("scaling without a factor", "null", R"({"rope_type": "llama3"})");
  field("scaling by zero", "null",
        R"({"rope_type": "llama3", "factor": 0, "low_freq_factor": 1, "high_freq_factor": 4,
 "original_max_position_embeddings": 8})");
  field("scaling of frequencies the wrong way round", "null",
        R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1,
 "original_max_position_embeddings": 8})");
  field("another activation", "silu", "relu");
  field("quantised weights", "\"rope_scaling\"",
        "\"quantization_config\": {\"quant_method\": \"gptq\"}, \"rope_scaling\"");
  cases.push_back({"config.json, none", kImport, {{"model.safetensors", weights}}});
  cases.push_back({"config.json, a link out of the folder",
                   kImport,
                   {{"model.safetensors", weights}},
                   {{"config.json", "/etc/hostname"}}});
  cases.push_back({"config.json, a folder",
                   kImport,
                   {{"model.safetensors", weights}, {"config.json/a", kConfig}}});
  cases.push_back({"config.json, no weights", kImport, {{"config.json", kConfig}}});
  cases.push_back(
      {"config.json, a folder that is not there", {"import-hf", "$IN/none", "--out", "$OUT"}});
  return cases;
}

}  // namespace tessera::hostile

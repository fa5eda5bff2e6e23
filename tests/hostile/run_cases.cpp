// SPDX-License-Identifier: Apache-2.0
// What a run reads: its checkpoints, its data, its configuration.
#include "tessera/core/error.h"
#include "tessera/tests/hostile/cases.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/whole_checkpoint.h"

namespace tessera::hostile {
namespace {

const std::string kManifest = R"({
 "format": "tessera checkpoint", "version": 3, "step": 1, "optimizer": {"steps": 1},
 "lr_scheduler": {"step": 1}, "dataloader": {"rows": 2, "windows": 9}, "seed": 4, "config": {},
 "mesh": "", "files": {"a.safetensors": {"bytes": 100, "header_bytes": 84, "header_crc32c": "00000000"}},
 "tensors": {"model": {"w": {"dtype": "f32", "shape": [4], "chunks": [[0,[0],[2],"00000000"],[0,[2],[2],"00000000"]]}},
  "optimizer": {}, "train_state": {}})";

std::string npy(const std::string& dict, size_t bytes) {
  std::string header = dict + "\n";
  const auto length = static_cast<uint16_t>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) +
         std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
         std::string(bytes, '\0');
}

}  // namespace

Cases checkpoint_cases() {
  Cases cases;
  const Words words{"checkpoint", "inspect", "$IN"};
  const std::string data(100, 'x');
  const auto text = [&](const std::string& name, const std::string& manifest) {
    cases.push_back(
        {"manifest.json, " + name, words, {{"manifest.json", manifest}, {"a.safetensors", data}}});
  };
  const auto part = [&](const std::string& name, const std::string& from, const std::string& by) {
    text(name, test::sealed(with(kManifest, from, by)));
  };
  text("an empty file", "");
  text("no checksum", kManifest + "}");
  text("another checksum", kManifest + ",\n \"crc32c\": \"00000000\"\n}\n");
  text("text that is cut", test::sealed(kManifest).substr(0, 300));
  part("another format", "tessera checkpoint", "torch checkpoint");
  part("a future version", "\"version\": 3", "\"version\": 4");
  part("a version of 2^64", "\"version\": 3", "\"version\": 18446744073709551616");
  part("a negative step", "\"step\": 1, \"optimizer\"", "\"step\": -1, \"optimizer\"");
  part("brackets 100000 deep", "\"config\": {}", "\"config\": " + repeated("[", 100'000));
  part("a name twice", "\"seed\": 4", "\"seed\": 4, \"seed\": 5");
  part("a NUL in a name", "{\"w\"", "{\"w\\u0000\"");
  part("bytes that are not UTF-8", "{\"w\"", "{\"\xff\"");
  part("a file out of the folder", "\"a.safetensors\"", "\"../a.safetensors\"");
  part("an absolute file", "\"a.safetensors\"", "\"/etc/passwd\"");
  part("a missing file", "\"a.safetensors\"", "\"b.safetensors\"");
  part("a file of another size", "\"bytes\": 100", "\"bytes\": 101");
  part("a file of a negative size", "\"bytes\": 100", "\"bytes\": -100");
  part("an unknown dtype", "\"f32\"", "\"f33\"");
  part("a shape that overflows", "\"shape\": [4]", "\"shape\": [281474976710656, 281474976710656]");
  part("a negative size", "\"shape\": [4]", "\"shape\": [-4]");
  part("chunks that overlap", "[0,[2],[2]", "[0,[1],[2]");
  part("chunks that leave a gap", "[0,[2],[2]", "[0,[3],[1]");
  part("a chunk beyond its tensor", "[0,[2],[2]", "[0,[2],[3]");
  part("a chunk at 2^48", "[0,[2],[2]", "[0,[281474976710656],[2]");
  part("a chunk of two dims", "[0,[2],[2]", "[0,[2,0],[2,1]");
  part("a chunk in no file", "[0,[2],[2]", "[7,[2],[2]");
  part("a chunk of another checksum form", "[0,[0],[2],\"00000000\"]", "[0,[0],[2],\"0\"]");
  part("a tensor twice", "\"optimizer\": {}, \"train",
       R"("optimizer": {"w": {"dtype": "f32", "shape": [0], "chunks": []}}, "train)");
  part(
      "no tensor",
      R"({"w": {"dtype": "f32", "shape": [4], "chunks": [[0,[0],[2],"00000000"],[0,[2],[2],"00000000"]]}})",
      "{}");
  part("unknown members", "\"seed\": 4", "\"seed\": 4, \"sead\": 5");
  cases.push_back(
      {"manifest.json, a link to itself", words, {}, {{"manifest.json", "manifest.json"}}});
  cases.push_back({"manifest.json, none", words});
  return cases;
}

Cases data_cases() {
  Cases cases;
  const auto file = [&](const std::string& kind, const std::string& name, const std::string& path,
                        std::string bytes, Files links = {}) {
    Words words = train::joined(
        train::tiny_model(), {"--dataloader.path", "$IN/" + path, "--dump_folder", "$OUT",
                              "--threads", "1", "--training.steps", "1", "--sample.tokens", "0"});
    words.insert(words.begin(), "train");
    Files files{{path, std::move(bytes)}};
    if (!links.empty()) files.clear();
    cases.push_back({kind + ", " + name, words, std::move(files), std::move(links)});
  };
  const std::string whole = "{'descr': '<i4', 'fortran_order': False, 'shape': (400,), }";
  const auto array = [&](const std::string& name, const std::string& dict, size_t bytes = 1600) {
    file(".npy", name, "x.npy", npy(dict, bytes));
  };
  file(".npy", "an empty file", "x.npy", "");
  file(".npy", "another magic", "x.npy", "NUMPY" + std::string(100, '\0'));
  file(".npy", "a future version", "x.npy",
       std::string("\x93NUMPY\x09\x00\x10\x00", 10) + std::string(64, ' '));
  file(".npy", "a header beyond the file", "x.npy", std::string("\x93NUMPY\x01\x00\xff\xff{", 11));
  file(".npy", "a header of 2^32 bytes", "x.npy",
       std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{", 13));
  array("a pickled object", "{'descr': '|O', 'fortran_order': False, 'shape': (400,), }");
  array("code in its header", "{'descr': __import__('os').system('true'), 'shape': (400,), }");
  array("floating point", with(whole, "<i4", "<f4"));
  array("big-endian numbers", with(whole, "<i4", ">i4"));
  array("a shape that overflows", with(whole, "(400,)", "(4294967296, 4294967296)"));
  array("a shape of 2^64", with(whole, "(400,)", "(18446744073709551616,)"));
  array("a negative shape", with(whole, "(400,)", "(-400,)"));
  array("elements that are missing", whole, 100);
  array("elements too many", whole, 1604);
  array("no elements", with(whole, "(400,)", "(0,)"), 0);
  array("an id beyond the vocabulary", with(whole, "<i4", "<u4"), 1596);
  cases.back().files["x.npy"] += "\xff\xff\xff\xff";

  const auto shard = [&](const std::string& name, std::vector<int32_t> front, size_t bytes) {
    front.resize(256);
    file(".bin", name, "x.bin",
         std::string(reinterpret_cast<const char*>(front.data()), 1024) + std::string(bytes, '\1'));
  };
  file(".bin", "a cut header", "x.bin", std::string("\x88\xe0\x34\x01", 4));
  shard("another magic", {0x464c457f, 1, 400}, 800);
  shard("an evaluation", {20240522, 1, 400}, 800);
  shard("another version", {20240520, 7, 400}, 800);
  shard("a negative count", {20240520, 1, -400}, 800);
  shard("2^31 - 1 tokens", {20240520, 1, 2147483647}, 800);
  shard("tokens too many", {20240801, 7, 400}, 1604);
  shard("no tokens", {20240801, 7, 0}, 0);
  shard("an id beyond the vocabulary", {20240801, 7, 400}, 1600);

  // A prepared folder of one shard, with a change.
  const std::string index = R"({"format": "tessera data", "version": 1, "complete": true,
 "tokenizer": {"vocabulary": 258, "begin_id": 256, "end_id": 257, "files": {}}, "dtype": "uint16",
 "text_field": "text", "shard_tokens": 500,
 "sources": [{"name": "a.txt", "bytes": 398, "modified": 0, "crc32c": "00000000"}],
 "shards": [{"tokens": 400, "documents": 2, "tokens_crc32c": "00000000",
  "documents_crc32c": "00000000", "end_source": 0, "end_document": 2}]})";
  const std::string ids = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (400,), }", 0) +
                          std::string(800, '\0');
  const std::string starts = npy("{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }", 0) +
                             std::string("\0\0\0\0\x90\0\0\0", 8);
  const auto prepared = [&](const std::string& name, const std::string& from, const std::string& to,
                            const Files& changed = {}, Files links = {}) {
    file("prepared data", name, "set", "");
    Files files{{"set/data_index.json", from.empty() ? index : with(index, from, to)},
                {"set/tokens-00000.npy", ids},
                {"set/documents-00000.npy", starts}};
    for (const auto& [path, bytes] : changed) files[path] = bytes;
    for (const auto& [path, target] : links) files.erase(path);
    cases.back().files = std::move(files);
    cases.back().links = std::move(links);
  };
  prepared("not JSON", "{\"format\"", "[\"format\"");
  prepared("brackets 100000 deep", "", "", {{"set/data_index.json", repeated("[", 100'000)}});
  prepared("an empty index", "", "", {{"set/data_index.json", ""}});
  prepared("another format", "tessera data", "tessera checkpoint");
  prepared("a future version", "\"version\": 1", "\"version\": 2");
  prepared("unfinished", "\"complete\": true", "\"complete\": false");
  prepared("no shards", R"({"tokens": 400, "documents": 2, "tokens_crc32c": "00000000",
  "documents_crc32c": "00000000", "end_source": 0, "end_document": 2})",
           "");
  prepared("a path to a shard", "{\"tokens\": 400", R"({"file": "../../secret", "tokens": 400)");
  prepared("2^62 tokens", "\"tokens\": 400", "\"tokens\": 4611686018427387904");
  prepared("more tokens than there are", "\"tokens\": 400", "\"tokens\": 401");
  prepared("more documents than tokens", "\"documents\": 2", "\"documents\": 401");
  prepared("a source that is not listed", "\"end_source\": 0", "\"end_source\": 1");
  prepared("a vocabulary of 2^40", "\"vocabulary\": 258", "\"vocabulary\": 1099511627776");
  prepared("a mark beyond the vocabulary", "\"begin_id\": 256", "\"begin_id\": 258");
  prepared("another dtype", "uint16", "uint8");
  prepared("wider tokens than it says", "uint16", "uint32");
  prepared("another tokenizer", "\"files\": {}",
           R"("files": {"tokenizer.json": {"bytes": 9, "crc32c": "0000abcd"}})");
  prepared("a member twice", "\"version\": 1", "\"version\": 1, \"version\": 1");
  prepared("unknown members", "\"version\": 1", "\"version\": 1, \"code\": \"x\"");
  prepared("a shard that is a link", "", "", {}, {{"set/tokens-00000.npy", "/etc/passwd"}});
  prepared("a shard that is cut", "", "", {{"set/tokens-00000.npy", ids.substr(0, 300)}});
  prepared("documents that do not begin at 0", "", "",
           {{"set/documents-00000.npy",
             starts.substr(0, starts.size() - 8) + "\1" + std::string("\0\0\0\x90\0\0\0", 7)}});

  const auto lines = [&](const std::string& name, const std::string& bytes) {
    file(".jsonl", name, "x.jsonl", bytes);
  };
  const std::string good = "{\"text\": \"" + repeated("the quick brown fox ", 200) + "\"}\n";
  lines("an empty file", "");
  lines("a NUL in a line", good + std::string("{\"text\": \"a\0b\"}\n", 16));
  lines("bytes that are not UTF-8", good + "{\"text\": \"a\xff\"}\n");
  lines("a surrogate alone", good + "{\"text\": \"\\ud800\"}\n");
  lines("a line that is cut", good + "{\"text\": \"a");
  lines("a list", good + "[1, 2]\n");
  lines("another field", good + "{\"content\": \"a\"}\n");
  lines("a text that is a number", good + "{\"text\": 7}\n");
  lines("brackets 100000 deep", good + "{\"text\": " + repeated("[", 100'000) + "\n");
  lines("brackets 100000 deep that close",
        good + "{\"text\": " + repeated("[", 100'000) + repeated("]", 100'000) + "}\n");
  lines("a number of 10^999", good + "{\"text\": \"a\", \"n\": 1e999}\n");
  file(".jsonl", "not gzip", "x.jsonl.gz", good);
  file("text", "an empty file", "x.txt", "");
  file("text", "bytes that are not UTF-8", "x.txt", repeated("a good line\n", 100) + "\x80\n");
  file("text", "fewer tokens than a row", "x.txt", "ab");
  file("text", "a link to itself", "x.txt", "", {{"x.txt", "x.txt"}});
  file("text", "a link to a device", "x.txt", "", {{"x.txt", "/dev/full"}});
  return cases;
}

Cases config_cases() {
  Cases cases;
  const auto text = [&](const std::string& name, const std::string& json) {
    cases.push_back({"configuration, " + name,
                     {"train", "--config", "$IN/c.json", "--dump_folder", "$OUT"},
                     {{"c.json", json}}});
  };
  text("an empty file", "");
  text("brackets 100000 deep", "{\"training\": " + repeated("[", 100'000));
  text("objects 100000 deep that close",
       repeated("{\"a\": ", 100'000) + "1" + repeated("}", 100'000));
  text("bytes that are not UTF-8", "{\"dump_folder\": \"\xff\"}");
  text("a number of 2^64", R"({"training": {"steps": 18446744073709551616}})");
  text("NaN", R"({"optimizer": {"lr": NaN}})");
  text("a section that is a list", R"({"training": []})");
  return cases;
}

}  // namespace tessera::hostile

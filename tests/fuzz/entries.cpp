// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/fuzz/entries.h"

#include "tessera/autograd/autograd.h"
#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/train/chat/chat_encoder.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/config/config.h"
#include "tessera/train/data/data_index.h"
#include "tessera/train/exchange/weights.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace tessera::fuzz {
namespace {

using namespace train;

// A file in memory that has a path, since the readers under test open paths.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n <= 0) throw std::runtime_error("cannot write the input to memory");
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::string path() const { return concat("/proc/self/fd/", fd_); }

 private:
  int fd_;
};

// A folder of weights whose index is given anew each time: one of the process, since making one
// takes longer than reading it.
class IndexedFolder {
 public:
  static const IndexedFolder& get() {
    static const IndexedFolder folder;
    return folder;
  }
  ~IndexedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  IndexedFolder(const IndexedFolder&) = delete;
  IndexedFolder& operator=(const IndexedFolder&) = delete;

  [[nodiscard]] std::string with_index(std::string_view bytes) const {
    put(kHfIndex, bytes);
    return path_.string();
  }

 private:
  IndexedFolder()
      : path_(std::filesystem::temp_directory_path() / concat("tessera_fuzz.", ::getpid())) {
    std::filesystem::create_directories(path_);
    const std::string header =
        R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
    const uint64_t length = header.size();
    put("a.safetensors",
        concat(std::string_view(reinterpret_cast<const char*>(&length), sizeof length), header,
               "xy"));
  }
  void put(std::string_view name, std::string_view bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file << bytes;
    if (!file.flush()) throw std::runtime_error("cannot write the input");
  }

  std::filesystem::path path_;
};

void require(bool ok, const char* what) {
  if (!ok) throw std::logic_error(what);
}

// Runs what may refuse its input; whether it did not.
template <class F> bool accepts(F run) {
  try {
    run();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Made once: the sizes of all families take longer than an input.
const Catalogue& catalogue() {
  static const Catalogue all;
  return all;
}

void comes_back(Config config) {
  const std::string dump = config.fields().dump();
  Config again;
  require(accepts([&] { again = parse_run_config(dump, "dump", catalogue()); }),
          "a dump is refused");
  require(again.fields().dump() == dump, "a dump comes back as another");
}

bool manifest_input(const std::string& text) {
  return accepts([&] {
    const Manifest m = parse_manifest(text, "input");
    // Those of whole tensors are read and not written.
    require(m.whole_tensors || parse_manifest(manifest_text(m), "again") == m,
            "a manifest comes back as another");
    (void)config_differences(m.config, "{}");
    (void)tensor_differences(m.model, {});
    comes_back(parse_run_config(m.config, "its config", catalogue()));
  });
}

}  // namespace

bool config_input(std::string_view bytes) {
  const bool file = bytes.starts_with('{');
  const size_t nul = file ? std::min(bytes.rfind('\0'), bytes.size()) : 0;
  const std::string_view json = bytes.substr(0, nul);
  std::string_view lines = bytes.substr(std::min(bytes.size(), file ? nul + 1 : 0));
  bool accepted =
      file && accepts([&] { comes_back(parse_run_config(json, "input", catalogue())); });

  const MemoryFile held(json);
  std::vector<std::string> words;
  if (file) words = {"--config", held.path()};
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    std::string word(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
    // A name of another file would make the answer depend on the machine.
    if (!word.starts_with("--config")) words.push_back(std::move(word));
  }
  accepted = accepts([&] { comes_back(parse_config(words, catalogue())); }) || accepted;
  return accepted;
}

bool checkpoint_input(std::string_view bytes) {
  if (bytes.starts_with('{')) {
    constexpr std::string_view kTail = ",\n \"crc32c\": \"";
    const std::string_view body = bytes.substr(0, std::min(bytes.rfind(kTail), bytes.size()));
    char sum[9];
    std::snprintf(sum, sizeof sum, "%08x", io::crc32c(body));
    const bool as_is = manifest_input(std::string(bytes));
    return manifest_input(concat(body, kTail, sum, "\"\n}\n")) || as_is;
  }
  const Session session({.threads = 1});
  const MemoryFile held(bytes);
  return accepts([&] { (void)io::SafetensorsFile(held.path()).read_all(); });
}

bool tokenizer_input(std::string_view bytes) {
  const size_t nul = std::min(bytes.rfind('\0'), bytes.size());
  const std::string_view text = bytes.substr(std::min(nul + 1, bytes.size()));
  return accepts([&] {
    const auto tokenizer = make_tokenizer({{"tokenizer.json", std::string(bytes.substr(0, nul))}});
    std::vector<int32_t> ids, pieces;
    tokenizer->append(text, ids);
    for (std::string_view rest = text; !rest.empty();) {
      const size_t n = tokenizer->piece(rest, 5);
      require(n > 0 && n <= rest.size(), "a piece is empty or beyond the text");
      tokenizer->append(rest.substr(0, n), pieces);
      rest.remove_prefix(n);
    }
    require(pieces == ids, "pieces of a text have other ids");
    for (const int32_t id : ids)
      require(id >= 0 && id < tokenizer->vocabulary(), "an id is unknown");
    (void)tokenizer->text(std::vector<int64_t>(ids.begin(), ids.end()));
  });
}

bool hugging_face_input(std::string_view bytes) {
  const std::vector<models::Family>& families = catalogue().families;
  const auto dump = [](models::ModelConfig config) {
    config::Fields fields;
    fields.section("model", config);
    return fields.dump();
  };
  const size_t nul = std::min(bytes.rfind('\0'), bytes.size());
  const bool described = accepts([&] {
    const models::HfModel model =
        models::parse_hf_config(bytes.substr(0, nul), "config.json", families);
    const std::string written =
        models::hf_config(*model.names, model.config, model.dtype.value_or(DType::f32), {});
    models::HfModel again;
    require(accepts([&] { again = models::parse_hf_config(written, "written", families); }),
            "a config.json that was written is refused");
    require(dump(again.config) == dump(model.config), "a config.json comes back as another");
  });
  if (nul == bytes.size()) return described;
  return accepts([&] {
           const HfWeights weights(IndexedFolder::get().with_index(bytes.substr(nul + 1)));
           for (const auto& [name, stored] : weights.tensors())
             require(name == "a" || name == "b", "a tensor that no file has");
         }) ||
         described;
}

bool data_input(std::string_view bytes) {
  if (bytes.starts_with('{')) {
    return accepts([&] {
      const DataIndex index = parse_index(bytes, "input");
      require(parse_index(index_text(index), "again") == index, "an index comes back as another");
    });
  }
  if (bytes.starts_with('\x93')) {
    const MemoryFile held(bytes);
    return accepts([&] {
      const ArrayFile file(held.path());
      std::vector<int64_t> ids(static_cast<size_t>(file.size()));
      file.read(0, ids, int64_t{1} << 32);
      require(file.lower_bound(0) >= 0 && file.lower_bound(1000) <= file.size(),
              "an element beyond the end");
    });
  }
  return accepts([&] {
    const ArrayHeader header = parse_llmc_header(bytes, "input");
    require(header.shape.size() == 1 && header.shape[0] >= 0, "a shard has no size");
  });
}

bool chat_input(std::string_view bytes) {
  const size_t nul = bytes.rfind('\0');
  std::string_view lines = bytes.substr(nul == bytes.npos ? 0 : nul + 1);
  return accepts([&] {
    const ByteTokenizer tokenizer;
    const ChatEncoder chat(nul == bytes.npos ? find_chat_template("plain", "input")
                                             : parse_chat_template(bytes.substr(0, nul), "input"),
                           tokenizer, "input");
    while (!lines.empty()) {
      const size_t end = std::min(lines.find('\n'), lines.size());
      const std::string_view line = lines.substr(0, end);
      lines.remove_prefix(std::min(end + 1, lines.size()));
      const bool pair = line.find("\"messages\"") == line.npos;
      Conversation read =
          parse_example(line, pair ? LineForm::prompt_completion : LineForm::messages, "input")
              .conversation;
      const EncodedConversation made = chat.encode(read);
      require(made.answers.size() == made.ids.size(), "a token is neither answer nor not");
      for (Message& message : read) message.content.clear();
      const auto marks_of = [&](const EncodedConversation& of) {
        return std::ranges::count_if(of.ids, [&](int32_t id) { return tokenizer.is_mark(id); });
      };
      require(marks_of(made) == marks_of(chat.encode(read)), "a message writes a mark");
      (void)chat.prompt(read);
    }
  });
}

}  // namespace tessera::fuzz

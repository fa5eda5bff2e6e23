// SPDX-License-Identifier: Apache-2.0
// Speed of tokenising documents: bench_encode_text --tokenizer DIR --file FILE [--threads N]
// [--rounds N] [--json FILE]. The peer is the package `tokenizers` (peers/encode_text.py).
#include "tessera/bench/support.h"
#include "tessera/train/data/text_reader.h"
#include "tessera/train/tokenizer/tokenizer.h"

using namespace tessera;

int main(int argc, char** argv) {
  try {
    bench::Arguments arguments(argc, argv);
    const std::string path = arguments.text("--tokenizer"), file = arguments.text("--file");
    const int threads = arguments.number("--threads", 1), rounds = arguments.number("--rounds", 3);
    bench::Lines lines(arguments.text("--json"));
    arguments.finish();
    auto start = bench::Clock::now();
    const auto tokenizer = train::open_tokenizer(path, "--tokenizer");
    const double opened = bench::seconds_since(start);
    std::vector<std::string> documents;
    size_t bytes = 0;
    train::read_documents(file, "text", [&](std::string_view text) {
      documents.emplace_back(text);
      bytes += text.size();
    });
    const std::vector<std::string_view> texts(documents.begin(), documents.end());
    double best = 0;
    size_t tokens = 0;
    for (int i = 0; i < rounds; ++i) {
      start = bench::Clock::now();
      const auto ids = train::tokenize_all(*tokenizer, texts, threads);
      best = std::max(best, static_cast<double>(bytes) / bench::seconds_since(start));
      tokens = 0;
      for (const auto& of_document : ids) tokens += of_document.size();
    }
    fmt::print("{:.1f} MB/s on {} threads, {} tokens of {} bytes, opened in {:.0f} ms\n",
               best / 1e6, threads, tokens, bytes, opened * 1e3);
    lines.write({{"mb_per_second", best / 1e6}, {"threads", threads}, {"tokens", tokens}});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_encode_text: {}\n", error.what());
    return 1;
  }
}

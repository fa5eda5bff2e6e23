// SPDX-License-Identifier: Apache-2.0
// Fine-tuning sets and chat templates.
#include "tessera/tests/hostile/cases.h"
#include "tessera/tests/support/tiny_run.h"

namespace tessera::hostile {
namespace {

const std::string kPair = R"({"prompt": "a", "completion": "b"})";
const std::string kMessage = R"({"messages": [{"role": "user", "content": "a"}]})";
const std::string kTemplate = R"({"begin": [{"mark": "<begin>"}], "roles": {
  "user": {"prefix": ["U:"]}, "assistant": {"prefix": ["A:"], "suffix": [{"mark": "<end>"}]}}})";

}  // namespace

Cases chat_cases() {
  Cases cases;
  const auto add = [&](const std::string& name, const std::string& format, Files files,
                       const Words& more = {}) {
    const Words words = train::joined(
        train::joined({"train"}, train::tiny_model()),
        {"--dataloader.path", files.contains("x.jsonl") ? "$IN/x.jsonl" : "$IN/x.jsonl.gz",
         "--dataloader.format", format, "--dump_folder", "$OUT", "--threads", "1",
         "--training.steps", "1", "--training.seq_len", "16", "--sample.tokens", "0"});
    cases.push_back({name, train::joined(words, more), std::move(files)});
  };
  const auto pair = [&](const std::string& name, const std::string& line) {
    add("pairs, " + name, "prompt_completion", {{"x.jsonl", kPair + '\n' + line + '\n'}});
  };
  const auto message = [&](const std::string& name, const std::string& line) {
    add("messages, " + name, "messages", {{"x.jsonl", line + '\n'}});
  };
  const auto chat = [&](const std::string& name, const std::string& json) {
    add("template, " + name, "prompt_completion", {{"x.jsonl", kPair}, {"t.json", json}},
        {"--dataloader.chat_template", "$IN/t.json"});
  };
  add("pairs, an empty file", "prompt_completion", {{"x.jsonl", ""}});
  add("pairs, not gzip", "prompt_completion", {{"x.jsonl.gz", kPair}});
  pair("a NUL", with(kPair, "\"a\"", std::string("\"\0\"", 3)));
  pair("bytes that are not UTF-8", with(kPair, "\"a\"", "\"\xc0\xaf\""));
  pair("a surrogate alone", with(kPair, "\"a\"", "\"\\udc00\""));
  pair("a line that is cut", kPair.substr(0, 25));
  pair("two values in a line", kPair + kPair);
  pair("a name twice", with(kPair, "{", "{\"prompt\": \"x\", "));
  pair("brackets 100000 deep", with(kPair, "\"a\"", repeated("[", 100'000)));
  pair("brackets that close",
       with(kPair, "{", "{\"x\": " + repeated("[", 99) + repeated("]", 99) + ", "));
  pair("a number of 10^999", with(kPair, "{", "{\"x\": 1e999, "));
  pair("a completion that is null", with(kPair, "\"b\"", "null"));
  pair("lines of the other form", kMessage);
  message("none", "{\"messages\": []}");
  message("a text", "{\"messages\": \"a\"}");
  message("65537 of them", "{\"messages\": [" + repeated("{},", 65536) + "{}]}");
  message("a role of the system's own", with(kMessage, "user", "root\\u001b[31m"));
  message("a role that is a list", with(kMessage, "\"user\"", "[\"user\"]"));
  message("content in parts", with(kMessage, "\"a\"", R"([{"type": "text", "text": "a"}])"));
  message("calls of tools", with(kMessage, "\"role\"", "\"tool_calls\": [{}], \"role\""));
  message("no answer", kMessage);
  message("a role without a form", with(kMessage, "user", "tool"));
  chat("an empty file", "");
  chat("code", "{{ messages.__class__.__mro__ }}");
  chat("64 KiB and more", kTemplate + repeated(" ", 1 << 16));
  chat("brackets 10000 deep", with(kTemplate, "\"U:\"", repeated("[", 10'000)));
  chat("bytes that are not UTF-8", with(kTemplate, "U:", "\xff"));
  chat("an unknown member", with(kTemplate, "\"begin\"", "\"jinja\": \"{{ x }}\", \"begin\""));
  chat("an unknown role", with(kTemplate, "\"user\"", "\"root\""));
  chat("no form of the assistant", with(kTemplate, "\"assistant\"", "\"tool\""));
  chat("a text that is no list", with(kTemplate, "[\"U:\"]", "\"U:\""));
  chat("a mark that is a number", with(kTemplate, "\"<begin>\"", "256"));
  chat("a mark that the tokenizer has not", with(kTemplate, "<begin>", "<|im_start|>"));
  chat("a prompt that no answer follows",
       with(kTemplate, "\"begin\"", "\"generation_prompt\": [\"B\"], \"begin\""));
  return cases;
}

}  // namespace tessera::hostile

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Without tokenizer.json, what the other files of a tokenizer say is read or refused; it is not GPT-2's whatever they say.
source "$(dirname "$0")/common.sh" "$@"
tokenizer
text='<|im_start|>2024<|im_end|>'
ids() { "$T" tokenize --tokenizer "$1" --text "$text" --ids; }
equal "Qwen's ids" "$(ids tok)" "256 50 48 50 52 257"
rm tok/tokenizer_config.json
echo '{"tokenizer_class":"RobertaTokenizer"}' >tok/tokenizer_config.json
refuses "tokenizer_class: is 'RobertaTokenizer'" "$T" tokenize --tokenizer tok --text x
echo '{"tokenizer_class":"GPT2Tokenizer","normalise":true}' >tok/tokenizer_config.json
refuses "tokenizer_config.json.normalise: is not known" "$T" tokenize --tokenizer tok --text x
echo '{"tokenizer_class":"GPT2Tokenizer","eos_token":"<|im_end|>"}' >tok/tokenizer_config.json
equal "ids of added_tokens.json" "$(ids tok)" "256 50 48 50 52 257"
echo '{"<|im_start|>": 300}' >tok/added_tokens.json
refuses "has the id 300 here, but 256 is the next one that is free" "$T" tokenize --tokenizer tok --text x
rm tok/tokenizer_config.json
echo '{"model_type":"qwen3"}' >tok/config.json
refuses "nothing says how text is split" "$T" tokenize --tokenizer tok --text x
# The class and tokenizer.json say different things.
mkdir both
cp tok.json both/tokenizer.json
echo '{"tokenizer_class":"Qwen2Tokenizer"}' >both/tokenizer_config.json
refuses "tokenizer_class: is Qwen2Tokenizer, which prepares text by" "$T" tokenize --tokenizer both --text x
echo '{"bos_token":"<|im_start|>","added_tokens_decoder":{"255":{"content":"<|im_start|>"}}}' >both/tokenizer_config.json
refuses "has the id 255 here, but 256 in the vocabulary" "$T" tokenize --tokenizer both --text x
# A mark that tokenizer.json lacks gets the next free id, as in transformers: torchtitan's debug tokenizer says 128000.
echo '{"eos_token":"<|new|>","added_tokens_decoder":{"128000":{"content":"<|new|>","special":true}}}' >both/tokenizer_config.json
equal "the id of a new mark" "$("$T" tokenize --tokenizer both --text '<|new|>' --ids)" 258

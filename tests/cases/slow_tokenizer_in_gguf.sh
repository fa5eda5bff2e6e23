#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A tokenizer without tokenizer.json goes to llama.cpp as its other files say, not as GPT-2's without its special tokens.
source "$(dirname "$0")/common.sh" "$@"
tokenizer
model m
cp tok/vocab.json tok/merges.txt tok/tokenizer_config.json m
run 0 "$T" import-hf m --out m.imp
run 0 "$T" export-gguf --checkpoint m.imp --out m.gguf --type f32
has() { grep -qaF -e "$1" m.gguf || fail "no '$1' in m.gguf"; }
has qwen2
has '<|im_start|>'
has '<|im_end|>'
! grep -qaF gpt-2 m.gguf || fail "GPT-2's way to split text is in m.gguf"
# The same tokenizer as one file.
"$T" tokenize --tokenizer m --text '<|im_start|>2024<|im_end|>' --ids >ids
equal "ids" "$(cat ids)" "256 50 48 50 52 257"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The name of a special token within a template's text would become characters.
source "$(dirname "$0")/common.sh" "$@"
tokenizer
echo '{"roles":{"user":{"prefix":["<|im_start|>user\n"],"suffix":["<|im_end|>\n"]},"assistant":{"prefix":["<|im_start|>assistant\n"],"suffix":[{"mark":"<|im_end|>"}]}}}' >tmpl.json
echo '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}' >m.jsonl
chat="--hf_assets_path tok.json --dataloader.path m.jsonl --dataloader.format messages --dump_folder o"
run 2 "$T" train $small_llama $chat --dataloader.chat_template tmpl.json $one_step
grep -qF 'write {"mark": "<|im_start|>"}' output || fail "no advice to write a mark"
prints "25 tokens" "$T" train $small_llama $chat --dataloader.chat_template chatml $one_step

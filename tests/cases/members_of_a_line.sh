#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a line of a fine-tuning set says beside its messages is refused if it changes what others train on, else counted.
source "$(dirname "$0")/common.sh" "$@"
tokenizer
messages='"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]'
train() {
  "$T" train $small_llama --hf_assets_path tok.json --dataloader.path m.jsonl --dataloader.format messages \
    --dataloader.chat_template chatml $one_step --dump_folder o --overwrite
}
echo "{$messages}" >m.jsonl
prints "1 document, 25 tokens" train
echo "{$messages,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}" >m.jsonl
refuses "line 1: has 'tools', which the chat template chatml does not write" train
echo "{$messages,\"tools\":[],\"id\":7}" >m.jsonl
prints "members of lines passed over: id (1)" train

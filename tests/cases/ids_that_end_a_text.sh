#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The ids that end a text: what config.json and generation_config.json say counts beside the
# tokenizer's end, and goes out as it came in.
source "$(dirname "$0")/common.sh" "$@"
model all
tokenizer
cp tok.json all/tokenizer.json
echo "{\"eos_token_id\": [$(seq -s, 0 298), 299]}" >all/generation_config.json
run 0 "$T" import-hf all --out all.imp
run 0 "$T" generate --checkpoint all.imp --prompt hi --tokens 5 --temperature 0
equal "text after an id that ends it" "$(cat output)" hi
model list "eos_token_id=[$(seq -s, 0 298), 299]"
cp tok.json list/tokenizer.json
run 0 "$T" import-hf list --out list.imp
run 0 "$T" generate --checkpoint list.imp --prompt hi --tokens 5 --temperature 0
equal "text after an id of config.json's list" "$(cat output)" hi

ids() { tr -d ' \n' <"$1" | grep -oE '"(bos|eos|pad)_token_id":(\[[^]]*\]|[^,}]*)' | sort | tr '\n' ' '; }
model said bos_token_id=3 'eos_token_id=[7, 9]' pad_token_id=11
with_tokenizer said
echo '{"temperature": 0.6, "eos_token_id": [9, 7, 8]}' >said/generation_config.json
run 0 "$T" import-hf said --out said.imp
run 0 "$T" export-hf --checkpoint said.imp --out said.exp
equal "ids of config.json" "$(ids said.exp/config.json)" '"bos_token_id":3 "eos_token_id":[7,9] "pad_token_id":11 '
equal "ids of generation_config.json" "$(ids said.exp/generation_config.json)" '"eos_token_id":[9,7,8] '
grep -q '"temperature": 0.6' said.exp/generation_config.json || fail "another value of generation_config.json is lost"

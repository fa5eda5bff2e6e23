#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A base model that was trained on conversations: the mark that ends an answer ends a text too, in
# what is exported.
source "$(dirname "$0")/common.sh" "$@"
model s
tokenizer
added='{"id":258,"content":"<|end_of_text|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}'
sed "s/\"added_tokens\":\[/&$added,/" tok.json >s/tokenizer.json
echo '{"eos_token":"<|end_of_text|>"}' >s/tokenizer_config.json
echo '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}' >m.jsonl
run 0 "$T" train --model.initial_hf s --dataloader.path m.jsonl --dataloader.format messages --dataloader.chat_template chatml \
  $one_step --checkpoint.enable --checkpoint.last_save_in_hf --dump_folder s.run
run 0 "$T" export-hf --checkpoint s.run --out s.exp
for file in s.exp/config.json s.exp/generation_config.json s.run/checkpoint/step-1/hugging_face/generation_config.json; do
  equal "eos_token_id of $file" "$(tr -d ' \n' <$file | grep -oE '"eos_token_id":(\[[^]]*\]|[^,}]*)')" '"eos_token_id":[258,257]'
done

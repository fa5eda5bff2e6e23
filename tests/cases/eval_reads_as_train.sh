#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What train reads, eval reads too: with the run's fields of dataloader, and with others. The chat template of a run need not be
# repeated for eval and generate.
source "$(dirname "$0")/common.sh" "$@"
model r
with_tokenizer r
run 0 "$T" import-hf r --out r.imp
echo '{"messages":[{"role":"user","content":"which?"},{"role":"assistant","content":"red"}]}' >chat.jsonl
echo '{"body":"hello world hello world"}' >body.jsonl
chat="--dataloader.format messages --dataloader.chat_template chatml"
run_of="$one_step --model.initial_hf r --checkpoint.enable"
targets() { # targets <number> <command>...: of an evaluation in one row
  prints "tokens: $1 " "$T" eval --seq_len 64 --local_batch_size 1 "${@:2}"
}

# Three letters and the end of the answer; in plain form the same.
run 0 "$T" train $run_of --dataloader.path chat.jsonl $chat --dump_folder o
targets 4 --checkpoint o --dataset_path chat.jsonl
targets 4 --checkpoint r.imp --dataset_path chat.jsonl $chat
# Text with its end, one token after another, for a run that read conversations; and by another field.
targets 24 --checkpoint o --dataset_path body.jsonl --dataloader.format text --dataloader.text_field body
targets 23 --checkpoint o --dataset_path body.jsonl --dataloader.format text --dataloader.text_field body --dataloader.document_tokens begin
run 2 "$T" eval --checkpoint o --dataset_path body.jsonl --dataloader.formatt text
grep -qF "[--dataloader.formatt] unknown field; did you mean --dataloader.format?" output || fail "another error"
refuses "body" "$T" eval --checkpoint o --dataset_path body.jsonl

generated() { "$T" generate --checkpoint o --prompt which? --tokens 1 --temperature 0 "$@" | wc -l; }
equal "lines of an answer" "$(generated)" 2
equal "lines of an answer with the template" "$(generated --chat_template chatml)" 2
equal "lines of a text that goes on" "$(generated --chat_template none)" 1

# A folder of Hugging Face is no run.
for command in eval generate; do
  refuses "r is a folder of Hugging Face, expected one of a run: convert it with \`tessera import-hf r --out DIR\`" "$T" $command --checkpoint r
  equal "lines of the error" "$(wc -l <output)" 1
done


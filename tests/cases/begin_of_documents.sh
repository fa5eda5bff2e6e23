#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A tokenizer that has a token for the begin of texts and says that texts do not begin with it; and the field that says which
# special tokens a document gets.
source "$(dirname "$0")/common.sh" "$@"
tokenizer
mkdir k
cp tok.json k/tokenizer.json
echo '{"bos_token":"<|im_start|>","eos_token":"<|im_end|>","add_bos_token":false}' >k/tokenizer_config.json
printf ab >ab.txt
ids() { # ids <prepared folder>: of its one shard, 16 bits each
  tail -c +129 "$1"/tokens-00000.npy | od -An -v -tu2 | tr -s " \n" " " | sed "s/^ //; s/ $//"  # after the header
}
run 0 "$T" data prepare --tokenizer k --out k.out ab.txt
equal "ids without a begin" "$(ids k.out)" "97 98 257"
sed -i 's/,"add_bos_token":false//' k/tokenizer_config.json
run 0 "$T" data prepare --tokenizer k --out b.out ab.txt
equal "ids with a begin" "$(ids b.out)" "256 97 98 257"

# The field: the same ids in prepared data and in text that train and eval read.
begin='<|im_start|> (256)' end='<|im_end|> (257)'
printf cd >cd.txt
declare -A wanted=([auto]="256 97 98 257 256 99 100 257" [begin]="256 97 98 256 99 100" [end]="97 98 257 99 100 257"
  [none]="97 98 99 100")
declare -A words=([auto]="documents begin with $begin and end with $end" [begin]="documents begin with $begin" [end]="documents end with $end"
  [none]="documents have no token at their begin and none at their end")
train() { # train <data> <field>...
  "$T" train $small_llama --hf_assets_path k --dataloader.path "$@" --training.steps 1 --training.seq_len 2 \
    --training.local_batch_size 1 --sample.tokens 0 --overwrite --dump_folder o
}
for choice in auto begin end none; do
  prints "data: ${words[$choice]}" "$T" data prepare --tokenizer k --document_tokens $choice --out $choice ab.txt cd.txt
  equal "ids of $choice" "$(ids $choice)" "${wanted[$choice]}"
  mkdir -p both_files && cp ab.txt cd.txt both_files
  prints ", ${words[$choice]}" train both_files --dataloader.document_tokens $choice --validation.enable \
    --validation.dataset_path both_files
  grep -qF "validation: both_files, ${words[$choice]}" output || fail "validation does not say its document tokens"
  text=$(sed -n 's/.* loss: *\([0-9.]*\).*/\1/p' output | head -1)
  prints "2 documents, $(wc -w <<<"${wanted[$choice]}") tokens" train $choice --dataloader.document_tokens $choice
  grep -qF ", ${words[$choice]}" output || fail "prepared data does not say its document tokens"
  equal "loss on prepared data" "$(sed -n 's/.* loss: *\([0-9.]*\).*/\1/p' output | head -1)" "$text"
  [ -n "$text" ] || fail "no loss"
done
prints "${words[none]}" train none
refuses "of none ${words[none]}, as they were prepared, but document_tokens is both" train none --dataloader.document_tokens both
prints "data: t.txt, ${words[none]}" "$T" eval --checkpoint o --dataset_path t.txt --seq_len 8 --dataloader.document_tokens none
prints "data: t.txt, ${words[auto]}" "$T" eval --checkpoint o --dataset_path t.txt --seq_len 8
# The field has the last word where the tokenizer says that texts do not begin with its token.
echo '{"bos_token":"<|im_start|>","eos_token":"<|im_end|>","add_bos_token":false,"add_eos_token":false}' >k/tokenizer_config.json
prints "data: documents end with $end" "$T" data prepare --tokenizer k --out as_said ab.txt
prints "data: documents begin with $begin and end with $end" "$T" data prepare --tokenizer k --document_tokens both --out asked ab.txt
equal "ids of both" "$(ids asked)" "256 97 98 257"
# What the tokenizer does not have is refused before any work; so is the field for what a chat template writes.
echo '{"eos_token":"<|im_end|>"}' >k/tokenizer_config.json
rm -r o
for choice in both begin; do
  run 2 train ab.txt --dataloader.document_tokens $choice
  grep -qF "[--dataloader.document_tokens] $choice is given, but the tokenizer has no token to begin" output || fail "another error"
  run 2 "$T" data prepare --tokenizer k --document_tokens $choice --out no ab.txt
  grep -qF "[--document_tokens] $choice is given, but the tokenizer has no token to begin" output || fail "another error"
done
[ ! -e no ] && [ ! -e no.partial ] || fail "work was begun"
echo '{"prompt":"a","completion":"b"}' >pairs.jsonl
run 2 train pairs.jsonl --dataloader.format prompt_completion --dataloader.document_tokens end
grep -qF "the template of --dataloader.format prompt_completion says which special tokens an example gets" output ||
  fail "another error"

# One word for the byte tokenizer in all commands.
run 0 "$T" data prepare --tokenizer bytes --out bytes.out ab.txt
equal "bytes" "$(ids bytes.out)" "256 97 98 257"
prints "documents begin with <begin> (256) and end with <end> (257)" "$T" train $small_llama --hf_assets_path bytes \
  --dataloader.path bytes.out ${one_step/seq_len 64/seq_len 2} --dump_folder o2

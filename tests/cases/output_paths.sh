#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a command writes may be named with and without a folder, which may be new, and with a slash at its end.
source "$(dirname "$0")/common.sh" "$@"
model a
with_tokenizer a
for to in "" new/ "$work/whole/"; do
  run 0 "$T" import-hf a --out "${to}imported/"
  run 0 "$T" train $small_llama --dataloader.path t.txt $one_step --checkpoint.enable --dump_folder "${to}run/"
  run 0 "$T" export-hf --checkpoint "${to}imported" --out "${to}exported"
  run 0 "$T" export-gguf --checkpoint "${to}imported" --out "${to}m.gguf"
  run 0 "$T" data prepare --out "${to}prepared" t.txt
  run 0 "$T" tokenizer train --vocab_size 260 --out "${to}bpe" t.txt
  run 0 "$T" checkpoint merge "${to}run" --output "${to}files/m.safetensors"
  run 0 "$T" checkpoint merge "${to}run" --output "${to}m.safetensors"
  run 0 "$T" plot "${to}run" --svg "${to}plots/loss.svg"
  run 0 "$T" plot "${to}run" --svg "${to}loss.svg"
  for made in imported/config.json run/config.json exported/model.safetensors m.gguf prepared/data_index.json bpe/tokenizer.json \
    files/m.safetensors m.safetensors plots/loss.svg loss.svg; do
    [ -s "$to$made" ] || fail "no $to$made"
  done
done
run 2 "$T" tokenizer train --vocab_size 260 --out bpe t.txt
grep -qF -e "[--out] bpe/tokenizer.json exists already: give another folder, or --overwrite" output || fail "another error"
run 0 "$T" tokenizer train --vocab_size 260 --overwrite t.txt --out bpe
refuses "[--svg] cannot make the folder t.txt of t.txt/loss.svg: " "$T" plot run --svg t.txt/loss.svg

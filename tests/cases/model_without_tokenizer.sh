#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A model of Hugging Face without a tokenizer that can be used must not be trained, evaluated or asked on bytes that nobody asked for.
source "$(dirname "$0")/common.sh" "$@"
model a
model none
printf x >a/tokenizer.model
echo '{' >broken.json
for folder in a none; do
  refuses "t.txt is text, but the model has no tokenizer" "$T" train --model.initial_hf $folder --dump_folder o --dataloader.path t.txt $one_step
  run 0 "$T" import-hf $folder --out $folder.imp
  refuses "t.txt is text, but the model has no tokenizer" "$T" eval --checkpoint $folder.imp $evaluation
  refuses "a prompt is text, but the model has no tokenizer" "$T" generate --checkpoint $folder.imp --prompt hi --tokens 1
  refuses "t.txt is text, but" "$T" train --config $folder.imp/config.json --dump_folder o --dataloader.path t.txt $one_step
  refuses "knows other tokens than bytes" "$T" train --config $folder.imp/config.json --hf_assets_path= --dump_folder o \
    --dataloader.path t.txt $one_step
done
refuses "it has tokenizer.model" "$T" eval --checkpoint a.imp $evaluation
model b
cp broken.json b/tokenizer.json
refuses "tokenizer.json: not JSON" "$T" train --model.initial_hf b --dump_folder o --dataloader.path t.txt $one_step

# Those who ask for bytes get them, here and in what comes of it.
prints "2,402 tokens" "$T" train --model.initial_hf a --hf_assets_path bytes --dump_folder asked --dataloader.path t.txt $one_step --checkpoint.enable
run 0 "$T" eval --checkpoint asked $evaluation
run 0 "$T" generate --checkpoint asked --prompt hi --tokens 1
run 0 "$T" eval --checkpoint a.imp $evaluation --hf_assets_path bytes
run 0 "$T" generate --checkpoint a.imp --hf_assets_path bytes --prompt hi --tokens 1
run 0 "$T" data prepare --tokenizer bytes --out byte.data t.txt
run 0 "$T" train --model.initial_hf a --hf_assets_path bytes --dump_folder prepared --dataloader.path byte.data $one_step

# Token ids need no tokenizer, and nothing is sampled as text.
{ printf '\223NUMPY\1\0v\0' && printf "%-117s\n" "{'descr': '<u2', 'fortran_order': False, 'shape': (400,), }" && head -c 800 /dev/zero; } >ids.npy
samples="--training.steps 1 --training.seq_len 64 --training.local_batch_size 1 --sample.tokens 4"
prints "no samples: the model has no tokenizer" "$T" train --model.initial_hf a --dump_folder ids --dataloader.path ids.npy $samples --checkpoint.enable
run 0 "$T" eval --checkpoint ids --dataset_path ids.npy
refuses "t.txt is text, but" "$T" eval --checkpoint ids $evaluation
refuses "was prepared with bytes as tokens, but the model has no tokenizer" \
  "$T" train --model.initial_hf a --dump_folder o --dataloader.path byte.data $one_step
prints "no samples: the data is token ids" "$T" train ${small_llama/300/100} --dump_folder small --dataloader.path ids.npy $samples
# A model of its own still has bytes without asking.
run 0 "$T" train $small_llama --dump_folder own --dataloader.path t.txt $one_step

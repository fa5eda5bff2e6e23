#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Routers with a bias, for which transformers has no place: training warns, and an export leaves the bias out on request, with the
# loss before and after. The loss with it is that of the run, the loss without it that of the folder read again.
source "$(dirname "$0")/common.sh" "$@"
warning="for which transformers' qwen3_moe has no place: \`tessera export-hf\` needs --drop expert_bias"
experts="--model.name qwen3 --model.flavor debugmodel_moe_small --model.dim 32 --model.n_layers 2 --model.n_heads 2 --model.n_kv_heads 2"
experts+=" --model.head_dim 16 --model.ffn_dim 32 --model.num_experts 8 --model.top_k 1 --model.moe_inter_dim 24 --model.vocab_size 259"
run_of="--dataloader.path t.txt $one_step --training.mixed_precision_param float32 --checkpoint.enable"
loss_of() { # loss_of <run>: leaves it in $loss
  run 0 "$T" eval --checkpoint "$1" ${evaluation/seq_len 128/seq_len 64} --hf_assets_path bytes
  loss=$(sed -n 's/^loss: \([0-9.]*\) .*/\1/p' output)
}

prints_not "$warning" "$T" train $experts $run_of --model.load_balance_coeff 0 --dump_folder plain
run 0 "$T" export-hf --checkpoint plain --out plain.exp
run 2 "$T" export-hf --checkpoint plain --out none --drop expert_bias
grep -qF "[--drop] expert_bias: all of this model has a place" output || fail "another error"
prints_not "$warning" "$T" train $small_llama $run_of --dump_folder llama

prints "$warning" "$T" train $experts ${run_of/steps 1/steps 4} --model.load_balance_coeff 1 --dump_folder o
for fields in "" "--drop bias"; do
  run 2 "$T" export-hf --checkpoint o --out none $fields
  grep -qF "(layers.0.moe.expert_bias; layers.1.moe.expert_bias): --drop expert_bias leaves it out" output || fail "another error"
done
run 2 "$T" export-hf --checkpoint o --out none --dataset_path t.txt
grep -qF "[--dataset_path] t.txt is given, but it shows what --drop changes" output || fail "another error"
[ ! -e none ] || fail "an export that failed left its folder"

prints "nothing was measured: --dataset_path FILE prints" "$T" export-hf --checkpoint o --out quiet --drop expert_bias
grep -qF "left out: layers.0.moe.expert_bias; layers.1.moe.expert_bias" output || fail "what is left out is not named"
prints "wrote o.exp" "$T" export-hf --checkpoint o --out o.exp --drop expert_bias --dataset_path t.txt
! grep -qF "nothing was measured" output || fail "the losses were measured"
line=$(grep "^loss: " output)
cmp quiet/model.safetensors o.exp/model.safetensors || fail "measuring changed the weights"
loss_of o
with=$loss
run 0 "$T" import-hf o.exp --out o.imp --dtype float32
loss_of o.imp
[ "$with" != "$loss" ] || fail "the bias changes nothing"
[[ "$line" == "loss: $with with expert_bias, $loss without  tokens: "*"data: t.txt" ]] || fail "'$line' for $with and $loss"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The end of a row that no example fills holds no tokens, so it changes neither what routers learn nor what they count.
source "$(dirname "$0")/common.sh" "$@"
echo '{"prompt": "What is the capital of France?", "completion": " Paris."}' >one.jsonl
experts="--model.name qwen3 --model.flavor debugmodel_moe_small --model.dim 48 --model.n_layers 2 --model.n_heads 4 --model.n_kv_heads 2"
experts+=" --model.head_dim 12 --model.ffn_dim 96 --model.num_experts 8 --model.top_k 2 --model.moe_inter_dim 24 --model.vocab_size 259"
experts+=" --model.max_seq_len 512 --model.balance_loss_coeff 0.5 --training.mixed_precision_param float32"

value() { sed "s|.*\"$2\": *\([-0-9.e+]*\).*|\1|" "$1/metrics.jsonl"; } # value <folder> <name>
# step <folder> <sequence length> <options>...: a step of training.
step() {
  local out=$1 length=$2
  shift 2
  run 0 "$T" train $experts --dataloader.path one.jsonl --dataloader.format prompt_completion --training.local_batch_size 1 \
    --training.steps 1 --training.seq_len "$length" --sample.tokens 0 --dump_folder "$out" "$@"
}
# alike <folder> <folder>: but for rounding.
alike() {
  for name in loss grad_norm moe/load_max_over_mean; do
    awk -v a="$(value "$1" "$name")" -v b="$(value "$2" "$name")" \
      'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (1e-5 * b) ^ 2) }' ||
      fail "$name: $(value "$1" "$name") of $1, $(value "$2" "$name") of $2"
  done
}

step full 38
equal loss "$(printf %.5f "$(value full loss)")" 5.62299
step 40 40
alike 40 full
step 400 400
alike 400 full
# A capacity, and buffers of experts that have room for every token.
step full_limited 38 --model.capacity_factor 1 --model.z_loss_coeff 0.1
step limited 100 --model.capacity_factor 1 --model.z_loss_coeff 0.1
alike limited full_limited
step meshed 200 --ranks 4 --parallelism.context_parallel_degree 2 --parallelism.tensor_parallel_degree 2
alike meshed full
step exchanged 200 --ranks 2 --parallelism.expert_parallel_degree 2 --activation_checkpoint.mode full
alike exchanged full
step padded 200 --ranks 2 --parallelism.expert_parallel_degree 2 --parallelism.expert_parallel_padding 4
alike padded full

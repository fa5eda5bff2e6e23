#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A folder that describes RoPE in two fields: they agree, or the error names both. The losses are
# those of PyTorch.
source "$(dirname "$0")/common.sh" "$@"
scaling='{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":16}'
model both 'rope_parameters={"rope_theta":10000.0,"rope_type":"default"}' "rope_scaling=$scaling"
with_tokenizer both
refuses 'rope_parameters is {"rope_theta":10000.0,"rope_type":"default"}, but rope_scaling is {"rope_type":"llama3","factor":8.0' \
  "$T" import-hf both --out both.imp
[ ! -e both.imp ] || fail "a folder was left"
refuses "rope_parameters is" "$T" train --model.initial_hf both --dataloader.path t.txt $one_step --dump_folder both.run
model scaled "rope_scaling=$scaling"
with_tokenizer scaled
run 0 "$T" import-hf scaled --out scaled.imp
prints "loss: 9.85749" "$T" eval --checkpoint scaled.imp $evaluation

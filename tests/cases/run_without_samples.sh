#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run whose tokenizer has no mark to begin with, and that has no prompt, ends well, without samples.
source "$(dirname "$0")/common.sh" "$@"
model r
tokenizer
cp tok.json r/tokenizer.json
echo '{"prompt":"which?","completion":"red"}' >pairs.jsonl
run_of="${one_step/--sample.tokens 0/} --model.initial_hf r --dataloader.path pairs.jsonl --dataloader.format prompt_completion"
prints "no samples: --sample.prompt is empty" "$T" train $run_of --dump_folder a
prints "greedy text:" "$T" train $run_of --dump_folder b --sample.prompt which? --sample.tokens 1

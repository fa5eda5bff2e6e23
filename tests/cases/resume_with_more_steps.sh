#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# More steps than a run began with lift its learning rate, unless the schedule has a length of its own: a warning says so.
source "$(dirname "$0")/common.sh" "$@"
base="$small_llama --dataloader.path t.txt --training.seq_len 64 --training.local_batch_size 1 --sample.tokens 0 --metrics.measure_ceiling false"
base+=" --checkpoint.enable --optimizer.lr 1e-3 --lr_scheduler.warmup_steps 0"
rate() { sed -n "s/.*\"step\": *$1,.*\"lr\": *\([^,}]*\).*/\1/p" "$2"/metrics.jsonl; } # of a step

run 0 "$T" train $base --dump_folder a --training.steps 2
equal "rate of step 2" "$(rate 2 a)" 0.0005
prints "training.steps from 2 to 4: the next step has 0.0005, and was going to have 0" \
  "$T" train $base --dump_folder a --training.steps 4
equal "rate of step 3" "$(rate 3 a)" 0.0005

run 0 "$T" train $base --dump_folder b --training.steps 2 --lr_scheduler.total_steps 9
prints_not warning: "$T" train ${base/lr 1e-3/lr 0.001} --dump_folder b --training.steps 4 --lr_scheduler.total_steps 9
prints "optimizer.lr from 0.001 to 0.002: the next step has" \
  "$T" train ${base/lr 1e-3/lr 0.002} --dump_folder b --training.steps 5 --lr_scheduler.total_steps 9

run 0 "$T" train $base --dump_folder c --training.steps 2
prints_not warning: "$T" train $base --dump_folder c --training.steps 4 --checkpoint.exclude_from_loading lr_scheduler

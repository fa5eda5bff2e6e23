#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run that goes on with another seed, shuffle, packing or mixture reads its data in another order: a warning says so.
source "$(dirname "$0")/common.sh" "$@"
printf 'some other text %.0s' $(seq 200) >u.txt
base="$small_llama --training.seq_len 64 --training.local_batch_size 1 --sample.tokens 0 --checkpoint.enable --lr_scheduler.warmup_steps 1"
base+=" --lr_scheduler.total_steps 9 --dump_folder o --metrics.measure_ceiling false"
path="--dataloader.path t.txt"
order="its order differs from here on"
begin() { # begin <data>: two steps
  rm -rf o
  run 0 "$T" train $base "$@" --training.steps 2
}
warns() { # warns <change> <argument>...: of the run that goes on
  local change=$1
  shift
  prints "$order" "$T" train $base --training.steps 4 "$@"
  grep "$order" output | grep -qF -e "$change" || fail "no '$change' in the warning"
  equal "lines of warnings" "$(grep -c warning: output)" 1
}
begin $path
prints_not warning: "$T" train $base $path --training.steps 3
prints_not warning: "$T" train ${base/local_batch_size 1/local_batch_size 2} $path --training.steps 4 # step 4: the same rows
begin $path
warns "debug.seed from 0 to 5" $path --debug.seed 5
begin $path
warns "dataloader.shuffle from true to false" $path --dataloader.shuffle false
begin $path
warns "dataloader.packing from documents to concat" $path --dataloader.packing concat
begin $path
base=${base/seq_len 64/seq_len 32} warns "training.seq_len from 64 to 32" $path
begin --dataloader.mixture "t.txt weight=2,u.txt"
prints_not warning: "$T" train $base --dataloader.mixture "t.txt weight=1,u.txt weight=0.5" --training.steps 3
warns "dataloader.mixture from" --dataloader.mixture "t.txt weight=3,u.txt"
begin $path
prints_not "$order" "$T" train $base $path --debug.seed 5 --training.steps 4 --checkpoint.exclude_from_loading dataloader

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that is stopped while it writes its part of a checkpoint: the other ends at the deadline of waits for disks, an hour
# unless the field says otherwise, and names it.
source "$(dirname "$0")/common.sh" "$@"
export MASTER_ADDR=localhost MASTER_PORT=$((20000 + $$ % 20000)) WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
# Large enough that writing takes a while.
wide="--model.name llama3 --model.flavor debugmodel --model.dim 512 --model.n_layers 2 --model.vocab_size 32768"
rank() { # rank <r>
  RANK=$1 LOCAL_RANK=$1 exec "$T" train $wide --dataloader.path t.txt --training.steps 50 --training.seq_len 16 \
    --training.local_batch_size 1 --threads 1 --dump_folder o --checkpoint.enable --checkpoint.interval 1 \
    --checkpoint.keep_latest_k 2 --comm.storage_timeout_seconds 4 --comm.train_timeout_seconds 50 --sample.tokens 0
}
rank 0 >output 2>&1 &
zero=$!
rank 1 >/dev/null 2>&1 &
one=$!
trap 'kill -KILL $zero $one 2>/dev/null; wait; rm -rf "$work"' EXIT
# Stopped for certain within the save if its file is still being written afterwards.
writing() { compgen -G "o/checkpoint/step-*.partial/rank-00001.safetensors.tmp.*" >/dev/null; }
for _ in $(seq 3000); do
  if writing; then
    kill -STOP $one
    sleep 0.05
    if writing; then break; fi
    kill -CONT $one
  fi
  sleep 0.005
done
writing || fail "rank 1 was not stopped while it wrote"
start=$SECONDS status=0
wait $zero || status=$?
equal "status of rank 0" $status 1
[ $((SECONDS - start)) -le 15 ] || fail "rank 0 ended after $((SECONDS - start)) s, with a deadline of 4 s"
grep -qE "error: .*rank 1" output || fail "the error does not name rank 1"

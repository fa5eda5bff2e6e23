#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that is stopped while it writes its part of a checkpoint: the other ends at the deadline of waits for disks, an hour
# unless the field says otherwise, and names it.
source "$(dirname "$0")/common.sh" "$@"
export MASTER_ADDR=localhost MASTER_PORT=$((20000 + $$ % 20000)) WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
rank() { # rank <r>
  RANK=$1 LOCAL_RANK=$1 exec "$T" train $small_llama --dataloader.path t.txt --training.steps 1000000 --training.seq_len 16 \
    --training.local_batch_size 1 --threads 1 --dump_folder o --checkpoint.enable --checkpoint.interval 1 \
    --checkpoint.keep_latest_k 2 --comm.storage_timeout_seconds 3 --comm.train_timeout_seconds 50 --sample.tokens 0
}
rank 0 >output 2>&1 &
zero=$!
rank 1 >/dev/null 2>&1 &
one=$!
trap 'kill -KILL $zero $one 2>/dev/null || true; wait; rm -rf "$work"' EXIT
# Rank 0 cannot end its save, and begin the next step, without the file of rank 1, which is stopped. A look may fall into the
# end of a save, two cannot.
in_a_save() {
  local folder
  for folder in o/checkpoint/step-*.partial; do [ -d "$folder" ] && [ ! -e "$folder/rank-00001.safetensors" ] && return; done
  return 1
}
stopped=
while [ -z "$stopped" ]; do
  [ $SECONDS -lt 60 ] || fail "rank 1 was not stopped in a save"
  in_a_save || continue
  kill -STOP $one
  until grep -q '^State:.[TZ]' /proc/$one/status; do :; done
  sleep 0.02 # its other threads
  if in_a_save && in_a_save; then stopped=yes; else kill -CONT $one; fi
done
start=$SECONDS status=0
wait $zero || status=$?
equal "status of rank 0" $status 1
[ $((SECONDS - start)) -le 15 ] || fail "rank 0 ended after $((SECONDS - start)) s, with a deadline of 3 s"
grep -qE "error: .*rank 1" output || fail "the error does not name rank 1"

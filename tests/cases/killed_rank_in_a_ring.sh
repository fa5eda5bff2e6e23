#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank of ring context parallel is killed, while the other has a progress thread: the other ended a work that nobody held any
# more within its own lock, and waited for that lock for ever. In half of the runs, so three are tried.
source "$(dirname "$0")/common.sh" "$@"
# Each rank is told of one rank per host; a process-id namespace makes it one, if the system lets us.
export MASTER_ADDR=localhost WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 TESSERA_TRANSPORT=messages
alone="unshare --pid --fork --kill-child --mount-proc"
$alone true 2>/dev/null || alone=env
rank() { # rank <world> <r>
  MASTER_PORT=$((20000 + ($$ * 3 + $1) % 20000)) RANK=$2 exec $alone "$T" train --model.name llama3 --model.flavor debugmodel \
    --model.dim 256 --model.n_layers 4 --dataloader.path t.txt --training.steps 1000000 --training.seq_len 128 \
    --training.local_batch_size 2 --threads 1 --dump_folder "o$1" --metrics.log_freq 1 --sample.tokens 0 \
    --parallelism.context_parallel_degree 2 --parallelism.context_parallel_rotate_method alltoall \
    --comm.train_timeout_seconds 5
}
zero=() one=()
trap 'kill -KILL "${zero[@]}" "${one[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
for world in 0 1 2; do
  rank $world 0 >"output$world" 2>&1 &
  zero+=($!)
  rank $world 1 >/dev/null 2>&1 &
  one+=($!)
done
for world in 0 1 2; do
  until grep -q 'step: *[3-9]' "output$world"; do
    [ $SECONDS -lt 60 ] || { cp "output$world" output && fail "no step"; }
    sleep 0.05
  done
  sleep "0.$((RANDOM % 5))"
  kill -KILL "${one[world]}"
done
for world in 0 1 2; do
  cp "output$world" output
  while [ -e "/proc/${zero[world]}" ] && ! grep -q '^State:.Z' "/proc/${zero[world]}/status" 2>/dev/null; do
    [ $SECONDS -lt 100 ] || fail "rank 0 hangs"
    sleep 0.05
  done
  status=0
  wait "${zero[world]}" || status=$?
  cp "output$world" output
  equal "status of rank 0" $status 1
  grep -qE "error: .*rank 1" output || fail "the error does not name rank 1"
done

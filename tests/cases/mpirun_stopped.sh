#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ctrl-C under mpirun, whose ranks get a second or two to end: steps of 3 seconds are ended and saved, and paths are those of
# the folder from which `./dev mpirun` is called.
dev=$(cd "$(dirname "$0")/../.." && pwd)/dev
source "$(dirname "$0")/common.sh" "$@"
words="train $small_llama --dataloader.path t.txt --training.seq_len 64 --training.local_batch_size 1 --threads 1 --sample.tokens 0"
words+=" --metrics.measure_ceiling false"
"$T" $words --training.steps 2 --training.global_batch_size 200 --dump_folder timing >output
speed=$(sed -nE 's/.*"tokens_per_second": *([0-9]+).*/\1/p' timing/metrics.jsonl | tail -1)
batch=$((3 * speed / 64 * 2)) # two ranks, at most twice as fast
# In a group of its own, as a shell with job control starts it: else INT is ignored.
set -m
"$dev" mpirun -n 2 "$T" $words --training.steps 1000 --training.global_batch_size $batch --checkpoint.enable \
  --checkpoint.interval 1000 --dump_folder o >output 2>&1 &
job=$!
set +m
trap 'kill -KILL $job 2>/dev/null || true; rm -rf "$work"' EXIT
until grep -q 'step:  1' output; do
  kill -0 $job || fail "the run has ended"
  sleep 0.1
done
kill -INT $job
status=0
wait $job || status=$?
equal "status" $status 130
grep -q 'stopped by SIGTERM after step [12]; the same command resumes from there' output || fail "nothing said"
compgen -G "o/checkpoint/step-[12]/manifest.json" >/dev/null || fail "nothing saved"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# equals_threads.sh <test program> <filter>: runs its tests on threads and on 4 processes: by mpirun with shared memory,
# with messages and with both, and as torchrun starts them, with messages over TCP. All must pass, and compute the same
# bits. In the short form one of the ways with messages, which TESSERA_TEST_SEED chooses.
set -euo pipefail
program=$1
tests=$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
export TESSERA_TEST_SEED=${TESSERA_TEST_SEED:-$RANDOM}
echo "TESSERA_TEST_SEED=$TESSERA_TEST_SEED"
trap 'rm -rf "$folder"' EXIT

run() { # run <name> <command>...
  local name=$1 status=0
  shift
  TESSERA_TEST_BITS=$folder/$name "$@" "--gtest_filter=$tests" >"$folder/$name.log" 2>&1 || status=$?
  if [ $status != 0 ]; then
    cat "$folder/$name.log"
    echo "failed: on $name"
    exit 1
  fi
  echo "$name: $(grep -c . "$folder/$name") tests on ranks, $(grep 'tests from .* ran' "$folder/$name.log" | tail -n1)"
}

as_torchrun() { # as_torchrun <command>...: this process is rank 0
  local rank port=$((20000 + $$ % 10000)) pids=() status=0
  export WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=$port
  for rank in 1 2 3; do
    RANK=$rank "$@" >"$folder/rank$rank.log" 2>&1 &
    pids+=($!)
  done
  RANK=0 "$@" || status=$?
  for rank in 1 2 3; do
    wait "${pids[rank - 1]}" || { status=$? && cat "$folder/rank$rank.log"; }
  done
  return $status
}

run_way() {
  case $1 in
    processes) run processes ./dev mpirun -n 4 "$program" ;;
    messages | pairs) TESSERA_TRANSPORT=$1 run "$1" ./dev mpirun -n 4 "$program" ;;
    tcp) (TESSERA_TRANSPORT=messages run tcp as_torchrun "$program") ;;
  esac
}

ways=(messages pairs tcp)
[ -n "${TESSERA_TEST_FULL:-}" ] || ways=("${ways[TESSERA_TEST_SEED % 3]}")
run threads "$program"
for name in processes "${ways[@]}"; do
  run_way "$name"
  diff "$folder/threads" "$folder/$name" || { echo "other bits on $name (right) than on threads (left)"; exit 1; }
done
[ -s "$folder/threads" ] || { echo "no test ran on ranks"; exit 1; }

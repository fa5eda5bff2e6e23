#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that is given --help or --estimate ends before MPI_Init, in which MPI has the others wait for ever: they end at
# the deadline of the start and say who is missing.
dev=$(cd "$(dirname "$0")/../.." && pwd)/dev
source "$(dirname "$0")/common.sh" "$@"
for word in --help --estimate; do
  cat >rank <<EOF
[ "\$OMPI_COMM_WORLD_RANK" != 1 ] || more=$word
exec $T train $small_llama --dataloader.path $work/t.txt $one_step --dump_folder $work/o --comm.init_timeout_seconds 5 \$more
EOF
  refuses "error: [mpi] MPI_Init, which waits for all ranks, has not ended" timeout 60 "$dev" mpirun -n 3 bash "$work/rank"
  grep -qF "here: rank 0, rank 2; not here: rank 1; " output || fail "it does not say who came"
done

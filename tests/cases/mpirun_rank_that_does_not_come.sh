#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that are given --help or --estimate end before MPI_Init, in which MPI has the others wait for ever: they end at the
# deadline of the start and say who is missing.
dev=$(cd "$(dirname "$0")/../.." && pwd)/dev
source "$(dirname "$0")/common.sh" "$@"
# The short deadline of rank 0 begins when rank 3 waits in MPI_Init, whose own is long.
cat >rank <<EOF
limit=60
case \$OMPI_COMM_WORLD_RANK in
  0) until [ -e "\$PMIX_SERVER_TMPDIR/tessera.rank.3" ]; do sleep 0.02; done; limit=1 ;;
  1) more=--help ;;
  2) more=--estimate ;;
esac
exec $T train $small_llama --dataloader.path $work/t.txt $one_step --dump_folder $work/o --comm.init_timeout_seconds \$limit \$more
EOF
refuses "error: [mpi] MPI_Init, which waits for all ranks, has not ended" timeout 100 "$dev" mpirun -n 4 bash "$work/rank"
grep -qF "here: rank 0, rank 3; not here: rank 1, rank 2; " output || fail "it does not say who came"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that are given --help or --estimate end before MPI_Init, in which MPI has the others wait for ever: they end at the
# deadline of the start and say who is missing.
dev=$(cd "$(dirname "$0")/../.." && pwd)/dev
source "$(dirname "$0")/common.sh" "$@"
# The short deadline of rank 0 begins when rank 3 waits in MPI_Init, whose own is long. Rank 3 comes when ranks 1 and 2 have
# ended: a process that ends without MPI_Init while another is in it makes mpirun end all.
cat >rank <<EOF
limit=60
case \$OMPI_COMM_WORLD_RANK in
  0) until [ -e "\$PMIX_SERVER_TMPDIR/tessera.rank.3" ]; do sleep 0.02; done; limit=1 ;;
  1) more=--help ;;
  2) more=--estimate ;;
  3)
    for other in 1 2; do
      until [ -s $work/pid.\$other ]; do sleep 0.02; done
      while kill -0 \$(cat $work/pid.\$other) 2>/dev/null; do sleep 0.02; done
    done
    ;;
esac
echo \$\$ >$work/pid.\$OMPI_COMM_WORLD_RANK
exec $T train $small_llama --dataloader.path $work/t.txt $one_step --dump_folder $work/o --comm.init_timeout_seconds \$limit \$more
EOF
refuses "error: [mpi] MPI_Init, which waits for all ranks, has not ended" timeout 100 "$dev" mpirun -n 4 bash "$work/rank"
grep -qF "here: rank 0, rank 3; not here: rank 1, rank 2; " output || fail "it does not say who came"

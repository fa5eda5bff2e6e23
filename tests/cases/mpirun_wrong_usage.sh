#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A wrong field of all ranks is one line, not one per rank; of one rank alone it is said too.
dev=$(cd "$(dirname "$0")/../.." && pwd)/dev
source "$(dirname "$0")/common.sh" "$@"
lines() { grep -cF -e "[--training.stepz] unknown field" output; }
run 2 timeout 60 "$dev" mpirun -n 4 "$T" train --training.stepz 3
equal "lines of the error" "$(lines)" 1
cat >rank <<EOF
[ "\$OMPI_COMM_WORLD_RANK" != 1 ] || exec $T train --training.stepz 3
exec sleep 60
EOF
run 2 timeout 60 "$dev" mpirun -n 2 bash "$work/rank"
equal "lines of the error of one rank" "$(lines)" 1

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh <build folder> <scratch folder>: installs the build and uses the copy as a stranger would.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 scratch=$2
prefix=$scratch/prefix
rm -rf "$scratch"
mkdir -p "$scratch"

cmake --install "$build" --prefix "$prefix" >"$scratch/install.log"
echo "installed $(find "$prefix" -name '*.h' | wc -l) headers, $(du -sh "$prefix" | cut -f1)"

consume() { # consume <name> <source> <program> <cmake args>: configures, builds, runs
  local name=$1 folder=$2 program=$3
  shift 3
  if cmake -G Ninja -S "$folder" -B "$scratch/$name" -DCMAKE_PREFIX_PATH="$prefix" "$@" >"$scratch/$name.log" 2>&1 &&
    cmake --build "$scratch/$name" >>"$scratch/$name.log" 2>&1 &&
    "$scratch/$name/$program" >>"$scratch/$name.log" 2>&1; then
    echo "$name: ok"
  else
    cat "$scratch/$name.log"
    echo "$name: FAILED"
    exit 1
  fi
}
for standard in 20 23; do
  for link in static shared; do
    consume "consumer-cxx$standard-$link" "$source/tests/install" consumer -DCMAKE_CXX_STANDARD=$standard -DLINK=$link
  done
done
consume own_op "$source/examples/own_op" own_op
consume own_model "$source/examples/own_model" own_model
"$prefix/bin/tessera" --help >/dev/null && echo "installed program: ok"

# A component that is not there is named.
if cmake -G Ninja -S "$source/tests/install" -B "$scratch/absent" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCOMPONENTS=teleport >"$scratch/absent.log" 2>&1 || ! grep -q "no component 'teleport'" "$scratch/absent.log"; then
  cat "$scratch/absent.log"
  echo "absent component: FAILED"
  exit 1
fi
echo "absent component: ok"

# Private headers and outside libraries stay inside.
if find "$prefix" -name '*_impl.h' -o -name '*.cuh' -o -name '*_test.*' | grep .; then
  echo "private headers were installed: FAILED"
  exit 1
fi
if grep -rlE '#include <(cuda|cublas|Eigen|dnnl|oneapi|nlohmann|fmt)' "$prefix/include"; then
  echo "public headers include outside libraries: FAILED"
  exit 1
fi

# The umbrella header is cheap: under 1 s of CPU is the goal, above 3 s is a failure (best of three).
echo '#include <tessera/tessera.h>' >"$scratch/umbrella.cpp"
TIMEFORMAT='%U %S'
best=$(for _ in 1 2 3; do
  { time "${CXX:-c++}" -std=c++20 -O0 -c "$scratch/umbrella.cpp" -I"$prefix/include" -o "$scratch/umbrella.o"; } 2>&1
done | awk '{t = $1 + $2; if (NR == 1 || t < best) best = t} END {print best}')
echo "#include <tessera/tessera.h> at -O0: $best s of CPU"
awk -v t="$best" 'BEGIN {exit !(t <= 3)}'

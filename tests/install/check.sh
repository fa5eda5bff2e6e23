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
grep '^laws:' "$scratch/own_op.log"

# Errors planted in the op are found by the law that is named.
planted() { # planted <name> <law> <sed script>
  local log=$scratch/$1.log folder=$scratch/$1
  cp -r "$source/examples/own_op" "$folder"
  sed -i "$3" "$folder/squared_relu.cpp"
  if ! cmp -s "$folder/squared_relu.cpp" "$source/examples/own_op/squared_relu.cpp" &&
    cmake -G Ninja -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$prefix" >"$log" 2>&1 &&
    cmake --build "$folder/build" >>"$log" 2>&1 &&
    ! "$folder/build/own_op" --no-mutants >>"$log" 2>&1 && grep -q "^\[squared_relu\].*: $2 law: " "$log"; then
    echo "$1: found by the $2 law"
  else
    cat "$log"
    echo "$1: FAILED"
    exit 1
  fi
}
planted wrong_gradient Gradient 's/dy\[0\] \* 2\.0/dy[0] * 2.02/'
planted wrong_formula Known 's/from\[i\] \* from\[i\]/T(1.01) * &/; s/dy\[0\] \* 2\.0/dy[0] * 2.02/'
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

# The umbrella header stays cheap to include. Lines after preprocessing are counted, most of them the standard library's:
# the time they take to compile depends on what else the machine does.
echo '#include <tessera/tessera.h>' >"$scratch/umbrella.cpp"
lines=$("${CXX:-c++}" -std=c++20 -E -P "$scratch/umbrella.cpp" -I"$prefix/include" | wc -l)
echo "#include <tessera/tessera.h>: $lines lines"
if [ "$lines" -gt 110000 ]; then
  echo "more than 110000 lines: FAILED"
  exit 1
fi

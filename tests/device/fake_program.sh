#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stands in for every program that bench/gpu/run.sh runs, by the name that it is called with. A test program has four tests.
# FAKE_FAULTS names what goes wrong: `<program>/<test>=fails`, `=dies`, `=sleeps`, or `<program>=fails` of a benchmark.
name=$(basename "$0") json='' filter='' list=''
case $name in
  nvidia-smi) echo 'NVIDIA Fake, 580.1' && exit ;;
  compute-sanitizer)
    while [[ $1 != */* ]]; do shift; done
    exec "$@"
    ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    --about) echo "{\"name\":\"about\",\"device\":\"$FAKE_DEVICE\",\"devices\":1}" && exit ;;
    --json) json=$2 ;;
    --gtest_list_tests) list=1 ;;
    --gtest_filter=*) filter=${1#*=} ;;
  esac
  shift
done
if [[ $name == bench_* ]]; then
  if [[ " $FAKE_FAULTS " == *" $name=fails "* ]]; then echo '[bench] a "broken" line' && exit 1; fi
  [ -z "$json" ] || echo '{"name":"measured"}' >"$json"
  exit 0
fi
[ -z "$list" ] || { printf 'Fake.\n  One  # GetParam() = 1\n  Two\n  Three\n  Four\n' && exit; }
for test in Fake.One Fake.Two Fake.Three Fake.Four; do
  [[ ":$filter:" == *":$test:"* ]] || continue
  echo "[ RUN      ] $test"
  case " $FAKE_FAULTS " in
    *" $name/$test=fails "*) echo "[  FAILED  ] $test, where GetParam() = 1 (2 ms)" && exit 1 ;;
    *" $name/$test=dies "*) exit 139 ;;
    *" $name/$test=sleeps "*) sleep 100 ;;
  esac
  echo "[       OK ] $test (1 ms)"
done

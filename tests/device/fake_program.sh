#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stands in for every program that bench/gpu/run.sh and lease.py run, by the name that it is called with. A test program has four
# tests. FAKE_FAULTS names what goes wrong: `<program>/<test>=fails`, `=fails_once`, `=dies`, `=sleeps`, or `<program>=fails` and
# `=sleeps` or `=no_cupti` of a benchmark, `tessera=fails`, `unshare=fails`.
name=$(basename "$0") json='' filter='' list=''
case $name in
  nvidia-smi) echo 'NVIDIA Fake, 580.1' && exit ;;
  compute-sanitizer)
    while [[ $1 != */* ]]; do shift; done
    exec "$@"
    ;;
  unshare)
    if [[ " $FAKE_FAULTS " == *" unshare=fails "* ]]; then echo 'unshare: Operation not permitted' >&2; exit 1; fi
    while [[ $1 == -* ]]; do shift; done
    exec "$@"
    ;;
  tessera)
    if [[ " $FAKE_FAULTS " == *" tessera=fails "* ]]; then echo '[train] an error of tessera' >&2; exit 1; fi
    while [ $# -gt 1 ]; do
      if [ "$1" = --dump_folder ]; then
        mkdir -p "$2" && printf '{"step":%d,"loss":2.5,"grad_norm":1.5}\n' 1 2 3 >"$2/metrics.jsonl"
      fi
      shift
    done
    exit 0
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
  if [[ " $FAKE_FAULTS " == *" $name=no_cupti "* ]]; then echo "[$name] [trace] device times need CUPTI: no file" && exit 1; fi
  if [[ " $FAKE_FAULTS " == *" $name=sleeps "* ]]; then sleep 100; fi
  [ -z "$json" ] || echo '{"name":"measured"}' >"$json"
  exit 0
fi
[ -z "$list" ] || { printf 'Fake.\n  One  # GetParam() = 1\n  Two\n  Three\n  Four\n' && exit; }
for test in Fake.One Fake.Two Fake.Three Fake.Four; do
  [[ ":$filter:" == *":$test:"* ]] || continue
  echo "[ RUN      ] $test"
  case " $FAKE_FAULTS " in
    *" $name/$test=fails "*) echo "[  FAILED  ] $test, where GetParam() = 1 (2 ms)" && exit 1 ;;
    *" $name/$test=fails_once "*)
      once=$(dirname "$0")/$test.failed
      if [ ! -e "$once" ]; then touch "$once" && echo "[  FAILED  ] $test (2 ms)" && exit 1; fi
      ;;
    *" $name/$test=dies "*) exit 139 ;;
    *" $name/$test=sleeps "*) sleep 100 ;;
  esac
  echo "[       OK ] $test (1 ms)"
done

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A byte order mark became tokens, and every file that is not UTF-8 was taken for Latin-1: the advice made noise to train on.
source "$(dirname "$0")/common.sh" "$@"
printf '\357\273\277hi' >q.txt
run 0 "$T" data prepare --out q.out q.txt
equal "ids" "$(tail -c 8 q.out/tokens-00000.npy | od -An -tu2 | xargs)" "256 104 105 257"
names() { # names <word> <bytes>: the error says what the file is, and does not take it for Latin-1
  printf "$2" >file.txt
  refuses "$1" "$T" data prepare --out none file.txt
  ! grep -q LATIN1 output || fail "LATIN1 in the error of $1"
}
names Parquet 'PAR1\377\376'
names zstd '\050\265\057\375\377'
names bzip2 'BZh91AY\377'
names xz '\375\067zXZ\000\377'
names zip 'PK\003\004\377'
names UTF-16 '\377\376h\000i\000'
names UTF-16 '\376\377\000h\000i'
printf 'caf\351' >latin.txt
refuses "iconv -f LATIN1 -t UTF-8" "$T" data prepare --out none latin.txt

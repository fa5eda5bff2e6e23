#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All of a gzip file is read or refused: bytes behind a member that begin no other are damage, not its end.
source "$(dirname "$0")/common.sh" "$@"
line() { echo "{\"text\":\"$1\"}" | gzip -n; }
(line one; line two; line three) >whole.jsonl.gz
prints "3 documents" "$T" data prepare --out whole.out whole.jsonl.gz
(line one; line two | sed '1s/^./X/'; line three) >damaged.jsonl.gz
refuses "at byte $(line one | wc -c) of the file: no gzip member begins there" "$T" data prepare --out damaged.out damaged.jsonl.gz
(line one; line two | head -c 25) >cut.jsonl.gz
refuses "the file ends early" "$T" data prepare --out cut.out cut.jsonl.gz
(line one; line two; head -c 1000 /dev/zero) >zeros.jsonl.gz
prints "2 documents" "$T" data prepare --out zeros.out zeros.jsonl.gz

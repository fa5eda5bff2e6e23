#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A family without its size: right fields of the family were unknown fields, with advice to take others.
source "$(dirname "$0")/common.sh" "$@"
run 2 "$T" train --model.name qwen3 --model.head_dim 12 --model.num_experts 8 --dataloader.path t.txt
grep -qF -e "--model.flavor" output || fail "the flavor is not named"
! grep -q "unknown field" output || fail "a right field is unknown"

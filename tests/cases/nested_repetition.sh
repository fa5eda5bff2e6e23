#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A pattern of nested repetitions took minutes to match no parameter.
source "$(dirname "$0")/common.sh" "$@"
run 2 timeout 60 "$T" train $small_llama --dataloader.path t.txt $one_step --dump_folder out \
  --optimizer.param_groups '(.+)+Z lr=1'
grep -qF "no parameter is left for '(.+)+Z'" output || fail "it does not say that the pattern matches nothing"

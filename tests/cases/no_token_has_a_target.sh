#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A mean over no token: the data's only id is that which begins documents, whose place is no target. It was a loss of -nan.
source "$(dirname "$0")/common.sh" "$@"
# 400 tokens of 7, little-endian 16 bits each, behind a header of 118 bytes.
{
  printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '<u2', 'fortran_order': False, 'shape': (400,), }"
  printf '\x07\x00%.0s' $(seq 400)
} >e.npy
prints "warning: no token of step 1 has a target, so it updates nothing" \
  "$T" train $small_llama --dataloader.path e.npy --dataloader.begin_id 7 $one_step --dump_folder o
refuses "no token has a target" "$T" eval --checkpoint o --dataset_path e.npy

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A folder of Hugging Face as transformers reads it: the loss that PyTorch computes.
source "$(dirname "$0")/common.sh" "$@"
model r
with_tokenizer r
run 0 "$T" import-hf r --out r.imp
prints "loss: 9.98311" "$T" eval --checkpoint r.imp $evaluation

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Weights with a head beside a configuration that ties it to the embedding: an error that names
# both, unless the head is a copy. The loss of the head is that of PyTorch.
source "$(dirname "$0")/common.sh" "$@"
model tied head=1
with_tokenizer tied
refuses "tie_word_embeddings of config.json is true, but lm_head.weight has other values than model.embed_tokens.weight" \
  "$T" import-hf tied --out tied.imp
model own head=1 tie_word_embeddings=false
with_tokenizer own
run 0 "$T" import-hf own --out own.imp
prints "loss: 10.51025" "$T" eval --checkpoint own.imp $evaluation

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One folder of Hugging Face trains alike whether a run starts from it or from its import: parameters of training.dtype, computed in
# training.mixed_precision_param.
source "$(dirname "$0")/common.sh" "$@"
model r
with_tokenizer r
run 0 "$T" import-hf r --out r.imp
first() { # first <run> <field>...: the loss of its first step, in all its digits
  local dump=$1
  shift
  prints "precision: parameters f32 (training.dtype), computed in $precision (training.mixed_precision_param)" \
    "$T" train "$@" --dataloader.path t.txt $one_step --dump_folder $dump
  sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' $dump/metrics.jsonl
}
precision=bf16
bf16=$(first a --model.initial_hf r)
equal "loss after an import" "$(first b --config r.imp/config.json)" "$bf16"
precision=f32
f32=$(first c --model.initial_hf r --training.mixed_precision_param float32)
equal "loss after an import, in f32" "$(first d --config r.imp/config.json --training.mixed_precision_param float32)" "$f32"
[ "$f32" != "$bf16" ] || fail "both precisions give $f32"
# Evaluation computes as the run, unless it is told otherwise.
prints "loss: 9.98311" "$T" eval --checkpoint r.imp $evaluation
prints_not "loss: 9.98311" "$T" eval --checkpoint r.imp ${evaluation/float32/run}
run 0 "$T" import-hf r --out r64.imp --dtype float64
prints "loss: 9.98311" "$T" eval --checkpoint r64.imp ${evaluation/float32/run}
run 2 "$T" eval --checkpoint r64.imp $evaluation
grep -qF "the parameters of this model are float64" output || fail "another error"

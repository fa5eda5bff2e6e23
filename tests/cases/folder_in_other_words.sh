#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Folders that say what the plain one says in other words: a dtype by its other names or left to the weights, a scaling of RoPE
# that scales nothing, tensors without the prefix of the whole model. Each has the loss of the plain folder, which is that of
# PyTorch. What would change the loss is still refused.
source "$(dirname "$0")/common.sh" "$@"
same() { # same <key=JSON>...
  rm -rf r r.imp
  model r "$@"
  with_tokenizer r
  run 0 "$T" import-hf r --out r.imp
  prints "loss: 9.98311" "$T" eval --checkpoint r.imp $evaluation
}
refused() { # refused <error> <key=JSON>...
  local error=$1
  rm -rf r
  shift
  model r "$@"
  refuses "$error" "$T" import-hf r --out r.imp.refused
}
same dtype='"auto"'
same torch_dtype='"torch.float32"'
same dtype='"float32"' torch_dtype='"torch.float32"'
refused "dtype is \"float32\", but torch_dtype is \"bfloat16\"" dtype='"float32"' torch_dtype='"torch.bfloat16"'
same rope_scaling='{"type": "linear", "factor": 1.0}'
same rope_scaling='{"rope_type": "linear", "type": "linear", "factor": 1}' rope_parameters='{"rope_type": "default", "rope_theta": 10000.0}'
refused 'rope_scaling is of type "dynamic"' rope_scaling='{"type": "dynamic", "factor": 2.0}'
refused 'rope_scaling.type is "dynamic"' rope_scaling='{"rope_type": "linear", "type": "dynamic", "factor": 1.0}'
same prefix=

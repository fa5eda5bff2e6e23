# SPDX-License-Identifier: Apache-2.0
# What each reproduction begins with: `source "$(dirname "$0")/common.sh" "$@"`. Called with the program and make_folder; works
# in an empty folder that goes at the end. The first expectation that does not hold ends the script.
set -euo pipefail
T=$1 make_folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
printf 'hello world %.0s' $(seq 200) >t.txt

one_step="--training.steps 1 --training.seq_len 64 --training.local_batch_size 1 --sample.tokens 0"
small_llama="--model.name llama3 --model.flavor debugmodel --model.dim 32 --model.n_layers 1 --model.n_heads 2 --model.n_kv_heads 2"
small_llama+=" --model.ffn_dim 32 --model.vocab_size 300"
evaluation="--dataset_path t.txt --seq_len 128 --local_batch_size 1 --training.mixed_precision_param float32"

model() { "$make_folder" "$@"; }                    # model DIR [key=JSON]...
tokenizer() { "$make_folder" --tokenizer tok; }     # tok/ (slow files) and tok.json
with_tokenizer() {                                  # with_tokenizer DIR: tok.json as the folder's tokenizer
  [ -f tok.json ] || tokenizer
  cp tok.json "$1/tokenizer.json"
  echo '{"bos_token":"<|im_start|>","eos_token":"<|im_end|>"}' >"$1/tokenizer_config.json"
}

fail() {
  printf 'failed: %s\n' "$*" >&2
  [ ! -f output ] || { echo "output:" && cat output; } >&2
  exit 1
}

# run <status> <command>...: leaves its output in the file `output`.
run() {
  local wanted=$1 status=0
  shift
  "$@" >output 2>&1 </dev/null || status=$?
  [ "$status" = "$wanted" ] || fail "status $status instead of $wanted: $*"
}
prints() { # prints <text> <command>...: it succeeds and prints the text
  local text=$1
  shift
  run 0 "$@"
  grep -qF -e "$text" output || fail "no '$text' in the output of: $*"
}
refuses() { # refuses <text> <command>...: it ends with status 1 and prints the text
  local text=$1
  shift
  run 1 "$@"
  grep -qF -e "$text" output || fail "no '$text' in the error of: $*"
}
prints_not() { # prints_not <text> <command>...: it succeeds without printing the text
  local text=$1
  shift
  run 0 "$@"
  ! grep -qF -e "$text" output || fail "'$text' in the output of: $*"
}
equal() { [ "$2" = "$3" ] || fail "$1: '$2' instead of '$3'"; } # equal <name> <value> <expected>

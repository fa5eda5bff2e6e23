#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A tokenizer that has a token for the begin of texts and says that texts do not begin with it.
source "$(dirname "$0")/common.sh" "$@"
tokenizer
mkdir k
cp tok.json k/tokenizer.json
echo '{"bos_token":"<|im_start|>","eos_token":"<|im_end|>","add_bos_token":false}' >k/tokenizer_config.json
printf ab >ab.txt
ids() { # ids <prepared folder>: of its one shard, 16 bits each
  tail -c +129 "$1"/tokens-00000.npy | od -An -v -tu2 | tr -s " \n" " " | sed "s/^ //; s/ $//"  # after the header
}
run 0 "$T" data prepare --tokenizer k --out k.out ab.txt
equal "ids without a begin" "$(ids k.out)" "97 98 257"
sed -i 's/,"add_bos_token":false//' k/tokenizer_config.json
run 0 "$T" data prepare --tokenizer k --out b.out ab.txt
equal "ids with a begin" "$(ids b.out)" "256 97 98 257"

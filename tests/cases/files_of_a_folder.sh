#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each command that reads a folder says which of its files it takes and which it passes over.
source "$(dirname "$0")/common.sh" "$@"
mkdir f
for i in $(seq 40); do echo '{"text":"one two three"}'; done | tee f/a.jsonl f/b.json f/c.jsonl.zst >f/d.parquet
ln -s a.jsonl f/e.jsonl
line="data files: 1 taken (a.jsonl); passed over: 1 links (e.jsonl), 3 of other suffixes (b.json, c.jsonl.zst, d.parquet)"
prints "$line" "$T" data prepare --out f.out f
prints "data files of f: ${line#data files: }" "$T" data prepare --out ft.out f t.txt
prints "$line" "$T" tokenizer train --vocab_size 300 --out tok f
prints "$line" "$T" train $small_llama --dataloader.path f $one_step --dump_folder o \
  --validation.enable --validation.dataset_path f
grep -qF "validation files: ${line#data files: }" output || fail "no line of the validation files"
prints "$line" "$T" eval --checkpoint o --dataset_path f
# Nor is anything written into a folder that a link with the name of the work in progress points to.
mkdir theirs
ln -s theirs g.out.partial
refuses "g.out.partial is a symbolic link" "$T" data prepare --out g.out f
equal "files behind the link" "$(ls -A theirs)" ""

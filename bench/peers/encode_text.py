#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MB/s of bench_encode_text and of the package `tokenizers` on the same documents, by turns.
Needs: pip install tokenizers

    python3 bench/peers/encode_text.py TOKENIZER_JSON DOCUMENTS_JSONL [--threads 1,2] [--bin DIR]"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def peer(tokenizer, file):
    """One round, in a process whose threads the environment sets."""
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(tokenizer)
    texts = [json.loads(line)["text"] for line in open(file)]
    size = sum(len(text.encode()) for text in texts)
    start = time.perf_counter()
    encoded = t.encode_batch_fast(texts, add_special_tokens=False)
    seconds = time.perf_counter() - start
    print(json.dumps({"mb_per_second": size / seconds / 1e6,
                      "tokens": sum(len(e.ids) for e in encoded)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("file")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.tokenizer, args.file)
    for threads in args.threads.split(","):
        ours, theirs = [], []
        for _ in range(args.rounds):
            with tempfile.NamedTemporaryFile() as out:
                subprocess.run([f"{args.bin}/bench_encode_text", "--tokenizer", args.tokenizer, "--file",
                                args.file, "--threads", threads, "--rounds", "2", "--json", out.name],
                               check=True, stdout=subprocess.DEVNULL)
                ours.append(json.loads(pathlib.Path(out.name).read_text()))
            environment = os.environ | {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
            theirs.append(json.loads(subprocess.run(
                [sys.executable, __file__, args.tokenizer, args.file, "--peer"], check=True,
                capture_output=True, text=True, env=environment).stdout))
        if ours[0]["tokens"] != theirs[0]["tokens"]:
            sys.exit(f"other ids: {ours[0]['tokens']} tokens, the peer has {theirs[0]['tokens']}")
        own, other = (max(row["mb_per_second"] for row in rows) for rows in (ours, theirs))
        print(f"threads {threads}: {own:.1f} MB/s, tokenizers {other:.1f} MB/s, {own / other:.1f} times")


if __name__ == "__main__":
    main()

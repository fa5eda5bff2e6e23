#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of `tessera data prepare` and of a Python loop over the package `tokenizers` that does the same
(reads JSONL, encodes batches, writes the ids to a file), by turns, each a whole process.
Needs: pip install tokenizers numpy

    python3 bench/peers/prepare.py TOKENIZER_JSON DOCUMENTS_JSONL [--threads 1,2] [--rounds 3] [--bin DIR]"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

BATCH = 1000  # documents


def peer(tokenizer, file, out):
    import numpy
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(tokenizer)
    dtype = numpy.uint16 if t.get_vocab_size() <= 65536 else numpy.uint32
    tokens, texts = 0, []

    def write(to):
        nonlocal tokens
        for encoded in t.encode_batch_fast(texts, add_special_tokens=False):
            tokens += len(encoded.ids)
            to.write(numpy.array(encoded.ids, dtype).tobytes())
        texts.clear()

    with open(file) as lines, open(out, "wb") as to:
        for line in lines:
            texts.append(json.loads(line)["text"])
            if len(texts) == BATCH:
                write(to)
        write(to)
        to.flush()
        os.fsync(to.fileno())
    print(tokens)


def timed(command, environment=None):
    start = time.perf_counter()
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return time.perf_counter() - start, result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("file")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.tokenizer, args.file, args.peer)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        for threads in args.threads.split(","):
            ours, theirs = [], []
            for _ in range(args.rounds):
                shutil.rmtree(out, ignore_errors=True)
                seconds, _ = timed([f"{args.bin}/tessera", "data", "prepare", "--tokenizer", args.tokenizer,
                                    "--out", str(out), "--threads", threads, args.file])
                index = json.loads((out / "data_index.json").read_text())
                documents = sum(shard["documents"] for shard in index["shards"])
                marks = sum(index["tokenizer"][mark] is not None for mark in ("begin_id", "end_id"))
                tokens = sum(shard["tokens"] for shard in index["shards"]) - documents * marks
                ours.append(tokens / seconds)
                environment = os.environ | {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
                seconds, printed = timed([sys.executable, __file__, args.tokenizer, args.file, "--peer",
                                          str(pathlib.Path(folder) / "peer.bin")], environment)
                if int(printed) != tokens:
                    sys.exit(f"other ids: {tokens} tokens, the peer has {int(printed)}")
                theirs.append(tokens / seconds)
            own, other = max(ours), max(theirs)
            print(f"threads {threads}: {own:,.0f} tokens/s, tokenizers {other:,.0f} tokens/s, "
                  f"{own / other:.1f} times ({tokens:,} tokens)")


if __name__ == "__main__":
    main()

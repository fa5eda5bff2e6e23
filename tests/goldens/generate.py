# SPDX-License-Identifier: Apache-2.0
"""Golden values of the op rooms and of tiny models, made with PyTorch. Deterministic: fixed seeds.
The cases of rooms are in the *_cases.py beside this file.

    build/venv/bin/python tests/goldens/generate.py            # all files
    build/venv/bin/python tests/goldens/generate.py softmax    # one of them
"""
import importlib
import pathlib
import sys

import torch

import lr_schedule
import tiny_gpt2
import tiny_llama
import tiny_llama4
import tiny_qwen3
from golden_file import GoldenFile

SEED = 20240607


def rooms():
    found = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("*_cases.py")):
        found.update(importlib.import_module(path.stem).ROOMS)
    return found


def main():
    torch.set_num_threads(1)  # the sum order, and with it the last bit, follows the thread count
    every = rooms()
    whole = {"tiny_llama": lambda: tiny_llama.write(SEED),
             "tiny_gpt2": lambda: tiny_gpt2.write(SEED),
             "tiny_llama4": lambda: tiny_llama4.write(SEED),
             "tiny_qwen3": lambda: tiny_qwen3.write(SEED),
             "tiny_qwen3_moe": lambda: tiny_qwen3.write_moe(SEED), "lr_schedule": lr_schedule.write}
    for room in sys.argv[1:] or [*every, *whole]:
        if room in whole:
            whole[room]()
            continue
        golden = GoldenFile(room, SEED)
        every[room](golden)
        golden.write()


if __name__ == "__main__":
    main()

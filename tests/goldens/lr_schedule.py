# SPDX-License-Identifier: Apache-2.0
"""Learning rates of whole runs as torchtitan schedules them: a LambdaLR whose factor rises
linearly over warmup_steps, stays 1, and decays so that the step after the last would reach
min_lr_factor. Written as they are, in f64: a test compares them exactly."""
import json
import math

import torch

from golden_file import FOLDER

CASES = [
    dict(steps=10, lr=8e-4, warmup_steps=2, decay_ratio=0.8, decay_type="linear", min_lr_factor=0.0),
    dict(steps=20, lr=3e-4, warmup_steps=5, decay_ratio=None, decay_type="linear", min_lr_factor=0.1),
    dict(steps=25, lr=1.5e-4, warmup_steps=0, decay_ratio=0.5, decay_type="sqrt", min_lr_factor=0.0),
    dict(steps=21, lr=2.2e-4, warmup_steps=3, decay_ratio=0.8, decay_type="cosine", min_lr_factor=0.1),
    dict(steps=7, lr=1e-3, warmup_steps=200, decay_ratio=None, decay_type="cosine", min_lr_factor=0.0),
    dict(steps=9, lr=1e-3, warmup_steps=4, decay_ratio=1.0, decay_type="sqrt", min_lr_factor=0.3),
    dict(steps=12, lr=1e-3, warmup_steps=4, decay_ratio=0.0, decay_type="linear", min_lr_factor=0.0),
    dict(steps=10, lr=8e-5, total_steps=30, warmup_steps=6, decay_ratio=0.9, decay_type="cosine",
         min_lr_factor=0.05),
    dict(steps=1, lr=1e-2, warmup_steps=0, decay_ratio=None, decay_type="linear", min_lr_factor=0.0),
]

SHAPES = {"linear": lambda p: 1 - p, "sqrt": lambda p: 1 - math.sqrt(p),
          "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p))}


def factor_of(case):
    total = case.get("total_steps", case["steps"])
    warmup = min(case["warmup_steps"], total)
    decay = total - warmup
    if case["decay_ratio"] is not None:
        decay = min(decay, round(total * case["decay_ratio"]))
    decay_from, floor = total - decay + 1, case["min_lr_factor"]

    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        if step < decay_from:
            return 1.0
        progress = (step + 1 - decay_from) / decay
        return floor + (1 - floor) * SHAPES[case["decay_type"]](progress)
    return factor


def rates(case):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=case["lr"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor_of(case))
    found = []
    for _ in range(case["steps"]):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def write():
    path = FOLDER / "lr_schedule.json"
    path.write_text(json.dumps([case | dict(rates=rates(case)) for case in CASES], indent=1) + "\n")
    print(f"{path.name:42s} {path.stat().st_size:7d} bytes")

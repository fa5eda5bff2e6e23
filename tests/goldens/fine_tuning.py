# SPDX-License-Identifier: Apache-2.0
"""Writes fine_tuning.jsonl, prompts with completions, and fine_tuning.json: the losses of a loop in
PyTorch that fine-tunes the tiny model hugging_face/llama3 on them. Tokens are bytes, between a begin
and an end. Each example runs alone, from position 0; a step takes all of them, so neither packing
nor order has a part in the losses. Computed in f64.
Needs: pip install torch transformers==5.23.0"""
import json
import pathlib
import random

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

FOLDER = pathlib.Path(__file__).parent
BEGIN, END, SEQ, STEPS = 256, 257, 48, 20
OPTIMIZER = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, max_norm=1.0)


def examples():
    draw = random.Random(3)
    words = "red green blue cat dog sun moon sea käse 東京 ? ! .".split()
    def text(least, most):
        return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))
    for _ in range(7):
        yield dict(prompt=text(0, 3) + ":", completion=" " + text(0, 4))
    yield dict(prompt="the longest of all:", completion=" " + text(14, 14))


def main():
    torch.set_num_threads(1)
    lines = list(examples())
    (FOLDER / "fine_tuning.jsonl").write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    rows = []
    for line in lines:
        prompt, completion = line["prompt"].encode(), line["completion"].encode()
        ids = ([BEGIN, *prompt, *completion, END])[:SEQ + 1]
        targets = [-100] * len(prompt) + ids[1 + len(prompt):]
        rows.append((torch.tensor([ids[:-1]]), torch.tensor([targets])))
    count = sum(int((targets != -100).sum()) for _, targets in rows)

    model = AutoModelForCausalLM.from_pretrained(FOLDER / "hugging_face" / "llama3",
                                                 dtype=torch.float64, attn_implementation="eager")
    o = OPTIMIZER
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]),
                                  eps=o["eps"], weight_decay=o["weight_decay"])
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = sum(F.cross_entropy(model(ids).logits[0], targets[0], reduction="sum")
                   for ids, targets in rows) / count
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), o["max_norm"]).item())
        optimizer.step()
        losses.append(loss.item())
    out = dict(seq_len=SEQ, targets=count, optimizer=o, loss=losses, grad_norm=norms)
    (FOLDER / "fine_tuning.json").write_text(json.dumps(out, indent=1) + "\n")
    print(count, "targets; losses", losses[0], "to", losses[-1])


if __name__ == "__main__":
    main()

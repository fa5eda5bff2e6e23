# SPDX-License-Identifier: Apache-2.0
"""Train step of a Llama in PyTorch, eager or compiled: tokens/s, peak memory, time by part.

    build/venv/bin/python bench/peers/train_step.py --batch 8 --seq 512 --threads 2
"""
import argparse
import resource
import statistics
import time

import torch

from common import Llama, emit, fastest_adamw, loss_fn

MODELS = {
    "debugmodel": dict(dim=256, n_layers=6, n_heads=16, n_kv_heads=16, ffn_dim=768,
                       vocab_size=2048),
    "124M": dict(dim=768, n_layers=12, n_heads=12, n_kv_heads=12, ffn_dim=2048, vocab_size=50257,
                 tied=True)}


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def flops_per_token(model, sizes, seq_len):
    """6 per matmul weight; attention's two products count in full, causal or not, three times."""
    weights = sum(p.numel() for p in model.parameters())
    if not sizes.get("tied"):
        weights -= model.tok_embeddings.weight.numel()
    return 6 * weights + 12 * sizes["n_layers"] * sizes["dim"] * seq_len


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--model", choices=MODELS, default="debugmodel")
    parser.add_argument("--precision", choices=("float32", "mixed", "bfloat16"), default="float32",
                        help="mixed: f32 parameters under autocast; bfloat16: all in it")
    parser.add_argument("--checkpoint", choices=("none", "full"), default="none")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(7)
    before = peak_mib()

    sizes, mixed = MODELS[args.model], args.precision == "mixed"
    model = Llama(**sizes, seq_len=args.seq, checkpoint=args.checkpoint == "full")
    model.to(torch.bfloat16 if args.precision == "bfloat16" else torch.float32)
    optimizer, kind = fastest_adamw(model, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    params, flops = list(model.parameters()), flops_per_token(model, sizes, args.seq)
    run = torch.compile(model) if args.compile else model

    def step():
        tokens = torch.randint(0, 256, (args.batch, args.seq + 1))
        marks = [time.perf_counter()]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = run(tokens[:, :-1])
        loss = loss_fn(logits, tokens[:, 1:])
        marks.append(time.perf_counter())
        del logits
        loss.backward()
        marks.append(time.perf_counter())
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        marks.append(time.perf_counter())
        return [b - a for a, b in zip(marks, marks[1:])], loss.item()

    for _ in range(2):
        step()
    measured = [step() for _ in range(max(3, args.steps))]
    total = statistics.median(sum(parts) for parts, _ in measured)
    forward, backward, update = (
        statistics.median(parts[i] for parts, _ in measured) for i in range(3))
    tokens = args.batch * args.seq
    suffix = "" if args.checkpoint == "none" else "_" + args.checkpoint
    emit(name=f"train_step_llama3_{args.model}_{args.precision}{suffix}",
         shape=[args.batch, args.seq], time_us=total * 1e6, tokens_per_second=tokens / total,
         forward_ms=forward * 1e3, backward_ms=backward * 1e3, optimizer_ms=update * 1e3,
         gflops_per_second=flops * tokens / total / 1e9, peak_rss_mib=peak_mib(),
         rss_before_model_mib=before, loss=measured[-1][1], optimizer=kind, compile=args.compile,
         threads=args.threads, torch=torch.__version__)


if __name__ == "__main__":
    main()

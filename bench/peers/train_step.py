# SPDX-License-Identifier: Apache-2.0
"""Train step of the llama3 debug model in PyTorch eager: tokens/s, peak memory, time by part.

    build/venv/bin/python bench/peers/train_step.py --batch 8 --seq 512 --threads 2
"""
import argparse
import resource
import statistics
import time

import torch

from common import DTYPES, Llama, emit, fastest_adamw, loss_fn

MODEL = dict(dim=256, n_layers=6, n_heads=16, n_kv_heads=16, ffn_dim=768, vocab_size=2048)


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def flops_per_token(model, seq_len):
    """6 per matmul weight; attention's two products count in full, causal or not, three times."""
    weights = sum(p.numel() for p in model.parameters()) - model.tok_embeddings.weight.numel()
    return 6 * weights + 12 * MODEL["n_layers"] * MODEL["dim"] * seq_len


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                        help="of parameters and activations")
    parser.add_argument("--autocast", action="store_true",
                        help="f32 parameters, bfloat16 matmuls, instead of --dtype bfloat16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(7)
    before = peak_mib()

    model = Llama(**MODEL, seq_len=args.seq).to(DTYPES[args.dtype])
    optimizer, kind = fastest_adamw(model, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    params, flops = list(model.parameters()), flops_per_token(model, args.seq)
    run = torch.compile(model) if args.compile else model

    def step():
        tokens = torch.randint(0, 256, (args.batch, args.seq + 1))
        marks = [time.perf_counter()]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
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
    emit(name="train_step_llama3_debugmodel", shape=[args.batch, args.seq], dtype=args.dtype,
         time_us=total * 1e6, tokens_per_second=tokens / total, forward_ms=forward * 1e3,
         backward_ms=backward * 1e3, optimizer_ms=update * 1e3,
         gflops_per_second=flops * tokens / total / 1e9, peak_rss_mib=peak_mib(),
         rss_before_model_mib=before, loss=measured[-1][1], optimizer=kind,
         autocast=args.autocast, compile=args.compile, threads=args.threads,
         torch=torch.__version__)


if __name__ == "__main__":
    main()

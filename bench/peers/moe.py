# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts in PyTorch, forward and backward: torch._grouped_mm or a loop over experts,
whichever is faster for the case. The cases and their names are those of bench_moe.

    build/venv/bin/python bench/peers/moe.py --threads 2
"""
import argparse

import torch
import torch.nn.functional as F

from common import DTYPES, emit, median_us

CASES = [(8, 2, 256, 512, 2048), (8, 2, 1024, 1024, 512), (64, 8, 256, 256, 1024),
         (64, 4, 512, 256, 1024), (128, 8, 1024, 256, 1024)]


def grouped(rows, counts, w1, w2, w3):
    ends = counts.cumsum(0, dtype=torch.int32)
    product = lambda x, w: torch._grouped_mm(x, w.mT, ends)
    return product(F.silu(product(rows, w1)) * product(rows, w3), w2)


def looped(rows, counts, w1, w2, w3):
    parts = rows.split(counts.tolist())
    return torch.cat([F.linear(F.silu(F.linear(x, a)) * F.linear(x, c), b)
                      for x, a, b, c in zip(parts, w1, w2, w3)])


def mixture(experts_of, x, gate, weights, top_k):
    scores = F.linear(x.float(), gate.float()).softmax(-1)
    shares, experts = scores.topk(top_k, -1)
    shares = shares / shares.sum(-1, keepdim=True)
    chosen = experts.flatten()
    order = chosen.argsort(stable=True)
    token = order // top_k
    counts = torch.bincount(chosen, minlength=len(gate))
    rows = experts_of(x[token], counts, *weights)
    rows = rows.float() * shares.flatten()[order, None]
    return torch.zeros_like(x, dtype=torch.float32).index_add(0, token, rows).to(x.dtype)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(7)
    emit(name="about", torch=torch.__version__, threads=args.threads)
    for dtype in ("f32", "bf16"):
        for count, top_k, dim, hidden, tokens in CASES:
            draw = lambda *shape: (0.02 * torch.randn(shape)).to(DTYPES[dtype]).requires_grad_()
            gate, weights = draw(count, dim), (draw(count, hidden, dim), draw(count, dim, hidden),
                                               draw(count, hidden, dim))
            x = torch.randn(tokens, dim).to(DTYPES[dtype]).requires_grad_()
            dy = torch.randn(tokens, dim).to(DTYPES[dtype])

            def step(experts_of):
                y = mixture(experts_of, x, gate, weights, top_k)
                torch.autograd.grad(y, (x, gate, *weights), dy)

            times = {f.__name__: median_us(lambda: step(f), target_s=0.1)
                     for f in (grouped, looped)}
            emit(name=f"moe/{dtype}/{count} experts of which {top_k}, {dim} to {hidden}, "
                      f"{tokens} tokens", experts=min(times, key=times.get),
                 time_us=min(times.values()))


if __name__ == "__main__":
    main()

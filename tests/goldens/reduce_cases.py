# SPDX-License-Identifier: Apache-2.0
"""Golden cases of reductions. ROOMS: file name to the function that fills it."""
import torch


def logsumexp(g):
    for case, dim, scale in (("last", -1, 1.0), ("middle", 1, 1.0), ("large", -1, 60.0)):
        g.record(case, lambda x: x.logsumexp(dim), {"x": g.randn(2, 13, 5, scale=scale)}, dim=dim)


def max_over_dim(g):
    for case, dim in (("last", -1), ("middle", 1)):
        g.record(case, lambda x: dict(zip(("y", "indices"), x.max(dim))),
                 {"x": g.randn(3, 13, 5)}, dim=dim)


def min_over_dim(g):
    for case, dim in (("last", -1), ("middle", 1)):
        g.record(case, lambda x: dict(zip(("y", "indices"), x.min(dim))),
                 {"x": g.randn(3, 13, 5)}, dim=dim)


def reduce(g):
    """Over dim 1 of (3, 7, 2), or over dims 0 and 2 where the case ends in `_two`."""
    def both(name, fn, dtype=torch.float32, make=lambda x: x):
        for suffix, dims in (("", (1,)), ("_two", (0, 2))):
            x = make(g.randn(3, 7, 2, dtype=dtype))
            g.record(name + suffix, lambda x: fn(x, dims), {"x": x})

    def zeros(*at):
        def make(x):
            for i, j, k in at:
                x[i, j, k] = 0
            return x
        return make

    def prod(x, dims):
        for d in sorted(dims, reverse=True):
            x = x.prod(d)
        return x

    both("prod", prod)
    both("prod_zeros", prod, make=zeros((0, 1, 0), (1, 2, 1), (1, 4, 1), (2, 0, 0)))
    both("prod_bf16", prod, torch.bfloat16)
    for kind, fn in (("amax", torch.amax), ("amin", torch.amin)):
        both(kind, fn)
        both(kind + "_ties", fn, make=lambda x: x.round())
    for kind, fn in (("var", torch.var), ("std", torch.std)):
        for c in (0, 1):
            both(f"{kind}_{c}", lambda x, dims: fn(x, dims, correction=c))
        both(kind + "_bf16", lambda x, dims: fn(x, dims, correction=1), torch.bfloat16)
    both("std_flat", lambda x, dims: torch.std(x, dims, correction=1), make=torch.zeros_like)
    for p in ("1", "2", "inf", "-inf", "3", "0.5"):
        both("norm_" + p, lambda x, dims: torch.linalg.vector_norm(x, float(p), dims))
    both("norm_2_zeros", lambda x, dims: torch.linalg.vector_norm(x, 2, dims),
         make=torch.zeros_like)
    both("norm_2_bf16", lambda x, dims: torch.linalg.vector_norm(x, 2, dims), torch.bfloat16)


def cumulative(g):
    """Along dim 1 of (3, 7, 2), and along the last where the case ends in `_last`."""
    for suffix, dim in (("", 1), ("_last", 2)):
        x = g.randn(3, 7, 2)
        g.record("cumprod" + suffix, lambda x: x.cumprod(dim), {"x": x}, dim=dim)
        x = x.clone()
        x[0, 2, 0] = x[1, 1, 1] = x[1, 4, 1] = x[2, 0, 0] = 0
        g.record("cumprod_zeros" + suffix, lambda x: x.cumprod(dim), {"x": x}, dim=dim)
        for kind, fn in (("cummax", torch.cummax), ("cummin", torch.cummin)):
            for ties in ("", "_ties"):
                x = g.randn(3, 7, 2)
                g.record(kind + ties + suffix, lambda x: dict(zip(("y", "indices"), fn(x, dim))),
                         {"x": x.round() if ties else x}, dim=dim)


def log_softmax(g):
    g.record("last", lambda x: x.log_softmax(-1), {"x": g.randn(2, 3, 19)}, dim=-1)
    g.record("middle", lambda x: x.log_softmax(1), {"x": g.randn(3, 11, 4)}, dim=1)
    g.record("large", lambda x: x.log_softmax(-1), {"x": g.randn(4, 19, scale=40.0)}, dim=-1)
    g.record("bf16", lambda x: x.log_softmax(-1), {"x": g.randn(3, 2, 9, dtype=torch.bfloat16)},
             dim=-1)


ROOMS = {"logsumexp": logsumexp, "max": max_over_dim, "min": min_over_dim, "reduce": reduce,
         "log_softmax": log_softmax, "cumulative": cumulative}

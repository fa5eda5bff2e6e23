# SPDX-License-Identifier: Apache-2.0
"""Golden cases of rooms that read or write by index, or join tensors. ROOMS: file name to the function that fills it."""
import torch
import torch.nn.functional as F


def embedding(g):
    g.record("f32", lambda weight, indices: F.embedding(indices, weight),
             {"weight": g.randn(11, 7)}, {"indices": g.randint(0, 11, 3, 9)})  # some rows repeat


def gather(g):
    for dim in (1, -1):
        size = (3, 6, 5)[dim]
        g.record(f"dim_{'last' if dim < 0 else dim}", lambda x, index: x.gather(dim, index),
                 {"x": g.randn(3, 6, 5)}, {"index": g.randint(0, size, 3, 4, 5)}, dim=dim)


def scatter_add(g):
    g.record("dim_1", lambda x, src, index: x.scatter_add(1, index, src),
             {"x": g.randn(3, 5, 4), "src": g.randn(3, 8, 4)}, {"index": g.randint(0, 5, 3, 8, 4)},
             dim=1)


def scatter(g):
    """`index` is smaller than x outside `dim`; no place is written twice, where torch's gradient of
    src is wrong."""
    for dim in (0, -1):
        index = torch.stack([torch.randperm(7, generator=g.rng)[:4] for _ in range(5)])
        index = index if dim else index.mT.contiguous()
        src = {"src": g.randn(*index.shape)}
        g.record(f"dim_{'last' if dim < 0 else dim}", lambda x, src, index: x.scatter(dim, index, src),
                 {"x": g.randn(7, 7), **src}, {"index": index}, dim=dim)
    g.record("value", lambda x, index: x.scatter(1, index, 2.5), {"x": g.randn(3, 5, 4)},
             {"index": g.randint(0, 5, 3, 8, 2)}, dim=1, value=2.5)


def scatter_reduce(g):
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include_self in (True, False):
            g.record(f"{reduce}{'' if include_self else '_alone'}",
                     lambda x, src, index: x.scatter_reduce(1, index, src, reduce,
                                                            include_self=include_self),
                     {"x": g.randn(3, 5, 4), "src": g.randn(2, 8, 4)},
                     {"index": g.randint(0, 5, 2, 8, 4)}, reduce=reduce, include_self=include_self)
    src = g.randn(2, 9)
    src[0, 1] = src[1, 3] = src[1, 4] = 0
    g.record("zero_factors", lambda x, src, index: x.scatter_reduce(1, index, src, "prod"),
             {"x": torch.cat((g.randn(2, 3), torch.zeros(2, 1)), 1), "src": src},
             {"index": g.randint(0, 4, 2, 9)}, reduce="prod", include_self=True)


def topk(g):
    for case, k, dim in (("last", 3, -1), ("middle", 2, 1)):
        g.record(case, lambda x: dict(zip(("y", "indices"), x.topk(k, dim))),
                 {"x": g.randn(2, 9, 8)}, k=k, dim=dim, largest=True, sorted=True)
    g.record("smallest", lambda x: dict(zip(("y", "indices"), x.topk(3, 1, largest=False))),
             {"x": g.randn(2, 9, 8)}, k=3, dim=1, largest=False, sorted=True)


def cat(g):
    for case, dim, sizes in (("dim_0", 0, (2, 1, 3)), ("dim_last", -1, (4, 1, 2))):
        shapes = [[n, 3, 5] if dim == 0 else [2, 3, n] for n in sizes]
        g.record(case, lambda *parts: torch.cat(parts, dim),
                 {f"x{i}": g.randn(*shape) for i, shape in enumerate(shapes)}, dim=dim)


ROOMS = {
    "embedding": embedding,
    "gather": gather,
    "scatter_add": scatter_add,
    "scatter": scatter,
    "scatter_reduce": scatter_reduce,
    "topk": topk,
    "cat": cat,
}

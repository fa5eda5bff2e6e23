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


ROOMS = {"logsumexp": logsumexp, "max": max_over_dim}

# SPDX-License-Identifier: Apache-2.0
"""Golden cases of rooms that order, count or number elements, or take slices by index."""
import torch


def sorted_by(dim, descending):
    def fn(x):
        y, indices = x.sort(dim=dim, descending=descending, stable=True)
        return {"y": y, "indices": indices}
    return fn


def sort(g):
    few = g.randint(0, 4, 40).to(torch.float32)  # many equal elements
    for case, x, dim, descending in (
            ("rising", g.randn(3, 7), -1, False), ("falling", g.randn(7, 3), 0, True),
            ("middle", g.randn(2, 6, 3), 1, True), ("stable", few, 0, True),
            ("bf16", g.randn(2, 9, dtype=torch.bfloat16), -1, False)):
        g.record(case, sorted_by(dim, descending), {"x": x}, dy_dtype=x.dtype, dim=dim,
                 descending=descending)


def cumsum(g):
    for case, dim in (("first", 0), ("middle", 1), ("last", -1)):
        g.record(case, lambda x: x.cumsum(dim), {"x": g.randn(3, 4, 9)}, dim=dim, reverse=False)
    g.record("reverse", lambda x: x.flip(1).cumsum(1).flip(1), {"x": g.randn(3, 11)}, dim=1,
             reverse=True)
    g.record("bf16", lambda x: x.cumsum(1), {"x": g.randn(2, 19, dtype=torch.bfloat16)},
             dy_dtype=torch.bfloat16, dim=1, reverse=False)


def arange(g):
    for case, start, stop, step, dtype in (
            ("whole", -3, 11, 4, torch.int64), ("falling", 7, -2, -3, torch.int64),
            ("steps", 0.5, 3.2, 0.3, torch.float64), ("bf16", 0, 20, 3, torch.bfloat16)):
        g.put(case, y=torch.arange(start, stop, step, dtype=dtype))
        g.attrs(case, start=start, stop=stop, step=step)


def index_select(g):
    for case, dim, size in (("first", 0, 6), ("middle", 1, 5), ("last", -1, 2)):
        g.record(case, lambda x, index: x.index_select(dim, index), {"x": g.randn(6, 5, 2)},
                 {"index": g.randint(0, size, 7)}, dim=dim)


def index_add(g):
    for case, dim in (("first", 0), ("middle", 1), ("last", -1)):
        shape, grown = [3, 5, 4], [3, 5, 4]
        grown[dim] = 9
        g.record(case, lambda x, src, index: x.index_add(dim, index, src),
                 {"x": g.randn(*shape), "src": g.randn(*grown)},
                 {"index": g.randint(0, shape[dim], 9)}, dim=dim)


def bincount(g):
    x = g.randint(0, 9, 40)
    g.put("longer", x=x, y=torch.bincount(x, minlength=12))
    g.attrs("longer", bins=12)


def histogram(g):
    x = g.randn(100)
    for case, bins, low, high in (("inside", 7, -1.0, 1.5), ("all", 5, -10.0, 10.0)):
        g.put(case, x=x, y=torch.histc(x, bins, low, high).to(torch.int64))
        g.attrs(case, bins=bins, low=low, high=high)


def searchsorted(g):
    for case, shape, wanted in (("shared", (9,), (3, 5)), ("rows", (2, 6), (2, 5))):
        sequence = torch.sort(g.randint(0, 8, *shape).to(torch.float32)).values
        values = g.randint(-1, 9, *wanted).to(torch.float32)
        for right in (False, True):
            name = f"{case}_{'right' if right else 'left'}"
            g.put(name, sorted=sequence, x=values,
                  y=torch.searchsorted(sequence, values, right=right))
            g.attrs(name, right=right)


ROOMS = {
    "sort": sort, "cumsum": cumsum, "arange": arange, "index_select": index_select,
    "index_add": index_add, "bincount": bincount, "histogram": histogram,
    "searchsorted": searchsorted,
}

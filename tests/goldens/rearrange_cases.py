# SPDX-License-Identifier: Apache-2.0
"""Golden cases of views and of what is made of them (a case per function), and of einsum."""
import torch


def pieces(parts):
    return {"y": parts[1], "first": parts[0], "last": parts[-1]}


def rearrange(g):
    x = lambda *shape: {"x": g.randn(*shape)}
    g.record("squeeze", lambda x: x.squeeze(1), x(3, 1, 4))
    g.record("unsqueeze", lambda x: x.unsqueeze(-1), x(3, 4))
    g.record("flatten", lambda x: x.flatten(1, 2), x(2, 3, 4, 2))
    g.record("unflatten", lambda x: x.unflatten(1, (3, -1)), x(2, 12))
    g.record("movedim", lambda x: x.movedim(0, 2), x(2, 3, 4))
    g.record("narrow", lambda x: x.narrow(1, -4, 2), x(2, 5))
    g.record("split", lambda x: pieces(x.split(3, 1)), x(2, 8))
    g.record("split_sizes", lambda x: pieces(x.split([1, 4, 0, 2], 0)), x(7, 2))
    g.record("chunk", lambda x: pieces(x.chunk(4, 0)), x(5, 3))
    g.record("diagonal", lambda x: x.diagonal(), x(4, 6))
    g.record("diagonal_below", lambda x: x.diagonal(-2, 2, 0), x(3, 2, 5))
    g.record("diag_embed", lambda x: x.diag_embed(1), x(2, 3))
    g.record("diag_embed_first", lambda x: x.diag_embed(-2, 2, 0), x(2, 3))


def stack(g):
    for case, dim in (("dim_1", 1), ("dim_last", -1)):
        g.record(case, lambda *parts: torch.stack(parts, dim),
                 {f"x{i}": g.randn(2, 3) for i in range(3)}, dim=dim)


EQUATIONS = {
    "matmul": ("ij,jk->ik", (3, 4), (4, 5)),
    "implicit": ("kj, ji", (3, 4), (4, 5)),
    "scores": ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    "projection": ("bsd,dhk->bshk", (2, 3, 4), (4, 2, 3)),
    "projection_back": ("bshk,hkd->bsd", (2, 3, 2, 3), (2, 3, 4)),
    "weight_first": ("hkd,bshk->bsd", (2, 3, 4), (2, 3, 2, 3)),
    "weight_gradient": ("bsd,bshk->dhk", (2, 3, 4), (2, 3, 2, 3)),
    "experts": ("ecd,edf->ecf", (3, 4, 2), (3, 2, 5)),
    "outer": ("i,j->ij", (3,), (4,)),
    "product": ("bij,ji->ijb", (2, 3, 4), (4, 3)),
    "rows": ("bs,bs->b", (3, 4), (3, 4)),
    "dot": ("i,i->", (5,), (5,)),
    "summed_out": ("abc,cd->d", (2, 3, 4), (4, 2)),
    "summed_free": ("ab,cd->bc", (2, 3), (4, 2)),
    "ellipsis": ("...ij,...kj->...ik", (2, 3, 4, 2), (2, 3, 5, 2)),
    "ellipsis_one": ("...i,ij->j...", (2, 3, 4), (4, 2)),
    "three": ("bi,bj,ijk->bk", (3, 2), (3, 4), (2, 4, 5)),
    "chain": ("ab,bc,ca->", (2, 3), (3, 4), (4, 2)),
}


def einsum(g):
    for case, (equation, *shapes) in EQUATIONS.items():
        g.record(case, lambda *x: torch.einsum(equation, *x),
                 {name: g.randn(*shape) for name, shape in zip("abc", shapes)}, equation=equation)
    equation, a, b = EQUATIONS["projection"]
    g.record("bf16", lambda *x: torch.einsum(equation, *x),
             {"a": g.randn(*a, dtype=torch.bfloat16), "b": g.randn(*b, dtype=torch.bfloat16)},
             dy_dtype=torch.bfloat16, equation=equation)
    g.record("transposed", lambda a: torch.einsum("abc->cb", a), {"a": g.randn(2, 3, 4)},
             equation="abc->cb")


ROOMS = {"rearrange": rearrange, "stack": stack, "einsum": einsum}

# SPDX-License-Identifier: Apache-2.0
"""Golden cases of views and of what is made of them (a case per function), and of einsum."""
import torch
import torch.nn.functional as F


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


def shapes(g):
    x = lambda *shape: {"x": g.randn(*shape)}
    g.record("flip", lambda x: x.flip((0, -1)), x(3, 2, 4))
    g.record("roll", lambda x: x.roll((2, -1), (0, 2)), x(3, 2, 4))
    g.record("roll_flat", lambda x: x.roll(5), x(3, 4))
    g.record("repeat", lambda x: x.repeat(2, 1, 3), x(3, 2))
    g.record("tile", lambda x: x.tile(2, 2), x(2, 3, 2))
    g.record("repeat_interleave", lambda x: x.repeat_interleave(3, 1), x(2, 3, 2))
    g.record("repeat_interleave_counts",
             lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 1), x(2, 3, 2))
    g.record("pad_constant", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), x(2, 3, 2))
    g.record("pad_crop", lambda x: F.pad(x, (-1, 2, 1, -2)), x(2, 3, 4))
    g.record("pad_reflect", lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"), x(2, 4, 5))
    g.record("pad_replicate", lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), x(2, 4, 5))
    g.record("pad_circular", lambda x: F.pad(x, (2, 5, 1, 0), mode="circular"), x(2, 4, 5))


def vectors(g):
    for case, a, b in (("dot", (5,), (5,)), ("row", (4,), (4, 3)), ("column", (3, 4), (4,)),
                       ("rows", (4,), (2, 4, 3)), ("columns", (2, 3, 4), (4,))):
        g.record(case, lambda a, b: a @ b, {"a": g.randn(*a), "b": g.randn(*b)})
    g.record("linear", lambda a, b: F.linear(a, b), {"a": g.randn(4), "b": g.randn(3, 4)})


def layer_norm_dims(g):
    x, shape = g.randn(2, 3, 4), (3, 4)
    g.record("two_dims", lambda x, weight, bias: F.layer_norm(x, shape, weight, bias, 1e-5),
             {"x": x, "weight": g.randn(*shape), "bias": g.randn(*shape)})


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
    "ellipsis_summed": ("...ij,jk->ik", (2, 3, 4, 5), (5, 2)),
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


ROOMS = {"rearrange": rearrange, "shapes": shapes, "vectors": vectors,
         "layer_norm_dims": layer_norm_dims, "stack": stack, "einsum": einsum}

# SPDX-License-Identifier: Apache-2.0
"""Golden cases of pointwise ops. ROOMS: file name to the function that fills it."""
import torch
import torch.nn.functional as F


def pointwise(g):
    for name, fn in (("silu", F.silu), ("gelu", F.gelu),
                     ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
                     ("tanh", torch.tanh), ("exp", torch.exp), ("sin", torch.sin),
                     ("cos", torch.cos)):
        g.record(name, fn, {"x": g.randn(2, 23, scale=3.0)})
    for name, fn in (("log", torch.log), ("rsqrt", torch.rsqrt)):
        g.record(name, fn, {"x": g.randn(2, 23).abs() + 0.05})


def unary(g):
    wide = {"sigmoid": torch.sigmoid, "relu": torch.relu, "abs": torch.abs, "expm1": torch.expm1,
            "softplus": F.softplus, "softplus_sharp": lambda x: F.softplus(x, beta=2.5, threshold=3),
            "erf": torch.erf, "pow_2": lambda x: x ** 2, "pow_3": lambda x: x ** 3,
            "pow_4": lambda x: x ** 4, "pow_1": lambda x: x ** 1,
            "clamp": lambda x: x.clamp(-1, 2), "clamp_min": lambda x: x.clamp(min=0.5),
            "clamp_max": lambda x: x.clamp(max=0.5), "reciprocal": torch.reciprocal,
            "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    for name, fn in wide.items():
        g.record(name, fn, {"x": g.randn(2, 11, scale=3.0)})
        g.record(name + "_bf16", fn, {"x": g.randn(2, 5, scale=3.0, dtype=torch.bfloat16)})
    positive = {"sqrt": torch.sqrt, "log1p": torch.log1p, "pow_half": lambda x: x ** 0.5,
                "pow_2.5": lambda x: x ** 2.5, "pow_-1.5": lambda x: x ** -1.5}
    for name, fn in positive.items():
        g.record(name, fn, {"x": g.randn(2, 11).abs() + 0.05})
    for name, fn in (("sin", torch.sin), ("cos", torch.cos)):  # past the polynomials' range too
        g.record(name + "_far", fn, {"x": g.randn(2, 11, scale=1e5)})
    mask = torch.rand(2, 11, generator=g.rng) < 0.4
    g.record("masked_fill", lambda x, m: x.masked_fill(m > 0, -1.5), {"x": g.randn(2, 11)},
             {"mask": mask.to(torch.int64)})


def steps(g):
    """Ops without a slope: values alone."""
    halves = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    x = torch.cat((halves, g.randn(9, scale=3.0)))
    for name, fn in (("floor", torch.floor), ("round", torch.round), ("sign", torch.sign)):
        g.put(name, x=x, y=fn(x))


def binary(g):
    def pair(dtype=torch.float32):
        a, b = g.randn(3, 7, dtype=dtype), g.randn(7, dtype=dtype)
        a[1, 2:5] = b[2:5]  # ties
        return {"a": a, "b": b}

    for name, fn in (("maximum", torch.maximum), ("minimum", torch.minimum)):
        g.record(name, fn, pair())
        g.record(name + "_bf16", fn, pair(torch.bfloat16))
    g.record("remainder", torch.remainder, {"a": g.randn(3, 7, scale=9.0), "b": g.randn(7)})
    g.record("pow", torch.pow, {"a": g.randn(3, 7).abs() + 0.1, "b": g.randn(7, scale=2.0)})
    a = g.randn(3, 7).abs()
    a[0] = 0
    g.record("pow_whole", torch.pow, {"a": a, "b": torch.tensor([0.0, 1, 2, 3, 0, 2, 4])})


def triangle(g):
    for upper, fn in ((True, torch.triu), (False, torch.tril)):
        for diagonal in (0, 2, -1):
            g.record(f"{fn.__name__}_{diagonal}", lambda x: fn(x, diagonal),
                     {"x": g.randn(2, 4, 5)}, diagonal=diagonal, upper=upper)


def one_hot(g):
    ids = g.randint(0, 5, 3, 4)
    g.put("ids", ids=ids, y=F.one_hot(ids, 5))
    g.attrs("ids", classes=5)


ROOMS = {"pointwise": pointwise, "unary": unary, "steps": steps, "binary": binary,
         "triangle": triangle, "one_hot": one_hot}

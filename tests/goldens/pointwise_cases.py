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
    for name, fn in (("floor", torch.floor), ("round", torch.round), ("sign", torch.sign),
                     ("ceil", torch.ceil), ("trunc", torch.trunc)):
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


def activations(g):
    for name, fn in (("leaky_relu", F.leaky_relu), ("leaky_relu_0.3", lambda x: F.leaky_relu(x, 0.3)),
                     ("elu", F.elu), ("elu_0.6", lambda x: F.elu(x, 0.6)), ("mish", F.mish),
                     ("logsigmoid", F.logsigmoid), ("hardtanh", F.hardtanh), ("relu6", F.relu6),
                     ("exp2", torch.exp2), ("frac", torch.frac)):
        g.record(name, fn, {"x": g.randn(2, 11, scale=3.0)})
        g.record(name + "_bf16", fn, {"x": g.randn(2, 5, scale=3.0, dtype=torch.bfloat16)})
    for name, fn in (("mish", F.mish), ("logsigmoid", F.logsigmoid), ("elu", F.elu)):
        g.record(name + "_far", fn, {"x": torch.tensor([-200.0, -60, -20, 20, 60, 200])})
    for name, fn in (("log2", torch.log2), ("log10", torch.log10)):
        g.record(name, fn, {"x": g.randn(2, 11, scale=5.0).abs() + 0.05})


def blends(g):
    """Of a, b and c; where they tie, who has the gradient."""
    def three():
        a, b, c = g.randn(3, 7), g.randn(7), g.randn(3, 1)
        a[1, 2:5] = b[2:5]
        a[2, 5] = c[2, 0]
        return {"a": a, "b": b, "c": c}

    g.record("clamp", lambda a, b, c: a.clamp(b, c), three())
    g.record("clamp_min", lambda a, b, c: a.clamp(min=b) + 0 * c, three())
    g.record("lerp", torch.lerp, three())
    g.record("lerp_0.3", lambda a, b, c: torch.lerp(a, b, 0.3) + 0 * c, three())
    g.record("lerp_0.7", lambda a, b, c: torch.lerp(a, b, 0.7) + 0 * c, three())
    g.record("fmod", lambda a, b, c: torch.fmod(9 * a, b) + 0 * c, three())


def quotients(g):
    """Whole quotients and rests, where rounding is felt: values alone, as f32 has them."""
    a = torch.cat((torch.tensor([1.0, 6, -6, 5, -5, 0, -0.0, 1e30, -1e30, 3]), g.randn(40, scale=99.0)))
    b = torch.cat((torch.tensor([0.1, 0.2, 0.2, -2, 2, 3, 3, 7, 0.3, 1e31]), g.randn(40)))
    for name, fn in (("floor_divide", torch.floor_divide), ("fmod", torch.fmod)):
        g.put(name, a=a, b=b, y=fn(a, b))
        ints = g.randint(-50, 50, 20), g.randint(1, 9, 20) * (2 * g.randint(0, 2, 20) - 1)
        g.put(name + "_i64", a=ints[0], b=ints[1], y=fn(*ints))


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
         "activations": activations, "blends": blends, "quotients": quotients,
         "triangle": triangle, "one_hot": one_hot}

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


ROOMS = {"pointwise": pointwise}

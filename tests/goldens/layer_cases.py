# SPDX-License-Identifier: Apache-2.0
"""Golden cases of what transformer layers are made of. ROOMS: file name to the function that fills it."""
from unittest import mock

import torch
import torch.nn.functional as F

import tiny_llama

BF16 = torch.bfloat16


def softmax(g):
    g.record("last", lambda x: x.softmax(-1), {"x": g.randn(2, 3, 37)}, dim=-1)
    g.record("middle", lambda x: x.softmax(1), {"x": g.randn(3, 11, 4)}, dim=1)
    g.record("large", lambda x: x.softmax(-1), {"x": g.randn(4, 19, scale=40.0)}, dim=-1)
    g.record("bf16", lambda x: x.softmax(-1), {"x": g.randn(3, 2, 33, dtype=BF16)}, dy_dtype=BF16,
             dim=-1)


def gemma_norm(x, weight, eps):
    """GemmaRMSNorm of transformers, whose casts to f32 are casts to f64 here."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    norm = GemmaRMSNorm(weight.shape[0], eps)
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        return torch.func.functional_call(norm, {"weight": weight}, (x,))


def rms_norm(g):
    eps = 1e-5

    def fn(x, weight):
        return F.rms_norm(x, weight.shape, weight, eps)

    def inputs(*shape, dtype=torch.float32, scale=1.0, shift=1.0):
        return {"x": g.randn(*shape, dtype=dtype, scale=scale),
                "weight": g.randn(shape[-1], dtype=dtype, scale=0.2, shift=shift)}

    plain = {"eps": eps, "weight_offset": 0}
    g.record("f32", fn, inputs(1, 3, 40), **plain)
    g.record("odd", fn, inputs(5, 37), **plain)
    g.record("small", fn, inputs(4, 16, scale=1e-3), **plain)  # here eps is felt
    g.record("bf16", fn, inputs(2, 2, 24, dtype=BF16), dy_dtype=BF16, **plain)
    for case, dtype in (("gemma", torch.float32), ("gemma_bf16", BF16)):
        g.record(case, lambda x, weight: gemma_norm(x, weight, eps),
                 inputs(3, 21, dtype=dtype, shift=0.0), dy_dtype=dtype, eps=eps, weight_offset=1)


def rope(g):
    theta = 500000.0

    def fn(x, cos, sin):  # adjacent pairs (x0, x1) are the complex numbers x0 + i x1
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))          # (B, T, H, D/2)
        turn = torch.complex(cos, sin)[None, :, None, :]                 # (1, T, 1, D/2)
        return torch.view_as_real(pairs * turn).flatten(-2)              # (B, T, H, D)

    for case, (b, t, h, d), offset in (("start", (2, 5, 2, 16), 0), ("offset", (1, 4, 2, 24), 100),
                                       ("far", (1, 3, 1, 8), 8000)):
        cos, sin = tiny_llama.rope_tables(torch.arange(offset, offset + t), d, theta)
        g.record(case, fn, {"x": g.randn(b, t, h, d)},
                 {"cos": cos.float(), "sin": sin.float()}, theta=theta, offset=offset)
        g.put(case, positions=torch.arange(offset, offset + t))


def swiglu(g):
    def fn(gate, up):
        return F.silu(gate) * up

    g.record("f32", fn, {"gate": g.randn(3, 5, 13, scale=2.0), "up": g.randn(3, 5, 13)})
    g.record("bf16", fn, {"gate": g.randn(2, 33, dtype=BF16), "up": g.randn(2, 33, dtype=BF16)},
             dy_dtype=BF16)


def scaled_dot_product_attention(g):
    def attention(causal):
        def fn(q, k, v):
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5       # (B, H, T, T)
            if causal:
                future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, -torch.inf)
            y = scores.softmax(-1) @ v                                   # (B, H, T, D)
            torch.testing.assert_close(
                y, F.scaled_dot_product_attention(q, k, v, is_causal=causal))
            return {"y": y, "lse": scores.logsumexp(-1)}                 # lse: (B, H, T)
        return fn

    cases = (("causal_gqa", True, 1, 2, 1, 37, 16, torch.float32),
             ("causal", True, 2, 1, 1, 5, 24, torch.float32),
             ("full_gqa", False, 1, 4, 2, 5, 24, torch.float32),
             ("full", False, 1, 1, 1, 13, 16, torch.float32),
             ("causal_gqa_bf16", True, 1, 2, 1, 13, 16, BF16))
    for case, causal, b, h, hkv, t, d, dtype in cases:
        inputs = {"q": g.randn(b, h, t, d, dtype=dtype), "k": g.randn(b, hkv, t, d, dtype=dtype),
                  "v": g.randn(b, hkv, t, d, dtype=dtype)}
        g.record(case, attention(causal), inputs, dy_dtype=dtype, causal=causal, scale=d ** -0.5)


def cross_entropy(g):
    def fn(logits, targets):
        total = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum",
                                ignore_index=-100)
        return {"sum": total, "count": (targets != -100).sum()}

    for case, shape, scale in (("f32", (2, 5, 31), 2.0), ("large", (1, 6, 50), 30.0)):
        targets = g.randint(0, shape[-1], *shape[:-1])
        targets[0, 1] = targets[-1, -2] = -100
        g.record(case, fn, {"logits": g.randn(*shape, scale=scale)}, {"targets": targets},
                 ignore_index=-100)
    g.record("all_ignored", fn, {"logits": g.randn(1, 3, 5)},
             {"targets": torch.full((1, 3), -100)}, ignore_index=-100)


def matmul(g):
    def product(transpose_a, transpose_b):
        return lambda a, b: (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)

    cases = (("nn", (7, 13), (13, 5), False, False), ("nt", (7, 13), (5, 13), False, True),
             ("tn", (13, 7), (13, 5), True, False), ("tt", (13, 7), (5, 13), True, True),
             ("batched", (3, 5, 7), (3, 7, 4), False, False),
             ("batched_nt", (2, 2, 5, 7), (2, 2, 3, 7), False, True),
             ("linear", (2, 5, 12), (8, 12), False, True))  # (B, T, in) x (out, in)^T
    for case, a, b, ta, tb in cases:
        g.record(case, product(ta, tb), {"a": g.randn(*a), "b": g.randn(*b)}, transpose_a=ta,
                 transpose_b=tb)
    g.record("bf16", product(False, True), {"a": g.randn(9, 33, dtype=BF16),
                                            "b": g.randn(7, 33, dtype=BF16)},
             dy_dtype=BF16, transpose_a=False, transpose_b=True)


ROOMS = {
    "softmax": softmax,
    "rms_norm": rms_norm,
    "rope": rope,
    "swiglu": swiglu,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "cross_entropy": cross_entropy,
    "matmul": matmul,
}

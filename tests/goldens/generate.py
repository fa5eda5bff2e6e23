# SPDX-License-Identifier: Apache-2.0
"""Golden values of the op rooms and of a tiny Llama, made with PyTorch. Deterministic: fixed seeds.

    build/venv/bin/python tests/goldens/generate.py            # all files
    build/venv/bin/python tests/goldens/generate.py softmax    # one of them
"""
import sys

import torch
import torch.nn.functional as F

import tiny_llama
from golden_file import GoldenFile

BF16 = torch.bfloat16
SEED = 20240607


def softmax(g):
    g.record("last", lambda x: x.softmax(-1), {"x": g.randn(2, 3, 37)}, dim=-1)
    g.record("middle", lambda x: x.softmax(1), {"x": g.randn(3, 11, 4)}, dim=1)
    g.record("large", lambda x: x.softmax(-1), {"x": g.randn(4, 19, scale=40.0)}, dim=-1)
    g.record("bf16", lambda x: x.softmax(-1), {"x": g.randn(3, 2, 33, dtype=BF16)}, dy_dtype=BF16,
             dim=-1)


def rms_norm(g):
    eps = 1e-5

    def fn(x, weight):
        return F.rms_norm(x, weight.shape, weight, eps)

    def inputs(*shape, dtype=torch.float32, scale=1.0):
        return {"x": g.randn(*shape, dtype=dtype, scale=scale),
                "weight": g.randn(shape[-1], dtype=dtype, scale=0.2, shift=1.0)}

    g.record("f32", fn, inputs(1, 3, 40), eps=eps)
    g.record("odd", fn, inputs(5, 37), eps=eps)
    g.record("small", fn, inputs(4, 16, scale=1e-3), eps=eps)  # here eps is felt
    g.record("bf16", fn, inputs(2, 2, 24, dtype=BF16), dy_dtype=BF16, eps=eps)


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


def logsumexp(g):
    for case, dim, scale in (("last", -1, 1.0), ("middle", 1, 1.0), ("large", -1, 60.0)):
        g.record(case, lambda x: x.logsumexp(dim), {"x": g.randn(2, 13, 5, scale=scale)}, dim=dim)


def max_over_dim(g):
    for case, dim in (("last", -1), ("middle", 1)):
        g.record(case, lambda x: dict(zip(("y", "indices"), x.max(dim))),
                 {"x": g.randn(3, 13, 5)}, dim=dim)


def topk(g):
    for case, k, dim in (("last", 3, -1), ("middle", 2, 1)):
        g.record(case, lambda x: dict(zip(("y", "indices"), x.topk(k, dim))),
                 {"x": g.randn(2, 9, 8)}, k=k, dim=dim, largest=True, sorted=True)


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


def pointwise(g):
    for name, fn in (("silu", F.silu), ("gelu", F.gelu),
                     ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
                     ("tanh", torch.tanh), ("exp", torch.exp), ("sin", torch.sin),
                     ("cos", torch.cos)):
        g.record(name, fn, {"x": g.randn(2, 23, scale=3.0)})
    for name, fn in (("log", torch.log), ("rsqrt", torch.rsqrt)):
        g.record(name, fn, {"x": g.randn(2, 23).abs() + 0.05})


def cat(g):
    for case, dim, sizes in (("dim_0", 0, (2, 1, 3)), ("dim_last", -1, (4, 1, 2))):
        shapes = [[n, 3, 5] if dim == 0 else [2, 3, n] for n in sizes]
        g.record(case, lambda *parts: torch.cat(parts, dim),
                 {f"x{i}": g.randn(*shape) for i, shape in enumerate(shapes)}, dim=dim)


def adamw(g):
    """p0 and p1 after each of five steps with given gradients: keys step_<n>/{g0,g1,p0,p1}."""
    settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    starts = [g.randn(5, 7), g.randn(13)]
    params = [torch.nn.Parameter(p.double()) for p in starts]
    optimizer = torch.optim.AdamW(params, **settings)
    g.put("start", p0=starts[0], p1=starts[1])
    for step in range(1, 6):
        grads = [g.randn(*p.shape, scale=10.0 ** (step - 4)) for p in params]
        for param, grad in zip(params, grads):
            param.grad = grad.double()
        optimizer.step()
        g.put(f"step_{step}", g0=grads[0], g1=grads[1], p0=params[0], p1=params[1])
    for i, param in enumerate(params):
        state = optimizer.state[param]
        g.put("final", **{f"exp_avg{i}": state["exp_avg"], f"exp_avg_sq{i}": state["exp_avg_sq"]})
    beta1, beta2 = settings.pop("betas")
    g.attrs("start", beta1=beta1, beta2=beta2, **settings)


def clip_grad_norm(g):
    """Gradients before (g*) and after (c*) torch.nn.utils.clip_grad_norm_; norm is before."""
    for case, max_norm in (("clipped", 1.0), ("untouched", 100.0)):
        before = [g.randn(5, 7), g.randn(13), g.randn(2, 3, 4)]
        params = [torch.nn.Parameter(torch.zeros_like(x, dtype=torch.float64)) for x in before]
        for param, grad in zip(params, before):
            param.grad = grad.double()
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        for i, (grad, param) in enumerate(zip(before, params)):
            g.put(case, **{f"g{i}": grad, f"c{i}": param.grad})
        g.put(case, norm=norm)
        g.attrs(case, max_norm=max_norm)


ROOMS = {fn.__name__: fn for fn in (
    softmax, rms_norm, rope, swiglu, scaled_dot_product_attention, cross_entropy, embedding, gather,
    scatter_add, logsumexp, topk, matmul, pointwise, cat, adamw, clip_grad_norm)}
ROOMS["max"] = max_over_dim


def main():
    torch.set_num_threads(1)  # the sum order, and with it the last bit, follows the thread count
    wanted = sys.argv[1:] or [*ROOMS, "tiny_llama"]
    for room in wanted:
        if room == "tiny_llama":
            tiny_llama.write(SEED)
            continue
        golden = GoldenFile(room, SEED)
        ROOMS[room](golden)
        golden.write()


if __name__ == "__main__":
    main()

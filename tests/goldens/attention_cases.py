# SPDX-License-Identifier: Apache-2.0
"""Golden cases of masked attention and of attention sinks. ROOMS: file name to the function that fills it."""
import torch

BF16 = torch.bfloat16


def visible(queries, keys, causal, offset=0, window=0, chunk=0, positions=None):
    """(B or 1, 1, T, S) bools: which keys each query sees, by the definition of each mask."""
    at, key = torch.arange(queries)[:, None] + offset, torch.arange(keys)[None, :]  # (T, 1), (1, S)
    mask = (key <= at if causal else torch.ones(queries, keys, dtype=torch.bool))[None]
    if window:
        mask = mask & (key > at - window)
    if chunk:
        mask = mask & (key // chunk == at // chunk)
    if positions is not None:
        start = at[:, 0] - positions                                 # (B, T), of a query's document
        starts = [set(row.tolist()) for row in start]
        of_key = torch.tensor([[max((s for s in row if s <= k), default=-1) for k in range(keys)]
                               for row in starts])                   # (B, S), of a key's document
        mask = mask & (of_key[:, None, :] == start[:, :, None])
    return mask[:, None]


def scores_of(q, k, v, mask):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5           # (B, H, T, S)
    return scores.masked_fill(~mask, -torch.inf), v


def packed(*documents):
    """Positions of documents of these lengths, packed; one list for each batch."""
    return torch.tensor([[p for length in row for p in range(length)] for row in documents])


def qkv(g, b, h, hkv, t, s, d, dtype=torch.float32):
    return {"q": g.randn(b, h, t, d, dtype=dtype), "k": g.randn(b, hkv, s, d, dtype=dtype),
            "v": g.randn(b, hkv, s, d, dtype=dtype)}


def attention_masks(g):
    def attention(mask):
        def fn(q, k, v, *_):
            scores, values = scores_of(q, k, v, mask)
            y, lse = scores.softmax(-1) @ values, scores.logsumexp(-1)  # (B, H, T, D), (B, H, T)
            return {"z": y + lse[..., None], "y": y, "lse": lse}     # z: dlse is felt too
        return fn

    two = packed((3, 1, 5, 4), (13,))
    earlier = packed((9, 4), (6, 1, 6))[:, 4:]                       # keys of the first lie before
    cases = (("window", 13, 13, dict(causal=True, window=4), None),
             ("window_of_one", 5, 5, dict(causal=True, window=1), None),
             ("window_offset", 5, 12, dict(causal=True, offset=7, window=6), None),
             ("chunk", 13, 13, dict(causal=True, chunk=5), None),
             ("chunk_offset", 6, 11, dict(causal=True, offset=5, chunk=4), None),
             ("documents", 13, 13, dict(causal=True), two),
             ("documents_full", 13, 13, dict(causal=False), two),
             ("documents_offset", 9, 13, dict(causal=True, offset=4), earlier),
             ("all", 13, 13, dict(causal=True, window=4, chunk=6), two),
             ("long", 70, 70, dict(causal=True, window=66, chunk=68), None),
             ("decode", 1, 9, dict(causal=True, offset=8, window=5), None),
             ("all_bf16", 13, 13, dict(causal=True, window=6, chunk=8), two))
    for case, t, s, mask, positions in cases:
        dtype = BF16 if case.endswith("bf16") else torch.float32
        b = 1 if positions is None else 2
        constants = {} if positions is None else {"positions": positions}
        attributes = {"causal": True, "offset": 0, "window": 0, "chunk": 0} | mask
        g.record(case, attention(visible(t, s, positions=positions, **mask)),
                 qkv(g, b, 2, 1, t, s, 4, dtype), constants, dy_dtype=dtype, **attributes)


def attention_sink(g):
    def attention(mask):
        def fn(q, k, v, sink):  # a logit that belongs to no key
            scores, values = scores_of(q, k, v, mask)
            column = sink[None, :, None, None].expand(*scores.shape[:-1], 1)
            return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ values
        return fn

    for case, window, dtype in (("full", 0, torch.float32), ("window", 3, torch.float32),
                                ("window_bf16", 3, BF16)):
        inputs = qkv(g, 2, 4, 2, 7, 7, 4, dtype) | {"sink": g.randn(4, dtype=dtype)}
        g.record(case, attention(visible(7, 7, True, window=window)), inputs, dy_dtype=dtype,
                 window=window)


ROOMS = {"attention_masks": attention_masks, "attention_sink": attention_sink}

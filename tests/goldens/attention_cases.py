# SPDX-License-Identifier: Apache-2.0
"""Golden cases of masked attention and of attention sinks. ROOMS: file name to the function that fills it."""
import torch

BF16 = torch.bfloat16


def visible(queries, keys, causal=False, offset=0, window=0, chunk=0, prefix=0,
            query_positions=None, key_positions=None, query_documents=None, key_documents=None):
    """(B or 1, 1, T, S) bools: which keys each query sees, by the definition of each mask."""
    at = torch.arange(queries) + offset if query_positions is None else query_positions
    key = torch.arange(keys) if key_positions is None else key_positions
    at, key = at[..., :, None], key[..., None, :]                    # (B or none, T, 1), (B or none, 1, S)
    mask = torch.ones(1, queries, keys, dtype=torch.bool)
    if causal:
        mask = mask & (key <= at)
    if window:
        mask = mask & ((key - at).abs() < window)
    if chunk:
        mask = mask & (key // chunk == at // chunk)
    if prefix:  # OR, before documents
        mask = mask | (key < prefix)
    if query_documents is not None:
        mask = mask & (query_documents[..., :, None] == key_documents[..., None, :])
    return mask[:, None]


def scores_of(q, k, v, mask):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5           # (B, H, T, S)
    return scores.masked_fill(~mask, -torch.inf), v


def packed(*documents):
    """The ids of documents of these lengths, packed; one list for each batch."""
    return torch.tensor([[i for i, n in enumerate(row) for _ in range(n)] for row in documents])


def qkv(g, b, h, hkv, t, s, d, dtype=torch.float32, dv=None):
    return {"q": g.randn(b, h, t, d, dtype=dtype), "k": g.randn(b, hkv, s, d, dtype=dtype),
            "v": g.randn(b, hkv, s, dv or d, dtype=dtype)}


def attention_masks(g):
    def attention(mask):
        def fn(q, k, v, *_):
            scores, values = scores_of(q, k, v, mask)
            y, lse = scores.softmax(-1) @ values, scores.logsumexp(-1)  # (B, H, T, D), (B, H, T)
            return {"z": y + lse[..., None], "y": y, "lse": lse}     # z: dlse is felt too
        return fn

    def both(ids):
        return {"query_documents": ids, "key_documents": ids}

    two = packed((3, 1, 5, 4), (13,))
    earlier = packed((9, 4), (6, 1, 6))                              # queries are the last 9 of 13
    order = torch.tensor([[(i * 5 + b * 3) % 13 for i in range(13)] for b in range(2)])
    moved = {"query_positions": order[:, :9], "key_positions": order.flip(1)}
    mixed = {"query_documents": order[0, :9] % 3, "key_documents": order[1] % 3}
    wide = dict(d=192, dv=128)                                       # DeepSeek's, without padding
    cases = (("window", 13, 13, dict(causal=True, window=4), {}, {}),
             ("window_of_one", 5, 5, dict(causal=True, window=1), {}, {}),
             ("window_offset", 5, 12, dict(causal=True, offset=7, window=6), {}, {}),
             ("chunk", 13, 13, dict(causal=True, chunk=5), {}, {}),
             ("chunk_offset", 6, 11, dict(causal=True, offset=5, chunk=4), {}, {}),
             ("documents", 13, 13, dict(causal=True), both(two), {}),
             ("documents_full", 13, 13, dict(causal=False), both(two), {}),
             ("documents_offset", 9, 13, dict(causal=True, offset=4),
              {"query_documents": earlier[:, 4:], "key_documents": earlier}, {}),
             ("all", 13, 13, dict(causal=True, window=4, chunk=6), both(two), {}),
             ("long", 70, 70, dict(causal=True, window=66, chunk=68), {}, {}),
             ("decode", 1, 9, dict(causal=True, offset=8, window=5), {}, {}),
             ("all_bf16", 13, 13, dict(causal=True, window=6, chunk=8), both(two), {}),
             ("prefix", 13, 13, dict(causal=True, prefix=5), {}, {}),
             ("prefix_documents", 13, 13, dict(causal=True, prefix=5), both(two), {}),
             ("both_sides", 13, 13, dict(window=3), {}, {}),
             ("moved", 9, 13, dict(causal=True, window=7, prefix=2), moved, {}),
             ("moved_documents", 9, 13, dict(causal=True, prefix=9), moved | mixed, {}),
             ("wide", 4, 6, dict(causal=True, offset=2), {}, wide),
             ("wide_moved", 9, 13, dict(causal=True, prefix=1), moved, wide),
             ("wide_bf16", 4, 6, dict(causal=True, offset=2), {}, wide))
    for case, t, s, mask, constants, heads in cases:
        dtype = BF16 if case.endswith("bf16") else torch.float32
        b = 2 if constants else 1
        attributes = {"causal": False, "offset": 0, "window": 0, "chunk": 0, "prefix": 0} | mask
        g.record(case, attention(visible(t, s, **mask, **constants)),
                 qkv(g, b, 2, 1, t, s, dtype=dtype, **({"d": 4} | heads)), constants,
                 dy_dtype=dtype, **attributes)


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

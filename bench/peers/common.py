# SPDX-License-Identifier: Apache-2.0
"""Timing, the JSON lines and the peer Llama that the scripts in this folder share."""
import json
import statistics
import time

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16,
          "float16": torch.float16, "int64": torch.int64, "int32": torch.int32,
          "uint8": torch.uint8, "bool": torch.bool}
DTYPES |= {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16,
           "f16": torch.float16, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8,
           "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}


def emit(**row):
    print(json.dumps(row), flush=True)


def use_device(name):
    """All tensors from here on are made on this device, `cpu` or `cuda`."""
    torch.set_default_device(name)


def now():
    """Seconds, when the GPU has done all work so far, where one is in use."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def median_us(fn, repeats=7, target_s=0.03):
    """Median microseconds per call over `repeats` runs of `target_s` each, after a warm-up."""
    fn()
    start = now()
    fn()
    once = now() - start
    count = max(1, min(20000, int(target_s / max(once, 1e-7))))
    for _ in range(min(count, 100)):
        fn()
    samples = []
    for _ in range(repeats):
        start = now()
        for _ in range(count):
            fn()
        samples.append((now() - start) / count)
    return statistics.median(samples) * 1e6


def rope_table(seq_len, head_dim, theta):
    frequency = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(seq_len).float(), frequency)
    return torch.polar(torch.ones_like(angle), angle)  # complex, (T, D/2)


def rope(x, table):  # x: (B, T, H, D), adjacent pairs as complex numbers, computed in f32
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * table[None, :, None, :]).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x, table):  # (B, T, dim)
        b, t, _ = x.shape
        q = rope(self.wq(x).view(b, t, self.n_heads, -1), table).transpose(1, 2)
        k = rope(self.wk(x).view(b, t, self.n_kv_heads, -1), table).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.n_heads != self.n_kv_heads)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, dim, ffn_dim):
        super().__init__()
        self.w1 = nn.Linear(dim, ffn_dim, bias=False)
        self.w2 = nn.Linear(ffn_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, ffn_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, ffn_dim):
        super().__init__()
        self.attention = Attention(dim, n_heads, n_kv_heads)
        self.feed_forward = FeedForward(dim, ffn_dim)
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x, table):
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, dim, n_layers, n_heads, n_kv_heads, ffn_dim, vocab_size, seq_len,
                 rope_theta=500000.0, tied=False, checkpoint=False):
        super().__init__()
        self.checkpoint = checkpoint
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(
            Block(dim, n_heads, n_kv_heads, ffn_dim) for _ in range(n_layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and not name.startswith("tok_embeddings"):
                nn.init.trunc_normal_(weight, std=0.02)
        if tied:  # drawn as a head: wider logits have subnormal softmax tails, which are slow
            self.output.weight = self.tok_embeddings.weight
            nn.init.trunc_normal_(self.output.weight, std=dim ** -0.5)
        # Not a buffer: Module.to(bfloat16) would touch it.
        self.table = rope_table(seq_len, dim // n_heads, rope_theta)

    def forward(self, tokens):  # (B, T) -> (B, T, V)
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(layer, x, self.table, use_reentrant=False)
            else:
                x = layer(x, self.table)
        return self.output(self.norm(x))


def loss_fn(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def fastest_adamw(model, **settings):
    """The AdamW, fused or foreach, that steps faster on this model, and its name."""
    times = {}
    for kind in ("fused", "foreach"):
        copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        for copy in copies:
            copy.grad = torch.full_like(copy, 1e-3)
        optimizer = torch.optim.AdamW(copies, **{kind: True}, **settings)
        times[kind] = median_us(optimizer.step, repeats=3, target_s=0.02)
    kind = min(times, key=times.get)
    return torch.optim.AdamW(model.parameters(), **{kind: True}, **settings), kind

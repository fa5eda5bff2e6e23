# SPDX-License-Identifier: Apache-2.0
"""Tiny Llamas with torchtitan's parameter names, trained for 20 AdamW steps: one in plain PyTorch,
and one whose head is its embedding, with Llama 3.1's scaled frequencies, by transformers.

Computed in f64 and rounded to f32. The linears are drawn with std fan_in^-0.5, not with the model's
own 0.02, so that attention is far from uniform and a wrong rotation or mask shows in the loss.
"""
import json

import torch
import torch.nn.functional as F

from golden_file import FOLDER, GoldenFile

CONFIG = dict(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=64, vocab_size=64,
              rope_theta=500000.0, norm_eps=1e-5)
# Scaled as if trained on 8 positions, so that the 16 of a batch feel it.
TIED = CONFIG | dict(rope_theta=100.0, rope_scaling=dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8))
OPTIMIZER = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, max_norm=1.0)
STEPS, BATCH, SEQ = 20, 2, 16


def rope_tables(positions, head_dim, theta):
    """cos and sin of position * theta^(-2i / head_dim), each (T, D/2), in f64."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = positions.double()[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):  # x: (B, T, H, D), adjacent pairs
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def attention(w, prefix, x, cos, sin, c):
    b, t, _ = x.shape
    q = F.linear(x, w[prefix + "wq.weight"]).view(b, t, c["n_heads"], -1)     # (B, T, H, D)
    k = F.linear(x, w[prefix + "wk.weight"]).view(b, t, c["n_kv_heads"], -1)  # (B, T, Hkv, D)
    v = F.linear(x, w[prefix + "wv.weight"]).view(b, t, c["n_kv_heads"], -1)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    groups = c["n_heads"] // c["n_kv_heads"]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * c["head_dim"] ** -0.5    # (B, H, T, T)
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
    y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, t, -1)
    return F.linear(y, w[prefix + "wo.weight"])


def feed_forward(w, prefix, x):
    gate = F.silu(F.linear(x, w[prefix + "w1.weight"]))
    return F.linear(gate * F.linear(x, w[prefix + "w3.weight"]), w[prefix + "w2.weight"])


def forward(w, tokens, c):  # tokens: (B, T) -> logits: (B, T, V)
    def norm(x, name):
        return F.rms_norm(x, (c["dim"],), w[name + ".weight"], c["norm_eps"])

    cos, sin = rope_tables(torch.arange(tokens.shape[1]), c["head_dim"], c["rope_theta"])
    x = F.embedding(tokens, w["tok_embeddings.weight"])
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    for i in range(c["n_layers"]):
        layer = f"layers.{i}."
        x = x + attention(w, layer + "attention.", norm(x, layer + "attention_norm"), cos, sin, c)
        x = x + feed_forward(w, layer + "feed_forward.", norm(x, layer + "ffn_norm"))
    return F.linear(norm(x, "norm"), w["output.weight"])


def by_transformers(c):
    """The forward of transformers' model: its rotation pairs halves, so q and k are permuted."""
    from transformers import LlamaConfig, LlamaForCausalLM
    scaling = dict(c["rope_scaling"], rope_type="llama3", rope_theta=c["rope_theta"])
    scaling["original_max_position_embeddings"] = scaling.pop("original_max_position")
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=c["vocab_size"], hidden_size=c["dim"], intermediate_size=c["ffn_dim"],
        num_hidden_layers=c["n_layers"], num_attention_heads=c["n_heads"],
        num_key_value_heads=c["n_kv_heads"], head_dim=c["head_dim"], rms_norm_eps=c["norm_eps"],
        max_position_embeddings=64, tie_word_embeddings=True, attn_implementation="eager",
        rope_parameters=scaling)).double()

    def halves(name, weight):
        if name not in ("attention.wq", "attention.wk"):
            return weight
        pairs = weight.unflatten(0, (-1, c["head_dim"] // 2, 2))  # (H, D/2, 2, dim)
        return pairs.transpose(1, 2).reshape(weight.shape)

    return lambda w, tokens, _: torch.func.functional_call(
        model, named_as_theirs(w, c, halves), (tokens,)).logits


def named_as_theirs(w, c, change=lambda name, weight: weight):
    names = {"attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
             "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
             "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
             "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
             "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}
    head = "output.weight" if "output.weight" in w else "tok_embeddings.weight"
    theirs = {"model.embed_tokens.weight": w["tok_embeddings.weight"], "lm_head.weight": w[head],
              "model.norm.weight": w["norm.weight"]}
    for i in range(c["n_layers"]):
        for ours, name in names.items():
            if (weight := w.get(f"layers.{i}.{ours}.weight")) is not None:
                theirs[f"model.layers.{i}.{name}.weight"] = change(ours, weight)
    return theirs


def initial_weights(g, c):
    q_dim, kv_dim = c["n_heads"] * c["head_dim"], c["n_kv_heads"] * c["head_dim"]
    dim, ffn, vocab = c["dim"], c["ffn_dim"], c["vocab_size"]
    shapes = {"tok_embeddings": (vocab, dim)}
    for i in range(c["n_layers"]):
        block = {"attention.wq": (q_dim, dim), "attention.wk": (kv_dim, dim),
                 "attention.wv": (kv_dim, dim), "attention.wo": (dim, q_dim),
                 "feed_forward.w1": (ffn, dim), "feed_forward.w2": (dim, ffn),
                 "feed_forward.w3": (ffn, dim), "attention_norm": (dim,), "ffn_norm": (dim,)}
        if c.get("qk_norm"):
            block |= {"attention.q_norm": (c["head_dim"],), "attention.k_norm": (c["head_dim"],)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in block.items()}
    shapes |= {"norm": (dim,), "output": (vocab, dim)}
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weight = g.randn(*shape, scale=0.1, shift=1.0)
        else:
            weight = g.randn(*shape, scale=1.0 if name == "tok_embeddings" else shape[1] ** -0.5)
        weights[name + ".weight"] = weight
    return weights


def batches(g, c):
    """Tokens (steps, B, T + 1); most follow t -> 5 t + 3, so that there is something to learn."""
    tokens = g.randint(0, c["vocab_size"], STEPS, BATCH, SEQ + 1)
    noise = torch.rand(tokens.shape, generator=g.rng) < 0.2
    for t in range(1, SEQ + 1):
        follow = (5 * tokens[..., t - 1] + 3) % c["vocab_size"]
        tokens[..., t] = torch.where(noise[..., t], tokens[..., t], follow)
    return tokens


def train(weights, tokens, dtype, c, forward):
    """Returns losses, pre-clip gradient norms, logits and gradients of step 1, final weights."""
    # A copy also where the dtype stays: the optimizer writes in place.
    w = {k: torch.nn.Parameter(v.to(dtype, copy=True)) for k, v in weights.items()}
    o = OPTIMIZER
    optimizer = torch.optim.AdamW(w.values(), lr=o["lr"], betas=(o["beta1"], o["beta2"]),
                                  eps=o["eps"], weight_decay=o["weight_decay"])
    losses, norms, first_logits, first_grads = [], [], None, None
    for batch in tokens:
        logits = forward(w, batch[:, :-1], c)
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if first_grads is None:
            first_logits = logits.detach()
            first_grads = {k: v.grad.clone() for k, v in w.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), o["max_norm"]).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, first_logits, first_grads, w


def write(seed):
    write_one("tiny_llama", seed, CONFIG, forward)
    write_one("tiny_llama_tied", seed, TIED, by_transformers(TIED))


def write_one(name, seed, c, forward, initial=initial_weights, f64=False):
    """f64: logits and gradients are stored as they are, for a model that is f64 throughout."""
    g = GoldenFile(name, seed)
    weights, tokens = initial(g, c), batches(g, c)
    if "rope_scaling" in c:
        del weights["output.weight"]
    losses, norms, logits, grads, final = train(weights, tokens, torch.float64, c, forward)
    g.put("initial", **weights)
    put = g.put_f64 if f64 else g.put
    put("step_1", logits=logits, **{f"d_{name}": grad for name, grad in grads.items()})
    g.put("data", tokens=tokens)
    g.write()
    result = dict(
        model=c, optimizer=OPTIMIZER, steps=STEPS, batch=BATCH, seq_len=SEQ, loss=losses,
        grad_norm=norms,
        final_sum_of_squares={k: v.detach().square().sum().item() for k, v in final.items()})
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{path.name:42s} {path.stat().st_size:7d} bytes  loss {losses[0]:.4f} -> "
          f"{losses[-1]:.4f}")

# SPDX-License-Identifier: Apache-2.0
"""A tiny GPT-2 of transformers under the names of our decoders, trained for 20 AdamW steps.

Weights are drawn wide, biases and norms at random too, so that each of them shows in the loss.
"""
import torch

from tiny_llama import write_one

CONFIG = dict(dim=48, n_layers=2, n_heads=3, vocab_size=97, max_seq_len=32, norm_eps=1e-5)


def initial_weights(g, c):
    dim, ffn = c["dim"], 4 * c["dim"]
    weights = {"tok_embeddings.weight": g.randn(c["vocab_size"], dim, scale=0.3),
               "pos_embeddings.weight": g.randn(c["max_seq_len"], dim, scale=0.3)}

    def linear(name, out, fan_in):
        weights[name + ".weight"] = g.randn(out, fan_in, scale=fan_in ** -0.5)
        weights[name + ".bias"] = g.randn(out, scale=0.2)

    def norm(name):
        weights[name + ".weight"] = g.randn(dim, scale=0.1, shift=1.0)
        weights[name + ".bias"] = g.randn(dim, scale=0.2)

    for i in range(c["n_layers"]):
        layer = f"layers.{i}."
        for name in ("wq", "wk", "wv", "wo"):
            linear(layer + "attention." + name, dim, dim)
        linear(layer + "feed_forward.w1", ffn, dim)
        linear(layer + "feed_forward.w2", dim, ffn)
        norm(layer + "attention_norm")
        norm(layer + "ffn_norm")
    norm("norm")
    return weights


def by_transformers(c):
    """The forward of transformers' model, whose linears are stored as (in, out), q, k and v as one."""
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=c["vocab_size"], n_positions=c["max_seq_len"], n_embd=c["dim"],
        n_layer=c["n_layers"], n_head=c["n_heads"], layer_norm_epsilon=c["norm_eps"],
        embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager")).double()
    linears = {"attention.wo": "attn.c_proj", "feed_forward.w1": "mlp.c_fc",
               "feed_forward.w2": "mlp.c_proj"}
    norms = {"attention_norm": "ln_1", "ffn_norm": "ln_2"}

    def forward_of(w, tokens, _):
        theirs = {"transformer.wte.weight": w["tok_embeddings.weight"],
                  "lm_head.weight": w["tok_embeddings.weight"],
                  "transformer.wpe.weight": w["pos_embeddings.weight"],
                  "transformer.ln_f.weight": w["norm.weight"],
                  "transformer.ln_f.bias": w["norm.bias"]}
        for i in range(c["n_layers"]):
            ours, block = f"layers.{i}.", f"transformer.h.{i}."
            for kind in ("weight", "bias"):
                qkv = torch.cat([w[f"{ours}attention.{n}.{kind}"] for n in ("wq", "wk", "wv")])
                theirs[f"{block}attn.c_attn.{kind}"] = qkv.T if kind == "weight" else qkv
                for name, at in linears.items():
                    value = w[f"{ours}{name}.{kind}"]
                    theirs[f"{block}{at}.{kind}"] = value.T if kind == "weight" else value
                for name, at in norms.items():
                    theirs[f"{block}{at}.{kind}"] = w[f"{ours}{name}.{kind}"]
        return torch.func.functional_call(model, theirs, (tokens,), strict=True).logits
    return forward_of


def write(seed):
    write_one("tiny_gpt2", seed, CONFIG, by_transformers(CONFIG), initial_weights, f64=True)

# SPDX-License-Identifier: Apache-2.0
"""Tiny Llama 4s of transformers under torchtitan's parameter names, trained for 20 AdamW steps: as
Scout, with experts in each layer, norms of queries and keys and scaled frequencies, and as Maverick,
with experts in every second layer and none of the others.

Its casts to f32, in norms, in RoPE and in the scale of queries, are replaced by f64. Chunks and the
steps of that scale are shorter than a sequence, and one layer in three has no RoPE.
"""
import torch

from tiny_llama import write_one

SCOUT = dict(dim=24, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=40, moe_ffn_dim=20,
             n_experts=5, top_k=1, interleave_moe_layer_step=1, vocab_size=61, rope_theta=100.0,
             scaling=dict(factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
                          original_max_position=8),
             norm_eps=1e-5, nope_layer_interval=3, attention_chunk_size=5, use_qk_norm=True,
             floor_scale=3, attn_scale=0.3)
MAVERICK = SCOUT | dict(interleave_moe_layer_step=2, n_experts=6, top_k=2, scaling=None,
                        use_qk_norm=False)


def norm(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def turned(xq, xk, table):  # (B, T, H, D), table (B, T, D/2) complex
    def turn(x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * table[:, :, None]).flatten(3)
    return turn(xq), turn(xk)


def frequencies(c):
    plain = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"])
    if c["scaling"] is None:
        return plain
    turns = c["scaling"]["original_max_position"] * plain / (2 * torch.pi)
    assert c["scaling"]["low_freq_factor"] == c["scaling"]["high_freq_factor"] == 1
    return torch.where(turns < 1, plain / c["scaling"]["factor"], plain)


def by_transformers(c):
    from transformers import Llama4ForCausalLM, Llama4TextConfig
    from transformers.models.llama4 import modeling_llama4 as theirs

    def router(self, x):
        logits = torch.nn.functional.linear(x, self.weight)
        best, chosen = torch.topk(logits, self.top_k, dim=1)
        scores = torch.full_like(logits, -torch.inf).scatter_(1, chosen, best)
        return scores.sigmoid(), logits

    class Torch:  # the scale of queries: the floor is exact in f32, its logarithm is not
        def __getattr__(self, name):
            return getattr(torch, name)

        @staticmethod
        def log1p(x):
            return x.double().log1p()

    theirs.Llama4TextL2Norm.forward = lambda self, x: norm(x, self.eps)
    theirs.Llama4TextRMSNorm.forward = lambda self, x: norm(x, self.eps) * self.weight
    theirs.Llama4Router.forward = router
    theirs.apply_rotary_emb = turned
    theirs.torch = Torch()
    rope = dict(rope_type="default", rope_theta=c["rope_theta"])
    if c["scaling"] is not None:
        rope |= c["scaling"] | dict(rope_type="llama3")
        rope["original_max_position_embeddings"] = rope.pop("original_max_position")
    model = Llama4ForCausalLM(Llama4TextConfig(
        vocab_size=c["vocab_size"], hidden_size=c["dim"], intermediate_size=c["moe_ffn_dim"],
        intermediate_size_mlp=c["ffn_dim"], num_hidden_layers=c["n_layers"],
        num_attention_heads=c["n_heads"], num_key_value_heads=c["n_kv_heads"],
        head_dim=c["head_dim"], rms_norm_eps=c["norm_eps"], max_position_embeddings=64,
        num_local_experts=c["n_experts"], num_experts_per_tok=c["top_k"],
        interleave_moe_layer_step=c["interleave_moe_layer_step"], use_qk_norm=c["use_qk_norm"],
        no_rope_layer_interval=c["nope_layer_interval"],
        attention_chunk_size=c["attention_chunk_size"], floor_scale=c["floor_scale"],
        attn_scale=c["attn_scale"], rope_parameters=rope, attn_implementation="eager")).double()

    def table(self, x, position_ids):
        angle = position_ids.double()[..., None] * frequencies(c)
        return torch.polar(torch.ones_like(angle), angle)

    # Theirs and ours agree on the frequencies, but for the precision.
    torch.testing.assert_close(model.model.rotary_emb.inv_freq.double(), frequencies(c),
                               rtol=1e-6, atol=0)
    theirs.Llama4TextRotaryEmbedding.forward = table
    return lambda w, tokens, _: torch.func.functional_call(
        model, dict(model.named_buffers()) | named_as_theirs(w, c), (tokens,), strict=True).logits


def named_as_theirs(w, c):
    plain = {"attention.wq.weight": "self_attn.q_proj.weight",
             "attention.wk.weight": "self_attn.k_proj.weight",
             "attention.wv.weight": "self_attn.v_proj.weight",
             "attention.wo.weight": "self_attn.o_proj.weight",
             "feed_forward.w1.weight": "feed_forward.gate_proj.weight",
             "feed_forward.w2.weight": "feed_forward.down_proj.weight",
             "feed_forward.w3.weight": "feed_forward.up_proj.weight",
             "moe.router.gate.weight": "feed_forward.router.weight",
             "moe.shared_experts.w1.weight": "feed_forward.shared_expert.gate_proj.weight",
             "moe.shared_experts.w2.weight": "feed_forward.shared_expert.down_proj.weight",
             "moe.shared_experts.w3.weight": "feed_forward.shared_expert.up_proj.weight",
             "attention_norm.weight": "input_layernorm.weight",
             "ffn_norm.weight": "post_attention_layernorm.weight"}
    theirs = {"model.embed_tokens.weight": w["tok_embeddings.weight"],
              "model.norm.weight": w["norm.weight"], "lm_head.weight": w["output.weight"]}
    for i in range(c["n_layers"]):
        ours, layer = f"layers.{i}.", f"model.layers.{i}."
        for name, there in plain.items():
            if ours + name in w:
                theirs[layer + there] = w[ours + name]
        if (w1 := w.get(ours + "moe.experts.w1")) is not None:
            both = torch.cat((w1, w[ours + "moe.experts.w3"]), 1)  # (E, 2 F, D)
            theirs[layer + "feed_forward.experts.gate_up_proj"] = both.transpose(1, 2)
            theirs[layer + "feed_forward.experts.down_proj"] = (
                w[ours + "moe.experts.w2"].transpose(1, 2))
    return theirs


def initial_weights(g, c):
    q_dim, kv_dim = c["n_heads"] * c["head_dim"], c["n_kv_heads"] * c["head_dim"]
    dim, ffn, inner, experts = c["dim"], c["ffn_dim"], c["moe_ffn_dim"], c["n_experts"]
    shapes = {"tok_embeddings.weight": (c["vocab_size"], dim)}
    for i in range(c["n_layers"]):
        block = {"attention.wq.weight": (q_dim, dim), "attention.wk.weight": (kv_dim, dim),
                 "attention.wv.weight": (kv_dim, dim), "attention.wo.weight": (dim, q_dim)}
        if (i + 1) % c["interleave_moe_layer_step"] == 0:
            block |= {"moe.router.gate.weight": (experts, dim),
                      "moe.experts.w1": (experts, inner, dim),
                      "moe.experts.w2": (experts, dim, inner),
                      "moe.experts.w3": (experts, inner, dim),
                      "moe.shared_experts.w1.weight": (inner, dim),
                      "moe.shared_experts.w2.weight": (dim, inner),
                      "moe.shared_experts.w3.weight": (inner, dim)}
        else:
            block |= {"feed_forward.w1.weight": (ffn, dim), "feed_forward.w2.weight": (dim, ffn),
                      "feed_forward.w3.weight": (ffn, dim)}
        block |= {"attention_norm.weight": (dim,), "ffn_norm.weight": (dim,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in block.items()}
    shapes |= {"norm.weight": (dim,), "output.weight": (c["vocab_size"], dim)}
    return {name: g.randn(*shape, scale=0.1, shift=1.0) if len(shape) == 1 else
            g.randn(*shape, scale=1.0 if name == "tok_embeddings.weight" else shape[-1] ** -0.5)
            for name, shape in shapes.items()}


def write(seed):
    for name, c in ("tiny_llama4", SCOUT), ("tiny_llama4_interleaved", MAVERICK):
        write_one(name, seed, c, by_transformers(c), initial_weights, f64=True)

# SPDX-License-Identifier: Apache-2.0
"""Tiny Qwens 3 of transformers under torchtitan's parameter names, dense and with experts, trained for
20 AdamW steps.

Their casts to f32, in norms, routers and in the tables of RoPE, are replaced by f64.
"""
import torch

from tiny_llama import initial_weights, named_as_theirs, write_one

# Heads that are wider together than the model.
CONFIG = dict(dim=24, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=10, ffn_dim=40, vocab_size=61,
              rope_theta=1000.0, norm_eps=1e-6, qk_norm=True)


MOE = CONFIG | dict(moe_inter_dim=12, num_experts=6, top_k=2)


def in_f64(c, norms, rotary):
    def norm(self, x):
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight,
                                            self.variance_epsilon)

    def tables(self, x, position_ids):  # (B, T, D) each
        frequency = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"])
        angle = position_ids.double()[..., None] * frequency
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    norms.forward, rotary.forward = norm, tables


def shared(c):
    return dict(
        vocab_size=c["vocab_size"], hidden_size=c["dim"], intermediate_size=c["ffn_dim"],
        num_hidden_layers=c["n_layers"], num_attention_heads=c["n_heads"],
        num_key_value_heads=c["n_kv_heads"], head_dim=c["head_dim"], rms_norm_eps=c["norm_eps"],
        max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="sdpa",
        rope_parameters=dict(rope_type="default", rope_theta=c["rope_theta"]))


def by_transformers(c):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

    in_f64(c, Qwen3RMSNorm, Qwen3RotaryEmbedding)
    model = Qwen3ForCausalLM(Qwen3Config(**shared(c))).double()
    return lambda w, tokens, _: torch.func.functional_call(
        model, dict(model.named_buffers()) | named_as_theirs(w, c), (tokens,), strict=True).logits


def moe_by_transformers(c):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.models.qwen3_moe import modeling_qwen3_moe as theirs

    def route(self, x):
        logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        share, expert = logits.softmax(-1).topk(self.top_k, -1)
        return logits, share / share.sum(-1, keepdim=True), expert

    in_f64(c, theirs.Qwen3MoeRMSNorm, theirs.Qwen3MoeRotaryEmbedding)
    theirs.Qwen3MoeTopKRouter.forward = route
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **shared(c), moe_intermediate_size=c["moe_inter_dim"], num_experts=c["num_experts"],
        num_experts_per_tok=c["top_k"], norm_topk_prob=True, decoder_sparse_step=1,
        experts_implementation="eager")).double()

    def forward(w, tokens, _):
        named = dict(model.named_buffers()) | named_as_theirs(w, c)
        for i in range(c["n_layers"]):
            ours, name = f"layers.{i}.moe.", f"model.layers.{i}.mlp."
            named[name + "gate.weight"] = w[ours + "router.gate.weight"]
            named[name + "experts.gate_up_proj"] = torch.cat(
                (w[ours + "experts.w1"], w[ours + "experts.w3"]), 1)
            named[name + "experts.down_proj"] = w[ours + "experts.w2"]
        return torch.func.functional_call(model, named, (tokens,), strict=True).logits

    return forward


def initial_moe(g, c):
    """A router whose choices are far from equal, and experts in place of each feed-forward."""
    weights = initial_weights(g, c)
    dim, hidden, experts = c["dim"], c["moe_inter_dim"], c["num_experts"]
    shapes = {"w1": (experts, hidden, dim), "w2": (experts, dim, hidden), "w3": (experts, hidden, dim)}
    for i in range(c["n_layers"]):
        for name in ("w1", "w2", "w3"):
            del weights[f"layers.{i}.feed_forward.{name}.weight"]
        moe = f"layers.{i}.moe."
        weights[moe + "router.gate.weight"] = g.randn(experts, dim, scale=0.5)
        for name, shape in shapes.items():
            weights[moe + "experts." + name] = g.randn(*shape, scale=shape[-1] ** -0.5)
    return weights


def write(seed):
    write_one("tiny_qwen3", seed, CONFIG, by_transformers(CONFIG), f64=True)


def write_moe(seed):
    write_one("tiny_qwen3_moe", seed, MOE, moe_by_transformers(MOE), initial_moe, f64=True)

# SPDX-License-Identifier: Apache-2.0
"""A tiny dense Qwen 3 of transformers under torchtitan's parameter names, trained for 20 AdamW steps.

Its casts to f32, in norms and in the tables of RoPE, are replaced by f64.
"""
import torch

from tiny_llama import named_as_theirs, write_one

# Heads that are wider together than the model.
CONFIG = dict(dim=24, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=10, ffn_dim=40, vocab_size=61,
              rope_theta=1000.0, norm_eps=1e-6, qk_norm=True)


def by_transformers(c):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

    def norm(self, x):
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight,
                                            self.variance_epsilon)

    def tables(self, x, position_ids):  # (B, T, D) each
        frequency = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"])
        angle = position_ids.double()[..., None] * frequency
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    Qwen3RMSNorm.forward, Qwen3RotaryEmbedding.forward = norm, tables
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=c["vocab_size"], hidden_size=c["dim"], intermediate_size=c["ffn_dim"],
        num_hidden_layers=c["n_layers"], num_attention_heads=c["n_heads"],
        num_key_value_heads=c["n_kv_heads"], head_dim=c["head_dim"], rms_norm_eps=c["norm_eps"],
        max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="sdpa",
        rope_parameters=dict(rope_type="default", rope_theta=c["rope_theta"]))).double()
    return lambda w, tokens, _: torch.func.functional_call(
        model, dict(model.named_buffers()) | named_as_theirs(w, c), (tokens,), strict=True).logits


def write(seed):
    write_one("tiny_qwen3", seed, CONFIG, by_transformers(CONFIG), f64=True)

# SPDX-License-Identifier: Apache-2.0
"""Golden cases of rope as Hugging Face has it: halves, positions, scaled frequencies.
ROOMS: file name to the function that fills it. Needs the package transformers."""
import torch

BF16 = torch.bfloat16


def rope_positions(g):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    def halves(x, cos, sin, positions):
        c, s = (torch.cat([table, table], -1)[positions] for table in (cos, sin))  # (B, T, r)
        r = c.shape[-1]
        turned = x[..., :r].transpose(1, 2)                          # (B, H, T, r)
        turned, _ = apply_rotary_pos_emb(turned, turned, c, s)
        return torch.cat([turned.transpose(1, 2), x[..., r:]], -1)

    def adjacent(x, cos, sin, positions):
        r = 2 * cos.shape[-1]
        pairs = torch.view_as_complex(x[..., :r].unflatten(-1, (-1, 2)))
        turn = torch.complex(cos, sin)[positions][:, :, None]        # (B, T, 1, r/2)
        return torch.cat([torch.view_as_real(pairs * turn).flatten(-2), x[..., r:]], -1)

    documents = torch.tensor([[0, 1, 2, 0, 1], [6, 7, 8, 9, 0]])
    for case, fn, d, r, dtype in (("halves", halves, 8, 8, torch.float32),
                                  ("halves_wide", halves, 36, 36, torch.float32),
                                  ("halves_partial", halves, 10, 4, torch.float32),
                                  ("halves_bf16", halves, 36, 36, BF16),
                                  ("adjacent", adjacent, 8, 8, torch.float32),
                                  ("adjacent_partial", adjacent, 22, 18, torch.float32),
                                  ("adjacent_bf16", adjacent, 34, 34, BF16)):
        angle = torch.outer(torch.arange(10.0), 100.0 ** (-torch.arange(0, r, 2) / r))
        g.record(case, fn, {"x": g.randn(2, 5, 1, d, dtype=dtype)},
                 {"cos": angle.cos(), "sin": angle.sin(), "positions": documents}, dy_dtype=dtype,
                 halves=fn is halves, rotary=0 if r == d else r)


def rope_scaling(g):
    """transformers' frequencies of a head of `dim`: `frequencies` (dim/2), attribute `attention_factor`."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    llama = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096}
    longrope = {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096,
                "short_factor": [1 + i / 32 for i in range(16)],
                "long_factor": [1 + i * i / 4 for i in range(16)]}
    cases = {"llama_3_1": (128, 500000.0, llama), "llama_3_2": (64, 500000.0, llama | {"factor": 32.0}),
             "gpt_oss": (64, 150000.0, yarn),
             "deepseek_v3": (64, 10000.0, yarn | {"factor": 40.0, "truncate": True, "mscale": 1.0,
                                                  "mscale_all_dim": 1.0}),
             "mscale": (32, 10000.0, yarn | {"factor": 40.0, "truncate": True, "mscale": 0.707,
                                             "mscale_all_dim": 0.5}),
             "truncated": (64, 150000.0, yarn | {"truncate": True}),
             "given_factor": (16, 1000.0, yarn | {"attention_factor": 1.5}),
             "linear": (64, 10000.0, {"rope_type": "linear", "factor": 8.0,
                                      "original_max_position_embeddings": 8192}),
             "phi3_short": (32, 10000.0, longrope), "phi3_long": (32, 10000.0, longrope | {"is_long": True}),
             "longrope_given_factor": (32, 10000.0, longrope | {"attention_factor": 1.25})}
    for case, (dim, theta, given) in cases.items():
        scaling = dict(given)
        is_long = scaling.pop("is_long", False)
        config = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim,
                             max_position_embeddings=131072,
                             rope_parameters=scaling | {"rope_theta": theta})
        length = scaling["original_max_position_embeddings"] + is_long
        frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", length)
        angle = torch.outer(torch.arange(5.0), frequencies)
        g.put(case, frequencies=frequencies, cos=angle.cos() * factor, sin=angle.sin() * factor)
        if scaling["rope_type"] == "longrope":
            for name in ("short_factor", "long_factor"):
                g.put_f64(case, **{name: torch.tensor(scaling.pop(name), dtype=torch.float64)})
            g.attrs(case, is_long=is_long)
        g.attrs(case, dim=dim, theta=theta, result=factor, **scaling)


ROOMS = {"rope_positions": rope_positions, "rope_scaling": rope_scaling}

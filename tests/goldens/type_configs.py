# SPDX-License-Identifier: Apache-2.0
"""Tiny configurations of the types of decoder models that model_types.py makes golden values of, in
the spelling of transformers 5 and in that of transformers 4, as most files of the Hub have it.

Sizes are odd where a type allows it, every kind of layer occurs, and each value differs from the
default that a reader might fall back to.
"""
import copy

VOCABULARY = 37
# No padding: transformers gives the row of the padding token no gradient.
COMMON = dict(vocab_size=VOCABULARY, hidden_size=36, intermediate_size=44, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2, pad_token_id=None, tie_word_embeddings=False)
# Types without a head_dim of their own take hidden_size / heads, which RoPE needs even.
WIDE = COMMON | dict(hidden_size=40)
# Half of a head of 12 turns.
PARTIAL = COMMON | dict(hidden_size=48)
NO_TYPES = COMMON | dict(head_dim=10)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=22)
SLIDING, FULL = "sliding_attention", "full_attention"


def plain(theta=100.0, **more):
    return dict(rope_type="default", rope_theta=theta, **more)


# Of the five frequencies of a head of 10 one is kept, one blended, three are divided.
LLAMA3 = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
# Of five frequencies two are kept, one is blended, two are divided.
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=5,
            beta_fast=0.25, beta_slow=0.06)
LONG = dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.5,
            short_factor=[1.0, 1.25, 1.75], long_factor=[1.5, 2.5, 4.0])
GRANITE = dict(embedding_multiplier=3.0, attention_multiplier=0.1, residual_multiplier=0.7,
               logits_scaling=2.0)
GPT_NEOX = dict({k: v for k, v in PARTIAL.items() if k != "num_key_value_heads"},
                layer_norm_eps=1e-4, hidden_act="gelu", attention_bias=True,
                rope_parameters=plain(partial_rotary_factor=0.5))
STABLELM = dict(PARTIAL, layer_norm_eps=1e-4, use_qkv_bias=True,
                rope_parameters=plain(partial_rotary_factor=0.5))
PHI3 = dict(PARTIAL, rms_norm_eps=1e-4, sliding_window=5)

# Name of a file -> (model_type, configuration).
CASES = {
    "llama": ("llama", dict(NO_TYPES, rms_norm_eps=1e-4, attention_bias=True, mlp_bias=True,
                            rope_parameters=LLAMA3)),
    "mistral": ("mistral", dict(NO_TYPES, rms_norm_eps=1e-4, sliding_window=5,
                                rope_parameters=plain())),
    "ministral": ("ministral", dict(NO_TYPES, rms_norm_eps=1e-4, sliding_window=5,
                                    layer_types=[SLIDING, FULL, SLIDING],
                                    rope_parameters=plain())),
    "ministral3": ("ministral3", dict(NO_TYPES, rms_norm_eps=1e-4, sliding_window=None,
                                      rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5,
                                                           llama_4_scaling_beta=0.3))),
    "mixtral": ("mixtral", dict(NO_TYPES, rms_norm_eps=1e-4, sliding_window=5, intermediate_size=22,
                                num_local_experts=4, num_experts_per_tok=2,
                                rope_parameters=plain())),
    "qwen2": ("qwen2", dict(WIDE, rms_norm_eps=1e-4, num_hidden_layers=4, use_sliding_window=True,
                            sliding_window=5, max_window_layers=2, tie_word_embeddings=True,
                            rope_parameters=plain())),
    # A dense layer between two with experts, a full one between two that slide.
    "qwen2_moe": ("qwen2_moe", dict(WIDE, **EXPERTS, rms_norm_eps=1e-4, use_sliding_window=True,
                                    sliding_window=5, max_window_layers=3,
                                    shared_expert_intermediate_size=26, mlp_only_layers=[1],
                                    norm_topk_prob=False, rope_parameters=plain())),
    "qwen3": ("qwen3", dict(NO_TYPES, rms_norm_eps=1e-4, num_hidden_layers=4,
                            use_sliding_window=True, sliding_window=5, max_window_layers=2,
                            attention_bias=True, rope_parameters=plain())),
    "qwen3_moe": ("qwen3_moe", dict(NO_TYPES, **EXPERTS, attention_bias=True, rms_norm_eps=1e-4,
                                    num_hidden_layers=4, use_sliding_window=True, sliding_window=5,
                                    decoder_sparse_step=2, norm_topk_prob=True,
                                    rope_parameters=plain())),
    "gemma": ("gemma", dict(NO_TYPES, rms_norm_eps=1e-4, num_key_value_heads=1,
                            tie_word_embeddings=True, rope_parameters=plain())),
    "gemma2": ("gemma2", dict(NO_TYPES, attention_bias=True, rms_norm_eps=1e-4, sliding_window=5,
                              tie_word_embeddings=True, query_pre_attn_scalar=7,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                              rope_parameters=plain())),
    "gemma3_text": ("gemma3_text", dict(NO_TYPES, rms_norm_eps=1e-4, num_hidden_layers=4,
                                        num_key_value_heads=1, sliding_window=5,
                                        sliding_window_pattern=3, tie_word_embeddings=True,
                                        query_pre_attn_scalar=7, rope_parameters={
                                            FULL: dict(rope_type="linear", rope_theta=1000.0,
                                                       factor=8.0),
                                            SLIDING: plain()})),
    "phi3": ("phi3", dict(PHI3, original_max_position_embeddings=8, rope_parameters=LONG)),
    # The same where every text is short, so that the short factors turn it.
    "phi3_short": ("phi3", dict(PHI3, original_max_position_embeddings=48, rope_parameters=LONG)),
    "olmo2": ("olmo2", dict(WIDE, attention_bias=True, rms_norm_eps=1e-4, rope_parameters=plain())),
    "olmo3": ("olmo3", dict(WIDE, rms_norm_eps=1e-4, num_hidden_layers=4, sliding_window=5,
                            rope_parameters={FULL: dict(YARN, attention_factor=1.2),
                                             SLIDING: plain()})),
    "olmoe": ("olmoe", dict(WIDE, attention_bias=True, rms_norm_eps=1e-4, intermediate_size=22,
                            num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
                            clip_qkv=None, rope_parameters=plain())),
    "granite": ("granite", dict(WIDE, **GRANITE, attention_bias=True, mlp_bias=True,
                                rms_norm_eps=1e-4, tie_word_embeddings=True,
                                rope_parameters=plain())),
    "granitemoe": ("granitemoe", dict(WIDE, **GRANITE, attention_bias=True, rms_norm_eps=1e-4,
                                      intermediate_size=22, num_local_experts=4,
                                      num_experts_per_tok=2, tie_word_embeddings=True,
                                      rope_parameters=plain())),
    "smollm3": ("smollm3", dict(WIDE, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-4,
                                num_hidden_layers=4, use_sliding_window=True, sliding_window=5,
                                no_rope_layer_interval=3, tie_word_embeddings=True,
                                rope_parameters=plain())),
    "glm4": ("glm4", dict(NO_TYPES, head_dim=12, rms_norm_eps=1e-4, attention_bias=True,
                          rope_parameters=plain(partial_rotary_factor=0.5))),
    "cohere2": ("cohere2", dict(WIDE, attention_bias=True, layer_norm_eps=1e-4,
                                num_hidden_layers=4, sliding_window=5, sliding_window_pattern=3,
                                logit_scale=0.25, tie_word_embeddings=True,
                                rope_parameters=plain())),
    "gpt_neox": ("gpt_neox", dict(GPT_NEOX, use_parallel_residual=True)),
    "gpt_neox_serial": ("gpt_neox", dict(GPT_NEOX, use_parallel_residual=False)),
    "stablelm": ("stablelm", dict(STABLELM, qk_layernorm=False, use_parallel_residual=False)),
    "stablelm_parallel": ("stablelm", dict(STABLELM, qk_layernorm=False,
                                           use_parallel_residual=True)),
    "starcoder2": ("starcoder2", dict(WIDE, norm_epsilon=1e-4, use_bias=True, sliding_window=5,
                                      tie_word_embeddings=True, rope_parameters=plain())),
    # Of four layers two have experts, one has no RoPE.
    "llama4_text": ("llama4_text", dict(NO_TYPES, attention_bias=False, rms_norm_eps=1e-4,
                                        num_hidden_layers=4, intermediate_size=22,
                                        intermediate_size_mlp=44, num_local_experts=4,
                                        num_experts_per_tok=1, interleave_moe_layer_step=2,
                                        no_rope_layer_interval=3, attention_chunk_size=5,
                                        floor_scale=3, attn_scale=0.3, rope_parameters=LLAMA3)),
    "gpt2": ("gpt2", dict(vocab_size=VOCABULARY, n_positions=64, n_embd=36, n_layer=3, n_head=4,
                          n_inner=44, layer_norm_epsilon=1e-4, bos_token_id=1, eos_token_id=2)),
}

# Types whose layers transformers 4 found by a rule, so that its files have no layer_types.
RULES = {"gemma2": {}, "gemma3_text": dict(sliding_window_pattern=3),
         "cohere2": dict(sliding_window_pattern=3), "qwen2": {}, "qwen3": {}, "qwen2_moe": {},
         "smollm3": {}, "llama4_text": dict(no_rope_layers=[])}


def old_spelling(type, config):
    """The configuration, given as transformers 5 writes it, as transformers 4 wrote it."""
    old = copy.deepcopy(config)
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.57.1"
    if type in RULES:
        old.pop("layer_types", None)
        old.pop("_sliding_window_pattern", None)
        old.pop("moe_layers", None)
        old.update(RULES[type])
    if type == "gemma":  # files of the Hub mean the form with tanh by "gelu"
        old.update(hidden_act="gelu", hidden_activation=None)
    if type == "ministral3":  # came with transformers 5; its files name the scaling twice
        old["rope_parameters"]["type"] = old["rope_parameters"]["rope_type"]
        return old
    rope = old.pop("rope_parameters", None)
    if rope is None:
        return old
    if FULL in rope:
        local = rope[SLIDING]["rope_theta"]
        if type == "gemma3_text":
            old["rope_local_base_freq"] = local
        rope = rope[FULL]
    old["rotary_emb_base" if type == "gpt_neox" else "rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        part = rope.pop("partial_rotary_factor")
        old["rotary_pct" if type == "gpt_neox" else "partial_rotary_factor"] = part
    if type == "phi3":  # keeps the original length beside the factors
        rope.pop("original_max_position_embeddings", None)
        rope["type"] = rope.pop("rope_type")
    scaled = rope.get("rope_type", rope.get("type")) != "default"
    old["rope_scaling"] = rope if scaled else None
    return old

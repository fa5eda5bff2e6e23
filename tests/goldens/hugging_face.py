# SPDX-License-Identifier: Apache-2.0
"""Writes the folder hugging_face/: tiny models of transformers with random weights, as their
save_pretrained writes them, and tokens with the logits that they give.
Needs: pip install torch transformers==5.23.0

With a name and a folder it loads the folder by AutoModelForCausalLM, as a user would, and compares
the logits with those of the model of that name:

    tessera import-hf tests/goldens/hugging_face/gpt2 --out a && tessera export-hf --checkpoint a --out b
    python3 tests/goldens/hugging_face.py gpt2 b
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).parent / "hugging_face"
VOCABULARY, LENGTH = 272, 40
LLAMA = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, bos_token_id=256, eos_token_id=257)
# Frequencies of a head of 8: one is kept, one blended, two divided.
SCALED = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)


def models():
    yield "llama3", LlamaForCausalLM(LlamaConfig(
        **LLAMA, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))), "50GB"
    # Two files and an index.
    yield "llama3_tied", LlamaForCausalLM(LlamaConfig(
        **LLAMA, tie_word_embeddings=True, rope_parameters=SCALED)).bfloat16(), "30KB"
    yield "gpt2", GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=24, n_layer=2, n_head=3,
        bos_token_id=256, eos_token_id=257)), "50GB"


def draw(model, generator):
    """Weights so wide that each of them shows in the logits."""
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=generator)
        if p.dim() == 2:
            x = x * (1.0 if name.endswith(("embed_tokens.weight", "wte.weight")) else 0.3)
        else:
            x = x * 0.2 + (0 if name.endswith("bias") else 1)
        p.data = x.to(p.dtype)


def logits_of(folder, tokens):
    """In f32, also of bf16 weights, with tables of RoPE that were never rounded to bf16."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                       output_loading_info=True)
    with torch.no_grad():
        return model.eval()(tokens).logits, {key: what for key, what in info.items() if what}


def write():
    torch.set_num_threads(1)
    for seed, (name, model, shard) in enumerate(models()):
        generator = torch.Generator().manual_seed(seed)
        draw(model, generator)
        model.save_pretrained(OUT / name, max_shard_size=shard)
        tokens = torch.randint(0, VOCABULARY, (1, LENGTH), generator=generator)
        save_file({"tokens": tokens, "logits": logits_of(OUT / name, tokens)[0]},
                  OUT / f"{name}.safetensors")


def check(name, folder):
    golden = load_file(OUT / f"{name}.safetensors")
    logits, wrong = logits_of(folder, golden["tokens"])
    distance = ((logits - golden["logits"]).norm() / golden["logits"].norm()).item()
    print(f"{name}: distance of logits {distance:.2e}, {wrong or 'all keys matched'}")
    return not wrong and distance <= 2e-5


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(0 if check(*sys.argv[1:]) else 1)
    write()

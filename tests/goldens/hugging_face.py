# SPDX-License-Identifier: Apache-2.0
"""Writes the folder hugging_face/: tiny models of transformers with random weights, as their
save_pretrained writes them, and tokens with the logits that they give; llama3_fp8 is one with
weights in blocks of F8_E4M3. `quantised` holds single tensors as files of DeepSeek V3 and GPT-OSS
store them, and quantised.safetensors their values by the formulas below. losses.json holds the
losses of 20 steps of torch's AdamW on the rows of tokens.npy.
Needs: pip install torch transformers==5.23.0 gguf

With a name and a folder it loads the folder by AutoModelForCausalLM, as a user would, and compares
the logits with those of the model of that name:

    tessera import-hf tests/goldens/hugging_face/gpt2 --out a && tessera export-hf --checkpoint a --out b
    python3 tests/goldens/hugging_face.py gpt2 b

With a file of `tessera export-gguf` in place of the folder it reads that by the package gguf, and
compares names, shapes and values, those of Q8_0 bit for bit with what the package makes of them.
"""
import json
import pathlib
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Llama4Config,
                          Llama4ForCausalLM, Llama4ForConditionalGeneration, Llama4TextConfig,
                          LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

OUT = pathlib.Path(__file__).parent / "hugging_face"
VOCABULARY, LENGTH = 272, 40
LLAMA = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, bos_token_id=256, eos_token_id=257)
QWEN = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
            bos_token_id=256, eos_token_id=257,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# Frequencies of a head of 8: one is kept, one blended, two divided.
SCALED = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)

# A layer without RoPE or experts and chunks; of three layers one has both, one has neither.
LLAMA4 = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=20, intermediate_size_mlp=36,
              num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
              max_position_embeddings=64, num_local_experts=4, interleave_moe_layer_step=2,
              no_rope_layer_interval=3, attention_chunk_size=9, floor_scale=7, attn_scale=0.3,
              bos_token_id=256, eos_token_id=257,
              rope_parameters=dict(SCALED, low_freq_factor=1.0, high_freq_factor=1.0))
# What sees images, as small as it may be.
VISION = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
              vision_output_dim=8, image_size=8, patch_size=4, projector_input_dim=8,
              projector_output_dim=8, num_channels=1)


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
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(**QWEN, tie_word_embeddings=True)), "50GB"
    # A layer with a feed-forward, one with experts.
    yield "qwen3_moe", Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **QWEN, tie_word_embeddings=False, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=20, norm_topk_prob=True, decoder_sparse_step=2)), "50GB"
    yield "llama4", Llama4ForCausalLM(Llama4TextConfig(**LLAMA4)), "50GB"
    # As it was published: the text of a model that sees images.
    yield "llama4_images", Llama4ForConditionalGeneration(Llama4Config(
        text_config=LLAMA4 | dict(use_qk_norm=False), vision_config=VISION)), "50GB"


def draw(model, generator):
    """Weights so wide that each of them shows in the logits."""
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=generator)
        if p.dim() > 1:
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
    write_quantised()
    write_losses()


def quantised(weight):
    """F8_E4M3 and the factor of each 128 x 128 elements, as DeepSeek V3 stores them."""
    rows, columns = ((n + 127) // 128 for n in weight.shape)
    factors = torch.empty(rows, columns)
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for r in range(rows):
        for c in range(columns):
            block = weight[r * 128:(r + 1) * 128, c * 128:(c + 1) * 128].float()
            factors[r, c] = block.abs().max() / 448
            values[r * 128:(r + 1) * 128, c * 128:(c + 1) * 128] = block / factors[r, c]
    return values, factors


def from_f8(values, factors):
    wide = factors.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return values.float() * wide[:values.shape[0], :values.shape[1]]


def from_mxfp4(blocks, powers):
    """(experts, out, groups, 16) bytes to (experts, in, out), as transformers does."""
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0,
                          -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    pairs = torch.stack([table[(blocks & 15).long()], table[(blocks >> 4).long()]], -1).flatten(-2)
    values = torch.ldexp(pairs, powers.int()[..., None] - 127)
    return values.flatten(-2).transpose(1, 2).contiguous()


def write_quantised():
    generator = torch.Generator().manual_seed(50)
    stored, values = {}, {}
    for name, shape in ("tall", (130, 7)), ("wide", (5, 259)), ("one", (1, 1)):
        weight, factors = quantised(torch.randn(shape, generator=generator))
        stored |= {f"{name}.weight": weight, f"{name}.weight_scale_inv": factors}
        values[f"{name}.weight"] = from_f8(weight, factors)
    blocks = torch.randint(0, 256, (3, 5, 2, 16), generator=generator, dtype=torch.uint8)
    powers = torch.randint(0, 253, (3, 5, 2), generator=generator, dtype=torch.uint8)
    stored |= {"experts_blocks": blocks, "experts_scales": powers}
    values["experts"] = from_mxfp4(blocks, powers)
    stored["plain"] = values["plain"] = torch.randn(3, 4, generator=generator)
    (OUT / "quantised").mkdir(exist_ok=True)
    save_file(stored, OUT / "quantised" / "model.safetensors")
    save_file(values, OUT / "quantised.safetensors")

    model = load_file(OUT / "llama3" / "model.safetensors")
    stored = dict(model)
    for name, weight in model.items():
        if name.endswith("_proj.weight"):
            stored[name], stored[name + "_scale_inv"] = quantised(weight)
            model[name] = from_f8(stored[name], stored[name + "_scale_inv"])
    there = OUT / "llama3_fp8"
    shutil.copytree(OUT / "llama3", there, dirs_exist_ok=True)
    tokens = load_file(OUT / "llama3.safetensors")["tokens"]
    save_file(model, there / "model.safetensors", {"format": "pt"})
    save_file({"tokens": tokens, "logits": logits_of(there, tokens)[0]}, OUT / "llama3_fp8.safetensors")
    save_file(stored, there / "model.safetensors", {"format": "pt"})
    config = json.loads((there / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                         weight_block_size=[128, 128])
    (there / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def losses_of(name, rows, steps=20):
    """Without dropout; the learning rate is constant, gradients are not clipped."""
    model = AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1)
    losses = []
    for batch in rows[:steps]:
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write_losses():
    generator = torch.Generator().manual_seed(60)
    rows = torch.randint(0, VOCABULARY, (20, 2, 25), generator=generator)
    np.save(OUT / "tokens.npy", rows.flatten(0, 1).numpy().astype(np.uint16))
    names = "llama3", "llama3_tied", "gpt2", "qwen3", "qwen3_moe", "llama4"
    losses = {name: losses_of(name, rows) for name in names}
    (OUT / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")


def check(name, folder):
    golden = load_file(OUT / f"{name}.safetensors")
    logits, wrong = logits_of(folder, golden["tokens"])
    distance = ((logits - golden["logits"]).norm() / golden["logits"].norm()).item()
    print(f"{name}: distance of logits {distance:.2e}, {wrong or 'all keys matched'}")
    return not wrong and distance <= 2e-5


def gguf_values(name):
    """The tensors that the converter of llama.cpp makes of a model, by its names."""
    model = AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float32)
    config, values = model.config, {}
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "gpt2": gguf.MODEL_ARCH.GPT2,
         "qwen3": gguf.MODEL_ARCH.QWEN3}[config.model_type], config.num_hidden_layers)
    for key, x in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            x = x.T
        if config.model_type == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
            heads = x.shape[0] // config.head_dim
            x = x.view(heads, 2, config.head_dim // 2, -1).transpose(1, 2).reshape(x.shape)
        values[names.get_name(key, try_suffixes=(".weight", ".bias"))] = x.numpy()
    if getattr(config, "rope_parameters", None) and config.rope_parameters["rope_type"] == "llama3":
        plain = 1 / config.rope_parameters["rope_theta"] ** (
            torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
        values["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq.double()).numpy()
    return values


def check_gguf(name, path):
    reader = gguf.GGUFReader(path)
    expected, seen, wrong = gguf_values(name), set(), []
    for t in reader.tensors:
        seen.add(t.name)
        x = np.ascontiguousarray(expected[t.name], np.float32)
        kind = t.tensor_type
        if tuple(reversed([int(n) for n in t.shape])) != x.shape:
            wrong.append(f"{t.name} has the shape {t.shape}")
        elif t.name == "rope_freqs.weight":
            if np.abs(t.data - x).max() > 1e-5:
                wrong.append(t.name)
        elif kind == gguf.GGMLQuantizationType.F32:
            wrong += [] if np.array_equal(t.data, x) else [t.name]
        elif not np.array_equal(t.data.reshape(-1).view(np.uint8),
                                gguf.quants.quantize(x, kind).reshape(-1).view(np.uint8)):
            wrong.append(t.name)
    for key, field in reader.fields.items():
        print(" ", key, str(field.contents())[:70])
    kinds = sorted({t.tensor_type.name for t in reader.tensors})
    print(f"{name}: {len(seen)} tensors, {kinds}; wrong: {wrong}; "
          f"missing: {set(expected) - seen}")
    return not wrong and seen == set(expected)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        compare = check if pathlib.Path(sys.argv[2]).is_dir() else check_gguf
        sys.exit(0 if compare(*sys.argv[1:]) else 1)
    write()

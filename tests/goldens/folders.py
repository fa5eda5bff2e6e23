# SPDX-License-Identifier: Apache-2.0
"""Writes folders.json: variants of small folders of Hugging Face, in which fields are spelt in old
and new ways, missing, or contradict each other or the weights, and the loss that transformers
computes for each, or that it refuses the folder. A refusal is an error, and also a warning that
weights were made up. The folders are recipes: the test makes them by the same formulas.
Needs: pip install torch transformers==5.24.0
"""
import json
import logging
import pathlib
import struct
import sys
import tempfile

import numpy as np
import torch
from transformers import (AutoConfig, AutoModelForCausalLM, Llama4ForConditionalGeneration,
                          logging as transformers_logging)

OUT = pathlib.Path(__file__).parent / "folders.json"
LENGTH = 24
COMMON = dict(vocab_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, rms_norm_eps=1e-5, hidden_act="silu")
SCALED = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
OTHER = dict(SCALED, factor=2.0)
LLAMA3 = dict(rope_type="llama3", **SCALED)


def bases():
    llama = dict(COMMON, model_type="llama", hidden_size=32, intermediate_size=24,
                 rope_theta=10000.0, tie_word_embeddings=True)
    qwen = dict(COMMON, hidden_size=24, intermediate_size=40, head_dim=8, rope_theta=10000.0,
                tie_word_embeddings=False)
    llama4 = dict(COMMON, model_type="llama4_text", hidden_size=24, intermediate_size=20,
                  intermediate_size_mlp=36, num_hidden_layers=4, head_dim=8, num_local_experts=3,
                  num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=2,
                  attention_chunk_size=9, floor_scale=7, attn_scale=0.3, rope_theta=10000.0,
                  tie_word_embeddings=False)
    whole = dict(model_type="llama4", text_config=llama4)
    gpt2 = dict(model_type="gpt2", vocab_size=40, n_positions=64, n_embd=24, n_layer=2, n_head=3)
    return {"llama": llama, "qwen3": dict(qwen, model_type="qwen3"),
            "qwen3_moe": dict(qwen, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2,
                              moe_intermediate_size=20, norm_topk_prob=True),
            "llama4_text": llama4, "llama4": whole, "gpt2": gpt2}


# What sees images, as small as it may be; it is in no recipe and gets no weights.
VISION = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
              vision_output_dim=8, image_size=8, patch_size=4, projector_input_dim=8,
              projector_output_dim=8, num_channels=1)


def variant(of, name, names=(), **changes):
    """`names`: what our error must name, if the folder is refused here."""
    return dict(of=of, name=name, names=list(names), **changes)


def variants():
    """`set`, `without`: of config.json; `text`: of its text_config, null removes. `tensors`: more of
    them, each a shape, or the name of another one that it copies; `drop`; `dtypes`. `files`: in
    place of model.safetensors, by name: `only` and `except` are the beginnings of names of tensors,
    `salt` gives other values, `named` says whether the index has it. `unnamed`: tensors that the
    index does not have; `no_index`: there is none."""
    both = ["rope_parameters", "rope_scaling"]
    default = dict(rope_type="default", rope_theta=10000.0)
    yield variant("llama", "plain")
    yield variant("llama", "theta missing", without=["rope_theta"])
    yield variant("llama", "rope_parameters alone", without=["rope_theta"],
                  set=dict(rope_parameters=default))
    yield variant("llama", "rope_scaling alone", set=dict(rope_scaling=LLAMA3))
    yield variant("llama", "the old name of the type",
                  set=dict(rope_scaling=dict(SCALED, type="llama3")))
    yield variant("llama", "scaling beside a default", both,
                  set=dict(rope_parameters=default, rope_scaling=LLAMA3))
    yield variant("llama", "a default beside scaling", both,
                  set=dict(rope_parameters=dict(LLAMA3, rope_theta=10000.0),
                           rope_scaling=dict(rope_type="default")))
    yield variant("llama", "two factors", both,
                  set=dict(rope_parameters=dict(LLAMA3, rope_theta=10000.0),
                           rope_scaling=dict(OTHER, rope_type="llama3")))
    yield variant("llama", "the same twice",
                  set=dict(rope_parameters=dict(LLAMA3, rope_theta=10000.0), rope_scaling=LLAMA3))
    yield variant("llama", "theta in one of two alone", both, without=["rope_theta"],
                  set=dict(rope_parameters=dict(LLAMA3, rope_theta=500.0), rope_scaling=LLAMA3))
    yield variant("llama", "an empty scaling", set=dict(rope_parameters=default, rope_scaling={}))
    yield variant("llama", "no scaling", set=dict(rope_parameters=default, rope_scaling=None))
    yield variant("llama", "two thetas", ["rope_theta", "rope_parameters.rope_theta"],
                  set=dict(rope_parameters=dict(default, rope_theta=500.0)))
    yield variant("llama", "two thetas that are equal", set=dict(rope_parameters=default))
    yield variant("llama", "two types", ["rope_scaling.rope_type", "rope_scaling.type"],
                  set=dict(rope_scaling=dict(LLAMA3, type="default")))
    yield variant("llama", "the context before scaling, twice",
                  ["original_max_position_embeddings"],
                  set=dict(rope_scaling=LLAMA3, original_max_position_embeddings=32))
    yield variant("llama", "a part of the head", ["partial_rotary_factor"],
                  set=dict(partial_rotary_factor=0.5))
    yield variant("llama", "a part of the head, twice", ["partial_rotary_factor"],
                  set=dict(partial_rotary_factor=0.5,
                           rope_parameters=dict(default, partial_rotary_factor=1.0)))
    yield variant("llama", "nothing of the head", ["partial_rotary_factor"],
                  set=dict(partial_rotary_factor=0))
    yield variant("llama", "tied, with a head of its own", ["tie_word_embeddings", "lm_head.weight"],
                  tensors={"lm_head.weight": [40, 32]})
    yield variant("llama", "tied, with a copy",
                  tensors={"lm_head.weight": "model.embed_tokens.weight"})
    yield variant("llama", "a head that is not tied", set=dict(tie_word_embeddings=False),
                  tensors={"lm_head.weight": [40, 32]})
    yield variant("llama", "neither tied nor there", ["lm_head.weight", "config.json"],
                  set=dict(tie_word_embeddings=False))
    yield variant("llama", "nothing said of the head", without=["tie_word_embeddings"],
                  tensors={"lm_head.weight": [40, 32]})
    yield variant("llama", "another size of a head", ["q_proj.weight", "expected [16, 32]"],
                  set=dict(head_dim=4))
    yield variant("llama", "more layers than weights", ["config.json", "model.layers.2."],
                  set=dict(num_hidden_layers=3))
    yield variant("llama", "fewer layers than weights", ["config.json", "model.layers.1."],
                  set=dict(num_hidden_layers=1))
    yield variant("llama", "fewer kinds of layers than layers",
                  ["layer_types", "num_hidden_layers"], set=dict(layer_types=["full_attention"]))
    yield variant("llama", "another vocabulary", ["config.json", "model.embed_tokens.weight"],
                  set=dict(vocab_size=48))
    yield variant("llama", "other fields in a layer", ["per_layer_config"],
                  set=dict(per_layer_config={"1": dict(rms_norm_eps=0.5)}))
    yield variant("llama", "weights by another name", ["transformers_weights"],
                  set=dict(transformers_weights="other.safetensors"),
                  files={"model.safetensors": {}, "other.safetensors": dict(salt=1)}, no_index=True)
    yield variant("llama", "dtype of the weights in two ways, equal", like="plain",
                  set=dict(dtype="float32", torch_dtype="float32"))
    yield variant("llama", "dtype of the weights in two ways", ["dtype", "torch_dtype"],
                  set=dict(dtype="float32", torch_dtype="bfloat16"))
    yield variant("llama", "weights of several dtypes",
                  dtypes={"model.layers.0.mlp.up_proj.weight": "F16",
                          "model.layers.1.mlp.up_proj.weight": "F16"})
    last = "model.layers.1."
    parts = {"a.safetensors": {"except": last}, "b.safetensors": {"only": last}}
    yield variant("llama", "two files", files=parts)
    yield variant("llama", "a tensor in both files", ["a.safetensors", "b.safetensors"],
                  files={"a.safetensors": {}, "b.safetensors": dict(only=last, salt=1)})
    yield variant("llama", "an equal tensor in both files",
                  files={"a.safetensors": {}, "b.safetensors": dict(only=last)})
    yield variant("llama", "a tensor that the index does not name",
                  ["tie_word_embeddings", "lm_head.weight"],
                  tensors={"lm_head.weight": [40, 32]}, files=parts, unnamed=["lm_head.weight"])
    yield variant("llama", "one file and an index of others",
                  ["model.safetensors", "model.safetensors.index.json"],
                  files=parts | {"model.safetensors": dict(salt=2, named=False)})
    yield variant("llama", "one file and its index", files={"model.safetensors": {}})

    yield variant("qwen3", "plain")
    yield variant("qwen3", "a window that is not used", set=dict(sliding_window=8))
    yield variant("qwen3", "a window that is off",
                  set=dict(sliding_window=8, use_sliding_window=False, max_window_layers=1))
    yield variant("qwen3", "a window", ["sliding_window"],
                  set=dict(sliding_window=8, use_sliding_window=True, max_window_layers=1))
    yield variant("qwen3", "a window by layers alone", ["layer_types"],
                  set=dict(sliding_window=8, use_sliding_window=True,
                           layer_types=["full_attention", "sliding_attention"]))
    yield variant("qwen3", "a window that layers do not use", ["use_sliding_window"],
                  set=dict(sliding_window=8, use_sliding_window=True, max_window_layers=1,
                           layer_types=["full_attention", "full_attention"]))
    yield variant("qwen3", "more kinds of layers than layers", ["layer_types", "num_hidden_layers"],
                  set=dict(layer_types=["full_attention"] * 3))
    yield variant("qwen3", "groups of heads missing", without=["num_key_value_heads"])
    yield variant("qwen3", "groups of heads null", set=dict(num_key_value_heads=None))
    yield variant("qwen3", "size of a head missing", without=["head_dim"])

    yield variant("qwen3_moe", "plain")
    yield variant("qwen3_moe", "experts by the other name", without=["num_experts"],
                  set=dict(num_local_experts=4))
    yield variant("qwen3_moe", "experts by both names", set=dict(num_local_experts=4))
    yield variant("qwen3_moe", "two numbers of experts", ["num_experts", "num_local_experts"],
                  set=dict(num_local_experts=8))
    yield variant("qwen3_moe", "other experts than weights", ["config.json", "experts.3."],
                  set=dict(num_experts=3))
    yield variant("qwen3_moe", "experts of several dtypes",
                  dtypes={"model.layers.0.mlp.experts.1.up_proj.weight": "BF16",
                          "model.layers.1.mlp.experts.2.down_proj.weight": "F16"})
    yield variant("qwen3_moe", "layers without experts", ["mlp_only_layers"],
                  set=dict(mlp_only_layers=[1]))

    yield variant("llama4_text", "plain")
    yield variant("llama4_text", "layers without rope, twice",
                  ["no_rope_layers", "no_rope_layer_interval"],
                  set=dict(no_rope_layers=[1, 1, 1, 0]))
    yield variant("llama4_text", "layers without rope, twice and equal",
                  set=dict(no_rope_layers=[1, 0, 1, 0]))
    yield variant("llama4_text", "layers with experts, twice",
                  ["moe_layers", "interleave_moe_layer_step"], set=dict(moe_layers=[1]))
    yield variant("llama4_text", "layers with experts, twice and equal",
                  set=dict(moe_layers=[1, 3]))
    yield variant("llama4_text", "kinds of layers, twice", ["layer_types"],
                  set=dict(layer_types=["full_attention"] * 4))
    yield variant("llama4_text", "no chunks", ["attention_chunk_size"],
                  set=dict(attention_chunk_size=None))
    yield variant("llama4_text", "theta missing", without=["rope_theta"])
    yield variant("llama4_text", "two thetas", ["rope_theta", "rope_parameters.rope_theta"],
                  set=dict(rope_parameters=dict(default, rope_theta=500.0)))

    yield variant("llama4", "plain")
    yield variant("llama4", "theta beside the text", ["rope_theta", "text_config"],
                  text=dict(rope_theta=None), set=dict(rope_theta=10000.0))
    yield variant("llama4", "another theta beside the text", ["rope_theta", "text_config"],
                  set=dict(rope_theta=500.0))
    yield variant("llama4", "tied beside the text", ["tie_word_embeddings", "text_config"],
                  set=dict(tie_word_embeddings=True))
    yield variant("llama4", "tied in the text alone", text=dict(tie_word_embeddings=True),
                  drop=["language_model.lm_head.weight"])
    yield variant("llama4", "tied in the text, with a head of its own",
                  ["tie_word_embeddings", "lm_head.weight"], text=dict(tie_word_embeddings=True))

    yield variant("gpt2", "plain")
    yield variant("gpt2", "the general names", without=["n_layer", "n_embd"],
                  set=dict(num_hidden_layers=2, hidden_size=24))
    yield variant("gpt2", "both names", set=dict(num_hidden_layers=2))
    yield variant("gpt2", "two numbers of layers", ["n_layer", "num_hidden_layers"],
                  set=dict(num_hidden_layers=1))
    yield variant("gpt2", "two numbers of heads", ["n_head", "num_attention_heads"],
                  set=dict(num_attention_heads=4))
    yield variant("gpt2", "another context beside it", set=dict(n_ctx=32))
    yield variant("gpt2", "a head of its own", ["tie_word_embeddings", "lm_head.weight"],
                  tensors={"lm_head.weight": [40, 24]})
    yield variant("gpt2", "a copy", tensors={"lm_head.weight": "transformer.wte.weight"})
    yield variant("gpt2", "another inner size", ["c_fc.weight", "expected [24, 48]"],
                  set=dict(n_inner=48))


def values(name, shape, salt=0):
    """Numbers that follow from the tensor's name and the element's place alone."""
    seed = 2166136261 + salt
    for c in name.encode():
        seed = (seed ^ c) * 16777619 % 2**32
    h = (np.arange(np.prod(shape), dtype=np.uint64) + 1) * np.uint64(2654435761) + np.uint64(seed)
    for shift, factor in (15, 2246822519), (13, 3266489917):
        h &= np.uint64(2**32 - 1)
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    h &= np.uint64(2**32 - 1)
    x = (h ^ (h >> np.uint64(16))).astype(np.float64) / 2**32 - 0.5
    return (x + 1 if len(shape) == 1 else x).astype(np.float32).reshape(shape)


def stored(x, dtype):
    if dtype == "F16":
        return x.astype(np.float16).tobytes()
    if dtype == "BF16":
        return torch.from_numpy(x).bfloat16().view(torch.int16).numpy().tobytes()
    return x.astype(np.float32).tobytes()


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (x, dtype) in tensors.items():
        part = stored(x, dtype)
        header[name] = {"dtype": dtype, "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_folder(folder, base, v):
    folder.mkdir()
    config = json.loads(json.dumps(base["config"]))
    config |= v.get("set", {})
    for key in v.get("without", ()):
        config.pop(key)
    for key, value in v.get("text", {}).items():
        if value is None:
            config["text_config"].pop(key)
        else:
            config["text_config"][key] = value
    (folder / "config.json").write_text(json.dumps(config))

    shapes = base["tensors"] | v.get("tensors", {})
    for name in v.get("drop", ()):
        shapes.pop(name)
    of = lambda name, salt=0: values(
        name, shapes[name], salt) if not isinstance(shapes[name], str) else of(shapes[name], salt)
    dtypes = v.get("dtypes", {})
    tensors = lambda salt: {n: (of(n, salt), dtypes.get(n, "F32")) for n in shapes}
    files = v.get("files", {"model.safetensors": {}})
    index = {}
    for file, part in files.items():
        held = {name: x for name, x in tensors(part.get("salt", 0)).items()
                if name.startswith(part.get("only", ""))
                and not ("except" in part and name.startswith(part["except"]))}
        write_safetensors(folder / file, held)
        if part.get("named", True):
            index |= dict.fromkeys(held, file)
    for name in v.get("unnamed", ()):
        index.pop(name)
    if "files" in v and not v.get("no_index"):
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index}))


def with_vision(folder):
    """transformers reads the text of the whole; the other part gets the weights that it asks for."""
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] = VISION
    (folder / "config.json").write_text(json.dumps(config))
    return Llama4ForConditionalGeneration


def loss_of(folder, of, tokens):
    cls = with_vision(folder) if of == "llama4" else AutoModelForCausalLM
    model, info = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    missing = [k for k in info["missing_keys"] if "vision" not in k and "multi_modal" not in k]
    if missing or info["unexpected_keys"] or info["mismatched_keys"] or info["error_msgs"]:
        raise ValueError(f"keys: {missing} {info['unexpected_keys']}")
    with torch.no_grad():
        text = model.language_model if of == "llama4" else model
        logits = text.eval()(input_ids=tokens).logits[0].double()
    return float(torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:]))


def names_of(config):
    """Tensors as they lie in files, of a model that transformers saves itself."""
    with tempfile.TemporaryDirectory() as folder:
        kind = AutoConfig.for_model(**json.loads(json.dumps(config)))
        if config["model_type"] == "llama4":
            kind = type(kind)(text_config=config["text_config"], vision_config=VISION)
            model = Llama4ForConditionalGeneration(kind)
        else:
            model = AutoModelForCausalLM.from_config(kind)
        model.save_pretrained(folder)
        with open(f"{folder}/model.safetensors", "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    header.pop("__metadata__", None)
    return {name: t["shape"] for name, t in header.items()
            if "vision" not in name and "multi_modal" not in name}


def main():
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    tokens = (np.arange(LENGTH) * 7 + np.arange(LENGTH)**2 * 3 + 5) % 40
    golden = {"tokens": tokens.tolist(),
              "bases": {of: {"config": c, "tensors": names_of(c)} for of, c in bases().items()}}
    rows = []
    for v in variants():
        base = golden["bases"][v["of"]]
        with tempfile.TemporaryDirectory() as parent:
            folder = pathlib.Path(parent) / "model"
            make_folder(folder, base, v)
            try:
                v["loss"] = round(loss_of(folder, v["of"], torch.tensor(tokens[None])), 7)
            except Exception as error:  # of any kind: the folder is refused
                v["loss"] = None
                v["why"] = f"{type(error).__name__}: {str(error).strip()}".replace(parent, "")[:160]
        rows.append(v)
        print(v["of"], "|", v["name"], "|", v["loss"], v.pop("why", ""), file=sys.stderr)
    text = ",\n".join(json.dumps(row) for row in rows)
    head = ",\n".join(f"{json.dumps(of)}: {json.dumps(base)}" for of, base in
                      golden["bases"].items())
    OUT.write_text(f'{{"tokens": {golden["tokens"]},\n"bases": {{\n{head}}},\n'
                   f'"variants": [\n{text}]}}\n')


if __name__ == "__main__":
    main()

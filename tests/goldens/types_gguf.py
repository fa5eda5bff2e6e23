# SPDX-License-Identifier: Apache-2.0
"""Compares the GGUF files of `tessera export-gguf` with what others make of the same models: the
tiny ones of types/ (a case's first word), changed as types_gguf.json says, with weights by the
formula of model_types.py.
Needs: pip install torch transformers==5.24.0 accelerate gguf xllamacpp

    python3 tests/goldens/types_gguf.py build/ci/bin/tessera             # all types
    python3 tests/goldens/types_gguf.py build/ci/bin/tessera qwen2 phi3  # some

Names, shapes and values against the tensors of the checkpoint, by the package's map of their names
and by what llama.cpp's converter does to values. Logits of transformers, where it reads such files.
Logits of llama.cpp after texts of several lengths within the context that the file says. The lines
of types_gguf.txt, which types_gguf_test.cpp makes without other programs.
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from model_types import SINGLE, load, stored, text, u  # computes in f64 from here on
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
CHANGES = json.loads((HERE / "types_gguf.json").read_text())
PAIRS = {"llama", "granite", "granitemoe", "smollm3"}  # architectures that turn adjacent pairs


def make(name, folder):
    golden = json.loads((HERE / "types" / f"{name.split()[0]}.json").read_text())
    config = golden["config"][0] | CHANGES[name]
    config = {k: v for k, v in config.items() if k not in CHANGES[name] or v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    weights, _ = stored(model)
    gemma = config["model_type"].startswith("gemma")
    drawn = {}
    for key, x in weights.items():
        scale = 3 / math.sqrt(x.shape[-1]) if x.dim() > 1 else 0.3
        centre = 1 if key.endswith("norm.weight") and not gemma else 0
        drawn[key] = (scale * u(key, list(x.shape)) + centre).to(SINGLE).contiguous()
    save_file(drawn, folder / "model.safetensors", {"format": "pt"})
    # The same values in f64, which is what torch.float32 is here.
    (folder / "wide").mkdir()
    save_file({key: x.to(torch.float64) for key, x in drawn.items()},
              folder / "wide" / "model.safetensors", {"format": "pt"})
    return config, {key: x.numpy() for key, x in drawn.items()}


def adjacent(x, head_dim):
    """The rows of each head, from halves to adjacent pairs."""
    return x.reshape(-1, 2, head_dim // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def expected_tensors(config, arch, weights):
    """What llama.cpp's converter makes of a checkpoint."""
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    out, experts = {}, {}
    for key, x in weights.items():
        if re.search(r"\.experts\.\d+\.", key):
            experts[key] = x
            continue
        if key == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if key.endswith("norm.weight") and arch.startswith("gemma"):
            x = x + np.float32(1)
        if arch in PAIRS and re.search(r"[qk]_proj\.", key):
            x = adjacent(x, head_dim)
        if "query_key_value" in key:  # heads take turns
            x = x.reshape(-1, 3, head_dim, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        if key.endswith("input_linear.weight"):
            gate, up = np.split(x, 2, axis=1)
            layer = key.split(".")[2]
            out[f"blk.{layer}.ffn_gate_exps.weight"] = gate
            out[f"blk.{layer}.ffn_up_exps.weight"] = up
            continue
        out[names.get_name(key, try_suffixes=(".weight", ".bias"))] = x.squeeze()
    for key in experts:
        if ".experts.0." in key:
            whole = key.replace(".experts.0.", ".experts.")
            stack = [experts[key.replace(".experts.0.", f".experts.{e}.")]
                     for e in range(config.get("num_experts") or config["num_local_experts"])]
            out[names.get_name(whole, try_suffixes=(".weight",))] = np.stack(stack)
    return out


def compare_tensors(reader, config, weights):
    arch = reader.get_field("general.architecture").contents()
    expected = expected_tensors(config, arch, weights)
    tables = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
    seen = {t.name: t.data for t in reader.tensors if t.name not in tables}
    assert set(seen) == set(expected), set(seen) ^ set(expected)
    for name, x in expected.items():
        assert np.array_equal(seen[name].reshape(x.shape), x), name
        assert seen[name].shape == x.shape, (name, seen[name].shape, x.shape)
    return len(seen)


class TheirGelu(torch.nn.Module):
    """The tanh approximation, from a table of f16."""

    def forward(self, x):
        wide = x.to(torch.float16).to(torch.float64)
        y = torch.nn.functional.gelu(wide, approximate="tanh").to(torch.float16).to(torch.float64)
        return torch.where(x.abs() < 10, y, x.clamp(min=0))


def with_their_gelu(model):
    for module in model.modules():
        for name in ("act_fn", "act"):
            if hasattr(module, name):
                setattr(module, name, TheirGelu())


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def logits_of_transformers(file, config, tokens):
    """None where transformers does not read the architecture."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
    arch = gguf.GGUFReader(file).get_field("general.architecture").contents()
    if arch not in {a.replace("_", "") for a in GGUF_SUPPORTED_ARCHITECTURES}:
        return None
    if arch == "llama":
        if "num_local_experts" in config:  # it knows dense ones alone
            return None
        config = config | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (file.parent / "config.json").write_text(json.dumps(config))
    model, info = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, config=AutoConfig.from_pretrained(file.parent),
        dtype=torch.float64, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        return model.double().eval()(tokens).logits


def with_vocabulary(file, out, n):
    """llama.cpp needs a tokenizer; texts are given as ids."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    marks = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    writer.add_token_list(marks + [f"w{i}" for i in range(len(marks), n)])
    writer.add_token_scores([0.0] * n)
    writer.add_token_types([2, 3, 3, 3] + [1] * (n - 4))
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


RUN = """
import json, sys
import xllamacpp as x
p = x.CommonParams()
p.model.path, p.warmup, p.n_parallel, p.n_gpu_layers = sys.argv[1], False, 1, 0
p.n_ctx = int(sys.argv[3])
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
p.cpuparams.n_threads = 1
p.fit_params = False
server = x.Server(p)
out = []
for prompt in json.loads(sys.argv[2]):
    answer = server.handle_completions({"prompt": prompt, "n_predict": 1, "n_probs": 1000,
                                        "temperature": 1.0, "cache_prompt": False})
    answer = answer if isinstance(answer, dict) else json.loads(answer)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    out.append({p["id"]: p["logprob"] for p in top})
print("RESULT" + json.dumps(out))
"""


def logprobs_of_llama_cpp(file, prompts, context):
    run = subprocess.run([sys.executable, "-c", RUN, str(file), json.dumps(prompts), str(context)],
                         capture_output=True, text=True, timeout=300)
    line = next((l for l in run.stdout.splitlines() if l.startswith("RESULT")), None)
    assert line, (run.stdout[-500:], run.stderr[-3000:])
    return [{int(k): v for k, v in row.items()} for row in json.loads(line[6:])]


def compare_llama_cpp(file, config, reference, tokens):
    arch = file_value(file, "general.architecture")
    context = int(file_value(file, f"{arch}.context_length"))
    lengths = [n for n in (1, 3, 4, 5, 9, tokens.shape[1]) if n < context]
    rows = logprobs_of_llama_cpp(file, [tokens[0, :n].tolist() for n in lengths], context)
    worst = 0.0
    for n, row in zip(lengths, rows):
        expected = reference[0, n - 1].log_softmax(-1)
        # Marks of the vocabulary may be left out of the answer.
        worst = max(worst, max(abs(v - expected[i].item()) for i, v in row.items() if v > -1e5))
        assert len(row) >= len(expected) - 3, (len(row), len(expected))
    return worst, lengths


def file_value(file, key):
    return gguf.GGUFReader(file).get_field(key).contents()


def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 * (i & 1))
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def compare_text(name, reader):
    """The committed lines of the case are of this file."""
    lines = (HERE / "types_gguf.txt").read_text().split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(name + ": "))
    arch = lines[at].split(": ")[1]
    mine = [line.strip() for line in lines[at + 1:]]
    mine = mine[:next(i for i, line in enumerate(mine) if line.startswith("and "))]
    tensors = {t.name: t for t in reader.tensors}
    for line in mine:
        words = line.split()
        if words[1:2] == ["="]:
            value = reader.get_field(f"{arch}.{words[0]}").contents()
            same = (value == words[2] if isinstance(value, str) else
                    abs(float(words[2]) - float(value)) <= 1e-5 * abs(value))
            assert same, (line, value)
        elif not words[0].startswith("rope_"):
            data = tensors[words[0]].data
            assert int(words[-1]) == crc32c(np.ascontiguousarray(data).tobytes()), line
            shape = [int(n) for n in re.findall(r"\d+", " ".join(words[1:-1]))]
            assert shape == list(data.shape), line
    return len(mine)


def check(name, tessera):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "hf").mkdir()
        (folder / "gguf").mkdir()
        config, weights = make(name, folder / "hf")
        file = folder / "gguf" / "m.gguf"
        ours = folder / "ours"
        for words in (["import-hf", folder / "hf", "--out", ours],
                      ["export-gguf", "--checkpoint", ours, "--out", file, "--type", "f32"]):
            subprocess.run([tessera, *map(str, words)], check=True, capture_output=True)
        reader = gguf.GGUFReader(file)
        said = [f"{compare_tensors(reader, config, weights)} tensors"]
        model, wrong = load(folder / "hf" / "wide", config)
        assert not wrong, wrong
        tokens = text("tokens")
        with torch.no_grad():
            reference = model(tokens).logits
        theirs = logits_of_transformers(file, config, tokens)
        # In windows that the file does not speak of all tokens see each other up to its context.
        context = file_value(file, f"{file_value(file, 'general.architecture')}.context_length")
        far = 0.0 if theirs is None else distance(theirs[:, :context], reference[:, :context])
        said.append("not read by transformers" if theirs is None else f"transformers {far:.1e}")
        if "gelu" in json.dumps(config):
            with_their_gelu(model)
            with torch.no_grad():
                reference = model(tokens).logits
        with_vocabulary(file, folder / "v.gguf", config["vocab_size"])
        worst, lengths = compare_llama_cpp(folder / "v.gguf", config, reference, tokens)
        said.append(f"llama.cpp {worst:.1e} at {lengths}")
        said.append(f"{compare_text(name, reader)} lines")
        print(name, *said, sep="; ", flush=True)
        # A rounding to f16 may fall the other way.
        return far < 1e-5 and worst < (2e-3 if "gelu" in json.dumps(config) else 1e-4)


if __name__ == "__main__":
    failed = []
    for name in sys.argv[2:] or CHANGES:
        try:
            ok = check(name, sys.argv[1])
        except subprocess.CalledProcessError as error:
            ok = print(name, error.stderr.decode()[-2000:])
        except Exception as error:
            ok = print(name, type(error).__name__, str(error)[-3000:])
        failed += [] if ok else [name]
    sys.exit(f"differ: {failed}" if failed else 0)
